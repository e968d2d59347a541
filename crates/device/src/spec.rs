//! Devices as text: `file:/srv/cache,size=10GiB,medium=nvme`, `memory:64MiB`,
//! `stripe:/dev/sdb+/dev/sdc` (or of images or exports), `mirror:/dev/sdb+nbd://HOST/EXPORT`,
//! `rbd:POOL/IMAGE` or `nbd://HOST:PORT/EXPORT`.
//!
//! `medium=` imitates a kind of storage ([`Medium`](crate::Medium)), with `interference=off` one
//! whose reads are not slowed by writes. `iops=N` and `bandwidth=SIZE` limit its operations and
//! bytes a second in each direction. `faults=FILE` injects the faults that a file lists, for tests
//! ([`crate::Script`]); no help mentions it. `write-cache=volatile` makes files lose what
//! was not flushed when the process ends, for tests ([`crate::VolatileDisk`]).
//!
//! The form of the command line and of configuration files. A comma ends the path and separates
//! settings; anything else, also `=` and `:`, may be part of the path, only `+` ends a path of a
//! stripe. Printing a [`Spec`] gives text that parses to the same.
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

/// A kind of device: its settings in text, and the way it is made ready.
pub(crate) trait DeviceSpec: fmt::Debug + Send + Sync {
    /// The word before the colon.
    fn kind(&self) -> &'static str;

    /// The text without settings.
    fn title(&self) -> String;

    /// Writes the settings that were given, each after a comma.
    fn write_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The settings that it takes, for people.
    fn settings(&self) -> &'static str;

    /// Takes a setting; false for one that it does not have.
    ///
    /// # Errors
    /// When the value is no value of the setting.
    fn set(&mut self, setting: &Setting<'_>) -> Result<bool, SpecError>;

    /// Checks the whole text, after all settings.
    ///
    /// # Errors
    /// When its parts make no device.
    fn finish(&mut self, _spec: &str) -> Result<(), SpecError> {
        Ok(())
    }

    /// Becomes a half of a mirror that waits so long for an operation; false if it cannot be one.
    fn become_half(&mut self, _timeout: Duration) -> bool {
        false
    }

    /// The size in the text.
    fn size_bytes(&self) -> Option<u64> {
        None
    }

    /// The size in the text, or else that of the device as it is now.
    fn size_found(&self) -> Option<u64> {
        self.size_bytes()
    }

    /// The files and block devices in the text.
    fn paths(&self) -> &[PathBuf] {
        &[]
    }

    /// Names that two specs have in common if they are one device.
    fn names(&self) -> Vec<String> {
        vec![self.title()]
    }

    /// Returns whether a part of it is on a network.
    fn is_remote(&self) -> bool {
        false
    }

    /// The number of devices of which it consists.
    fn members(&self) -> u64 {
        1
    }

    /// The chunks of a stripe.
    fn chunk_bytes(&self) -> Option<u64> {
        None
    }

    /// The image of Ceph that it is.
    fn image(&self) -> Option<&RbdName> {
        None
    }

    /// The half of this machine, of a mirror that two servers can share.
    fn local_half(&self) -> Option<&Spec> {
        None
    }

    /// Makes the device ready.
    ///
    /// # Errors
    /// Names the device and what was wrong with it.
    fn prepare(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError>;
}

/// The device that [`DeviceSpec::prepare`] makes ready.
pub(crate) struct Wanted<'a> {
    /// The size that it must have, or is made with.
    pub(crate) size: Option<u64>,
    pub(crate) role: Role,
    pub(crate) imitation: &'a Imitation,
    /// The number among the members of a stripe.
    pub(crate) number: u64,
    /// The witness of a mirror that names none.
    pub(crate) witness: Option<&'a Arc<dyn Witness>>,
}

impl Wanted<'_> {
    /// True for a device that is only read.
    pub(crate) fn read_only(&self) -> bool {
        self.role == Role::Backing { read_only: true }
    }

    /// Returns a source of a fixed size, if it is the size that is wanted.
    pub(crate) fn checked(&self, source: Source) -> Result<Source, OpenError> {
        match (source.size_bytes(), self.size) {
            (actual, Some(wanted)) if actual != wanted => {
                Err(OpenError::WrongSize { path: source.name().into(), actual, wanted })
            }
            _ => Ok(source),
        }
    }
}

/// A setting in a device's text.
pub(crate) struct Setting<'a> {
    /// The whole text.
    pub(crate) spec: &'a str,
    pub(crate) name: &'a str,
    /// The text after `=`; empty if there is none.
    pub(crate) value: &'a str,
}

impl Setting<'_> {
    /// The value as a size, a multiple of `unit`.
    pub(crate) fn size(&self, unit: u64) -> Result<u64, SpecError> {
        parse_size(self.spec, self.value, unit)
    }

    /// The value as a time above zero.
    pub(crate) fn time(&self) -> Result<Duration, SpecError> {
        match humantime::parse_duration(self.value) {
            Ok(time) if !time.is_zero() => Ok(time),
            _ => Err(SpecError::Time(self.spec.to_owned(), self.value.to_owned())),
        }
    }
}

