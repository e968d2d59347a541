#![doc = include_str!("../README.md")]

pub mod advice;
pub mod convolution;
pub mod counted;
mod error;
#[cfg(feature = "events")]
pub mod events;
pub mod mva;
pub mod network;
pub mod open;
mod operation;
pub mod peak;
pub mod policies;
pub mod service;

pub use advice::{Advice, Situation};
pub use counted::Shares;
pub use error::ModelError;
#[cfg(feature = "events")]
pub use events::t_975;
pub use network::{Network, RequestOutcome, RouteStep, Station, Visit, bound};
pub use operation::Operation;
pub use policies::{Policy, Setting};
pub use service::{Locks, Service, Time, Times};

/// The load of a cache, as a closed loop of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests in flight, at least 1.
    pub mpl: u32,
    /// Number of cores that requests share, at least 1; `None` if each request has a core.
    pub cores: Option<u32>,
}

impl Load {
    /// Creates a load of `mpl` requests in flight, with a core for each.
    pub fn of(mpl: u32) -> Self {
        Self { mpl, cores: None }
    }

    /// Largest number of requests in flight, or of cores.
    pub const MOST: u32 = 100_000;

    /// Returns an error if the load is invalid.
    ///
    /// # Errors
    /// When a number is 0, or above [`Load::MOST`].
    pub fn check(&self) -> Result<(), ModelError> {
        count("the number of requests in flight (MPL)", self.mpl, Self::MOST)?;
        self.cores.map_or(Ok(()), |cores| count("the number of cores", cores, Self::MOST))
    }

    /// Returns the number of requests that can compute in parallel.
    pub(crate) fn computing_max(&self) -> u32 {
        self.cores.unwrap_or(self.mpl).min(self.mpl)
    }
}

/// Returns an error if a number is 0 or above `most`.
fn count(what: &'static str, number: u32, most: u32) -> Result<(), ModelError> {
    match number {
        0 => Err(ModelError::Zero { what }),
        number if number > most => Err(ModelError::TooMany { what, number, most }),
        _ => Ok(()),
    }
}
