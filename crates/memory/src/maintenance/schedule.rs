//! The times at which each cache is due for a tick or a sweep.

use std::sync::Arc;

use super::{EARLIER, Maintenance, TICK_US};
use crate::sweep::Sweep;

/// Between two ticks of a cache that is not in use.
const IDLE_TICK_US: u64 = 160_000;
/// A sweep that takes longer than this holds up no other.
const LONG_US: u64 = 20_000;

impl Maintenance {
    /// Restarts in a forked process: no thread works on the list, and interrupted sweeps are due.
    pub(super) fn begin_again(&mut self) {
        (self.is_led, self.waiting, self.sweeping, self.threads, self.retry_at) =
            (false, 0, 0, 0, 0);
        let numbers: Vec<u64> = self.caches.keys().copied().collect();
        for number in numbers {
            let Some(kept) = self.caches.get_mut(&number) else { continue };
            let was_ticked = kept.ticks && kept.tick_due.is_none();
            let was_swept = std::mem::take(&mut kept.is_swept);
            if was_swept {
                kept.sweep_due = None;
                self.schedule_sweep(number, 0);
            }
            if was_ticked {
                self.schedule_tick(number, 0);
            }
        }
    }

    pub(super) fn schedule_tick(&mut self, number: u64, at: u64) {
        let Some(kept) = self.caches.get_mut(&number) else { return };
        kept.tick_due = Some(at);
        self.ticks.insert((at, number));
        if self.ticks.first() == Some(&(at, number)) {
            EARLIER.notify_one();
        }
    }

    pub(super) fn schedule_sweep(&mut self, number: u64, at: u64) {
        let Some(kept) = self.caches.get_mut(&number) else { return };
        let before = kept.sweep_due;
        if before.is_some_and(|before| before <= at) {
            return;
        }
        kept.sweep_due = Some(at);
        if kept.is_swept {
            return;
        }
        if let Some(before) = before {
            self.sweeps.remove(&(before, number));
        }
        self.sweeps.insert((at, number));
        if self.sweeps.first() == Some(&(at, number)) {
            EARLIER.notify_one();
        }
    }

    /// Ticks that are due.
    pub(super) fn take_ticks(&mut self, now: u64) -> Vec<(u64, Arc<dyn Sweep>)> {
        let mut taken = Vec::new();
        while let Some(&(at, number)) = self.ticks.first().filter(|(at, _)| *at <= now) {
            self.ticks.remove(&(at, number));
            let kept = self.caches.get_mut(&number).expect("what is due is in the list");
            kept.tick_due = None;
            taken.extend(kept.cache.upgrade().map(|cache| (number, cache)));
        }
        taken
    }

    pub(super) fn ticked(&mut self, number: u64, used: bool, at: u64) {
        let Some(kept) = self.caches.get_mut(&number) else { return };
        kept.tick_us = if used { TICK_US } else { (2 * kept.tick_us).min(IDLE_TICK_US) };
        let due = at + kept.tick_us; // those that are due together stay so
        self.schedule_tick(number, due);
    }

    /// A sweep that is due. It is under way from now on.
    pub(super) fn take_sweep(&mut self, now: u64) -> Option<(u64, Arc<dyn Sweep>)> {
        loop {
            let &(at, number) = self.sweeps.first().filter(|(at, _)| *at <= now)?;
            self.sweeps.remove(&(at, number));
            let kept = self.caches.get_mut(&number).expect("what is due is in the list");
            kept.sweep_due = None;
            if let Some(cache) = kept.cache.upgrade() {
                kept.is_swept = true;
                self.sweeping += 1;
                self.long_at = now + LONG_US;
                return Some((number, cache));
            }
        }
    }

    pub(super) fn swept(&mut self, number: u64, next: Option<u64>) {
        self.sweeping -= 1;
        let Some(kept) = self.caches.get_mut(&number) else { return };
        kept.is_swept = false;
        let due = kept.sweep_due.take().into_iter().chain(next).min();
        if let Some(at) = due {
            self.schedule_sweep(number, at);
        }
    }

    /// When the leader has something to do.
    pub(super) fn next_due(&self) -> Option<u64> {
        let tick = self.ticks.first().map(|(at, _)| *at);
        let sweep = self
            .sweeps
            .first()
            .map(|(at, _)| if self.sweeping > 0 { self.long_at.max(*at) } else { *at });
        tick.into_iter().chain(sweep).min()
    }
}
