//! The bound on fills: what is stored of clients' reads that missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::geometry::Sectors;
use crate::tasks::Task;

/// The times that bound the fills under way, in nanoseconds. By default there is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct FillTimes {
    /// Time that each write under way on the cache device adds to one behind it.
    pub(crate) operation_ns: f64,
    /// Time that each sector of these writes adds.
    pub(crate) sector_ns: f64,
    /// Mean time of a read of the backing devices.
    pub(crate) miss_ns: f64,
}

/// The bound on fills: what the cache device stores of missed reads, after these were answered.
///
/// Clients wait for a fill where their own operation stands behind it in the queue of the cache
/// device. Where misses come faster than the device stores them, the queue would grow for as long
/// as that lasts. So no fill begins while those under way take longer than a read of the backing
/// device: it would make each client behind it wait for longer than a hit saves. A first fill
/// always begins, so both times are measured anew, whatever they were.
///
/// On a device that carries out each operation at once nothing waits, and there is no bound. All
/// shards of a part count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fills {
    /// Operations and sectors. Atomic so that a part can be sent to its thread, which alone counts.
    under_way: Arc<[AtomicU64; 2]>,
    times: FillTimes,
}

impl Fills {
    /// Counts a fill that begins.
    pub(crate) fn begin(&self, run: &Sectors) {
        for (sum, more) in self.under_way.iter().zip([1, run.end - run.start]) {
            sum.fetch_add(more, Ordering::Relaxed); // a count: it orders no other access
        }
    }

    /// Counts the end of a fill, whatever its result.
    pub(crate) fn end(&self, run: &Sectors) {
        for (sum, less) in self.under_way.iter().zip([1, run.end - run.start]) {
            let before = sum.fetch_sub(less, Ordering::Relaxed); // as above
            debug_assert!(before >= less, "a fill ends that has not begun");
        }
    }

    /// Sets the times that bound the fills under way.
    pub(crate) fn set_times(&mut self, times: FillTimes) {
        self.times = times;
    }

    /// Returns whether what a task fetches is not to be stored, as too many fills are under way.
    /// Data for which no client waits is fetched only to be stored, and in few fetches at once.
    pub(crate) fn skips(&self, task: &Task) -> bool {
        self.are_behind() && task.destination().is_some()
    }

    /// Returns whether the fills under way take longer than a miss.
    #[inline]
    fn are_behind(&self) -> bool {
        let [operations, sectors] =
            [0, 1].map(|at| self.under_way[at].load(Ordering::Relaxed) as f64); // as above
        let FillTimes { operation_ns, sector_ns, miss_ns } = self.times;
        operations * operation_ns + sectors * sector_ns > miss_ns
    }

    /// Returns whether no fill is under way.
    pub(crate) fn are_idle(&self) -> bool {
        self.under_way.iter().all(|sum| sum.load(Ordering::Relaxed) == 0) // as above
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fills(operation_ns: f64, sector_ns: f64) -> Fills {
        let mut fills = Fills::default();
        fills.set_times(FillTimes { operation_ns, sector_ns, miss_ns: 100.0 });
        fills
    }

    #[test]
    fn fills_are_behind_while_they_take_longer_than_a_miss() {
        let fills = fills(30.0, 1.0);
        let other_shard = fills.clone();
        for (run, are_behind) in [(0..1, false), (8..10, false), (0..4, false), (4..5, true)] {
            fills.begin(&run);
            assert_eq!(other_shard.are_behind(), are_behind, "{run:?}");
        }
        other_shard.end(&(0..4));
        assert!(!fills.are_behind());
        for run in [4..5, 8..10, 0..1] {
            assert!(!fills.are_idle());
            fills.end(&run);
        }
        assert!(fills.are_idle() && other_shard.are_idle());
    }

    #[test]
    fn a_first_fill_begins_however_long_it_takes() {
        let fills = fills(1e18, 1e18);
        assert!(!fills.are_behind());
        fills.begin(&(0..1));
        assert!(fills.are_behind());
    }

    #[test]
    fn without_times_there_is_no_bound() {
        let fills = Fills::default();
        (0..100_000).for_each(|at| fills.begin(&(at..2 * at)));
        assert!(!fills.are_behind());
    }
}
