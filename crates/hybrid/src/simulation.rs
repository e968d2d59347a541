//! The cache without a drive and without values, for `floe simulate`.
//!
//! A [`Simulation`] is a [`Hybrid`] whose values are zeros, on a drive that keeps
//! none of them. All decisions are made by the code of the running cache, in the caller's thread.
//! The seeds of hashes are fixed, so equal requests have equal results.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use crate::admission::Admission;
use crate::budget::WriteBudget;
use crate::codec::Value;
use crate::flash::FlashSwitch;
use crate::hybrid::Hybrid;
use crate::insertion::Inserted;
use crate::open_error::OpenError;
use crate::sparse::SparseFlash;
use crate::stats::Stats;

/// Bytes of the longest value that is passed to the store. It is too large for any flash.
const LONGEST: usize = (1 << 30) + 1;

/// Returns zeros, which take no memory before they are read.
fn zeros() -> &'static [u8] {
    static ZEROS: OnceLock<Vec<u8>> = OnceLock::new();
    ZEROS.get_or_init(|| vec![0; LONGEST])
}

/// A value of zeros, of which only the length is kept.
#[derive(Debug, Clone, Copy)]
struct Zeros(u64);

impl Value for Zeros {
    fn encode<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        with(&zeros()[..LONGEST.min(self.bytes())])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.len() as u64))
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX / 2)
    }
}

/// The part of the cache that has an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Memory,
    Flash,
}

/// A simulated cache of values without content, by keys of 8 bytes.
#[derive(Debug)]
pub struct Simulation {
    cache: Hybrid<u64, Zeros>,
}

impl Simulation {
    /// Creates a cache with these limits in bytes, as [`Builder`](crate::Builder) has them, and the
    /// default admission.
    ///
    /// # Errors
    /// When a limit is too small or too large.
    pub fn new(memory: u64, flash: u64) -> Result<Self, OpenError> {
        Self::with_admission(memory, flash, Admission::default(), None)
    }

    /// Creates a cache with an admission and a write budget, which need the times of
    /// [`advance_to`](Self::advance_to).
    ///
    /// # Errors
    /// When a limit is too small or too large, or the admission needs the latencies of a drive.
    pub fn with_admission(
        memory: u64,
        flash: u64,
        admission: Admission,
        budget: Option<WriteBudget>,
    ) -> Result<Self, OpenError> {
        if admission == Admission::Obp {
            return Err(OpenError::Setting(
                "obp measures the latencies of a drive, which a simulation does not have".into(),
            ));
        }
        let mut builder = Hybrid::builder().memory(memory).flash("the flash", flash).in_line();
        builder = builder.admission(admission);
        if let Some(budget) = budget {
            builder = builder.write_budget(budget);
        }
        let cache = builder.open_on(|_, size| {
            let flash = SparseFlash::new(size.unwrap_or(0));
            Ok(FlashSwitch::simulated(Arc::new(flash)))
        })?;
        Ok(Self { cache })
    }

    /// Sets the time in nanoseconds since the start, unless it is later already.
    pub fn advance_to(&self, nanoseconds: u64) {
        self.cache.shared.flows.stripes().advance_to(nanoseconds);
    }

    /// Looks an object up. Returns its place and its size in bytes.
    pub fn get(&self, key: u64) -> Option<(Part, u64)> {
        let hits = || self.cache.shared.flows.of(0).counters.hits.load(Ordering::Relaxed);
        let before = hits();
        let Zeros(bytes) = self.cache.get_blocking(&key)?;
        Some((if hits() > before { Part::Flash } else { Part::Memory }, bytes))
    }

    /// Inserts an object of this many bytes.
    pub fn insert(&self, key: u64, bytes: u64) -> Inserted {
        self.cache.insert(key, Zeros(bytes))
    }

    /// Removes an object.
    pub fn remove(&self, key: u64) {
        self.cache.remove(&key);
    }

    /// Returns the statistics of the cache.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }
}
