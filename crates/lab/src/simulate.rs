//! Simulates caches over traces without devices.

use floe_policy::admission;
use floe_policy::registry::Choice;
use floe_trace::Kind;

use self::objects::Run;
use self::stream::{Keep, Stream};
use crate::sizes::{CacheSize, Sizes};

pub mod blocks;
pub mod hybrid;
pub mod objects;
pub mod operations;
mod policy_loop;
pub mod prompts;
pub mod stream;

/// Size in bytes of the blocks into which block traces are cut.
pub const BLOCK_BYTES: u64 = 4096;

/// Settings of the runs over one trace: all combinations of policies, admissions and sizes.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Eviction policies to compare.
    pub policies: Vec<Choice>,
    /// Lists of admission policies to compare; an empty list admits everything.
    pub admissions: Vec<Vec<admission::registry::Choice>>,
    /// Cache sizes to compare.
    pub sizes: Sizes,
    /// True to count capacity in bytes, by the sizes of objects.
    pub in_bytes: bool,
    /// Share of the keys to simulate, above 0 and at most 1.
    pub rate: f64,
}

/// Reasons why the runs of a grid are not possible.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GridError {
    /// Sizes are in bytes, but the trace has keys without sizes.
    #[error("a trace of keys has no sizes; give the size as a count or a share")]
    NoSizes,
    /// A cache size leaves room for no object.
    #[error("this share of {footprint} is less than one object ({policy})")]
    NoRoom {
        /// Footprint of the trace, in objects or bytes.
        footprint: u64,
        /// The policy of the run.
        policy: String,
    },
}

/// Instructions for reading a trace into a stream.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// The parts of the trace to keep.
    pub keep: Keep,
    /// Bytes in a unit of capacity: a block's size where sizes in bytes are counted in blocks, else
    /// 1.
    pub unit: u64,
}

impl Grid {
    /// Returns whether cache sizes are in bytes.
    pub fn counts_bytes(&self) -> bool {
        self.in_bytes || self.sizes.0.iter().any(|size| matches!(size, CacheSize::Bytes(_)))
    }

    /// Returns the parts of a trace to keep. Blocks of equal size need no sizes, except for an
    /// admission policy with parameters in bytes.
    ///
    /// # Errors
    /// When bytes are counted and the trace has no sizes.
    pub fn reading(&self, kind: Kind) -> Result<Reading, GridError> {
        let in_bytes = self.counts_bytes();
        if in_bytes && kind == Kind::Key {
            return Err(GridError::NoSizes);
        }
        let admits = self.admissions.iter().any(|admission| !admission.is_empty());
        let sizes = in_bytes && (kind != Kind::Block || admits);
        let next_use = self.policies.iter().any(|policy| policy.name() == "belady");
        let unit = if in_bytes && !sizes { BLOCK_BYTES } else { 1 };
        Ok(Reading { keep: Keep { rate: self.rate, sizes, next_use }, unit })
    }

    /// Returns the runs over a stream: by size, then by eviction policy, then by admission policy.
    ///
    /// # Errors
    /// When a cache size leaves room for no object.
    pub fn runs(&self, stream: &Stream, unit: u64) -> Result<Vec<Run>, GridError> {
        let footprint = (stream.footprint as f64 / stream.rate) as u64;
        let mut runs = Vec::new();
        for size in &self.sizes.0 {
            let size = size.of(footprint * unit) / unit;
            for policy in &self.policies {
                if size == 0 {
                    return Err(GridError::NoRoom { footprint, policy: policy.to_string() });
                }
                let run =
                    |admit: &Vec<_>| Run { policy: policy.clone(), size, admit: admit.clone() };
                runs.extend(self.admissions.iter().map(run));
            }
        }
        Ok(runs)
    }
}

/// Applies `work` to a list on all cores, and returns the results in order.
///
/// # Panics
/// When `work` panics.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let worker = || {
        let mut done = Vec::new();
        loop {
            // Relaxed: the counter only hands out numbers; results travel by the join.
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a simulation does not panic"))
            .collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
