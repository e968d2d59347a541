//! Devices that every thread opens for itself.
//!
//! What must be done once (creating a file, locking it, reserving memory) is done when a [`Source`] is made; each thread
//! then has a handle of its own on its own ring. All handles are the same device: the same bytes, and if it imitates a
//! medium, one medium with one bandwidth.

use crate::Device;
use crate::buffer::Pool;
use crate::file::{FileDevice, FileOptions, FileSource, OpenError};
use crate::medium::{Medium, MediumDevice, SharedMedium};
use crate::memory::MemoryDevice;
use crate::ring::Ring;

/// Seed of the latencies of a medium asked for by text, so that runs can be compared.
const MEDIUM_SEED: u64 = 0xF10E;

/// A device, made ready, that threads open. Clones are the same device.
#[derive(Debug, Clone)]
pub struct Source {
    kind: Kind,
    medium: Option<SharedMedium>,
}

#[derive(Debug, Clone)]
enum Kind {
    File(FileSource),
    Memory(MemoryDevice),
}

impl Source {
    /// A file or block device; it is opened, and locked against other processes.
    pub(crate) fn file(
        path: impl AsRef<std::path::Path>,
        options: &FileOptions,
    ) -> Result<Source, OpenError> {
        Ok(Source { kind: Kind::File(FileSource::prepare(path, options)?), medium: None })
    }

    /// Memory, zero at first.
    pub(crate) fn memory(size: u64) -> Result<Source, OpenError> {
        let device = MemoryDevice::try_new(size).map_err(|source| OpenError::Memory { size, source })?;
        Ok(Source { kind: Kind::Memory(device), medium: None })
    }

    /// The same device, made to behave like a slower medium.
    pub(crate) fn slowed(self, medium: Option<&Medium>) -> Source {
        let medium = medium.map(|medium| SharedMedium::new(medium.clone(), MEDIUM_SEED));
        Source { medium, ..self }
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        match &self.kind {
            Kind::File(file) => file.size_bytes(),
            Kind::Memory(memory) => memory.size_bytes(),
        }
    }

    /// A handle of it, for the thread whose ring and pool these are.
    ///
    /// # Errors
    /// Names the file and what was wrong with it.
    pub fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Ok(match &self.kind {
            Kind::File(file) => self.opened(FileDevice::new(ring, pool, file)),
            Kind::Memory(memory) => self.opened(memory.clone()),
        })
    }

    fn opened(&self, device: impl Device + 'static) -> Box<dyn Device> {
        match &self.medium {
            Some(medium) => Box::new(MediumDevice::sharing(device, medium.clone())),
            None => Box::new(device),
        }
    }
}
