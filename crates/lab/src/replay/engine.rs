//! The loop of a replay: begins requests on time, takes completions, and advances the clock.
//!
//! It is the loop of a server with a trace in the place of clients: the same driver over the same
//! cache. Between the warm-up and the counted part, the loop waits for all requests and background
//! work, so that no counter mixes the two. At the end all dirty data is flushed.

use std::collections::BTreeMap;
use std::io;
use std::iter::Peekable;
use std::time::{Duration, Instant};

use floe_block::{
    Answer, Driver, Fault, Request, RequestId, RequestKind, Shedder, Stats, Tier, shedding_options,
};
use floe_device::Slice;
use floe_trace::{Error, Op};

use super::latencies::{VolumeMeasured, VolumeOutcome};
use super::outcome::{Measured, ReplayResult, Series, ShedDecision, ShedOutcome};
use super::source::Layout;
use super::stage::{Clock, Stage};
use super::verify::{self, Mismatch, Verifier};
use crate::interval::Interval;

/// The settings of a replay.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Pace at which requests begin.
    pub pace: Pace,
    /// Number of requests at the start that warm the cache and are not counted.
    pub warmup: u64,
    /// True to check the data that reads return. A simulated stage must hold data for this.
    pub verify: bool,
    /// The interval at which dirty data is written to the backing devices, with write-back.
    pub flush_interval: Duration,
    /// Largest share of the hits that the shed controller may send to the backing devices; `None`
    /// to disable it.
    pub shed_most: Option<f64>,
    /// Interval length of the time series; `None` for no series.
    pub interval: Option<Interval>,
}

/// Errors of a replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] Error),
    /// Waiting for the io_uring ring failed.
    #[error("cannot wait for devices: {0}")]
    Wait(#[from] io::Error),
    /// A request failed.
    #[error("request {number} of the trace, {what}: {fault}")]
    Request {
        /// Number of the request in the trace, counted from 1.
        number: u64,
        /// Description of the request.
        what: String,
        /// The error that the cache returned.
        fault: Fault,
    },
    /// A read returned data other than was written.
    #[error("wrong data: request {number} of the trace, {what}: {mismatch}")]
    Mismatch {
        /// Number of the request in the trace, counted from 1.
        number: u64,
        /// Description of the request.
        what: String,
        /// The wrong bytes, and the expected ones.
        mismatch: Mismatch,
    },
    /// The flush at the end failed; with the number of bytes that were still dirty.
    #[error("cannot flush at the end: {0}; {1} bytes are in the cache only")]
    Flush(Fault, u64),
}

/// A request in flight.
struct UnderWay {
    number: u64,
    /// Index of the volume.
    volume: usize,
    request: Request,
    began: Instant,
    payload: Option<Slice>,
}

/// A request that waits for the limits of its volume.
struct Held {
    /// Time from which the latency counts.
    arrived: Instant,
    request: floe_trace::Request,
}

