//! An image of Ceph's block store (RBD) as a device, through librbd.
//!
//! The library is loaded when the first image is opened: Floe is not linked to it, and runs
//! without. librbd caches no data here (its own cache is off, since Floe is one), so a write is
//! acknowledged when every replica has it on stable storage.
//!
//! All threads of the server share one handle of the image. A thread's operations end on threads of
//! the library, which leave the results in the thread's mailbox and wake its ring.
//!
//! A writer takes the image's exclusive lock for as long as the image is open. librbd passes an
//! implicit lock back and forth at every write of another client, but does not give up an explicit
//! one.

mod device;
mod image;
mod library;
mod lock;
mod name;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::{fmt, io};

use crate::buffer::Pool;
use crate::device::Device;
use crate::file::OpenError;
use crate::identity::Identity;
use crate::queue::check_measured;
use crate::ring::Ring;
use crate::source::{PreparedDevice, Source};
use crate::spec::{DeviceSpec, Setting, SpecError, Wanted, size_of_present, write_timeout};

pub use device::RbdDevice;
pub use image::RbdSource;
pub use lock::RbdWatch;
pub use name::{RbdError, RbdName};

impl RbdName {
    pub(crate) fn parse_spec(spec: &str, text: &str) -> Result<Box<dyn DeviceSpec>, SpecError> {
        let name = RbdName::parse(text);
        let name = name.ok_or_else(|| SpecError::Image(spec.to_owned()))?;
        Ok(Box::new(name))
    }
}

impl DeviceSpec for RbdName {
    fn kind(&self) -> &'static str {
        "rbd"
    }

    fn title(&self) -> String {
        format!("rbd:{self}")
    }

    fn write_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.user.as_ref().map_or(Ok(()), |user| write!(f, ",id={user}"))?;
        let conf = self.conf.as_ref();
        conf.map_or(Ok(()), |conf| write!(f, ",conf={}", conf.display()))?;
        write_timeout(f, self.timeout)
    }

    fn settings(&self) -> &'static str {
        "id=USER, conf=FILE, timeout=TIME, medium=NAME, interference=off, iops=N and bandwidth=SIZE"
    }

    fn set(&mut self, setting: &Setting<'_>) -> Result<bool, SpecError> {
        match setting.name {
            "id" if !setting.value.is_empty() => self.user = Some(setting.value.to_owned()),
            "conf" if !setting.value.is_empty() => self.conf = Some(PathBuf::from(setting.value)),
            "timeout" => self.timeout = Some(setting.time()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn size_found(&self) -> Option<u64> {
        size_of_present(self)
    }

    fn names(&self) -> Vec<String> {
        vec![format!("rbd:{self} {:?}", self.conf)]
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn image(&self) -> Option<&RbdName> {
        Some(self)
    }

    fn prepare(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError> {
        let image = RbdSource::prepare(self, wanted.read_only())?;
        wanted.checked(Source::new(image, wanted.imitation, wanted.number))
    }
}

impl PreparedDevice for RbdSource {
    fn size_bytes(&self) -> u64 {
        self.0.size.load(Ordering::Relaxed)
    }

    fn name(&self) -> String {
        format!("rbd:{}", RbdSource::name(self))
    }

    fn identity(&self) -> Identity {
        self.0.identity.clone()
    }

    fn refresh(&self) -> io::Result<u64> {
        let size = self.0.open.handles.size(self.functions())?;
        check_measured(size)?;
        self.0.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    fn open(&self, ring: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
        let device = RbdDevice::new(ring, self).map_err(|source| RbdError::Image {
            what: "wait for",
            image: RbdSource::name(self).to_string(),
            source,
        });
        Ok(Box::new(device?))
    }

    fn image(&self) -> Option<&RbdSource> {
        Some(self)
    }
}
