//! Block devices behind one trait.
//!
//! A [`Device`] takes [`Operation`]s and returns [`Completion`]s in any order, without ever
//! blocking. One thread owns a device; a thread's devices and sockets share one [`Ring`]
//! (io_uring), so that one wait covers them all. Some devices finish by the clock rather than by
//! the ring, such as a slowed-down medium or a delayed fault. They report through
//! [`Device::next_due`] when to poll them next.
//!
//! A [`Spec`] describes a device in text. It becomes a [`Source`], from which every thread opens a
//! handle of its own.
//!
//! Bytes live in [`Slice`]s of reference-counted [`Buffer`]s cut from a [`Pool`] whose memory is
//! registered with the ring. An operation holds its slice, so the memory outlives the kernel's use
//! of it whatever the caller does. [`Buffer::lend`] lets another thread work on a buffer.
#![allow(unsafe_code)] // io_uring and aligned buffers; each block says why it is sound

mod buffer;
mod device;
mod fault;
mod file;
mod identity;
pub mod medium;
mod memory;
mod mirror;
mod nbd;
mod place;
mod queue;
mod rbd;
mod ring;
mod s3;
mod socket;
mod source;
mod spec;
mod stripe;
mod system;
mod volatile;

pub use buffer::{Buffer, Lent, Pool, PoolStats, SECTOR_BYTES, Seed, Slice};
pub use device::{Action, Completion, Damage, Device, Extent, Halves, Judge, Operation, clip};
pub use fault::Script;
pub use file::{FileDevice, FileOptions, FileSource, OpenError};
pub use identity::{Fact, FactKind, Identity, Likeness};
pub use io_uring;
pub use medium::{Medium, MediumDevice, SharedMedium};
pub use memory::MemoryDevice;
pub use mirror::{
    FolderWitness, Generation, HalfStatus, ImageWitness, KnownWitness, MirrorDevice, MirrorRefusal,
    MirrorStatus, MirrorWatch, NoWitness, RaiseError, Witness,
};
pub use nbd::{NbdError, NbdName, NbdSocket};
pub use place::Place;
pub use rbd::{RbdDevice, RbdError, RbdName, RbdSource, RbdWatch};
pub use ring::{Event, Owner, RegisterError, Ring, RingError};
pub use s3::{S3Error, S3Name};
pub use socket::{SocketCompletion, SocketOutcome, Sockets};
pub use source::{MEDIUM_SEED, Source};
pub use spec::{Role, Spec, SpecError, parse_bytes};
pub use stripe::{CHUNK_BYTES, StripeDevice};
pub use system::{
    MemoryLimit, create_private, create_private_folder, end_process, kernel_release, patiently,
    peer_user,
};
pub use volatile::{Dirty, Habit, UNIT_BYTES, VolatileDevice, VolatileDisk, WriteCache};