/// Replays a trace on a stage. `progress` is called now and then with the number of requests that
/// have ended.
///
/// # Errors
/// At the first request that fails or reads wrong data, and when the trace or the ring fails.
///
/// # Panics
/// When asked to verify on a stage that holds no data.
pub fn run(
    trace: &str,
    requests: impl Iterator<Item = Result<floe_trace::Request, Error>>,
    layout: &Layout,
    setup: &Setup,
    stage: Stage,
    progress: impl FnMut(u64),
) -> Result<ReplayResult, ReplayError> {
    assert!(stage.holds_data || !setup.verify, "nothing can be verified where there is no data");
    let wall = Instant::now();
    let now = stage.clock.now();
    let verifier =
        setup.verify.then(|| Verifier::new(stage.volumes.iter().map(|volume| volume.content)));
    let volumes = stage.volumes.len();
    let cleans = stage.tiers.iter().any(|tier| tier.mode.keeps_writes());
    let mut engine = Engine {
        pacer: Pacer::new(setup.pace, now),
        clean_due: cleans.then(|| now + setup.flush_interval),
        stage,
        layout,
        flush_interval: setup.flush_interval,
        shed: setup.shed_most.map(|most| Shed::new(most, now)),
        verifier,
        under_way: Vec::new(),
        in_flight: 0,
        held: BTreeMap::new(),
        arrived: 0,
        ended: 0,
        answers: Vec::new(),
        scratch: Vec::new(),
        measured: Measured::default(),
        of_volumes: VolumeMeasured::of_each(volumes),
        series: None,
        progress,
    };
    let mut requests = requests.peekable();
    if setup.warmup > 0 {
        engine.replay(&mut requests, setup.warmup)?;
        engine.wait_until_idle()?;
        let now = engine.stage.clock.now();
        if let Some(Ok(next)) = requests.peek() {
            engine.pacer.resume(next.time_ns, now);
        }
    }
    let before = stats(&engine.stage);
    let moved_before = engine.moved();
    let requests_before = engine.stage.buckets.requests();
    let processing_before = engine.stage.meter.processing();
    engine.measured = Measured { warmup_requests: engine.arrived, ..Measured::default() };
    engine.of_volumes = VolumeMeasured::of_each(engine.stage.volumes.len());
    let began = engine.stage.clock.now();
    engine.series = setup.interval.map(|every| Series::new(every, began, before.clone()));
    engine.replay(&mut requests, u64::MAX)?;
    let ended = engine.stage.clock.now();
    let intervals = engine.series.take().map(|series| series.finish(ended, stats(&engine.stage)));
    engine.measured.intervals = intervals.unwrap_or_default();
    engine.measured.processing = engine.stage.meter.processing() - processing_before;
    engine.flush()?;
    engine.measured.volumes = engine.volume_outcomes(&moved_before);
    let Engine { stage, pacer, verifier, shed, mut measured, .. } = engine;
    measured.elapsed = ended - began;
    measured.flush = stage.clock.now() - ended;
    measured.wall = wall.elapsed();
    measured.late_most = pacer.late_most();
    measured.shed = shed.map(Shed::into_outcome);
    measured.verified_bytes = verifier.map_or(0, |verifier| verifier.checked_bytes());
    let requests = stage.buckets.requests().since(requests_before);
    measured.bucket = stage.has_buckets.then_some(requests);
    let time = match stage.clock {
        Clock::Real(_) => "real",
        Clock::Virtual(_) => "virtual",
    };
    Ok(ReplayResult::new(trace, &stage.tiers, time, measured, &before, &stats(&stage)))
}

/// Returns the counters of each tier.
fn stats(stage: &Stage) -> Vec<Stats> {
    stage.driver.tiers().map(Tier::stats).collect()
}

struct Engine<'a, P> {
    stage: Stage,
    layout: &'a Layout,
    pacer: Pacer,
    clean_due: Option<Instant>,
    flush_interval: Duration,
    shed: Option<Shed>,
    verifier: Option<Verifier>,
    /// Requests in flight, indexed by the number that the cache gave them.
    under_way: Vec<Option<UnderWay>>,
    in_flight: usize,
    /// Requests that wait for the limits of their volumes, by the time at which they start and by
    /// their number.
    held: BTreeMap<(Instant, u64), Held>,
    /// Number of requests that have been taken from the trace.
    arrived: u64,
    ended: u64,
    answers: Vec<Answer>,
    scratch: Vec<u8>,
    measured: Measured,
    /// Measurements of each volume; empty where there is only one.
    of_volumes: Vec<VolumeMeasured>,
    series: Option<Series>,
    progress: P,
}

