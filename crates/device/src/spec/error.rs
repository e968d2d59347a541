//! Errors in the text of a device specification.

use crate::device::Halves;
use crate::medium::Medium;

/// An error in a device specification. The first field of each variant is the whole text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecError {
    /// The text begins with neither a known kind of device nor a path.
    #[error(
        "{0:?} is not a device; write file:PATH, memory:SIZE, stripe:PATH+PATH, mirror:HALF+HALF, \
         rbd:POOL/IMAGE, s3://BUCKET/PREFIX, nbd://HOST:PORT/EXPORT, or a path that begins with / \
         or ./"
    )]
    Kind(String),
    /// `file:` has no path.
    #[error("{0:?} names no path; write file:PATH")]
    NoPath(String),
    /// `stripe:` has fewer than two paths, or an empty one.
    #[error("{0:?} names fewer than two paths; write stripe:PATH+PATH")]
    FewPaths(String),
    /// A stripe or mirror has one path twice.
    #[error("{0:?} names path {1:?} twice; name each path once")]
    SamePath(String, String),
    /// A stripe mixes paths, images and exports.
    #[error("the members of {0:?} are of several kinds; name paths, images or exports only")]
    MixedMembers(String),
    /// `mirror:` has fewer than two halves, or too many.
    #[error(
        "{0:?} names {1} halves; a mirror has 2 to {most}, as in mirror:HALF+HALF",
        most = Halves::MAX
    )]
    HalfCount(String, usize),
    /// A half of a mirror is a device that cannot be one.
    #[error("{1:?} in {0:?} cannot be a half; halves are files, disks and exports")]
    Half(String, String),
    /// A setting has no value.
    #[error("{1:?} in {0:?} has no value")]
    Empty(String, String),
    /// `rbd:` lacks a pool or an image.
    #[error("{0:?} names no image; write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE@SNAPSHOT")]
    Image(String),
    /// `s3:` lacks a bucket or a prefix.
    #[error("{0:?} names no volume; write s3://BUCKET/PREFIX, and size=SIZE for a new volume")]
    Bucket(String),
    /// The size of a bucket's objects is out of bounds.
    #[error("objects of {1} bytes in {0:?} are not 64KiB to 16MiB; write object=1MiB")]
    ObjectSize(String, u64),
    /// The endpoint of a bucket is not a URL.
    #[error("endpoint {1:?} in {0:?} is not a URL; write endpoint=https://HOST:PORT")]
    Endpoint(String, String),
    /// The text is not an NBD URI, or is one that this program does not support.
    #[error("{0:?}: {1}; write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
    Export(String, String),
    /// `memory:` has no size.
    #[error("{0:?} gives no size; write memory:SIZE, such as memory:64MiB")]
    NoSize(String),
    /// This kind of device does not have the setting.
    #[error("unknown setting {setting:?} in {spec:?}; there are {known}")]
    Setting {
        /// The whole text.
        spec: String,
        /// The unknown setting.
        setting: String,
        /// The names of the settings that this kind of device has.
        known: &'static str,
    },
    /// A setting is given twice.
    #[error("{0:?} gives the setting {1:?} twice; give it once")]
    Twice(String, String),
    /// The value of a setting is not a size.
    #[error("{1:?} in {0:?} is not a size; write 4096, 64KiB or 10GiB")]
    Size(String, String),
    /// The value of a setting is not a time.
    #[error("{1:?} in {0:?} is not a time; write 500ms, 30s or 2m")]
    Time(String, String),
    /// The size is not a positive multiple of the device's unit.
    #[error("size {size} in {spec:?} is not a positive multiple of {unit} bytes")]
    SizeUnit {
        /// The whole text.
        spec: String,
        /// The requested size in bytes.
        size: u64,
        /// The unit in bytes.
        unit: u64,
    },
    /// The kind of write cache is unknown.
    #[error("unknown write-cache {1:?} in {0:?}; the only one is volatile")]
    WriteCache(String, String),
    /// `interference` has a value other than `off`, or there is no medium.
    #[error("{1:?} in {0:?} has no effect; write medium=NAME,interference=off")]
    Interference(String, String),
    /// `iops` or `bandwidth` is given without a medium.
    #[error("iops and bandwidth in {0:?} have no effect without medium=NAME")]
    NoMedium(String),
    /// The value of `iops` is not a number of operations.
    #[error("{1:?} in {0:?} is not a number of operations a second")]
    Iops(String, String),
    /// The medium is unknown.
    #[error("unknown medium {medium:?} in {spec:?}; there are {known}", known = Medium::names())]
    Medium {
        /// The whole text.
        spec: String,
        /// The name of the medium.
        medium: String,
    },
}
