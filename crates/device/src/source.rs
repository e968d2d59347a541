//! Open devices, from which every thread opens its own handle.
//!
//! Work that is done once (creating a file, locking it, reserving memory) is done when a [`Source`]
//! is created; each thread then has a handle of its own on its own ring. All handles are the same
//! device: the same bytes, and if it imitates a medium, one medium with one bandwidth.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::buffer::Pool;
use crate::device::Device;
use crate::fault::{Script, ScriptedDevice};
use crate::file::OpenError;
use crate::identity::Identity;
use crate::medium::{Medium, MediumDevice, SharedMedium};
use crate::mirror::{MirrorSource, MirrorStatus, MirrorWatch};
use crate::rbd::RbdSource;
use crate::ring::Ring;
use crate::volatile::VolatileDisk;

/// Seed for the latencies of an imitated medium in a device specification. It is fixed so that runs
/// can be compared.
pub const MEDIUM_SEED: u64 = 0xF10E;

/// A prepared device, from which every thread opens a handle. Each kind of device implements this
/// trait.
pub(crate) trait PreparedDevice: fmt::Debug + Send + Sync {
    /// Returns the size in bytes when the device was prepared or last refreshed.
    fn size_bytes(&self) -> u64;

    /// Returns the name shown to operators, made of the device's paths.
    fn name(&self) -> String;

    /// Returns the facts that distinguish the device from others, constant over restarts.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// Returns whether one of the device's paths is a kernel name for a disk, which may denote
    /// another disk later.
    fn has_kernel_name(&self) -> bool {
        false
    }

    /// Measures the device's size in bytes.
    ///
    /// # Errors
    /// When the size cannot be determined, is invalid for a device, or is fixed.
    fn refresh(&self) -> io::Result<u64>;

    /// Makes the device at least `bytes` long, if it is shorter. See [`Source::grow`].
    ///
    /// # Errors
    /// When the device cannot have that size; it stays as it is.
    fn grow(&self, bytes: u64) -> Result<(), OpenError> {
        match bytes <= self.size_bytes() {
            true => Ok(()),
            false => Err(OpenError::FixedSize { name: self.name() }),
        }
    }

    /// Opens a thread's handle.
    ///
    /// # Errors
    /// Names the device and the step that failed.
    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError>;

    /// Returns the imitated disk with a volatile write cache, if the device has one.
    fn volatile(&self) -> Option<VolatileDisk> {
        None
    }

    /// Returns the Ceph image, if the device is one.
    fn image(&self) -> Option<&RbdSource> {
        None
    }

    /// Returns the mirror, if the device is one.
    fn mirror(&self) -> Option<&MirrorSource> {
        None
    }
}

/// The slower medium and the faults that a device imitates.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Imitation {
    pub(crate) medium: Option<Medium>,
    /// The file with the rules for injected faults.
    pub(crate) faults: Option<PathBuf>,
}

/// A prepared device, from which threads open handles. Clones share the device.
#[derive(Debug, Clone)]
pub struct Source {
    device: Arc<dyn PreparedDevice>,
    medium: Option<SharedMedium>,
    faults: Option<Script>,
}

impl Source {
    /// Creates a source with imitated faults and medium. `number` distinguishes the members of a
    /// stripe.
    pub(crate) fn new(
        device: impl PreparedDevice + 'static,
        imitation: &Imitation,
        number: u64,
    ) -> Source {
        let medium = imitation.medium.clone();
        Source {
            device: Arc::new(device),
            medium: medium.map(|medium| SharedMedium::new(medium, MEDIUM_SEED + number)),
            faults: imitation.faults.as_ref().map(Script::new),
        }
    }

    /// Returns access to the status of a mirror; `None` for other devices.
    pub fn mirror_watch(&self) -> Option<MirrorWatch> {
        self.device.mirror().map(MirrorSource::watch)
    }

    /// Returns the status of a mirror; `None` for other devices.
    pub fn mirror_status(&self) -> Option<MirrorStatus> {
        self.device.mirror().map(MirrorSource::status)
    }

    /// Returns the Ceph image, if the device is one.
    pub fn image(&self) -> Option<&RbdSource> {
        self.device.image()
    }

    /// Returns the size in bytes when the device was prepared or last refreshed.
    pub fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    /// Returns the facts that distinguish the device from others, constant over restarts. Empty for
    /// memory.
    pub fn identity(&self) -> Identity {
        self.device.identity()
    }

    /// Returns the name shown to operators, made of the device's paths.
    pub fn name(&self) -> String {
        self.device.name()
    }

    /// Returns whether one of the device's paths is a kernel name for a disk, such as `/dev/sdb`,
    /// which may denote another disk after a boot.
    pub fn has_kernel_name(&self) -> bool {
        self.device.has_kernel_name()
    }

    /// Measures the device's size again (live resize) and returns it in bytes. Handles opened from
    /// here on have that size; open ones adopt it with [`Device::set_size`].
    ///
    /// # Errors
    /// When the size cannot be determined or is invalid for a device, and for memory, whose size is
    /// fixed.
    pub fn refresh(&self) -> io::Result<u64> {
        self.device.refresh()
    }

    /// Makes the device at least `bytes` long: a file gets longer, and memory is added. A block
    /// device must have that size already, and so must a stripe, a mirror or a device on a network.
    /// Open handles adopt it with [`Device::set_size`].
    ///
    /// # Errors
    /// When the device cannot have that size; it stays as it is.
    pub fn grow(&self, bytes: u64) -> Result<(), OpenError> {
        self.device.grow(bytes)
    }

    /// Opens a handle for the thread that owns this ring and pool.
    ///
    /// # Errors
    /// Names the device and the reason.
    pub fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        let mut device = self.device.open(ring, pool)?;
        if let Some(script) = &self.faults {
            let disk = self.device.volatile();
            device = Box::new(ScriptedDevice::new(device, script.clone(), disk));
        }
        if let Some(medium) = &self.medium {
            device = Box::new(MediumDevice::sharing(device, medium.clone()));
        }
        Ok(device)
    }
}
