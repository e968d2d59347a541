//! Devices as text: `file:/srv/cache,size=10GiB,medium=nvme`, `memory:64MiB`,
//! `stripe:/dev/sdb+/dev/sdc`, `rbd:POOL/IMAGE` or `nbd://HOST:PORT/EXPORT`.
//!
//! `medium=` imitates a kind of storage ([`Medium`]), with `interference=off` one whose reads
//! writes do not slow, to tell what that does. `faults=FILE` has it fail as a file says, for tests
//! ([`crate::fault::Script`]); no help tells of it. `write-cache=volatile` makes files lose what
//! was not flushed when the process ends, for tests ([`crate::VolatileDisk`]).
//!
//! The form of the command line and of configuration files. A comma ends the path and separates
//! settings; anything else, also `=` and `:`, may be part of the path, only `+` ends a path of a
//! stripe. Printing a [`Spec`] gives text that parses to the same.
//!
//! A path that begins with `/`, `./` or `../` may stand alone: `/dev/vdb` is `file:/dev/vdb`.

mod error;
mod text;

use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub use self::error::SpecError;
use crate::Device;
use crate::buffer::Pool;
use crate::file::{FileOptions, OpenError};
use crate::medium::Medium;
use crate::nbd::NbdName;
use crate::rbd::RbdName;
use crate::ring::Ring;
use crate::source::{MEDIUM_SEED, Source, most_memory};
use crate::stripe::Layout;

/// A device's description, before it is opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    kind: Kind,
    /// Loses what is not flushed when the process ends.
    volatile: bool,
    medium: Option<Medium>,
    /// Where it stands what fails; of a stripe, in each member.
    faults: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    File { path: PathBuf, size: Option<u64> },
    Memory { size: u64 },
    Stripe { paths: Vec<PathBuf>, chunk: u64, size: Option<u64> },
    Nbd(NbdName),
    Rbd(RbdName),
}

/// The purpose for which a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The slow volume: exists, unless the spec gives a size to create it with.
    Backing {
        /// Never written to.
        read_only: bool,
    },
    /// The fast one: created when missing.
    Cache {
        /// Its size in bytes.
        size: u64,
    },
}

impl Spec {
    /// The size it names, if it does.
    pub fn size_bytes(&self) -> Option<u64> {
        match self.kind {
            Kind::File { size, .. } | Kind::Stripe { size, .. } => size,
            Kind::Memory { size } => Some(size),
            Kind::Nbd(_) | Kind::Rbd(_) => None,
        }
    }

    /// The size it names, or else what the files it names have now; `None` when one is missing,
    /// empty or unreadable.
    pub fn size_found(&self) -> Option<u64> {
        let smallest =
            || self.paths().iter().map(size_of_file).min().flatten().filter(|&bytes| bytes > 0);
        self.size_bytes().or_else(|| match &self.kind {
            Kind::Stripe { paths, chunk, .. } => {
                let layout = Layout { members: paths.len() as u64, chunk: *chunk };
                smallest().map(|bytes| layout.capacity(bytes)).filter(|&bytes| bytes > 0)
            }
            _ => smallest(),
        })
    }

    /// The files and block devices it names.
    pub fn paths(&self) -> &[PathBuf] {
        match &self.kind {
            Kind::File { path, .. } => std::slice::from_ref(path),
            Kind::Memory { .. } | Kind::Nbd(_) | Kind::Rbd(_) => &[],
            Kind::Stripe { paths, .. } => paths,
        }
    }

    /// True for an image of Ceph and an export of an NBD server, which lie in no folder.
    pub fn is_remote(&self) -> bool {
        matches!(self.kind, Kind::Nbd(_) | Kind::Rbd(_))
    }

    /// True for an image of Ceph.
    pub fn is_image(&self) -> bool {
        self.image().is_some()
    }

    /// The image of Ceph that it names.
    pub fn image(&self) -> Option<&RbdName> {
        match &self.kind {
            Kind::Rbd(name) => Some(name),
            _ => None,
        }
    }

