//! The halves and settings of a mirror.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::error::SpecError;
use super::values::{Exact, parse_size, parse_time, write_timeout};
use super::{Kind, Role, Spec, members};
use crate::buffer::SECTOR_BYTES;
use crate::device::Halves;
use crate::file::OpenError;
use crate::mirror::{FolderWitness, HalfDevice, HalfPlace, MirrorSource, NoWitness, Pace, Witness};
use crate::nbd::NbdName;
use crate::source::Source;

/// The time that a half has for an operation unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes a second that are copied to a half that returns unless told otherwise.
const RESYNC_BYTES: u64 = 100 << 20;

const SETTINGS: &str = "size=SIZE, timeout=TIME, resync=SIZE and witness=FOLDER";

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mirror {
    pub(super) halves: Vec<Spec>,
    /// The files and disks among the halves.
    pub(super) paths: Vec<PathBuf>,
    pub(super) size: Option<u64>,
    timeout: Option<Duration>,
    /// Bytes a second.
    resync: Option<u64>,
    /// The folder of the newest generation.
    witness: Option<PathBuf>,
}

impl Mirror {
    /// Reads the text after `mirror:` of a specification.
    pub(super) fn parse(spec: &str, text: &str) -> Result<Mirror, SpecError> {
        let mut parts = text.split(',');
        let texts = members::split(parts.next().unwrap_or_default());
        let (mut size, mut timeout, mut resync, mut witness) = (None, None, None, None);
        for setting in parts {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let is_again = match name {
                "size" => size.replace(parse_size(spec, value, SECTOR_BYTES)?).is_some(),
                "timeout" => timeout.replace(parse_time(spec, value)?).is_some(),
                "resync" => resync.replace(parse_size(spec, value, 1)?).is_some(),
                "witness" if value.is_empty() => {
                    let (spec, setting) = (spec.to_owned(), name.to_owned());
                    return Err(SpecError::Empty { spec, setting });
                }
                "witness" => witness.replace(PathBuf::from(value)).is_some(),
                _ => {
                    let (spec, setting) = (spec.to_owned(), name.to_owned());
                    return Err(SpecError::Setting { spec, setting, known: SETTINGS });
                }
            };
            if is_again {
                let (spec, setting) = (spec.to_owned(), name.to_owned());
                return Err(SpecError::Twice { spec, setting });
            }
        }
        if !(2..=Halves::MAX).contains(&texts.len()) {
            return Err(SpecError::HalfCount { spec: spec.to_owned(), count: texts.len() });
        }
        let mut halves: Vec<Spec> = Vec::new();
        for text in texts {
            let refuse = || SpecError::Half { spec: spec.to_owned(), half: text.to_owned() };
            if text.is_empty() || text.starts_with("mirror:") {
                return Err(refuse());
            }
            let mut half: Spec = text.parse()?;
            match &mut half.kind {
                Kind::File { .. } => {}
                // The half leaves after that time; its operations must have ended to return.
                Kind::Nbd(name) => name.timeout = Some(timeout.unwrap_or(TIMEOUT)),
                _ => return Err(refuse()),
            }
            if halves.iter().any(|other| other.overlaps(&half)) {
                return Err(SpecError::SamePath { spec: spec.to_owned(), path: text.to_owned() });
            }
            halves.push(half);
        }
        let paths = halves.iter().flat_map(Spec::paths).cloned().collect();
        Ok(Mirror { halves, paths, size, timeout, resync, witness })
    }

    /// The local half, of a mirror whose other halves are on other servers and whose witness is not
    /// a folder of this machine.
    pub(super) fn local_half(&self) -> Option<&Spec> {
        let mut local = self.halves.iter().filter(|half| !half.is_remote());
        let half = local.next().filter(|_| self.witness.is_none())?;
        local.next().is_none().then_some(half)
    }

    /// The size of its data that the halves tell.
    pub(super) fn size_found(&self) -> Option<u64> {
        MirrorSource::size_found(&self.places(), self.pace())
    }

    pub(super) fn prepare(
        &self,
        wanted: Option<u64>,
        witness: Option<&Arc<dyn Witness>>,
    ) -> Result<Source, OpenError> {
        let bytes = match (self.size, wanted.or_else(|| self.size_found())) {
            (Some(actual), Some(wanted)) if actual != wanted => {
                return Err(OpenError::WrongSize { path: self.name().into(), actual, wanted });
            }
            (_, Some(bytes)) => bytes,
            (Some(bytes), None) => bytes,
            (None, None) => return Err(OpenError::SizeUnknown { path: self.name().into() }),
        };
        if !bytes.is_multiple_of(512) || bytes == 0 {
            return Err(OpenError::OddSize { path: self.name().into(), size: bytes });
        }
        let witness = match (&self.witness, witness) {
            (Some(folder), _) => Arc::new(FolderWitness::new(folder)) as Arc<dyn Witness>,
            (None, Some(witness)) => Arc::clone(witness),
            (None, None) => Arc::new(NoWitness),
        };
        let mirror = MirrorSource::prepare(&self.places(), bytes, self.pace(), witness)?;
        Ok(Source::mirror(mirror))
    }

    fn places(&self) -> Vec<Arc<dyn HalfPlace>> {
        self.halves.iter().map(|half| Arc::new(half.clone()) as Arc<dyn HalfPlace>).collect()
    }

    fn pace(&self) -> Pace {
        let timeout = self.timeout.unwrap_or(TIMEOUT);
        Pace { timeout, resync_bytes: self.resync.unwrap_or(RESYNC_BYTES) }
    }

    fn name(&self) -> String {
        let halves = self.halves.iter().map(half_name);
        format!("mirror:{}", halves.collect::<Vec<_>>().join("+"))
    }
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        self.size.map_or(Ok(()), |size| write!(f, ",size={}", Exact(size)))?;
        write_timeout(f, self.timeout)?;
        self.resync.map_or(Ok(()), |bytes| write!(f, ",resync={}", Exact(bytes)))?;
        let witness = self.witness.as_ref();
        witness.map_or(Ok(()), |folder| write!(f, ",witness={}", folder.display()))
    }
}

/// The name of a half, without settings.
fn half_name(half: &Spec) -> String {
    match &half.kind {
        Kind::Nbd(name) => NbdName::to_string(name),
        _ => half.to_string(),
    }
}

impl HalfPlace for Spec {
    fn open(&self, size: Option<u64>) -> io::Result<Box<dyn HalfDevice>> {
        let role = match size {
            Some(size) => Role::Cache { size },
            None => Role::Backing { read_only: false },
        };
        Ok(Box::new(self.prepare(role).map_err(io::Error::other)?))
    }

    fn name(&self) -> String {
        half_name(self)
    }

    fn is_absent(&self) -> bool {
        matches!(&self.kind, Kind::File { path, .. } if !path.exists())
    }
}
