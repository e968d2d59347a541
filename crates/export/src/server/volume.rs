//! What a server offers: volumes on backing devices that each of its threads opens for itself.

use std::fmt;
use std::sync::Arc;

use floe_device::{Device, Identity, OpenError, Pool, Ring, Source};

/// A device that every thread of a server opens for itself; all handles are the same device.
pub trait DeviceSource: fmt::Debug + Send + Sync {
    /// Its size in bytes when it was last looked at.
    fn size_bytes(&self) -> u64;

    /// What tells it from other devices, the same at every start of the program.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// What people know it by.
    fn name(&self) -> String {
        "the device given".to_owned()
    }

    /// Whether that is a name which another disk may have after a boot.
    fn has_kernel_name(&self) -> bool {
        false
    }

    /// Looks at its size again, and tells it.
    ///
    /// # Errors
    /// When it cannot be found out, or never changes.
    fn refresh(&self) -> std::io::Result<u64>;

    /// A handle for the thread with this ring and pool.
    ///
    /// # Errors
    /// What could not be opened, and why.
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
    /// What clients ask for.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// The backing device.
    pub backing: Arc<dyn DeviceSource>,
    /// Refuse clients' writes.
    pub read_only: bool,
}
