//! Making a fast device behave like a slower medium.
//!
//! [`Model`] says when an operation would be done on a given [`Medium`]; it is pure and seeded, so
//! `simulate` and the server use the same one. [`MediumDevice`] wraps a real device and holds
//! completions back until then; the devices of several threads can share one [`SharedMedium`]. The
//! media in `presets` are real products, each with its source.

mod device;
mod model;

pub use self::device::SharedMedium;
pub use device::{MediumDevice, TimingError};
pub use model::{Direction, Interference, Medium, Model, Path, Timing};
