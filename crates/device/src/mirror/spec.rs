//! Mirrors as text: `mirror:HALF+HALF,size=SIZE,timeout=TIME,resync=SIZE,witness=FOLDER`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use super::device::MirrorDevice;
use super::shared::{HalfDevice, HalfPlace, Pace};
use super::source::{MirrorRefusal, MirrorSource};
use super::witness::{FolderWitness, NoWitness, Witness};
use crate::buffer::{Pool, SECTOR_BYTES};
use crate::device::{Device, Halves};
use crate::file::OpenError;
use crate::identity::Identity;
use crate::ring::Ring;
use crate::source::{Imitation, PreparedDevice, Source};
use crate::spec::{DeviceSpec, Exact, Role, Setting, Spec, SpecError, Wanted, write_timeout};
use crate::stripe::split_members;

/// The default time after which an operation that a half has not answered fails.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The default resynchronisation rate in bytes per second.
const RESYNC_BYTES: u64 = 100 << 20;

/// A mirror's specification, before the mirror is opened.
#[derive(Debug)]
pub(crate) struct MirrorSpec {
    /// The specifications of the halves as text.
    texts: Vec<String>,
    halves: Vec<Spec>,
    /// The files and disks among the halves.
    paths: Vec<PathBuf>,
    size: Option<u64>,
    timeout: Option<Duration>,
    resync: Option<u64>,
    /// The folder that serves as witness.
    witness: Option<PathBuf>,
}

impl MirrorSpec {
    pub(crate) fn parse(_spec: &str, text: &str) -> Result<Box<dyn DeviceSpec>, SpecError> {
        Ok(Box::new(MirrorSpec {
            texts: split_members(text).into_iter().map(str::to_owned).collect(),
            halves: Vec::new(),
            paths: Vec::new(),
            size: None,
            timeout: None,
            resync: None,
            witness: None,
        }))
    }

    fn places(&self) -> Vec<Arc<dyn HalfPlace>> {
        self.halves.iter().map(|half| Arc::new(half.clone()) as Arc<dyn HalfPlace>).collect()
    }

    fn pace(&self) -> Pace {
        let timeout = self.timeout.unwrap_or(TIMEOUT);
        Pace { timeout, resync_bytes: self.resync.unwrap_or(RESYNC_BYTES) }
    }
}

