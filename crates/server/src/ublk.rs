//! Volumes as local block devices, by the kernel's ublk driver.
//!
//! A `LocalDevice` is a device and its life: made or taken over, started, stopped, deleted. A
//! `LocalQueue` is the session of one of its hardware queues, which a worker serves: it turns the
//! kernel's requests into requests of the cache. [`uses()`] finds the users of a block device.

mod device;
mod ending;
mod local_queue;
mod names;
mod others;
mod uses;

pub(crate) use device::{LocalDevice, LocalDevices, LocalVolume};
pub(crate) use ending::Ending;
pub use floe_ublk::{UblkError, protect_memory};
pub(crate) use local_queue::{LocalQueue, LocalRequest, QueueOrder};
pub use others::{Found, check_driver, delete, find};
pub use uses::uses;
