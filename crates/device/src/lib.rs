//! Block devices behind one trait.
//!
//! A [`Device`] takes [`Operation`]s and gives back [`Completion`]s, in any order, without ever blocking.
//! One thread owns a device; a thread's devices and sockets share one [`Ring`] (io_uring), so that one wait
//! covers them all. Devices that finish by the clock rather than by the ring (a slowed-down medium, a delayed
//! fault) say through [`Device::next_due`] when they want to be polled next.
//!
//! Bytes live in [`Buffer`]s cut from a [`Pool`] whose memory is registered with the ring. An operation holds a
//! [`Slice`] of a buffer, so the memory outlives the kernel's use of it whatever the caller does.
