//! Devices that every thread opens for itself.
//!
//! Work that is done once (creating a file, locking it, reserving memory) is done when a [`Source`]
//! is made; each thread then has a handle of its own on its own ring. All handles are the same
//! device: the same bytes, and if it imitates a medium, one medium with one bandwidth.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{Pool, SECTOR_BYTES};
use crate::device::Device;
use crate::fault::{Script, ScriptedDevice};
use crate::file::{FileDevice, FileOptions, FileSource, OpenError};
use crate::identity::Identity;
use crate::medium::{Medium, MediumDevice, SharedMedium};
use crate::memory::MemoryDevice;
use crate::mirror::{HalfDevice, MirrorSource, MirrorStatus, MirrorWatch};
use crate::nbd::{NbdDevice, NbdError, NbdName, NbdSource};
use crate::rbd::{RbdDevice, RbdError, RbdName, RbdSource};
use crate::ring::Ring;
use crate::stripe::{Layout, StripeDevice};
use crate::volatile::{Habit, VolatileDevice, VolatileDisk};

/// Seed of the latencies of a medium asked for by text, so that runs can be compared.
pub const MEDIUM_SEED: u64 = 0xF10E;

/// A disk asked for by text that loses what is not flushed writes out some of it at least so often.
const RESTLESS: Duration = Duration::from_millis(20);

/// A device, made ready, that threads open. Clones are the same device.
#[derive(Debug, Clone)]
pub struct Source {
    kind: Kind,
    volatile: Option<VolatileDisk>,
    medium: Option<SharedMedium>,
    faults: Option<Script>,
}

#[derive(Debug, Clone)]
enum Kind {
    File(FileSource),
    Memory(MemoryDevice),
    Mirror(MirrorSource),
    Nbd(NbdSource),
    Rbd(RbdSource),
    Stripe {
        members: Arc<[Source]>,
        chunk: u64,
        /// A size it was given, less than the members may have room for.
        size: Option<u64>,
    },
}

impl Source {
    /// A file or block device; it is opened, and locked against other processes.
    pub(crate) fn file(path: impl AsRef<Path>, options: &FileOptions) -> Result<Source, OpenError> {
        Ok(Source {
            kind: Kind::File(FileSource::prepare(path, options)?),
            volatile: None,
            medium: None,
            faults: None,
        })
    }

    /// Devices in turn, chunk by chunk, which must be large enough for a size.
    pub(crate) fn stripe(
        chunk: u64,
        size: Option<u64>,
        members: impl FnOnce() -> Result<Vec<Source>, OpenError>,
    ) -> Result<Source, OpenError> {
        if let Some(size) = size
            && !size.is_multiple_of(SECTOR_BYTES)
        {
            return Err(OpenError::StripeUnit { size });
        }
        let members: Arc<[Source]> = members()?.into();
        let room = room(&members, chunk);
        let wanted = size.unwrap_or(SECTOR_BYTES);
        if room < wanted {
            return Err(OpenError::StripeSize { room, wanted, chunk });
        }
        Ok(Source {
            kind: Kind::Stripe { members, chunk, size },
            volatile: None,
            medium: None,
            faults: None,
        })
    }

    /// Memory, zero at first.
    pub(crate) fn memory(size: u64) -> Result<Source, OpenError> {
        let device =
            MemoryDevice::try_new(size).map_err(|source| OpenError::Memory { size, source })?;
        Ok(Source { kind: Kind::Memory(device), volatile: None, medium: None, faults: None })
    }

    /// A mirror that is open.
    pub(crate) fn mirror(mirror: MirrorSource) -> Source {
        Source { kind: Kind::Mirror(mirror), volatile: None, medium: None, faults: None }
    }

    /// The state of its halves, of a mirror, for others to look at.
    pub fn mirror_watch(&self) -> Option<MirrorWatch> {
        match &self.kind {
            Kind::Mirror(mirror) => Some(mirror.watch()),
            _ => None,
        }
    }

