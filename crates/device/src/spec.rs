//! Device specifications in text: `file:/srv/cache,size=10GiB,medium=nvme`, `memory:64MiB`,
//! `stripe:/dev/sdb+/dev/sdc` (or of images or exports), `mirror:/dev/sdb+nbd://HOST/EXPORT`,
//! `rbd:POOL/IMAGE`, `s3://BUCKET/PREFIX,size=1TiB` or `nbd://HOST:PORT/EXPORT`.
//!
//! `medium=` imitates a kind of storage ([`Medium`](crate::Medium)); with `interference=off` its
//! reads are not slowed by writes. `iops=N` and `bandwidth=SIZE` limit its operations and bytes per
//! second in each direction. `faults=FILE` injects the faults that a file lists, for tests
//! ([`crate::Script`]); no help mentions it. `write-cache=volatile` makes files lose unflushed data
//! when the process ends, for tests ([`crate::VolatileDisk`]).
//!
//! Command lines and configuration files use this form. A comma ends the path and separates
//! settings. Any other character, also `=` and `:`, may be part of the path, except that `+` ends a
//! path of a stripe. Printing a [`Spec`] gives text that parses to an equal one.
//!
//! A path that begins with `/`, `./` or `../` may stand alone: `/dev/vdb` is `file:/dev/vdb`.
//!
//! Each kind of device implements [`DeviceSpec`] and has a line in [`text`].

mod error;
mod text;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;

pub use self::error::SpecError;
use crate::buffer::Pool;
use crate::device::Device;
use crate::file::OpenError;
use crate::mirror::Witness;
use crate::place::Place;
use crate::rbd::RbdName;
use crate::ring::Ring;
use crate::source::{Imitation, Source};

/// The specification of one kind of device: its settings in text, and how it is prepared.
pub(crate) trait DeviceSpec: fmt::Debug + Send + Sync {
    /// Returns the word before the colon.
    fn kind(&self) -> &'static str;

    /// Returns the text of the specification without settings.
    fn title(&self) -> String;

    /// Writes the settings that were given, each after a comma.
    fn write_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Returns the names of the settings that the kind accepts, for messages.
    fn settings(&self) -> &'static str;

    /// Applies a setting. Returns false if the kind does not have it.
    ///
    /// # Errors
    /// When the value is invalid for the setting.
    fn set(&mut self, setting: &Setting<'_>) -> Result<bool, SpecError>;

    /// Checks the specification as a whole, after all settings.
    ///
    /// # Errors
    /// When its parts contradict each other or are incomplete.
    fn finish(&mut self, _spec: &str) -> Result<(), SpecError> {
        Ok(())
    }

    /// Makes the device a half of a mirror, with this timeout for operations. Returns false if it
    /// cannot be one.
    fn become_half(&mut self, _timeout: Duration) -> bool {
        false
    }

    /// Returns the size in the text, in bytes.
    fn size_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the size in the text, or else the device's current size, in bytes.
    fn size_found(&self) -> Option<u64> {
        self.size_bytes()
    }

    /// Returns the files and block devices in the text.
    fn paths(&self) -> &[PathBuf] {
        &[]
    }

    /// Returns names for comparison: two specifications with a name in common use one device.
    fn names(&self) -> Vec<String> {
        vec![self.title()]
    }

    /// Returns whether part of the device is on a network.
    fn is_remote(&self) -> bool {
        false
    }

    /// Returns the number of devices that make up this one.
    fn members(&self) -> u64 {
        1
    }

    /// Returns the chunk size of a stripe in bytes.
    fn chunk_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the size of the objects that make up a volume in a bucket, in bytes.
    fn object_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the name of the Ceph image, if the device is one.
    fn image(&self) -> Option<&RbdName> {
        None
    }

    /// Returns the local half of a mirror that two servers can share.
    fn local_half(&self) -> Option<&Spec> {
        None
    }

    /// Prepares the device for opening by threads.
    ///
    /// # Errors
    /// Names the device and the reason.
    fn prepare(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError>;
}

/// The requirements on a device that [`DeviceSpec::prepare`] prepares.
pub(crate) struct Wanted<'a> {
    /// The size in bytes that the device must have, or is created with.
    pub(crate) size: Option<u64>,
    pub(crate) role: Role,
    pub(crate) imitation: &'a Imitation,
    /// The number of the device among the members of a stripe.
    pub(crate) number: u64,
    /// The witness for a mirror whose specification names none.
    pub(crate) witness: Option<&'a Arc<dyn Witness>>,
}

impl Wanted<'_> {
    /// Returns whether the device is opened read-only.
    pub(crate) fn read_only(&self) -> bool {
        self.role == Role::Backing { read_only: true }
    }

