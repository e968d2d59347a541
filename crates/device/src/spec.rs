//! Devices as text: `file:/srv/cache,size=10GiB,medium=nvme`, `memory:64MiB`,
//! `stripe:/dev/sdb+/dev/sdc` (or of images or exports), `mirror:/dev/sdb+nbd://HOST/EXPORT`,
//! `rbd:POOL/IMAGE` or `nbd://HOST:PORT/EXPORT`.
//!
//! `medium=` imitates a kind of storage ([`Medium`]), with `interference=off` one whose reads
//! writes do not slow, to tell what that does, and with `iops=N` and `bandwidth=SIZE` one that does
//! so many operations and bytes a second in each direction. `faults=FILE` has it fail as a file
//! says, for tests ([`crate::fault::Script`]); no help tells of it. `write-cache=volatile` makes
//! files lose what was not flushed when the process ends, for tests ([`crate::VolatileDisk`]).
//!
//! The form of the command line and of configuration files. A comma ends the path and separates
//! settings; anything else, also `=` and `:`, may be part of the path, only `+` ends a path of a
//! stripe. Printing a [`Spec`] gives text that parses to the same.
//!
//! A path that begins with `/`, `./` or `../` may stand alone: `/dev/vdb` is `file:/dev/vdb`.

mod error;
mod members;
mod mirror;
mod text;
mod values;