    /// The state of its halves, of a mirror.
    pub fn mirror_status(&self) -> Option<MirrorStatus> {
        match &self.kind {
            Kind::Mirror(mirror) => Some(mirror.status()),
            _ => None,
        }
    }

    /// An image of Ceph; it is opened, and locked against other clients.
    pub(crate) fn rbd(name: &RbdName, read_only: bool) -> Result<Source, OpenError> {
        let kind = Kind::Rbd(RbdSource::prepare(name, read_only)?);
        Ok(Source { kind, volatile: None, medium: None, faults: None })
    }

    /// The image of Ceph that it is.
    pub fn image(&self) -> Option<&RbdSource> {
        match &self.kind {
            Kind::Rbd(image) => Some(image),
            _ => None,
        }
    }

    /// An export of an NBD server; it is connected to.
    pub(crate) fn nbd(name: &NbdName, read_only: bool) -> Result<Source, OpenError> {
        let kind = Kind::Nbd(NbdSource::prepare(name, read_only)?);
        Ok(Source { kind, volatile: None, medium: None, faults: None })
    }

    /// The same device, made to behave like a slower medium.
    pub(crate) fn slowed(self, medium: Option<&Medium>, seed: u64) -> Source {
        let medium = medium.map(|medium| SharedMedium::new(medium.clone(), seed));
        Source { medium, ..self }
    }

    /// The same device, made to fail as a file says.
    pub(crate) fn failing(self, faults: Option<&Path>) -> Source {
        Source { faults: faults.map(Script::new), ..self }
    }

    /// The same file, made to behave like a disk that loses what was not flushed when the process
    /// ends.
    pub(crate) fn losing_unflushed(self, path: &Path) -> Result<Source, OpenError> {
        let Kind::File(file) = &self.kind else { return Ok(self) };
        let seed = RandomState::new().hash_one(path);
        let (file, habit) = (file.clone(), Habit::Restless { at_most: RESTLESS, seed });
        let disk = VolatileDisk::start(habit, move |ring, pool| FileDevice::new(ring, pool, &file));
        let failed = |source| OpenError::System {
            what: "imitate the write cache of",
            path: path.to_owned(),
            source,
        };
        Ok(Source { volatile: Some(disk.map_err(failed)?), ..self })
    }

    /// Its size when it was made ready or last refreshed.
    pub fn size_bytes(&self) -> u64 {
        match &self.kind {
            Kind::File(file) => file.size_bytes(),
            Kind::Memory(memory) => memory.size_bytes(),
            Kind::Mirror(mirror) => mirror.size_bytes(),
            Kind::Nbd(export) => export.size_bytes(),
            Kind::Rbd(image) => image.size_bytes(),
            Kind::Stripe { size: Some(size), .. } => *size,
            Kind::Stripe { members, chunk, size: None } => room(members, *chunk),
        }
    }

    /// The facts that tell it from other devices, the same at every start of the program. Nothing
    /// is known of memory.
    pub fn identity(&self) -> Identity {
        match &self.kind {
            Kind::File(file) => file.identity(),
            Kind::Memory(_) => Identity::default(),
            Kind::Mirror(mirror) => mirror.identity(),
            Kind::Nbd(export) => export.identity(),
            Kind::Rbd(image) => image.identity(),
            Kind::Stripe { members, .. } => {
                Identity::of_stripe(&members.iter().map(Source::identity).collect::<Vec<_>>())
            }
        }
    }

