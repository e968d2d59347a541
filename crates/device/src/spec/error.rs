//! The errors in a device's text.

use crate::device::Halves;
use crate::medium::Medium;

/// An error in a device's text. Each variant begins with the whole text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecError {
    /// No kind of device, nor the begin of a path.
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
    /// One path twice in a stripe.
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
    /// A half that cannot be one.
    #[error("{1:?} in {0:?} cannot be a half; halves are files, disks and exports")]
    Half(String, String),
    /// A setting without a value.
    #[error("{1:?} in {0:?} has no value")]
    Empty(String, String),
    /// `rbd:` without a pool and an image.
    #[error("{0:?} names no image; write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE@SNAPSHOT")]
    Image(String),
    /// An NBD URI that is none, or that this program cannot use.
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
    /// The same setting twice.
    #[error("{0:?} gives the setting {1:?} twice; give it once")]
    Twice(String, String),
    /// A size that is no size.
    #[error("{1:?} in {0:?} is not a size; write 4096, 64KiB or 10GiB")]
    Size(String, String),
    /// A time that is no time.
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
    /// A write cache of another kind.
    #[error("unknown write-cache {1:?} in {0:?}; there is volatile")]
    WriteCache(String, String),
    /// Interference that is neither left alone nor switched off, or of no medium.
    #[error("{1:?} in {0:?} has no effect; write medium=NAME,interference=off")]
    Interference(String, String),
    /// Limits of no medium.
    #[error("iops and bandwidth in {0:?} have no effect without medium=NAME")]
    NoMedium(String),
    /// A number of operations that is none.
    #[error("{1:?} in {0:?} is not a number of operations a second")]
    Iops(String, String),
    /// A medium nobody knows.
    #[error("unknown medium {medium:?} in {spec:?}; there are {known}", known = Medium::names())]
    Medium {
        /// The text.
        spec: String,
        /// The medium.
        medium: String,
    },
}