    /// The chunks in which a stripe's members take turns; `None` where there is one device.
    pub fn chunk_bytes(&self) -> Option<u64> {
        match self.kind {
            Kind::Stripe { chunk, .. } => Some(chunk),
            _ => None,
        }
    }

    /// The medium it is to imitate.
    pub fn medium(&self) -> Option<&Medium> {
        self.medium.as_ref()
    }

    /// Does what is done once, however many threads then open the device: creates it if its role
    /// allows, checks its size, locks it.
    ///
    /// # Errors
    /// Names the file and what was wrong with it; a cache's size must be the one the spec gives, if
    /// it gives one.
    pub fn prepare(&self, role: Role) -> Result<Source, OpenError> {
        let wanted = match role {
            Role::Backing { .. } => self.size_bytes(),
            Role::Cache { size } => Some(size),
        };
        let read_only = role == Role::Backing { read_only: true };
        let finish = |source: Source, path: &Path, number| {
            let source = if self.volatile { source.losing_unflushed(path)? } else { source };
            let source = source.failing(self.faults.as_deref());
            Ok(source.slowed(self.medium.as_ref(), MEDIUM_SEED + number))
        };
        match (&self.kind, wanted) {
            (Kind::File { path, size: Some(size) }, Some(wanted)) if *size != wanted => {
                Err(OpenError::WrongSize { path: path.clone(), actual: *size, wanted })
            }
            (Kind::File { path, .. }, size) => {
                let options = FileOptions { size, create: size.is_some(), direct: true, read_only };
                finish(Source::file(path, &options)?, path, 0)
            }
            (Kind::Memory { size }, Some(wanted)) if *size != wanted => {
                Err(OpenError::WrongMemorySize { actual: *size, wanted })
            }
            (Kind::Memory { size }, _) => {
                // A cache fills up; of a backing device in memory only what is written takes any.
                if let (Role::Cache { .. }, Some(has)) =
                    (role, most_memory().filter(|has| size > has))
                {
                    return Err(OpenError::TooMuchMemory { size: *size, has });
                }
                let source = Source::memory(*size)?.failing(self.faults.as_deref());
                Ok(source.slowed(self.medium.as_ref(), MEDIUM_SEED))
            }
            (Kind::Nbd(name), Some(_)) => Err(OpenError::NotCache { name: name.to_string() }),
            (Kind::Nbd(name), None) => {
                let source = Source::nbd(name, read_only)?.failing(self.faults.as_deref());
                Ok(source.slowed(self.medium.as_ref(), MEDIUM_SEED))
            }
            (Kind::Rbd(name), Some(_)) => Err(OpenError::NotCache { name: name.to_string() }),
            (Kind::Rbd(name), None) => {
                let source = Source::rbd(name, read_only)?.failing(self.faults.as_deref());
                Ok(source.slowed(self.medium.as_ref(), MEDIUM_SEED))
            }
            (Kind::Stripe { chunk, size: Some(size), .. }, Some(wanted)) if *size != wanted => {
                Err(OpenError::StripeSize { room: *size, wanted, chunk: *chunk })
            }
            (Kind::Stripe { paths, chunk, .. }, size) => {
                let finish = |source, number: u64| finish(source, &paths[number as usize], number);
                Source::stripe(paths, *chunk, size, read_only, finish)
            }
        }
    }

    /// [`Spec::prepare`] and [`Source::open`], for a device of one thread.
    ///
    /// # Errors
    /// As theirs.
    pub fn open(&self, ring: &Ring, pool: &Pool, role: Role) -> Result<Box<dyn Device>, OpenError> {
        self.prepare(role)?.open(ring, pool)
    }
}

/// The present size of a file or block device.
fn size_of_file(path: &PathBuf) -> Option<u64> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    let seekable = kind.is_file() || kind.is_block_device();
    seekable.then(|| std::fs::File::open(path).ok()?.seek(SeekFrom::End(0)).ok()).flatten()
}