impl<P: FnMut(u64)> Engine<'_, P> {
    /// Replays up to `most` requests, and waits until all have completed.
    fn replay<I>(&mut self, requests: &mut Peekable<I>, most: u64) -> Result<(), ReplayError>
    where
        I: Iterator<Item = Result<floe_trace::Request, Error>>,
    {
        let mut left = most;
        loop {
            let mut moved = self.advance()?;
            moved |= self.begin_held();
            let mut next_turn = None;
            while left > 0 {
                let time_ns = match requests.peek() {
                    None => {
                        left = 0;
                        break;
                    }
                    Some(Ok(request)) => request.time_ns,
                    Some(Err(_)) => 0,
                };
                let now = self.stage.clock.now();
                match self.pacer.turn(time_ns, now, self.in_flight + self.held_in_flight()) {
                    Turn::Now(began) => {
                        let request = requests.next().expect("it has been peeked at")?;
                        self.arrive(request, began, now);
                        left -= 1;
                        moved = true;
                    }
                    Turn::At(due) => {
                        next_turn = Some(due);
                        break;
                    }
                    Turn::Full => break,
                }
            }
            if left == 0 && self.in_flight == 0 && self.held.is_empty() {
                return Ok(());
            }
            if !moved {
                self.wait(next_turn)?;
            }
        }
    }

    /// Returns how many of the requests that wait for a limit count as in flight. In a closed loop
    /// a client waits for them. At recorded times clients do not, and those of other volumes go on.
    fn held_in_flight(&self) -> usize {
        match self.pacer.pace {
            Pace::Closed { .. } => self.held.len(),
            Pace::Recorded { .. } => 0,
        }
    }

    /// Begins a request that arrived at `began`, or holds it back for the limits of its volume.
    fn arrive(&mut self, request: floe_trace::Request, began: Instant, now: Instant) {
        self.arrived += 1;
        self.measured.recorded.note(request.time_ns);
        let (volume, _, len) = self.layout.place(&request);
        let bytes = if request.op == Op::Delete { 0 } else { len };
        let start = if len == 0 { now } else { self.stage.volumes[volume].start(bytes, now) };
        if start > now {
            self.held.insert((start, self.arrived), Held { arrived: began, request });
        } else {
            self.begin(self.arrived, &request, (began < now).then_some(began));
        }
    }

    /// Begins the requests whose limits let them start by now. Returns whether there were any.
    fn begin_held(&mut self) -> bool {
        let (now, before) = (self.stage.clock.now(), self.held.len());
        while let Some(first) = self.held.first_entry()
            && first.key().0 <= now
        {
            let ((_, number), Held { arrived, request }) = first.remove_entry();
            self.begin(number, &request, Some(arrived));
        }
        self.held.len() < before
    }

    /// Begins a request. Its latency counts from `late_since` if that is given, because it begins
    /// late, and otherwise from now.
    fn begin(&mut self, number: u64, request: &floe_trace::Request, late_since: Option<Instant>) {
        let (volume, offset, len) = self.layout.place(request);
        if len == 0 {
            // It touches nothing, and neither hits nor misses, as in a simulation.
            self.ended += 1;
            return;
        }
        let kind = match request.op {
            Op::Read => RequestKind::Read,
            Op::Write => RequestKind::Write { durable: false },
            Op::Delete => RequestKind::Trim,
        };
        let id = self.stage.volumes[volume].id;
        let request = Request { volume: id, kind, offset, len };
        let buffer = (kind != RequestKind::Trim)
            .then(|| self.stage.meter.driver(|| self.stage.driver.buffer(&request)));
        let payload = buffer.as_ref().map(|buffer| <Driver>::payload(&request, buffer));
        match (&mut self.verifier, kind, &payload) {
            (Some(verifier), RequestKind::Write { .. }, Some(payload)) => {
                verifier.write_begins(number, volume, offset, payload);
            }
            (Some(verifier), RequestKind::Read, _) => {
                verifier.read_begins(number, volume, offset..offset + len)
            }
            (Some(verifier), ..) => verifier.trim_begins(number, volume, offset..offset + len),
            (None, RequestKind::Write { .. }, Some(payload)) if self.stage.holds_data => {
                verify::fill(number, volume, offset, payload, &mut self.scratch);
            }
            (None, ..) => {}
        }
        // Making the bytes is no part of the request, unless it is late already.
        let began = late_since.unwrap_or_else(|| self.stage.clock.now());
        let id = self.stage.meter.driver(|| self.stage.driver.submit(request, buffer));
        let under_way = UnderWay { number, volume, request, began, payload };
        self.keep(id, under_way);
    }

    fn keep(&mut self, id: RequestId, request: UnderWay) {
        let index = id.number();
        if self.under_way.len() <= index {
            self.under_way.resize_with(index + 1, || None);
        }
        self.under_way[index] = Some(request);
        self.in_flight += 1;
    }

    /// Does all work that is possible without waiting. Returns whether a request has ended.
    fn advance(&mut self) -> Result<bool, ReplayError> {
        if let Some(due) = self.clean_due {
            let now = self.stage.clock.now();
            if now >= due {
                self.stage.meter.driver(|| self.stage.driver.clean());
                self.clean_due = Some(now + self.flush_interval);
            }
        }
        if let Some(shed) = &mut self.shed {
            shed.turn(self.stage.clock.now(), &mut self.stage.driver);
        }
        self.stage.meter.driver(|| self.stage.driver.advance());
        self.stage.driver.take_answers(&mut self.answers);
        if self.answers.is_empty() {
            return Ok(false);
        }
        let now = self.stage.clock.now();
        let mut answers = std::mem::take(&mut self.answers);
        for answer in answers.drain(..) {
            self.end(answer, now)?;
        }
        self.answers = answers;
        (self.progress)(self.ended);
        Ok(true)
    }

    fn end(&mut self, answer: Answer, now: Instant) -> Result<(), ReplayError> {
        let under_way = self.under_way[answer.request.number()].take();
        let UnderWay { number, volume, request, began, payload } =
            under_way.expect("an answer belongs to a request");
        self.in_flight -= 1;
        self.ended += 1;
        if let Err(fault) = answer.result {
            return Err(ReplayError::Request { number, what: describe(&request), fault });
        }
        let latency = now.saturating_duration_since(began);
        if let Some(shed) = &mut self.shed {
            shed.served(latency);
        }
        match request.kind {
            RequestKind::Read => self.measured.reads.record(latency),
            RequestKind::Write { .. } => self.measured.writes.record(latency),
            _ => self.measured.trims += 1,
        }
        if let Some(of_volume) = self.of_volumes.get_mut(volume) {
            of_volume.note(request.kind, latency, answer.hit);
        }
        if let Some(series) = &mut self.series
            && series.note(request.kind, latency, now)
        {
            series.end(now, stats(&self.stage));
        }
        if let Some(verifier) = &mut self.verifier {
            verifier.ends(number, payload.as_ref()).map_err(|mismatch| ReplayError::Mismatch {
                number,
                what: describe(&request),
                mismatch,
            })?;
        }
        Ok(())
    }

    /// Waits for a device completion or the next due time: that of the driver, the flush, the next
    /// request or the next one that waits for a limit.
    fn wait(&mut self, next_turn: Option<Instant>) -> Result<(), ReplayError> {
        let held = self.held.first_key_value().map(|(&(start, _), _)| start);
        let due = [self.stage.driver.next_due(), self.clean_due, next_turn, held];
        Ok(self.stage.clock.wait_until(due.into_iter().flatten().min())?)
    }

    /// Waits until no request and no background work is in flight.
    fn wait_until_idle(&mut self) -> Result<(), ReplayError> {
        loop {
            self.advance()?;
            if self.stage.driver.is_idle() {
                return Ok(());
            }
            self.wait(None)?;
        }
    }

    /// Returns the bytes that the backing device of each volume has read and written.
    fn moved(&self) -> Vec<(u64, u64)> {
        let moved = self.stage.volumes.iter().map(|volume| &volume.moved);
        moved.map(|moved| (moved.read.get(), moved.written.get())).collect()
    }

    /// Returns the results of each volume since its backing device had moved as much as
    /// `moved_before`; none where there is only one volume.
    fn volume_outcomes(&mut self, moved_before: &[(u64, u64)]) -> Vec<VolumeOutcome> {
        let (measured, moved) = (std::mem::take(&mut self.of_volumes), self.moved());
        let cached = self.stage.driver.top().stats().volume_bytes;
        let of = |(at, measured): (usize, VolumeMeasured)| {
            let (volume, before) = (&self.stage.volumes[at], moved_before[at]);
            let moved = (moved[at].0 - before.0, moved[at].1 - before.1);
            let cached = cached.get(usize::from(volume.id.0)).copied().unwrap_or(0);
            measured.outcome(&volume.name, moved, cached)
        };
        measured.into_iter().enumerate().map(of).collect()
    }

    /// Flushes all dirty data to the backing devices.
    fn flush(&mut self) -> Result<(), ReplayError> {
        self.clean_due = None; // everything is being cleaned
        let volumes: Vec<_> = self.stage.volumes.iter().map(|volume| volume.id).collect();
        for volume in &volumes {
            let request = Request { volume: *volume, kind: RequestKind::Flush, offset: 0, len: 0 };
            self.stage.driver.submit(request, None);
        }
        let mut answered = 0;
        while answered < volumes.len() || !self.stage.driver.is_idle() {
            self.stage.driver.advance();
            self.stage.driver.take_answers(&mut self.answers);
            let moved = !self.answers.is_empty();
            for answer in self.answers.drain(..) {
                answered += 1;
                if let Err(fault) = answer.result {
                    let dirty_bytes = stats(&self.stage).iter().map(|tier| tier.dirty_bytes).sum();
                    return Err(ReplayError::Flush(fault, dirty_bytes));
                }
            }
            if !moved && !self.stage.driver.is_idle() {
                self.wait(None)?;
            }
        }
        Ok(())
    }
}