impl DeviceSpec for MirrorSpec {
    fn kind(&self) -> &'static str {
        "mirror"
    }

    fn title(&self) -> String {
        format!("mirror:{}", self.halves.iter().map(Spec::title).collect::<Vec<_>>().join("+"))
    }

    fn write_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.size.map_or(Ok(()), |size| write!(f, ",size={}", Exact(size)))?;
        write_timeout(f, self.timeout)?;
        self.resync.map_or(Ok(()), |bytes| write!(f, ",resync={}", Exact(bytes)))?;
        let witness = self.witness.as_ref();
        witness.map_or(Ok(()), |folder| write!(f, ",witness={}", folder.display()))
    }

    fn settings(&self) -> &'static str {
        "size=SIZE, timeout=TIME, resync=SIZE and witness=FOLDER"
    }

    fn set(&mut self, setting: &Setting<'_>) -> Result<bool, SpecError> {
        match setting.name {
            "size" => self.size = Some(setting.size(SECTOR_BYTES)?),
            "timeout" => self.timeout = Some(setting.time()?),
            "resync" => self.resync = Some(setting.size(1)?),
            "witness" if setting.value.is_empty() => {
                return Err(SpecError::Empty(setting.spec.to_owned(), setting.name.to_owned()));
            }
            "witness" => self.witness = Some(setting.value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(&mut self, spec: &str) -> Result<(), SpecError> {
        let count = self.texts.len();
        if !(2..=Halves::MAX).contains(&count) {
            return Err(SpecError::HalfCount(spec.to_owned(), count));
        }
        for text in &self.texts {
            let refuse = || SpecError::Half(spec.to_owned(), text.clone());
            if text.is_empty() || text.starts_with("mirror:") {
                return Err(refuse());
            }
            let mut half: Spec = text.parse()?;
            if !half.become_half(self.timeout.unwrap_or(TIMEOUT)) {
                return Err(refuse());
            }
            if self.halves.iter().any(|other| other.overlaps(&half)) {
                return Err(SpecError::SamePath(spec.to_owned(), text.clone()));
            }
            self.halves.push(half);
        }
        self.paths = self.halves.iter().flat_map(Spec::paths).cloned().collect();
        Ok(())
    }

    fn size_bytes(&self) -> Option<u64> {
        self.size
    }

    fn size_found(&self) -> Option<u64> {
        self.size.or_else(|| MirrorSource::size_found(&self.places(), self.pace()))
    }

    fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn names(&self) -> Vec<String> {
        self.halves.iter().flat_map(Spec::names).collect()
    }

    fn is_remote(&self) -> bool {
        self.halves.iter().any(Spec::is_remote)
    }

    fn local_half(&self) -> Option<&Spec> {
        let mut local = self.halves.iter().filter(|half| !half.is_remote());
        let half = local.next().filter(|_| self.witness.is_none())?;
        local.next().is_none().then_some(half)
    }

    fn prepare(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError> {
        let path = || self.title().into();
        let bytes = match (self.size, wanted.size.or_else(|| self.size_found())) {
            (Some(actual), Some(wanted)) if actual != wanted => {
                return Err(OpenError::WrongSize { path: path(), actual, wanted });
            }
            (_, Some(bytes)) | (Some(bytes), None) => bytes,
            (None, None) => return Err(OpenError::SizeUnknown { path: path() }),
        };
        if !bytes.is_multiple_of(512) || bytes == 0 {
            return Err(OpenError::OddSize { path: path(), size: bytes });
        }
        let made = || MirrorSource::size_made(&self.places(), self.pace());
        let longer = match wanted.role {
            Role::VolatileCache { .. } => made().filter(|made| wanted.is_longer(*made)),
            _ => None,
        };
        let bytes = longer.unwrap_or(bytes);
        let witness = match (&self.witness, wanted.witness) {
            (Some(folder), _) => Arc::new(FolderWitness::new(folder)) as Arc<dyn Witness>,
            (None, Some(witness)) => Arc::clone(witness),
            (None, None) => Arc::new(NoWitness),
        };
        let mirror = MirrorSource::prepare(&self.places(), bytes, self.pace(), witness)?;
        Ok(Source::new(mirror, &Imitation::default(), 0))
    }
}

impl PreparedDevice for MirrorSource {
    fn size_bytes(&self) -> u64 {
        self.0.shared.shape.bytes
    }

    fn name(&self) -> String {
        let names = self.0.shared.places.iter().map(|place| place.name());
        format!("mirror:{}", names.collect::<Vec<_>>().join("+"))
    }

    fn identity(&self) -> Identity {
        Identity::of_mirror(&self.0.shared.mirror)
    }

    fn refresh(&self) -> io::Result<u64> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a mirror cannot be resized"))
    }

    fn open(&self, ring: &Ring, pool: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Ok(Box::new(MirrorDevice::new(ring, pool, &self.0).map_err(MirrorRefusal::making)?))
    }

    fn mirror(&self) -> Option<&MirrorSource> {
        Some(self)
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

impl HalfPlace for Spec {
    fn open(&self, size: Option<u64>) -> io::Result<Box<dyn HalfDevice>> {
        let role = match size {
            Some(size) => Role::Cache { size },
            None => Role::Backing { read_only: false },
        };
        Ok(Box::new(self.prepare(role).map_err(io::Error::other)?))
    }

    fn name(&self) -> String {
        self.title()
    }

    fn is_absent(&self) -> bool {
        !self.is_there()
    }
}
