//! [`Transfers`]: the number of bodies that arrive at once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::catalog::lock;

/// Returns the time since any moment.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Counts the bodies that are arriving, over time.
///
/// A body's time is weighed by the inverse of that number. On a link that is shared fairly, a body
/// that took a time `t` would have taken the integral of `1 / number` over `t` alone. So the
/// harmonic mean of the number is the factor by which others slowed it down there.
pub(crate) struct Transfers {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    arriving: u32,
    /// Time up to which `shares` is known.
    at: Duration,
    /// Integral of the inverse of `arriving` over time, in seconds.
    shares: f64,
}

impl State {
    fn go_on(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.at).as_secs_f64();
        if self.arriving > 0 {
            self.shares += seconds / f64::from(self.arriving);
        }
        self.at = self.at.max(now);
    }
}

/// A body that is arriving. It counts until it is dropped.
pub(crate) struct Transfer {
    transfers: Arc<Transfers>,
    begun: Duration,
    shares: f64,
}

impl Transfers {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Counts a body that begins to arrive.
    pub(crate) fn begin(self: &Arc<Self>) -> Transfer {
        let mut state = lock(&self.state);
        let begun = (self.clock)();
        state.go_on(begun);
        state.arriving += 1;
        Transfer { transfers: Arc::clone(self), begun, shares: state.shares }
    }
}

impl Transfer {
    /// Returns the harmonic mean of the number of bodies that arrived, this one included, since
    /// it began.
    pub(crate) fn at_once(&self) -> f64 {
        let mut state = lock(&self.transfers.state);
        let now = (self.transfers.clock)();
        state.go_on(now);
        let seconds = now.saturating_sub(self.begun).as_secs_f64();
        let shares = state.shares - self.shares;
        if shares > 0.0 { (seconds / shares).max(1.0) } else { f64::from(state.arriving) }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let mut state = lock(&self.transfers.state);
        state.go_on((self.transfers.clock)());
        state.arriving -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_body_counts_the_others_for_as_long_as_they_last() {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now);
        let transfers = Arc::new(Transfers::new(Arc::new(move || {
            Duration::from_millis(clock.load(Ordering::Relaxed)) // one thread only
        })));
        let wait = |ms| {
            now.fetch_add(ms, Ordering::Relaxed);
        };
        let long = transfers.begin();
        let short = transfers.begin();
        assert!((long.at_once() - 2.0).abs() < 1e-9, "no time has passed");
        wait(20);
        assert!((short.at_once() - 2.0).abs() < 1e-9);
        drop(short);
        wait(10);
        // 20 ms at half the rate and 10 ms at the full one: 20 ms alone.
        assert!((long.at_once() - 1.5).abs() < 1e-9);
        wait(70);
        assert!((long.at_once() - 100.0 / 90.0).abs() < 1e-9);
        drop(long);
        wait(50);
        let alone = transfers.begin();
        wait(10);
        assert!((alone.at_once() - 1.0).abs() < 1e-9, "idle time does not count");
    }
}
