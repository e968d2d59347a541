//! Load shedding for owners that count requests and their time: from two sums, the share to shed.
//!
//! [`Shedding`] decides by the mean time of a request. Where time is what each request took, it
//! says just that. Where it is the time that has passed, it is that mean divided by the requests in
//! flight: in a closed loop these are as many with one share as with another, and where requests
//! come at a pace of their own, shedding changes nothing of it and does not pay.
//!
//! A change of the load is detected by the same mean, while a share is shed that was decided on.
//! While nothing is shed, a trial waits its turn in any case: each costs something, and loads that
//! change all the time would have them all the time.

use std::time::Duration;

use crate::shedding::{Decision, Shedding, SheddingOptions};
use crate::trial::{Record, Seen, Sums};

/// Decides what share of the requests is shed, by sums since the start.
///
/// ```
/// use std::time::Duration;
/// use floe_policy::shedder::Shedder;
/// use floe_policy::shedding::SheddingOptions;
///
/// // A request takes 2 µs, and less the more is shed.
/// let mut shedder = Shedder::new(SheddingOptions::default());
/// let (mut requests, mut time) = (0, Duration::ZERO);
/// while shedder.due() < Duration::from_secs(60) {
///     let share = shedder.step(shedder.due(), requests, time);
///     requests += 1000;
///     time += Duration::from_nanos(((2.0 - share) * 1e6) as u64);
/// }
/// assert_eq!(shedder.share(), 0.5);
/// ```
#[derive(Debug, Clone)]
pub struct Shedder {
    shedding: Shedding,
    requests: u64,
    time: Duration,
    due: Duration,
    share_now: f64,
}

impl Shedder {
    /// Sheds nothing yet, and is due at once. The [`shift`](crate::trial::TrialOptions::shift) is
    /// in powers of two of the mean time.
    ///
    /// # Panics
    /// As [`Shedding::new`].
    pub fn new(options: SheddingOptions) -> Self {
        Self {
            shedding: Shedding::new(options),
            requests: 0,
            time: Duration::ZERO,
            due: Duration::ZERO,
            share_now: 0.0,
        }
    }

    /// When to step next: earlier does no harm, later makes windows longer.
    pub fn due(&self) -> Duration {
        self.due
    }

    /// Takes in how many requests were answered since the start and what time they took, up to
    /// `now`, from the same start; says what share to shed from now on. Counts that go back count
    /// as unchanged.
    pub fn step(&mut self, now: Duration, requests: u64, time: Duration) -> f64 {
        let count = requests.saturating_sub(self.requests);
        let sum = time.saturating_sub(self.time).as_nanos() as f64;
        let mean = (count > 0 && sum > 0.0).then(|| sum / count as f64);
        let is_at_rest = !self.shedding.is_trying() && self.share_now > 0.0;
        let level = mean.filter(|_| is_at_rest).map(f64::log2);
        let sums = Sums { count, sum, squares: sum * mean.unwrap_or_default() };
        let order = self.shedding.step(&Seen { now, sums, level });
        (self.requests, self.time) = (requests, time);
        (self.due, self.share_now) = (order.until, order.share);
        order.share
    }

    /// The share that was decided for, whatever a trial is running.
    pub fn share(&self) -> f64 {
        self.shedding.share()
    }

    /// Returns the share that is shed now, in trials too.
    pub fn share_now(&self) -> f64 {
        self.share_now
    }

    /// The last decisions, oldest first.
    pub fn decisions(&self) -> &Record<Decision> {
        self.shedding.decisions()
    }
}