fn describe(request: &Request) -> String {
    let what = match request.kind {
        RequestKind::Read => "a read",
        RequestKind::Write { .. } => "a write",
        _ => "a trim",
    };
    format!("{what} of {} bytes at {} of volume {}", request.len, request.offset, request.volume.0)
}

/// Pace at which requests begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// A closed loop: each completion starts the next request.
    Closed {
        /// Number of requests in flight.
        in_flight: usize,
    },
    /// Requests begin at their recorded times.
    Recorded {
        /// Factor by which the replay is faster than the recording.
        speed: f64,
        /// Largest number of requests in flight; requests beyond it begin late.
        in_flight: usize,
    },
}

/// The pacer's decision on the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Begin now; the latency counts from the given time.
    Now(Instant),
    /// Begin at this time.
    At(Instant),
    /// Begin after another request has completed, because too many are in flight.
    Full,
}

/// Decides when each request of a replay begins.
#[derive(Debug)]
pub(super) struct Pacer {
    pace: Pace,
    /// Clock time that corresponds to time zero of the trace.
    start: Instant,
    /// Latest recorded time so far. A request recorded earlier counts as recorded then, since
    /// requests begin in order.
    latest: Duration,
    /// True if the next request was told to begin at a later time.
    waited: bool,
    late_most: Duration,
}

