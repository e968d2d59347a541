//! An image of Ceph's block store (RBD), through librbd.
//!
//! The library is opened when the first image is: Floe is not linked to it, and runs without.
//! librbd keeps no data here (its own cache is off, since Floe is one), so a write is answered when
//! every replica has it on stable storage.
//!
//! All threads of the server share one handle of the image. A thread's operations end on threads of
//! the library, which leave the results in the thread's mailbox and wake its ring.
//!
//! Who writes takes the image's exclusive lock for as long as the image is open. librbd hands an
//! implicit lock back and forth at every write of another client; the explicit one it refuses to
//! others.

mod device;
mod image;
mod library;
mod lock;
mod name;

pub use device::RbdDevice;
pub use image::RbdSource;
pub use lock::RbdWatch;
pub use name::{RbdError, RbdName};