    /// Returns `source`, whose size is fixed, or an error if another size is required.
    pub(crate) fn checked(&self, source: Source) -> Result<Source, OpenError> {
        match (source.size_bytes(), self.size) {
            (actual, Some(wanted)) if actual != wanted && !self.is_longer(actual) => {
                Err(OpenError::WrongSize { path: source.name().into(), actual, wanted })
            }
            _ => Ok(source),
        }
    }

    /// Returns whether a device of `actual` bytes is longer than required, and may be.
    pub(crate) fn is_longer(&self, actual: u64) -> bool {
        matches!(self.role, Role::VolatileCache { size } if actual > size)
    }
}

/// A setting in a device specification: `NAME` or `NAME=VALUE`.
pub(crate) struct Setting<'a> {
    /// The whole text of the specification.
    pub(crate) spec: &'a str,
    pub(crate) name: &'a str,
    /// The value after `=`; empty if there is none.
    pub(crate) value: &'a str,
}

impl Setting<'_> {
    /// Parses the value as a size in bytes, a multiple of `unit`.
    pub(crate) fn size(&self, unit: u64) -> Result<u64, SpecError> {
        parse_size(self.spec, self.value, unit)
    }

    /// Parses the value as a positive time.
    pub(crate) fn time(&self) -> Result<Duration, SpecError> {
        match humantime::parse_duration(self.value) {
            Ok(time) if !time.is_zero() => Ok(time),
            _ => Err(SpecError::Time(self.spec.to_owned(), self.value.to_owned())),
        }
    }
}

/// A device specification, parsed from text.
#[derive(Debug, Clone)]
pub struct Spec {
    device: Arc<dyn DeviceSpec>,
    /// The imitated medium and faults; a stripe applies them to each member.
    imitation: Imitation,
}

impl PartialEq for Spec {
    fn eq(&self, other: &Spec) -> bool {
        self.to_string() == other.to_string()
    }
}

/// The purpose for which a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The slow backing volume. It must exist, unless the specification has a size to create it
    /// with.
    Backing {
        /// True if the volume is never written to.
        read_only: bool,
    },
    /// The fast cache device, which is created when missing.
    Cache {
        /// The size of the cache in bytes.
        size: u64,
    },
    /// A cache device with nothing on it that counts: created when missing, and used up to `size`
    /// where it is longer.
    VolatileCache {
        /// The size of the cache in bytes.
        size: u64,
    },
}

impl Role {
    /// Returns whether the device is a cache, which fills up.
    pub(crate) fn is_cache(self) -> bool {
        matches!(self, Self::Cache { .. } | Self::VolatileCache { .. })
    }
}

impl Spec {
    /// Returns the size in the specification, in bytes, if there is one.
    pub fn size_bytes(&self) -> Option<u64> {
        self.device.size_bytes()
    }

    /// Returns the local half of a mirror that a pair of servers can share: its other halves are on
    /// other servers, and it names no folder as its witness.
    pub fn local_half(&self) -> Option<&Spec> {
        self.device.local_half()
    }