impl Pacer {
    pub(super) fn new(pace: Pace, now: Instant) -> Self {
        Self { pace, start: now, latest: Duration::ZERO, waited: false, late_most: Duration::ZERO }
    }

    /// Decides when the next request, recorded at `time_ns`, begins, given the time and the number
    /// of requests in flight.
    pub(super) fn turn(&mut self, time_ns: u64, now: Instant, under_way: usize) -> Turn {
        let (speed, in_flight) = match self.pace {
            Pace::Closed { in_flight } if under_way < in_flight => return Turn::Now(now),
            Pace::Closed { .. } => return Turn::Full,
            Pace::Recorded { speed, in_flight } => (speed, in_flight),
        };
        let recorded = Duration::from_nanos((time_ns as f64 / speed) as u64).max(self.latest);
        let due = self.start + recorded;
        if under_way >= in_flight {
            self.waited = false;
            return Turn::Full;
        }
        if now < due {
            self.waited = true;
            return Turn::At(due);
        }
        self.latest = recorded;
        // A timer that fires late is no fault of the disk.
        if std::mem::take(&mut self.waited) {
            return Turn::Now(now);
        }
        self.late_most = self.late_most.max(now - due);
        Turn::Now(due)
    }

    /// Shifts the schedule after a pause that the trace does not have: the request recorded at
    /// `time_ns` is due now at the earliest.
    pub(super) fn resume(&mut self, time_ns: u64, now: Instant) {
        if let Pace::Recorded { speed, .. } = self.pace {
            let recorded = Duration::from_nanos((time_ns as f64 / speed) as u64).max(self.latest);
            self.start += now.saturating_duration_since(self.start + recorded);
            self.late_most = Duration::ZERO;
        }
    }