use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::error::SpecError;
use self::members::Members;
pub use self::values::parse_bytes;
use crate::buffer::Pool;
use crate::device::Device;
use crate::file::{FileOptions, OpenError};
use crate::medium::Medium;
use crate::mirror::Witness;
use crate::nbd::NbdName;
use crate::place::Place;
use crate::rbd::RbdName;
use crate::ring::Ring;
use crate::source::{MEDIUM_SEED, Source};
use crate::stripe::Layout;
use crate::system::MemoryLimit;

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
    Mirror(mirror::Mirror),
    Stripe { members: Members, chunk: u64, size: Option<u64> },
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
            Kind::Mirror(mirror::Mirror { size, .. }) => size,
            Kind::Nbd(_) | Kind::Rbd(_) => None,
        }
    }

    /// The half of this machine, of a mirror that a pair of servers can share: its other halves are
    /// on other servers, and it names no folder as its witness.
    pub fn local_half(&self) -> Option<&Spec> {
        match &self.kind {
            Kind::Mirror(mirror) => mirror.local_half(),
            _ => None,
        }
    }

    /// The size it names, or else what the files it names have now; `None` when one is missing,
    /// empty or unreadable. An image or export is opened for reading, which takes a while.
    pub fn size_found(&self) -> Option<u64> {
        let smallest =
            || self.paths().iter().map(size_of_file).min().flatten().filter(|&bytes| bytes > 0);
        self.size_bytes().or_else(|| match &self.kind {
            Kind::Mirror(mirror) => mirror.size_found(),
            _ if self.is_remote() => {
                let source = self.prepare(Role::Backing { read_only: true });
                source.ok().map(|source| source.size_bytes())
            }
            Kind::Stripe { members, chunk, .. } => {
                let layout = Layout { members: members.len() as u64, chunk: *chunk };
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
            Kind::Mirror(mirror) => &mirror.paths,
            Kind::Stripe { members, .. } => members.paths(),
        }
    }

    /// True where images of Ceph or exports of NBD servers are part of it, which lie in no folder.
    pub fn is_remote(&self) -> bool {
        match &self.kind {
            Kind::Nbd(_) | Kind::Rbd(_) => true,
            Kind::Stripe { members, .. } => members.paths().is_empty(),
            Kind::Mirror(mirror) => mirror.halves.iter().any(Spec::is_remote),
            Kind::File { .. } | Kind::Memory { .. } => false,
        }
    }

    /// True for memory, which ends with the program.
    pub fn is_memory(&self) -> bool {
        matches!(self.kind, Kind::Memory { .. })
    }

    /// True for a mirror.
    pub fn is_mirror(&self) -> bool {
        matches!(self.kind, Kind::Mirror(_))
    }

    /// True if it may hold something before it is opened: a file or disk that exists, or anything
    /// on a network.
    pub fn is_there(&self) -> bool {
        self.is_remote() || self.paths().iter().any(|path| path.exists())
    }

    /// Returns a file or disk that does not exist and without which it cannot be opened. A mirror
    /// opens with any of its halves.
    pub fn missing_path(&self) -> Option<&Path> {
        let missing = self.paths().iter().find(|path| !path.exists())?;
        let is_enough = matches!(self.kind, Kind::Mirror(_)) && self.is_there();
        (!is_enough).then_some(missing)
    }

    /// True if both name the same file, disk, image or export. Files and disks are compared by
    /// their place, so that links, bind mounts, partitions and loop devices are seen through.
    pub fn overlaps(&self, other: &Spec) -> bool {
        let (names, others) = (self.names(), other.names());
        names.iter().any(|name| others.contains(name))
            || self.paths().iter().any(|path| other.is_on(path))
    }

    /// True if a path leads to a file or disk that it names.
    pub fn is_on(&self, path: &Path) -> bool {
        let place = Place::of(path);
        let is_there = |place: &Place| {
            self.paths().iter().filter_map(|own| Place::of(own)).any(|own| own.overlaps(place))
        };
        place.as_ref().is_some_and(is_there)
    }

    /// The names of what it lies on; of an image, with its cluster's configuration.
    fn names(&self) -> Vec<String> {
        let image = |name: &RbdName| format!("rbd:{name} {:?}", name.conf);
        match &self.kind {
            Kind::Nbd(name) => vec![name.to_string()],
            Kind::Rbd(name) => vec![image(name)],
            Kind::Memory { .. } => Vec::new(),
            Kind::Mirror(mirror) => mirror.halves.iter().flat_map(Spec::names).collect(),
            Kind::File { path, .. } => vec![path.display().to_string()],
            Kind::Stripe { members: Members::Images(names), .. } => {
                names.iter().map(image).collect()
            }
            Kind::Stripe { members, .. } => members.names(),
        }
    }

    /// The number of devices that it consists of.
    pub fn members(&self) -> u64 {
        match &self.kind {
            Kind::Stripe { members, .. } => members.len() as u64,
            _ => 1,
        }
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
        self.prepare_witnessed(role, None)
    }

    /// As [`Spec::prepare`]; a mirror that names no witness has this one.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_witnessed(
        &self,
        role: Role,
        witness: Option<&Arc<dyn Witness>>,
    ) -> Result<Source, OpenError> {
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
        let remote = |source: Source, number| {
            let source = source.failing(self.faults.as_deref());
            source.slowed(self.medium.as_ref(), MEDIUM_SEED + number)
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
                if let (Role::Cache { .. }, Some(limit)) =
                    (role, MemoryLimit::here().filter(|limit| *size > limit.bytes))
                {
                    return Err(OpenError::TooMuchMemory { size: *size, limit });
                }
                let source = Source::memory(*size)?.failing(self.faults.as_deref());
                Ok(source.slowed(self.medium.as_ref(), MEDIUM_SEED))
            }
            (Kind::Mirror(mirror), wanted) => mirror.prepare(wanted, witness),
            (Kind::Nbd(name), wanted) => of_size(remote(Source::nbd(name, read_only)?, 0), wanted),
            (Kind::Rbd(name), wanted) => of_size(remote(Source::rbd(name, read_only)?, 0), wanted),
            (Kind::Stripe { chunk, size: Some(size), .. }, Some(wanted)) if *size != wanted => {
                Err(OpenError::StripeSize { room: *size, wanted, chunk: *chunk })
            }
            (Kind::Stripe { members, chunk, .. }, size) => {
                let layout = Layout { members: members.len() as u64, chunk: *chunk };
                let path = |(number, path): (u64, &PathBuf)| {
                    let size = size.filter(|_| !path.exists());
                    let size = size.map(|size| layout.member_bytes(size));
                    let create = size.is_some();
                    let options = FileOptions { size, create, direct: true, read_only };
                    finish(Source::file(path, &options)?, path, number)
                };
                let export = |(number, name): (u64, &NbdName)| {
                    Ok(remote(Source::nbd(name, read_only)?, number))
                };
                let image = |(number, name): (u64, &RbdName)| {
                    Ok(remote(Source::rbd(name, read_only)?, number))
                };
                Source::stripe(*chunk, size, || match members {
                    Members::Paths(paths) => (0..).zip(paths).map(path).collect(),
                    Members::Exports(names) => (0..).zip(names).map(export).collect(),
                    Members::Images(names) => (0..).zip(names).map(image).collect(),
                })
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

/// The device, if it has the size that is wanted.
fn of_size(source: Source, wanted: Option<u64>) -> Result<Source, OpenError> {
    match (source.size_bytes(), wanted) {
        (actual, Some(wanted)) if actual != wanted => {
            Err(OpenError::WrongSize { path: source.name().into(), actual, wanted })
        }
        _ => Ok(source),
    }
}

/// The present size of a file or block device.
fn size_of_file(path: &PathBuf) -> Option<u64> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    let seekable = kind.is_file() || kind.is_block_device();
    seekable.then(|| std::fs::File::open(path).ok()?.seek(SeekFrom::End(0)).ok()).flatten()
}