    /// Returns the size in the specification, or else the current size of the device, in bytes.
    /// `None` if a file is missing, empty or unreadable. An image or export is opened for reading,
    /// which takes a while.
    pub fn size_found(&self) -> Option<u64> {
        self.device.size_found()
    }

    /// Returns the files and block devices in the specification.
    pub fn paths(&self) -> &[PathBuf] {
        self.device.paths()
    }

    /// Returns whether images, buckets or exports are part of the device, which lie in no folder.
    pub fn is_remote(&self) -> bool {
        self.device.is_remote()
    }

    /// Returns whether the device is in memory, so that its content ends with the program.
    pub fn is_memory(&self) -> bool {
        self.device.kind() == "memory"
    }

    /// Returns whether the device is a mirror.
    pub fn is_mirror(&self) -> bool {
        self.device.kind() == "mirror"
    }

    /// Returns whether the device may hold data before it is opened: a file or disk that exists, or
    /// any device on a network.
    pub fn is_there(&self) -> bool {
        self.is_remote() || self.paths().iter().any(|path| path.exists())
    }

    /// Returns a file or disk that does not exist but is required to open the device. A mirror
    /// opens with any of its halves.
    pub fn missing_path(&self) -> Option<&Path> {
        let missing = self.paths().iter().find(|path| !path.exists())?;
        let is_enough = self.is_mirror() && self.is_there();
        (!is_enough).then_some(missing)
    }

    /// Returns whether both specifications use one file, disk, image or export. Files and disks are
    /// compared by location, which resolves links, bind mounts, partitions and loop devices.
    pub fn overlaps(&self, other: &Spec) -> bool {
        let (names, others) = (self.device.names(), other.device.names());
        names.iter().any(|name| others.contains(name))
            || self.paths().iter().any(|path| other.is_on(path))
    }

    /// Returns whether a path leads to a file or disk in the specification.
    pub fn is_on(&self, path: &Path) -> bool {
        let place = Place::of(path);
        let is_there = |place: &Place| {
            self.paths().iter().filter_map(|own| Place::of(own)).any(|own| own.overlaps(place))
        };
        place.as_ref().is_some_and(is_there)
    }

    /// Returns the number of devices that make up this one.
    pub fn members(&self) -> u64 {
        self.device.members()
    }

    /// Returns whether the device is a Ceph image.
    pub fn is_image(&self) -> bool {
        self.image().is_some()
    }

    /// Returns whether the device is a volume in a bucket.
    pub fn is_bucket(&self) -> bool {
        self.device.kind() == "s3"
    }

    /// Returns the name of the Ceph image, if the device is one.
    pub fn image(&self) -> Option<&RbdName> {
        self.device.image()
    }

    /// Returns the chunk size of a stripe in bytes; `None` for other devices.
    pub fn chunk_bytes(&self) -> Option<u64> {
        self.device.chunk_bytes()
    }

    /// Returns the size of an object of a new volume in a bucket, in bytes; `None` for other
    /// devices.
    pub fn object_bytes(&self) -> Option<u64> {
        self.device.object_bytes()
    }

    /// Returns the medium to imitate.
    pub fn medium(&self) -> Option<&crate::Medium> {
        self.imitation.medium.as_ref()
    }

    /// Returns the text of the specification without settings.
    pub(crate) fn title(&self) -> String {
        self.device.title()
    }

    /// Returns names for comparison: two specifications with a name in common use one device.
    pub(crate) fn names(&self) -> Vec<String> {
        self.device.names()
    }

    /// Makes the device a half of a mirror, with this timeout for operations. Returns false if it
    /// cannot be one.
    pub(crate) fn become_half(&mut self, timeout: Duration) -> bool {
        Arc::get_mut(&mut self.device).is_some_and(|device| device.become_half(timeout))
    }

    /// Prepares the device once, for any number of threads that open it: creates it if its role
    /// allows, checks its size, and locks it.
    ///
    /// # Errors
    /// Names the device and the reason. A cache must have the size in the specification, if there
    /// is one.
    pub fn prepare(&self, role: Role) -> Result<Source, OpenError> {
        self.prepare_witnessed(role, None)
    }

