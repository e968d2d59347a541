//! The volumes of a server, on backing devices that each of its threads opens for itself.

use std::fmt;
use std::sync::Arc;

use floe_device::{Device, Identity, OpenError, Pool, Ring, Source};

/// A device that every thread of a server opens for itself; all handles refer to one device.
pub trait DeviceSource: fmt::Debug + Send + Sync {
    /// Returns its size in bytes at the last [`DeviceSource::refresh`], or at the start.
    fn size_bytes(&self) -> u64;

    /// Returns the device's identity, which stays the same at every start of the program.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// Returns the name by which users know it.
    fn name(&self) -> String {
        "the device given".to_owned()
    }

    /// Returns whether another disk may have this name after a boot.
    fn has_kernel_name(&self) -> bool {
        false
    }

    /// Reads its size again and returns it.
    ///
    /// # Errors
    /// When the size cannot be read, or never changes.
    fn refresh(&self) -> std::io::Result<u64>;

    /// Opens a handle for the thread with this ring and pool.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError>;
}

impl DeviceSource for Source {
    fn size_bytes(&self) -> u64 {
        Source::size_bytes(self)
    }

    fn identity(&self) -> Identity {
        Source::identity(self)
    }

    fn name(&self) -> String {
        Source::name(self)
    }

    fn has_kernel_name(&self) -> bool {
        Source::has_kernel_name(self)
    }

    fn refresh(&self) -> std::io::Result<u64> {
        Source::refresh(self)
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Source::open(self, ring, pool)
    }
}

/// A volume to offer.
#[derive(Debug, Clone)]
pub struct Volume {
    /// The name clients ask for.
    pub name: String,
    /// A description for users; may be empty.
    pub description: String,
    /// The backing device.
    pub backing: Arc<dyn DeviceSource>,
    /// Refuse clients' writes.
    pub read_only: bool,
}
