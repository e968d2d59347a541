//! Devices as text: `file:/srv/cache,size=10GiB,medium=nvme`, `memory:64MiB` or
//! `stripe:/dev/sdb+/dev/sdc`.
//!
//! `medium=` imitates a kind of storage ([`Medium`]), with `interference=off` one whose reads
//! writes do not slow, to tell what that does. `faults=FILE` has it fail as a file says, for tests
//! ([`crate::fault::Script`]); no help tells of it. `write-cache=volatile` makes files lose what
//! was not flushed when the process ends, for tests ([`crate::VolatileDisk`]).
//!
//! The form of the command line and of configuration files. A comma ends the path and separates
//! settings; anything else, also `=` and `:`, may be part of the path, only `+` ends a path of a
//! stripe. Printing a [`Spec`] gives text that parses to the same.

use std::fmt;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bytesize::ByteSize;

use crate::buffer::Pool;
use crate::file::{FileOptions, OpenError};
use crate::medium::Medium;
use crate::ring::Ring;
use crate::source::{MEDIUM_SEED, Source, most_memory};
use crate::stripe::{CHUNK_BYTES, Layout};
use crate::{Device, SECTOR_BYTES};

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

/// An error in a device's text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecError {
    /// Neither `file:` nor `memory:` nor `stripe:`.
    #[error(
        "unknown kind of device in {spec:?}; there are file:PATH, memory:SIZE and stripe:PATH+PATH"
    )]
    Kind {
        /// The text.
        spec: String,
    },
    /// `file:` without a path.
    #[error("{spec:?} names no path; write file:PATH")]
    NoPath {
        /// The text.
        spec: String,
    },
    /// `stripe:` without two paths, or with an empty one.
    #[error("{spec:?} names fewer than two paths; write stripe:PATH+PATH")]
    FewPaths {
        /// The text.
        spec: String,
    },
    /// One path twice in a stripe.
    #[error("{spec:?} names path {path:?} twice; name each path once")]
    SamePath {
        /// The text.
        spec: String,
        /// The path.
        path: String,
    },
    /// `memory:` without a size.
    #[error("{spec:?} gives no size; write memory:SIZE, such as memory:64MiB")]
    NoSize {
        /// The text.
        spec: String,
    },
    /// A setting this kind of device does not have.
    #[error("unknown setting {setting:?} in {spec:?}; there are {known}")]
    Setting {
        /// The text.
        spec: String,
        /// The setting.
        setting: String,
        /// The known names.
        known: &'static str,
    },
    /// The same setting twice.
    #[error("{spec:?} gives the setting {setting:?} twice; give it once")]
    Twice {
        /// The text.
        spec: String,
        /// The setting.
        setting: String,
    },
    /// A size that is no size.
    #[error("{size:?} in {spec:?} is not a size; write 4096, 64KiB or 10GiB")]
    Size {
        /// The text.
        spec: String,
        /// The size.
        size: String,
    },
    /// A size a device cannot have.
    #[error("size {size} in {spec:?} is not a positive multiple of {unit} bytes")]
    SizeUnit {
        /// The text.
        spec: String,
        /// The size in bytes.
        size: u64,
        /// The unit of which it must be a multiple.
        unit: u64,
    },
    /// A write cache of another kind.
    #[error("unknown write-cache {found:?} in {spec:?}; there is volatile")]
    WriteCache {
        /// The text.
        spec: String,
        /// The kind.
        found: String,
    },
    /// Interference that is neither left alone nor switched off, or of no medium.
    #[error("{found:?} in {spec:?} has no effect; write medium=NAME,interference=off")]
    Interference {
        /// The text.
        spec: String,
        /// The setting.
        found: String,
    },
    /// A medium nobody knows.
    #[error("unknown medium {medium:?} in {spec:?}; there are {known}", known = Medium::names())]
    Medium {
        /// The text.
        spec: String,
        /// The medium.
        medium: String,
    },
}

impl Spec {
    /// The size it names, if it does.
    pub fn size_bytes(&self) -> Option<u64> {
        match self.kind {
            Kind::File { size, .. } | Kind::Stripe { size, .. } => size,
            Kind::Memory { size } => Some(size),
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
            Kind::Memory { .. } => &[],
            Kind::Stripe { paths, .. } => paths,
        }
    }