    /// Returns the longest delay of a request's beginning.
    pub(super) fn late_most(&self) -> Duration {
        self.late_most
    }
}

/// The shed controller, and the latencies that it decides by.
#[derive(Debug)]
pub(super) struct Shed {
    shedder: Shedder,
    begun: Instant,
    requests: u64,
    time: Duration,
}

impl Shed {
    pub(super) fn new(most: f64, begun: Instant) -> Self {
        let shedder = Shedder::new(shedding_options(most));
        Self { shedder, begun, requests: 0, time: Duration::ZERO }
    }

    /// Adds the latency of a completed request.
    pub(super) fn served(&mut self, latency: Duration) {
        self.requests += 1;
        self.time += latency;
    }

    /// Lets the controller set the share of hits to shed, if its next decision is due.
    pub(super) fn turn(&mut self, now: Instant, driver: &mut Driver) {
        let now = now.saturating_duration_since(self.begun);
        if now >= self.shedder.due() {
            driver.top_mut().shed(self.shedder.step(now, self.requests, self.time));
        }
    }

    /// Returns the controller's decisions; the caller fills in the bytes that were shed.
    pub(super) fn into_outcome(self) -> ShedOutcome {
        let decisions = self.shedder.decisions().iter().map(|decision| ShedDecision {
            seconds: decision.at.as_secs_f64(),
            share: decision.share,
            reason: decision.reason.clone(),
        });
        ShedOutcome { share: self.shedder.share(), bytes: 0, decisions: decisions.collect() }
    }
}

#[cfg(test)]
mod pace_tests {
    use super::*;

    #[test]
    fn recorded_requests_wait_for_their_time_and_count_from_it() {
        let start = Instant::now();
        let at = |ns| start + Duration::from_nanos(ns);
        let mut pacer = Pacer::new(Pace::Recorded { speed: 2.0, in_flight: 2 }, start);
        assert_eq!(pacer.turn(1000, at(0), 0), Turn::At(at(500)));
        assert_eq!(pacer.turn(1000, at(510), 0), Turn::Now(at(510)));
        assert_eq!(pacer.turn(2000, at(900), 2), Turn::Full);
        assert_eq!(pacer.turn(2000, at(1300), 1), Turn::Now(at(1000)));
        assert_eq!(pacer.turn(1500, at(1300), 1), Turn::Now(at(1000)), "a step back");
        assert_eq!(pacer.late_most(), Duration::from_nanos(300));
        pacer.resume(4000, at(5000));
        assert_eq!(pacer.turn(4000, at(5000), 0), Turn::Now(at(5000)));
        assert_eq!(pacer.turn(5000, at(5000), 0), Turn::At(at(5500)));
    }
}
