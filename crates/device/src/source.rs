//! Devices that every thread opens for itself.
//!
//! Work that is done once (creating a file, locking it, reserving memory) is done when a [`Source`]
//! is made; each thread then has a handle of its own on its own ring. All handles are the same
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

/// Seed of the latencies of a medium asked for by text, so that runs can be compared.
pub const MEDIUM_SEED: u64 = 0xF10E;

/// A device that was made ready, of which every thread opens a handle. Each kind implements it.
pub(crate) trait PreparedDevice: fmt::Debug + Send + Sync {
    /// Size in bytes when it was made ready or last refreshed.
    fn size_bytes(&self) -> u64;

    /// Name for people: its paths.
    fn name(&self) -> String;

    /// Facts that tell it from other devices, equal at every start of the program.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// Returns whether a path is a kernel's name for a disk, which another disk may have later.
    fn has_kernel_name(&self) -> bool {
        false
    }

    /// Measures its size.
    ///
    /// # Errors
    /// When the size cannot be found out, makes no device or is fixed.
    fn refresh(&self) -> io::Result<u64>;

    /// Opens a thread's handle.
    ///
    /// # Errors
    /// Names the device and the step that failed.
    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError>;

    /// The disk with a volatile write cache that it imitates.
    fn volatile(&self) -> Option<VolatileDisk> {
        None
    }

    /// The image of Ceph that it is.
    fn image(&self) -> Option<&RbdSource> {
        None
    }

    /// The mirror that it is.
    fn mirror(&self) -> Option<&MirrorSource> {
        None
    }
}

/// A slower medium, and faults, that a device imitates.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Imitation {
    pub(crate) medium: Option<Medium>,
    /// The file of its faults.
    pub(crate) faults: Option<PathBuf>,
}

/// A device, made ready, that threads open. Clones are the same device.
#[derive(Debug, Clone)]
pub struct Source {
    device: Arc<dyn PreparedDevice>,
    medium: Option<SharedMedium>,
    faults: Option<Script>,
}

impl Source {
    /// A device with the faults and the medium that it imitates; `number` tells a stripe's members
    /// apart.
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

    /// The state of a mirror's halves, to be looked at later.
    pub fn mirror_watch(&self) -> Option<MirrorWatch> {
        self.device.mirror().map(MirrorSource::watch)
    }

    /// The state of a mirror's halves.
    pub fn mirror_status(&self) -> Option<MirrorStatus> {
        self.device.mirror().map(MirrorSource::status)
    }

    /// The image of Ceph that it is.
    pub fn image(&self) -> Option<&RbdSource> {
        self.device.image()
    }

    /// Size in bytes when it was made ready or last refreshed.
    pub fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    /// The facts that tell it from other devices, the same at every start of the program. Nothing
    /// is known of memory.
    pub fn identity(&self) -> Identity {
        self.device.identity()
    }

    /// The name for people: the paths.
    pub fn name(&self) -> String {
        self.device.name()
    }

    /// True if one of its paths is a kernel's name for a disk, such as `/dev/sdb`, which another
    /// disk may have after a boot.
    pub fn has_kernel_name(&self) -> bool {
        self.device.has_kernel_name()
    }

    /// Measures its size anew (live resize). Handles opened from here on have that size; open ones
    /// take it by [`Device::set_size`].
    ///
    /// # Errors
    /// When the size cannot be found out or makes no device, and for memory, whose size is fixed.
    pub fn refresh(&self) -> io::Result<u64> {
        self.device.refresh()
    }

    /// A handle of it, for the thread whose ring and pool these are.
    ///
    /// # Errors
    /// Names the file and what was wrong with it.
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
