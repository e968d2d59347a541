//! Savings of hits and costs of fetches, from measured times.
//!
//! All of it in *best hits*: what a hit saves of the direction in which it saves more. So a read
//! above a device that writes four times as slowly as it reads is worth a quarter.

use super::UNIT;
use crate::admission::{Times, Window};
use crate::{Access, Direction};

/// Prices in best hits, as of the times measured last.
#[derive(Debug, Clone, Default)]
pub(super) struct Prices {
    times: Times,
    /// Clients do not wait for the device below with a write that comes in.
    puts_writes_off: bool,
}

impl Prices {
    /// Takes in what was measured; what was not stays as it is known.
    pub(super) fn learn(&mut self, window: &Window) {
        let (known, new) = (&mut self.times, &window.times);
        self.puts_writes_off = window.puts_writes_off;
        known.hit_ns = new.hit_ns.or(known.hit_ns);
        known.backing_read_ns = new.backing_read_ns.or(known.backing_read_ns);
        known.backing_write_ns = new.backing_write_ns.or(known.backing_write_ns);
        known.insert_ns = new.insert_ns.or(known.insert_ns);
    }

    /// Returns the nanoseconds that a read hit and a write hit save. A direction that was not
    /// measured is taken to be like the other; `None` before anything was.
    fn saved_ns(&self) -> Option<[f64; 2]> {
        let hit = self.times.hit_ns?;
        let (read, write) = (self.times.backing_read_ns, self.times.backing_write_ns);
        let below = [read.or(write)?, write.or(read)?];
        Some(below.map(|below| (below - hit).max(0.0)))
    }

    /// Nanoseconds of a best hit; `None` while that is not known, or nothing.
    fn best_ns(&self) -> Option<f64> {
        let [read, write] = self.saved_ns()?;
        Some(read.max(write)).filter(|&best| best > 0.0)
    }

    /// Returns the worth of a hit of this access: from 0 to 1, and 1 while nothing is known.
    pub(super) fn hit(&self, access: &Access) -> f64 {
        let Some([read, write]) = self.saved_ns() else { return 1.0 };
        let saved = if access.direction == Direction::Read { read } else { write };
        self.best_ns().map_or(0.0, |best| saved / best)
    }

    /// Returns what it saves that this access comes in after a miss, but for the cost of its
    /// insertion: a write does not wait for the device below then, if writes are put off.
    pub(super) fn admission(&self, access: &Access) -> f64 {
        if access.direction == Direction::Read || !self.puts_writes_off {
            return 0.0;
        }
        let below = self.times.backing_write_ns.or(self.times.backing_read_ns);
        below.zip(self.best_ns()).map_or(0.0, |(below, best)| below / best)
    }

    /// Returns the count of this access in the table.
    pub(super) fn count(&self, access: &Access) -> u16 {
        (self.hit(access) * f64::from(UNIT)).round() as u16
    }

    /// Returns the cost of inserting a block. Where hits save nothing it is a loss all the same.
    pub(super) fn insertion(&self) -> f64 {
        let is_useless = self.saved_ns().is_some() && self.best_ns().is_none();
        let measured =
            self.best_ns().map_or(0.0, |best| self.times.insert_ns.unwrap_or(0.0) / best);
        if is_useless { 1.0 } else { measured }
    }

    /// Returns the cost of a fetch with its insertion; `None` while it is unknown.
    pub(super) fn fetch(&self) -> Option<f64> {
        let read = self.times.backing_read_ns.or(self.times.backing_write_ns)?;
        Some(read / self.best_ns()? + self.insertion())
    }
}
