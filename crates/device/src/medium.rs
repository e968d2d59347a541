//! Making a fast device behave like a slower medium.
//!
//! [`Model`] says when an operation would be done on a given [`Medium`]; it is pure and seeded, so `simulate` and the
//! server use the same one. [`MediumDevice`] wraps a real device and holds completions back until then. The media
//! in `presets` are real products, each with its source.

mod device;
mod model;
mod presets;

pub use device::{MediumDevice, TimingError};
pub use model::{Direction, Interference, Medium, Model, Path, Timing};