/// A device's description, before it is opened.
#[derive(Debug, Clone)]
pub struct Spec {
    device: Arc<dyn DeviceSpec>,
    /// Applies to each member of a stripe.
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
    /// The slow volume: exists, unless the spec gives a size to create it with.
    Backing {
        /// Never written to.
        read_only: bool,
    },
    /// The fast one: created when missing.
    Cache {
        /// Size in bytes.
        size: u64,
    },
}

impl Spec {
    /// The size it names, if it does.
    pub fn size_bytes(&self) -> Option<u64> {
        self.device.size_bytes()
    }

    /// The half of this machine, of a mirror that a pair of servers can share: its other halves are
    /// on other servers, and it names no folder as its witness.
    pub fn local_half(&self) -> Option<&Spec> {
        self.device.local_half()
    }

    /// The size it names, or else what the files it names have now; `None` when one is missing,
    /// empty or unreadable. An image or export is opened for reading, which takes a while.
    pub fn size_found(&self) -> Option<u64> {
        self.device.size_found()
    }

    /// The files and block devices it names.
    pub fn paths(&self) -> &[PathBuf] {
        self.device.paths()
    }

    /// True where images of Ceph or exports of NBD servers are part of it, which lie in no folder.
    pub fn is_remote(&self) -> bool {
        self.device.is_remote()
    }

    /// True for memory, which ends with the program.
    pub fn is_memory(&self) -> bool {
        self.device.kind() == "memory"
    }

    /// True for a mirror.
    pub fn is_mirror(&self) -> bool {
        self.device.kind() == "mirror"
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
        let is_enough = self.is_mirror() && self.is_there();
        (!is_enough).then_some(missing)
    }

    /// True if both name the same file, disk, image or export. Files and disks are compared by
    /// their place, so that links, bind mounts, partitions and loop devices are seen through.
    pub fn overlaps(&self, other: &Spec) -> bool {
        let (names, others) = (self.device.names(), other.device.names());
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

    /// The number of devices that it consists of.
    pub fn members(&self) -> u64 {
        self.device.members()
    }

    /// True for an image of Ceph.
    pub fn is_image(&self) -> bool {
        self.image().is_some()
    }

    /// The image of Ceph that it names.
    pub fn image(&self) -> Option<&RbdName> {
        self.device.image()
    }

    /// The chunks in which a stripe's members take turns; `None` where there is one device.
    pub fn chunk_bytes(&self) -> Option<u64> {
        self.device.chunk_bytes()
    }

    /// The medium it is to imitate.
    pub fn medium(&self) -> Option<&crate::Medium> {
        self.imitation.medium.as_ref()
    }

    /// The text without settings.
    pub(crate) fn title(&self) -> String {
        self.device.title()
    }

    /// The names of what it lies on.
    pub(crate) fn names(&self) -> Vec<String> {
        self.device.names()
    }

    /// Becomes a half of a mirror that waits so long for an operation; false if it cannot be one.
    pub(crate) fn become_half(&mut self, timeout: Duration) -> bool {
        Arc::get_mut(&mut self.device).is_some_and(|device| device.become_half(timeout))
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

    /// Prepares as [`Spec::prepare`] does; a mirror that names no witness has this one.
    ///
    /// # Errors
    /// Names the file and what was wrong with it.
    pub fn prepare_witnessed(
        &self,
        role: Role,
        witness: Option<&Arc<dyn Witness>>,
    ) -> Result<Source, OpenError> {
        let size = match role {
            Role::Backing { .. } => self.size_bytes(),
            Role::Cache { size } => Some(size),
        };
        let imitation = &self.imitation;
        self.device.prepare(&Wanted { size, role, imitation, number: 0, witness })
    }

    /// [`Spec::prepare`] and [`Source::open`], for a device of one thread.
    ///
    /// # Errors
    /// Names the file and what was wrong with it.
    pub fn open(&self, ring: &Ring, pool: &Pool, role: Role) -> Result<Box<dyn Device>, OpenError> {
        self.prepare(role)?.open(ring, pool)
    }
}

/// Finds the size of a device that exists and names none.
pub(crate) fn size_of_present(device: &dyn DeviceSpec) -> Option<u64> {
    let imitation = &Imitation::default();
    let role = Role::Backing { read_only: true };
    let wanted = Wanted { size: None, role, imitation, number: 0, witness: None };
    device.prepare(&wanted).ok().map(|source| source.size_bytes())
}

/// Reads a size in bytes: `4096`, `64KiB`, `1.5GiB`.
///
/// A letter alone is a power of two, as dd, fio and qemu have it: `64M` is `64MiB`. `64MB` is
/// 64,000,000 bytes. `None` for other texts, and for sizes of 2⁶⁴ − 1 bytes and more.
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

/// A size in the largest unit that expresses it exactly.
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