    /// Prepares the device like [`Spec::prepare`], with a witness for a mirror that names none.
    ///
    /// # Errors
    /// Names the device and the reason.
    pub fn prepare_witnessed(
        &self,
        role: Role,
        witness: Option<&Arc<dyn Witness>>,
    ) -> Result<Source, OpenError> {
        let size = match role {
            Role::Backing { .. } => self.size_bytes(),
            Role::Cache { size } | Role::VolatileCache { size } => Some(size),
        };
        let imitation = &self.imitation;
        self.device.prepare(&Wanted { size, role, imitation, number: 0, witness })
    }

    /// Prepares and opens a device for a single thread; combines [`Spec::prepare`] and
    /// [`Source::open`].
    ///
    /// # Errors
    /// Names the device and the reason.
    pub fn open(&self, ring: &Ring, pool: &Pool, role: Role) -> Result<Box<dyn Device>, OpenError> {
        self.prepare(role)?.open(ring, pool)
    }
}

/// Returns the current size of an existing device by opening it; `None` if that fails.
pub(crate) fn size_of_present(device: &dyn DeviceSpec) -> Option<u64> {
    let imitation = &Imitation::default();
    let role = Role::Backing { read_only: true };
    let wanted = Wanted { size: None, role, imitation, number: 0, witness: None };
    device.prepare(&wanted).ok().map(|source| source.size_bytes())
}

/// Parses a size in bytes: `4096`, `64KiB`, `1.5GiB`.
///
/// A single letter is a power of two, as in dd, fio and qemu: `64M` is `64MiB`. `64MB` is
/// 64,000,000 bytes. Returns `None` for other texts, and for sizes of 2⁶⁴ − 1 bytes and more.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_prefix = |letter: &char| "kmgtpe".contains(letter.to_ascii_lowercase());
    let size = match text.chars().next_back().filter(is_prefix) {
        Some(_) => format!("{text}iB").parse(),
        None => text.parse(),
    };
    // The parser turns a value that is too large into the largest size without an error.
    size.ok().map(|ByteSize(bytes)| bytes).filter(|&bytes| bytes < u64::MAX)
}

pub(crate) fn parse_size(spec: &str, text: &str, unit: u64) -> Result<u64, SpecError> {
    let too_large = |text: &str| text.parse::<ByteSize>().is_ok();
    let size = match parse_bytes(text) {
        Some(size) => size,
        None if too_large(text) => u64::MAX,
        None => return Err(SpecError::Size(spec.to_owned(), text.to_owned())),
    };
    if size == 0 || size == u64::MAX || !size.is_multiple_of(unit) {
        return Err(SpecError::SizeUnit { spec: spec.to_owned(), size, unit });
    }
    Ok(size)
}

/// A size in bytes that prints in the largest unit that expresses it exactly.
pub(crate) struct Exact(pub(crate) u64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

pub(crate) fn write_timeout(f: &mut fmt::Formatter<'_>, timeout: Option<Duration>) -> fmt::Result {
    let timeout = timeout.map(humantime::format_duration);
    timeout.map_or(Ok(()), |timeout| write!(f, ",timeout={}", timeout.to_string().replace(' ', "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_a_power_of_two_and_a_unit_is_what_it_says() {
        let mebibytes = [("64M", 64), ("64m", 64), ("64MiB", 64), ("64 MiB", 64), ("1.5G", 1536)];
        for (text, size) in mebibytes {
            assert_eq!(parse_bytes(text), Some(size << 20), "{text}");
        }
        for (text, size) in [("4096", 4096), ("64MB", 64_000_000), ("4k", 4096), ("2kB", 2000)] {
            assert_eq!(parse_bytes(text), Some(size), "{text}");
        }
        for text in ["", "M", "64X", "64MM", "-1", "64Mi B", "16E", "99999999999999999999"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
