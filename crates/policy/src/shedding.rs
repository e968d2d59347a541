//! Load shedding: sends a share of the requests past the cache to the disk while the hit ratio is
//! beyond p*.
//!
//! Where hits wait longer for each other's list operations than a miss waits for the disk, each
//! request that bypasses the cache relieves the others, and throughput stays at its peak instead of
//! falling ("Can Increasing the Hit Ratio Hurt Cache Throughput?", section 5.2). Elsewhere shedding
//! costs disk accesses for nothing. [`Shedding`] distinguishes the two by measurement, never by a
//! model. It [tries](crate::trial) the next share beside the present one, in alternating windows,
//! and takes the share with the lower mean time of a request.
//!
//! The shares are steps of a ladder. The share rises by one step if that is better by more than the
//! error and a margin. The present step must prove its gain over the one below again and again, and
//! is given up if it cannot. So requests are shed only while that pays, never more than the highest
//! share. Without a gain nothing is shed except in trials, whose intervals double.
//!
//! The code is pure: times and sums of latencies go in; the share to shed and the time of the next
//! step come out. The caller must only shed requests that the disk would answer like the cache, so
//! never a key whose newest value is only in the cache. [`Shedder`] feeds it for Floe's
//! caches.

use std::time::Duration;

use crate::trial::{Backoff, Difference, Level, Mode, Record, Seen, Sums, Trial, TrialOptions};

/// Number of decisions that are kept for reports.
const RECORD: usize = 32;

/// The limits of shedding, and the settings of its trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SheddingOptions {
    /// Difference between neighbouring shares of requests.
    pub step: f64,
    /// Highest share of requests that is shed, in trials too.
    pub max: f64,
    /// Settings of the trials. [`interval_min`](TrialOptions::interval_min) and
    /// [`interval_max`](TrialOptions::interval_max) bound the wait between trials that change
    /// nothing. [`shift`](TrialOptions::shift) is in powers of two of the mean time, if a
    /// [`Shedder`] watches it.
    pub trial: TrialOptions,
}

impl Default for SheddingOptions {
    /// Returns steps of a twentieth, up to half of the requests. A share is given up soon when
    /// requests take half as long again.
    fn default() -> Self {
        Self { step: 0.05, max: 0.5, trial: TrialOptions { shift: 0.5, ..TrialOptions::default() } }
    }
}

/// An order to the cache: the share of requests to send to the disk, and the time of the next step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShedOrder {
    /// Share of requests to shed, from 0 to the highest share.
    pub share: f64,
    /// Time of the next step, on the clock of [`Seen::now`].
    pub until: Duration,
}

/// A decision about the share to shed.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Time of the decision, on the clock of [`Seen::now`].
    pub at: Duration,
    /// Share of requests shed after the decision.
    pub share: f64,
    /// Measured gain of the higher of the two shares compared; `None` when there were too few
    /// measurements.
    pub difference: Option<Difference>,
    /// Reason for the decision, in words and numbers.
    pub reason: String,
}

/// Decides which share of the requests is shed.
///
/// ```
/// use std::time::Duration;
/// use floe_policy::shedding::{Shedding, SheddingOptions};
/// use floe_policy::trial::{Seen, Sums};
///
/// // Requests take 1000 ns, and 8 ns less for each hundredth that is shed, up to a fifth.
/// let mut shedding = Shedding::new(SheddingOptions::default());
/// let mut order = shedding.step(&Seen::default());
/// for _ in 0..10_000 {
///     let past = (order.share - 0.2).max(0.0);
///     let mean = 1000.0 - 800.0 * order.share + 4800.0 * past;
///     let mut sums = Sums::default();
///     (0..100).for_each(|_| sums.add(mean));
///     order = shedding.step(&Seen { now: order.until, sums, level: None });
/// }
/// assert!((shedding.share() - 0.2).abs() < 1e-9);
/// ```
#[derive(Debug, Clone)]
pub struct Shedding {
    options: SheddingOptions,
    /// Number of steps up to the highest share.
    rungs: u32,
    /// Step that was decided on; the share is `rung` times the step size.
    rung: u32,
    state: State,
    interval: Backoff,
    level: Level,
    decisions: Record<Decision>,
}

#[derive(Debug, Clone)]
enum State {
    Resting {
        next: Duration,
        /// Neighbouring step that the next trial compares.
        side: Side,
    },
    /// A trial of step `low` as the baseline against the step above as the variant.
    Trying { low: u32, trial: Box<Trial> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Above,
    Below,
}

impl Shedding {
    /// Creates a decider that sheds nothing yet; the first trial begins with the first step.
    ///
    /// # Panics
    /// When the step is not above 0, or the highest share not from 0 to 1.
    pub fn new(options: SheddingOptions) -> Self {
        assert!(options.step > 0.0, "rungs are apart");
        assert!((0.0..=1.0).contains(&options.max), "a share is from 0 to 1");
        Self {
            options,
            // A share that is short of a rung by rounding is one.
            rungs: (options.max / options.step + 1e-9) as u32,
            rung: 0,
            state: State::Resting { next: Duration::ZERO, side: Side::Above },
            interval: Backoff::new(options.trial.interval_min, options.trial.interval_max),
            level: Level::new(options.trial.shift),
            decisions: Record::new(RECORD),
        }
    }

    /// Returns the share that was decided on, whatever share a trial is running.
    pub fn share(&self) -> f64 {
        self.share_of(self.rung)
    }