    /// The chunks in which a stripe's members take turns; `None` where there is one device.
    pub fn chunk_bytes(&self) -> Option<u64> {
        match self.kind {
            Kind::Stripe { chunk, .. } => Some(chunk),
            Kind::File { .. } | Kind::Memory { .. } => None,
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

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let spec = || text.to_owned();
        let (kind, rest) = text.split_once(':').ok_or_else(|| SpecError::Kind { spec: spec() })?;
        let mut parts = rest.split(',');
        let first = parts.next().unwrap_or_default();
        let known = match kind {
            "file" if first.is_empty() => return Err(SpecError::NoPath { spec: spec() }),
            "file" => "size=SIZE, write-cache=volatile, medium=NAME and interference=off",
            "memory" if first.is_empty() => return Err(SpecError::NoSize { spec: spec() }),
            "memory" => "medium=NAME and interference=off",
            "stripe" => {
                "chunk=SIZE, size=SIZE, write-cache=volatile, medium=NAME and interference=off"
            }
            _ => return Err(SpecError::Kind { spec: spec() }),
        };
        let (mut size, mut chunk, mut write_cache, mut faults) = (None, None, None, None);
        let (mut medium, mut interference) = (None::<Medium>, None);
        for setting in parts {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let again = match name {
                "size" if kind == "stripe" => {
                    size.replace(parse_size(text, value, SECTOR_BYTES)?).is_some()
                }
                "chunk" if kind == "stripe" => {
                    chunk.replace(parse_size(text, value, SECTOR_BYTES)?).is_some()
                }
                "size" if kind == "file" => size.replace(parse_size(text, value, 512)?).is_some(),
                "write-cache" if kind != "memory" && value != "volatile" => {
                    return Err(SpecError::WriteCache { spec: spec(), found: value.to_owned() });
                }
                "write-cache" if kind != "memory" => write_cache.replace(value).is_some(),
                "medium" => {
                    let found = Medium::named(value).ok_or_else(|| SpecError::Medium {
                        spec: spec(),
                        medium: value.to_owned(),
                    })?;
                    medium.replace(found).is_some()
                }
                "faults" if !value.is_empty() => faults.replace(PathBuf::from(value)).is_some(),
                "interference" => interference.replace((setting, value)).is_some(),
                _ => {
                    return Err(SpecError::Setting {
                        spec: spec(),
                        setting: name.to_owned(),
                        known,
                    });
                }
            };
            if again {
                return Err(SpecError::Twice { spec: spec(), setting: name.to_owned() });
            }
        }
        match (&mut medium, interference) {
            (_, None) => {}
            (Some(medium), Some((_, "off"))) => medium.interference = &[],
            (_, Some((setting, _))) => {
                return Err(SpecError::Interference { spec: spec(), found: setting.to_owned() });
            }
        }
        let kind = match kind {
            "file" => Kind::File { path: first.into(), size },
            "stripe" => Kind::Stripe {
                paths: parse_paths(text, first)?,
                chunk: chunk.unwrap_or(CHUNK_BYTES),
                size,
            },
            _ => Kind::Memory { size: parse_size(text, first, SECTOR_BYTES)? },
        };
        Ok(Spec { kind, volatile: write_cache.is_some(), medium, faults })
    }
}

fn parse_paths(spec: &str, text: &str) -> Result<Vec<PathBuf>, SpecError> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in text.split('+') {
        if paths.iter().any(|other| other.as_os_str() == path) {
            return Err(SpecError::SamePath { spec: spec.to_owned(), path: path.to_owned() });
        }
        paths.push(path.into());
    }
    if paths.len() < 2 || paths.iter().any(|path| path.as_os_str().is_empty()) {
        return Err(SpecError::FewPaths { spec: spec.to_owned() });
    }
    Ok(paths)
}

/// The present size of a file or block device.
fn size_of_file(path: &PathBuf) -> Option<u64> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    let seekable = kind.is_file() || kind.is_block_device();
    seekable.then(|| std::fs::File::open(path).ok()?.seek(SeekFrom::End(0)).ok()).flatten()
}

fn parse_size(spec: &str, text: &str, unit: u64) -> Result<u64, SpecError> {
    let ByteSize(size) = text
        .parse()
        .map_err(|_| SpecError::Size { spec: spec.to_owned(), size: text.to_owned() })?;
    // Fractions and overflow are cut off without a word by the parser; the largest size stands for
    // overflow.
    if size == 0 || size == u64::MAX || !size.is_multiple_of(unit) {
        return Err(SpecError::SizeUnit { spec: spec.to_owned(), size, unit });
    }
    Ok(size)
}

/// A size in the largest unit that expresses it exactly.
struct Exact(u64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::File { path, size: None } => write!(f, "file:{}", path.display())?,
            Kind::File { path, size: Some(size) } => {
                write!(f, "file:{},size={}", path.display(), Exact(*size))?;
            }
            Kind::Memory { size } => write!(f, "memory:{}", Exact(*size))?,
            Kind::Stripe { paths, chunk, size } => {
                let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                write!(f, "stripe:{},chunk={}", paths.join("+"), Exact(*chunk))?;
                size.map_or(Ok(()), |size| write!(f, ",size={}", Exact(size)))?;
            }
        }
        if self.volatile {
            f.write_str(",write-cache=volatile")?;
        }
        if let Some(faults) = &self.faults {
            write!(f, ",faults={}", faults.display())?;
        }
        match &self.medium {
            None => Ok(()),
            Some(medium) => {
                let named = Medium::named(medium.name);
                let is_off = named.is_some_and(|named| named.interference != medium.interference);
                write!(
                    f,
                    ",medium={}{}",
                    medium.name,
                    if is_off { ",interference=off" } else { "" }
                )
            }
        }
    }
}
