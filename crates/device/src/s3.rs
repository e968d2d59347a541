//! A bucket of an object store (S3) as a device.
//!
//! The volume is cut into objects of equal size below a prefix; an object that does not exist is
//! zeros. A small object describes the volume, another names the server that writes to it
//! (`lease`).
//!
//! One thread runs all requests of a volume (`engine`). A write ends when its object has been put:
//! nothing that was acknowledged is in memory only, and a flush has nothing to do. Writes of parts
//! read the object, change it and put it; those that arrive meanwhile join the put.
//!
//! Each put names the version that it replaces (`If-Match`, `If-None-Match`). The store refuses it
//! if another server has written the object, and the volume is fenced: every later operation fails.
//! A put whose answer was lost is recognised by its stamp, which is in the object's metadata. Only
//! deletions carry no condition, since the store's client has none for them; the lease alone guards
//! these.

#[cfg(feature = "s3")]
mod bucket;
#[cfg(feature = "s3")]
mod content;
#[cfg(feature = "s3")]
mod device;
#[cfg(feature = "s3")]
mod engine;
#[cfg(feature = "s3")]
mod lease;
mod name;
#[cfg(feature = "s3")]
mod objects;
#[cfg(feature = "s3")]
mod source;
#[cfg(all(test, feature = "s3"))]
mod tests;
#[cfg(feature = "s3")]
mod volume;

use std::fmt;

use crate::file::OpenError;
use crate::source::Source;
use crate::spec::{DeviceSpec, Exact, Role, Setting, SpecError, Wanted};
use crate::spec::{size_of_present, write_timeout};

pub use name::{S3Error, S3Name};

/// The smallest and the largest object in bytes.
const OBJECT_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=16 << 20;

/// The size of an object of a new volume in bytes, if none is given.
const DEFAULT_OBJECT: u64 = 1 << 20;

impl S3Name {
    pub(crate) fn parse_spec(spec: &str, text: &str) -> Result<Box<dyn DeviceSpec>, SpecError> {
        let name = S3Name::parse(text);
        let name = name.ok_or_else(|| SpecError::Bucket(spec.to_owned()))?;
        Ok(Box::new(name))
    }
}

impl DeviceSpec for S3Name {
    fn kind(&self) -> &'static str {
        "s3"
    }

    fn title(&self) -> String {
        self.to_string()
    }

    fn write_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.size.map_or(Ok(()), |size| write!(f, ",size={}", Exact(size)))?;
        self.object.map_or(Ok(()), |size| write!(f, ",object={}", Exact(size)))?;
        self.endpoint.as_ref().map_or(Ok(()), |endpoint| write!(f, ",endpoint={endpoint}"))?;
        self.region.as_ref().map_or(Ok(()), |region| write!(f, ",region={region}"))?;
        write_timeout(f, self.timeout)
    }

    fn settings(&self) -> &'static str {
        "size=SIZE, object=SIZE, endpoint=URL, region=NAME, timeout=TIME, medium=NAME, \
         interference=off, iops=N and bandwidth=SIZE"
    }

    fn set(&mut self, setting: &Setting<'_>) -> Result<bool, SpecError> {
        match setting.name {
            "size" => self.size = Some(setting.size(512)?),
            "object" => self.object = Some(setting.size(4096)?),
            "endpoint" if setting.value.starts_with("http") => {
                self.endpoint = Some(setting.value.trim_end_matches('/').to_owned());
            }
            "endpoint" => {
                let (spec, value) = (setting.spec.to_owned(), setting.value.to_owned());
                return Err(SpecError::Endpoint(spec, value));
            }
            "region" if !setting.value.is_empty() => self.region = Some(setting.value.to_owned()),
            "timeout" => self.timeout = Some(setting.time()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(&mut self, spec: &str) -> Result<(), SpecError> {
        match self.object.filter(|bytes| !OBJECT_BYTES.contains(bytes)) {
            Some(bytes) => Err(SpecError::ObjectSize(spec.to_owned(), bytes)),
            None => Ok(()),
        }
    }

    fn size_bytes(&self) -> Option<u64> {
        self.size
    }

    fn size_found(&self) -> Option<u64> {
        self.size.or_else(|| size_of_present(self))
    }

    fn object_bytes(&self) -> Option<u64> {
        Some(self.object.unwrap_or(DEFAULT_OBJECT))
    }

    fn names(&self) -> Vec<String> {
        vec![format!("{self} {:?}", self.endpoint)]
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn prepare(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError> {
        if matches!(wanted.role, Role::Cache { .. }) {
            return Err(S3Error::Cache(self.to_string()).into());
        }
        self.open_bucket(wanted)
    }
}

impl S3Name {
    #[cfg(feature = "s3")]
    fn open_bucket(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError> {
        let source = source::S3Source::prepare(self, wanted.read_only())?;
        Ok(Source::new(source, wanted.imitation, wanted.number))
    }

    #[cfg(not(feature = "s3"))]
    fn open_bucket(&self, _: &Wanted<'_>) -> Result<Source, OpenError> {
        Err(S3Error::NotBuilt.into())
    }
}