    /// Its name for people: its paths.
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::File(file) => file.path().display().to_string(),
            Kind::Memory(_) => "memory".to_owned(),
            Kind::Mirror(mirror) => mirror.name(),
            Kind::Nbd(export) => export.name().to_string(),
            Kind::Rbd(image) => format!("rbd:{}", image.name()),
            Kind::Stripe { members, .. } => {
                members.iter().map(Source::name).collect::<Vec<_>>().join("+")
            }
        }
    }

    /// True if one of its paths is a kernel's name for a disk, such as `/dev/sdb`, which another
    /// disk may have after a boot.
    pub fn has_kernel_name(&self) -> bool {
        match &self.kind {
            Kind::File(file) => file.has_kernel_name(),
            // A half is told by its header.
            Kind::Mirror(_) | Kind::Memory(_) | Kind::Nbd(_) | Kind::Rbd(_) => false,
            Kind::Stripe { members, .. } => members.iter().any(Source::has_kernel_name),
        }
    }

    /// Looks how large it is now (live resize). Handles opened from here on have that size; open
    /// ones take it by [`Device::set_size`].
    ///
    /// # Errors
    /// When the size cannot be found out or makes no device, and for memory, whose size is fixed.
    pub fn refresh(&self) -> io::Result<u64> {
        match &self.kind {
            Kind::File(file) => file.refresh(),
            Kind::Nbd(export) => export.refresh(),
            Kind::Rbd(image) => image.refresh(),
            Kind::Memory(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "a memory device cannot be resized"))
            }
            Kind::Mirror(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "a mirror cannot be resized"))
            }
            Kind::Stripe { members, chunk, size } => {
                members.iter().try_for_each(|member| member.refresh().map(drop))?;
                let room = room(members, *chunk);
                if room < size.unwrap_or(SECTOR_BYTES) {
                    let message = format!("the stripe's members have room for {room} bytes only");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                Ok(self.size_bytes())
            }
        }
    }

    /// A handle of it, for the thread whose ring and pool these are.
    ///
    /// # Errors
    /// Names the file and what was wrong with it.
    pub fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Ok(match &self.kind {
            Kind::File(file) => {
                let device = FileDevice::new(ring, pool, file);
                match &self.volatile {
                    Some(disk) => self.opened(VolatileDevice::new(device, disk.clone())),
                    None => self.opened(device),
                }
            }
            Kind::Memory(memory) => self.opened(memory.clone()),
            Kind::Mirror(mirror) => self.opened(mirror.open(ring, pool)?),
            Kind::Nbd(export) => {
                let device = NbdDevice::new(ring, export).map_err(|source| NbdError::System {
                    export: export.name().to_string(),
                    source,
                });
                self.opened(device?)
            }
            Kind::Rbd(image) => {
                let device = RbdDevice::new(ring, image).map_err(|source| RbdError::Image {
                    what: "wait for",
                    image: image.name().to_string(),
                    source,
                });
                self.opened(device?)
            }
            Kind::Stripe { members, chunk, .. } => {
                let members = members.iter().map(|member| member.open(ring, pool));
                let stripe = StripeDevice::new(members.collect::<Result<Vec<_>, _>>()?, *chunk);
                Box::new(stripe.cut_to(self.size_bytes()))
            }
        })
    }

    fn opened(&self, device: impl Device + 'static) -> Box<dyn Device> {
        match &self.faults {
            Some(script) => {
                self.paced(ScriptedDevice::new(device, script.clone(), self.volatile.clone()))
            }
            None => self.paced(device),
        }
    }

    fn paced(&self, device: impl Device + 'static) -> Box<dyn Device> {
        match &self.medium {
            Some(medium) => Box::new(MediumDevice::sharing(device, medium.clone())),
            None => Box::new(device),
        }
    }
}

impl HalfDevice for Source {
    fn size_bytes(&self) -> u64 {
        Source::size_bytes(self)
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> io::Result<Box<dyn Device>> {
        Source::open(self, ring, pool).map_err(io::Error::other)
    }
}

/// The size of the largest stripe of the members.
fn room(members: &[Source], chunk: u64) -> u64 {
    let smallest = members.iter().map(Source::size_bytes).min().unwrap_or(0);
    Layout { members: members.len() as u64, chunk }.capacity(smallest)
}
