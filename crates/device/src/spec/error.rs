//! The errors in a device's text.

use crate::device::Halves;
use crate::medium::Medium;

/// An error in a device's text. Each variant begins with the whole text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecError {
    /// Text that begins with no kind of device and no path.
    #[error(
        "unknown kind of device in {0:?}; there are file:PATH, memory:SIZE, stripe:PATH+PATH, \
         mirror:HALF+HALF, rbd:POOL/IMAGE, nbd://HOST:PORT/EXPORT, and paths that begin with / \
         or ./"
    )]
    Kind(String),
    /// `file:` without a path.
    #[error("{0:?} names no path; write file:PATH")]
    NoPath(String),
    /// `stripe:` without two paths, or with an empty one.
    #[error("{0:?} names fewer than two paths; write stripe:PATH+PATH")]
    FewPaths(String),
    /// A stripe or mirror with one path twice.
    #[error("{0:?} names path {1:?} twice; name each path once")]
    SamePath(String, String),
    /// A stripe of paths, images and exports.
    #[error("the members of {0:?} are of several kinds; name paths, images or exports only")]
    MixedMembers(String),
    /// `mirror:` without two halves or with too many.
    #[error(
        "{0:?} names {1} halves; a mirror has 2 to {most}, as in mirror:HALF+HALF",
        most = Halves::MAX
    )]
    HalfCount(String, usize),
    /// A device that cannot be a half.
    #[error("{1:?} in {0:?} cannot be a half; halves are files, disks and exports")]
    Half(String, String),
    /// A setting without a value.
    #[error("{1:?} in {0:?} has no value")]
    Empty(String, String),
    /// `rbd:` without a pool and an image.
    #[error("{0:?} names no image; write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE@SNAPSHOT")]
    Image(String),
    /// Text that is no NBD URI, or one that this program cannot use.
    #[error("{0:?}: {1}; write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
    Export(String, String),
    /// `memory:` without a size.
    #[error("{0:?} gives no size; write memory:SIZE, such as memory:64MiB")]
    NoSize(String),
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
    /// A setting that is given twice.
    #[error("{0:?} gives the setting {1:?} twice; give it once")]
    Twice(String, String),
    /// Text that is no size.
    #[error("{1:?} in {0:?} is not a size; write 4096, 64KiB or 10GiB")]
    Size(String, String),
    /// Text that is no time.
    #[error("{1:?} in {0:?} is not a time; write 500ms, 30s or 2m")]
    Time(String, String),
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
    /// An unknown kind of write cache.
    #[error("unknown write-cache {1:?} in {0:?}; there is volatile")]
    WriteCache(String, String),
    /// A value of `interference` other than `off`, or one without a medium.
    #[error("{1:?} in {0:?} has no effect; write medium=NAME,interference=off")]
    Interference(String, String),
    /// Limits without a medium.
    #[error("iops and bandwidth in {0:?} have no effect without medium=NAME")]
    NoMedium(String),
    /// Text that is no number of operations.
    #[error("{1:?} in {0:?} is not a number of operations a second")]
    Iops(String, String),
    /// An unknown medium.
    #[error("unknown medium {medium:?} in {spec:?}; there are {known}", known = Medium::names())]
    Medium {
        /// The text.
        spec: String,
        /// The medium.
        medium: String,
    },
}