    /// Returns whether a trial is running.
    pub fn is_trying(&self) -> bool {
        matches!(self.state, State::Trying { .. })
    }

    /// Returns the last decisions, oldest first.
    pub fn decisions(&self) -> &Record<Decision> {
        &self.decisions
    }

    /// Takes the measurements since the last step, and returns the share to shed and the time of
    /// the next step.
    pub fn step(&mut self, seen: &Seen) -> ShedOrder {
        if self.level.shifts(seen.level) {
            self.interval.reset();
            if let State::Resting { next, .. } = &mut self.state {
                *next = (*next).min(seen.now);
            }
        }
        if let State::Resting { next, side } = self.state
            && seen.now >= next
            && self.rungs > 0
        {
            self.begin(side, seen.now);
        }
        let (low, order, is_over) = match &mut self.state {
            State::Resting { next, .. } => {
                // Not later than this, to notice when the level shifts.
                let until = (*next).min(seen.now + self.options.trial.interval_min);
                return ShedOrder { share: self.share_of(self.rung), until };
            }
            State::Trying { low, trial } => {
                let before = trial.decisions().iter().len();
                let order = trial.step(seen);
                (*low, order, trial.decisions().iter().len() > before)
            }
        };
        if is_over {
            self.conclude(seen.now);
            return ShedOrder { share: self.share(), until: seen.now + self.options.trial.settle };
        }
        let rung = low + u32::from(order.mode == Mode::Variant);
        ShedOrder { share: self.share_of(rung), until: order.until }
    }

    fn share_of(&self, rung: u32) -> f64 {
        (f64::from(rung) * self.options.step).min(self.options.max)
    }

    fn begin(&mut self, side: Side, now: Duration) {
        let (low, mode) = match side {
            Side::Above if self.rung < self.rungs => (self.rung, Mode::Baseline),
            Side::Below if self.rung == 0 => (0, Mode::Baseline),
            _ => (self.rung - 1, Mode::Variant),
        };
        let mut trial = Box::new(Trial::new(mode, self.options.trial));
        // Begins; what was seen until now was seen before it.
        trial.step(&Seen { now, ..Seen::default() });
        self.state = State::Trying { low, trial };
    }

    fn conclude(&mut self, now: Duration) {
        let State::Trying { low, trial } = &self.state else { return };
        let Some(found) = trial.decisions().iter().last() else { return };
        let (low, difference) = (*low, found.difference);
        let was_above = self.rung > low;
        let margin = if was_above { 0.0 } else { self.options.trial.margin };
        let pays = difference.is_some_and(|difference| difference.is_gain(margin));
        self.rung = low + u32::from(pays);
        let numbers =
            difference.map_or_else(|| "too few requests to tell".to_owned(), |it| it.to_string());
        let (share, more) = (self.share_of(self.rung), self.share_of(low + 1));
        let said = if pays { "pays" } else { "does not pay" };
        let reason = format!("shedding {:.0} % {said}: {numbers}", 100.0 * more);
        self.decisions.push(Decision { at: now, share, difference, reason });
        self.level.decide();
        let changed = pays != was_above;
        // On in the direction that was right; otherwise the other neighbour is next, after a wait.
        let (side, wait) = match (changed, pays) {
            (true, true) => (Side::Above, Duration::ZERO),
            (true, false) => (Side::Below, Duration::ZERO),
            (false, true) => (Side::Above, self.interval.take()),
            (false, false) => (Side::Below, self.interval.take()),
        };
        if changed {
            self.interval.reset();
        }
        // At the foot of the ladder there is nothing below to go on to.
        let wait = if self.rung == 0 && changed { self.interval.take() } else { wait };
        self.state = State::Resting { next: now + wait, side };
    }
}

/// Decides which share of the requests is shed, from totals of requests and of their time.
///
/// ```
/// use std::time::Duration;
/// use floe_policy::shedding::Shedder;
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
///
/// [`Shedding`] decides by the mean time of a request. If the owner passes the summed latencies,
/// that is exactly the mean latency. If the owner passes the elapsed time, it is the mean latency
/// divided by the requests in flight. In a closed loop the number in flight does not depend on the
/// share. Where requests arrive at their own rate, shedding does not change the elapsed time and
/// does not pay.
///
/// A change of the load is detected by that mean, while a share above 0 has been decided on. While
/// nothing is shed, a trial waits its turn in any case: each costs something, and loads that change
/// all the time would have trials all the time.
#[derive(Debug, Clone)]
pub struct Shedder {
    shedding: Shedding,
    requests: u64,
    time: Duration,
    due: Duration,
    share_now: f64,
}

impl Shedder {
    /// Creates a shedder that sheds nothing yet and is due at once. The
    /// [`shift`](crate::trial::TrialOptions::shift) is in powers of two of the mean time.
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

    /// Returns the time of the next step. An earlier call does no harm; a later one makes windows
    /// longer.
    pub fn due(&self) -> Duration {
        self.due
    }

    /// Updates the controller and returns the share of requests to shed from now on. `requests` and
    /// `time` are totals since the start, and `now` is the time since that start. Totals that go
    /// back count as unchanged.
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

    /// Returns the share that was decided on, whatever share a trial is running.
    pub fn share(&self) -> f64 {
        self.shedding.share()
    }

    /// Returns the share that is shed now, including that of a running trial.
    pub fn share_now(&self) -> f64 {
        self.share_now
    }

    /// Returns the last decisions, oldest first.
    pub fn decisions(&self) -> &Record<Decision> {
        self.shedding.decisions()
    }
}
