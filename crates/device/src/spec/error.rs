//! The errors in a device's text.

use crate::device::Halves;
use crate::medium::Medium;

/// An error in a device's text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecError {
    /// No kind of device, nor the begin of a path.
    #[error(
        "unknown kind of device in {spec:?}; there are file:PATH, memory:SIZE, stripe:PATH+PATH, \
         mirror:HALF+HALF, rbd:POOL/IMAGE, nbd://HOST:PORT/EXPORT, and paths that begin with / \
         or ./"
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
    /// A stripe of paths, images and exports.
    #[error("the members of {spec:?} are of several kinds; name paths, images or exports only")]
    MixedMembers {
        /// The text.
        spec: String,
    },
    /// `mirror:` without two halves or with too many.
    #[error(
        "{spec:?} names {count} halves; a mirror has 2 to {most}, as in mirror:HALF+HALF",
        most = Halves::MAX
    )]
    HalfCount {
        /// The text.
        spec: String,
        /// The halves.
        count: usize,
    },
    /// A half that cannot be one.
    #[error("{half:?} in {spec:?} cannot be a half; halves are files, disks and exports")]
    Half {
        /// The text.
        spec: String,
        /// The half.
        half: String,
    },
    /// A setting without a value.
    #[error("{setting:?} in {spec:?} has no value")]
    Empty {
        /// The text.
        spec: String,
        /// The setting.
        setting: String,
    },
    /// `rbd:` without a pool and an image.
    #[error("{spec:?} names no image; write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE@SNAPSHOT")]
    Image {
        /// The text.
        spec: String,
    },
    /// An NBD URI that is none, or that this program cannot use.
    #[error("{spec:?}: {problem}; write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
    Export {
        /// The text.
        spec: String,
        /// The reason.
        problem: String,
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
    /// A time that is no time.
    #[error("{time:?} in {spec:?} is not a time; write 500ms, 30s or 2m")]
    Time {
        /// The text.
        spec: String,
        /// The time.
        time: String,
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
    /// Limits of no medium.
    #[error("iops and bandwidth in {spec:?} have no effect without medium=NAME")]
    NoMedium {
        /// The text.
        spec: String,
    },
    /// A number of operations that is none.
    #[error("{found:?} in {spec:?} is not a number of operations a second")]
    Iops {
        /// The text.
        spec: String,
        /// The number.
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
