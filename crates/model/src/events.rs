//! Throughput by discrete-event simulation of queueing networks, with any distribution of service
//! times.
//!
//! The simulation covers three things that exact analysis cannot: other distributions than the
//! exponential one, requests of different outcomes at one station, and cores held while waiting for
//! a lock. The paper's section 3.3 simulates its networks likewise. As there, lookups always take
//! the same time, and so does the disk unless another distribution is given.
//!
//! The mean and its 95 % interval are by batch means. A run continues, its batches growing with it,
//! until three conditions hold: the interval is as narrow as requested, neighbouring batches are no
//! longer correlated, and enough misses have been seen. The first quarter of the run is left out as
//! warm-up.

use std::collections::VecDeque;
use std::hint::select_unpredictable;
use std::str::FromStr;

use crate::network::{RouteStep, bound};
use crate::{Load, ModelError, Network, Time};

/// Forms of the distributions of simulated times around their means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distributions {
    /// The distribution of list operations.
    pub service: Distribution,
    /// The distribution of disk reads.
    pub disk: Distribution,
}

impl Default for Distributions {
    /// Returns the distributions that the paper uses.
    fn default() -> Self {
        Self { service: Distribution::Exponential, disk: Distribution::Deterministic }
    }
}

/// Limits on the length of a simulation, its target precision and its seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// Largest half-width of the 95 % interval, as a share of the mean, at which the simulation may
    /// stop.
    pub precision: f64,
    /// Maximum number of visits to simulate; a request without visits counts as one.
    pub visits_max: u64,
    /// Seed of the random numbers; equal seeds give equal runs.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { precision: 0.005, visits_max: 50_000_000, seed: 1 }
    }
}

/// The results of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    /// Throughput in million requests a second.
    pub throughput_mrps: f64,
    /// Half-width of the 95 % confidence interval of the throughput, in million requests a second.
    pub ci95_mrps: f64,
    /// Visits to stations in the whole run; a request without visits counts as one.
    pub visits: u64,
    /// Number of misses in the whole run.
    pub misses: u64,
    /// True if the run reached the target precision, uncorrelated batches and enough misses.
    pub is_settled: bool,
}

/// Minimum number of misses in a run, so that each batch has some.
const MISSES_MIN: u64 = 2000;
/// Largest correlation of neighbouring batches at which they count as independent.
const CORRELATION_MAX: f64 = 0.3;
/// Initial length of a run, in requests per request in flight; `REQUESTS_MIN` is the least number
/// in all.
const CYCLES_MIN: f64 = 50.0;
const REQUESTS_MIN: f64 = 10_000.0;

/// Simulates a network under a load.
///
/// # Errors
/// When the load is invalid, or a request takes no time at all.
pub fn simulate(
    network: &Network,
    load: &Load,
    distributions: &Distributions,
    effort: &Effort,
) -> Result<Simulated, ModelError> {
    load.check()?;
    let most = bound(network, load);
    if !most.is_finite() {
        return Err(ModelError::NoWork);
    }
    let requests = (CYCLES_MIN * f64::from(load.mpl)).max(REQUESTS_MIN);
    let mut batches = Batches::of(requests / most / BATCHES as f64);
    let mut run = Run::new(network, load, distributions, effort.seed);
    let can_miss =
        network.outcomes().iter().any(|outcome| outcome.is_miss && outcome.probability > 0.0);
    loop {
        // Twice for each length: three quarters of the way, and at the end, where pairs of batches
        // become one.
        for ready in [BATCHES * 3 / 4, BATCHES] {
            if ready > batches.ready() {
                run.until(batches.end_of(ready), &mut batches);
                batches.note_ready(ready);
                let estimate = batches.estimate();
                let is_settled = estimate.half_width <= effort.precision * estimate.mean
                    && estimate.correlation <= CORRELATION_MAX
                    && (run.misses >= MISSES_MIN || !can_miss);
                if is_settled || run.visits >= effort.visits_max {
                    return Ok(Simulated {
                        throughput_mrps: estimate.mean,
                        ci95_mrps: estimate.half_width,
                        visits: run.visits,
                        misses: run.misses,
                        is_settled,
                    });
                }
            }
        }
        batches.grow();
    }
}

/// Largest number of batches of a run; when all are full, they are merged in pairs.
const BATCHES: usize = 64;

/// Batch means: completed requests in stretches of equal simulated time.
///
/// When all batches are full, neighbours are merged in pairs, which makes room for as many again.
/// So their number is bounded, and their length grows with the run.
struct Batches {
    length_us: f64,
    per_us: f64,
    /// Completed requests of each batch. There are twice as many batches as are simulated, because
    /// requests in service at the end complete later.
    counts: [u64; 2 * BATCHES],
    ready: usize,
}

/// An estimate of the throughput from batches.
struct Estimate {
    /// Mean throughput, in requests a microsecond.
    mean: f64,
    /// Half-width of the 95 % confidence interval, in requests a microsecond.
    half_width: f64,
    /// Correlation of neighbouring batches; 0 if all batches are equal.
    correlation: f64,
}

impl Batches {
    fn of(length_us: f64) -> Self {
        Self { length_us, per_us: 1.0 / length_us, counts: [0; 2 * BATCHES], ready: 0 }
    }

    /// Counts a request completed at this time.
    #[inline]
    fn completed(&mut self, at_us: f64) {
        let last = self.counts.len() - 1;
        self.counts[((at_us * self.per_us) as usize).min(last)] += 1;
    }

    /// Returns the time at which the first `batches` batches end, in microseconds.
    fn end_of(&self, batches: usize) -> f64 {
        batches as f64 * self.length_us
    }

    /// Returns the number of batches that have ended.
    fn ready(&self) -> usize {
        self.ready
    }

    fn note_ready(&mut self, ready: usize) {
        self.ready = ready;
    }

    /// Merges batches in pairs, which doubles their length.
    fn grow(&mut self) {
        for at in 0..BATCHES {
            self.counts[at] = self.counts[2 * at] + self.counts[2 * at + 1];
        }
        self.counts[BATCHES..].fill(0);
        self.length_us *= 2.0;
        self.per_us /= 2.0;
        self.ready /= 2;
    }

    /// Estimates the throughput from the batches that have ended, without the first quarter, the
    /// warm-up.
    fn estimate(&self) -> Estimate {
        let kept = &self.counts[self.ready / 4..self.ready];
        let number = kept.len() as f64;
        let mean = kept.iter().sum::<u64>() as f64 / number;
        let off = |count: &u64| *count as f64 - mean;
        let squares: f64 = kept.iter().map(|count| off(count).powi(2)).sum();
        let neighbours: f64 = kept.windows(2).map(|pair| off(&pair[0]) * off(&pair[1])).sum();
        let standard_error = (squares / (number - 1.0) / number).sqrt();
        Estimate {
            mean: mean * self.per_us,
            half_width: t_975(number - 1.0) * standard_error * self.per_us,
            correlation: if squares > 0.0 { neighbours / squares } else { 0.0 },
        }
    }
}

/// Time of a request that waits for another one.
const NEVER: f64 = f64::INFINITY;

/// The calendar of events: each request has one next event, and the earliest of all comes first.
///
/// It is a tournament over a fixed number of requests. A change of one time replays only that
/// request's own matches, log₂ n of them, on a path that is known beforehand. Requests that wait
/// for others have the time infinity.
struct Calendar {
    /// Tree of winners: `matches[1]` is the earliest of all, `matches[n]` that of `matches[2 n]`
    /// and `matches[2 n + 1]`. The second half are the requests, padded to a power of two by events
    /// that never come. Times are stored beside the winners, so the path up needs no further
    /// lookups.
    matches: Vec<Event>,
}

#[derive(Clone, Copy)]
struct Event {
    /// Bits of the time as a float. Times are never negative, so the bits have the order of the
    /// times.
    time: u64,
    request: u64,
}

impl Calendar {
    /// Creates a calendar with every request at time 0.
    fn new(requests: u32) -> Self {
        let places = (requests as usize).next_power_of_two();
        let mut calendar =
            Self { matches: vec![Event { time: NEVER.to_bits(), request: 0 }; 2 * places] };
        (0..requests as usize).for_each(|request| calendar.set(request, 0.0));
        calendar
    }

    /// Returns time and request of the earliest event.
    #[inline]
    fn first(&self) -> (f64, usize) {
        let Event { time, request } = self.matches[1];
        (f64::from_bits(time), request as usize)
    }

    /// Sets the time of a request's next event.
    #[inline]
    fn set(&mut self, request: usize, time: f64) {
        let mut place = self.matches.len() / 2 + request;
        let mut winner = Event { time: time.to_bits(), request: request as u64 };
        self.matches[place] = winner;
        while place > 1 {
            let other = self.matches[place ^ 1];
            // As likely as not: a branch would be guessed wrong half the time.
            let is_other = other.time < winner.time;
            winner.time = select_unpredictable(is_other, other.time, winner.time);
            winner.request = select_unpredictable(is_other, other.request, winner.request);
            place /= 2;
            self.matches[place] = winner;
        }
    }
}

/// A form of distribution around the mean time of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Distribution {
    /// Exponential distribution, as exact analysis assumes.
    #[default]
    Exponential,
    /// Constant time, equal to the mean.
    Deterministic,
    /// Hyperexponential distribution with this squared coefficient of variation. Its two phases,
    /// one short and one long, contribute equally to the mean.
    Hyperexponential(f64),
    /// Measured histogram of each operation; exponential where there is none.
    Measured,
}

impl FromStr for Distribution {
    type Err = ModelError;

    /// Parses `exponential`, `deterministic`, `measured`, or `hyperexponential:CV2` with the
    /// squared coefficient of variation.
    fn from_str(name: &str) -> Result<Self, ModelError> {
        let unknown = || ModelError::UnknownDistribution { name: name.to_owned() };
        match name.split_once(':') {
            None if name == "exponential" => Ok(Distribution::Exponential),
            None if name == "deterministic" => Ok(Distribution::Deterministic),
            None if name == "measured" => Ok(Distribution::Measured),
            Some(("hyperexponential", squared)) => {
                let squared: f64 = squared.parse().map_err(|_| unknown())?;
                if squared >= 1.0 && squared.is_finite() {
                    return Ok(Distribution::Hyperexponential(squared));
                }
                Err(ModelError::Variation { squared })
            }
            _ => Err(unknown()),
        }
    }
}

/// A distribution with mean 1, prepared for drawing.
#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Exponential,
    Constant,
    /// Two exponential phases: the probability of the short one, and the means of both.
    Phases(f64, [f64; 2]),
    /// Alias table (Walker) of columns with equal probability. A share of each column is its first
    /// value, the rest its second.
    Table(Vec<(f64, [f64; 2])>),
}

impl Shape {
    fn of(distribution: &Distribution, time: &Time) -> Self {
        match distribution {
            Distribution::Deterministic => Shape::Constant,
            Distribution::Hyperexponential(squared) => {
                let short = (1.0 + ((squared - 1.0) / (squared + 1.0)).sqrt()) / 2.0;
                Shape::Phases(short, [0.5 / short, 0.5 / (1.0 - short)])
            }
            Distribution::Measured if !time.histogram.is_empty() => {
                Shape::Table(aliases(&time.histogram))
            }
            Distribution::Exponential | Distribution::Measured => Shape::Exponential,
        }
    }

    #[inline]
    fn draw(&self, random: &mut Random) -> f64 {
        match self {
            Shape::Exponential => random.exponential(),
            Shape::Constant => 1.0,
            Shape::Phases(short, means) => {
                means[usize::from(random.unit() >= *short)] * random.exponential()
            }
            Shape::Table(columns) => {
                let at = random.unit() * columns.len() as f64;
                let (share, values) = columns[at as usize];
                values[usize::from(at.fract() >= share)]
            }
        }
    }
}

/// Builds the alias table of a histogram, scaled to mean 1.
fn aliases(histogram: &[(f64, f64)]) -> Vec<(f64, [f64; 2])> {
    let total: f64 = histogram.iter().map(|(_, weight)| weight).sum();
    let mean = histogram.iter().map(|(us, weight)| us * weight).sum::<f64>() / total;
    let value = |at: usize| histogram[at].0 / mean;
    let number = histogram.len();
    let mut left: Vec<f64> =
        histogram.iter().map(|(_, weight)| weight / total * number as f64).collect();
    let mut columns: Vec<(f64, [f64; 2])> = (0..number).map(|at| (1.0, [value(at); 2])).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..number).partition(|&at| left[at] < 1.0);
    while let (Some(&filler), Some(lacking)) = (large.last(), small.pop()) {
        columns[lacking] = (left[lacking], [value(lacking), value(filler)]);
        left[filler] -= 1.0 - left[lacking];
        if left[filler] < 1.0 {
            large.pop();
            small.push(filler);
        }
    }
    columns
}

/// The SplitMix64 generator (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Debug, Clone)]
struct Random {
    state: u64,
}

impl Random {
    fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a uniform number in `0.0..1.0`.
    #[inline]
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns an exponentially distributed random number with mean 1.
    #[inline]
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

/// Time that a request spends without waiting for others.
#[derive(Debug, Clone, Copy, Default)]
struct Think {
    compute_us: f64,
    /// Mean disk time, in microseconds.
    disk_us: f64,
}

/// A stage of a request; the stages of an outcome follow each other in one list.
enum Stage {
    /// The request takes a core, then thinks.
    Enter { think: Think },
    /// A station serves the request, then the request thinks.
    Serve { service: usize, think: Think },
    /// A station serves the request, which then thinks and ends.
    ServeLast { service: usize, think: Think },
    /// The request returns its core, then thinks.
    Leave { think: Think },
    /// The request returns its core and ends.
    End,
}

/// A list operation: its station's servers and its service time.
struct Service {
    /// Index of the station's first server; each of its `copies` has `per_copy` servers.
    servers: usize,
    copies: u32,
    per_copy: usize,
    time: Time,
    shape: Shape,
}

/// One possible outcome of a request.
struct Course {
    /// Cumulative probability of this outcome and all before it.
    probability: f64,
    is_miss: bool,
    /// Think time before the first stage.
    think: Think,
    /// Index of the first stage; `None` if a request with this outcome waits for nothing.
    first: Option<u32>,
}

/// Free cores and the requests that wait for one, for loads with fewer cores than requests.
struct Cores {
    free: u32,
    waiting: VecDeque<u32>,
}

/// State of a running simulation.
struct Run {
    /// Visits so far; a request without visits counts as one.
    visits: u64,
    misses: u64,
    calendar: Calendar,
    /// Next stage of each request; `None` if a new request begins next.
    next: Vec<Option<u32>>,
    courses: Vec<Course>,
    stages: Vec<Stage>,
    services: Vec<Service>,
    /// Time at which each server is done with all requests that have arrived, in microseconds.
    free_us: Vec<f64>,
    /// Departure times of the requests at each server, for stations whose service times depend on
    /// the queue.
    present: Vec<VecDeque<f64>>,
    cores: Option<Cores>,
    disk: Shape,
    random: Random,
}

impl Run {
    fn new(network: &Network, load: &Load, distributions: &Distributions, seed: u64) -> Self {
        let cores = load.cores.filter(|&cores| cores < load.mpl);
        let mut run = Self {
            visits: 0,
            misses: 0,
            calendar: Calendar::new(load.mpl),
            next: vec![None; load.mpl as usize],
            courses: Vec::new(),
            stages: Vec::new(),
            services: Vec::new(),
            free_us: Vec::new(),
            present: Vec::new(),
            cores: cores
                .map(|free| Cores { free, waiting: VecDeque::with_capacity(load.mpl as usize) }),
            disk: Shape::of(&distributions.disk, &Time::default()),
            random: Random::new(seed),
        };
        let mut servers = Vec::new();
        for station in network.stations() {
            servers.push(run.free_us.len());
            let places = run.free_us.len() + station.servers as usize * station.copies as usize;
            run.free_us.resize(places, 0.0);
        }
        run.present.resize_with(run.free_us.len(), VecDeque::new);
        let mut probability = 0.0;
        for outcome in network.outcomes() {
            probability += outcome.probability;
            let (think, first) =
                run.lay_out(network, &servers, &outcome.steps, &distributions.service);
            run.courses.push(Course { probability, is_miss: outcome.is_miss, think, first });
        }
        run
    }

    /// Appends the stages of an outcome.
    fn lay_out(
        &mut self,
        network: &Network,
        servers: &[usize],
        steps: &[RouteStep],
        distribution: &Distribution,
    ) -> (Think, Option<u32>) {
        let first = self.stages.len() as u32;
        let with_cores = self.cores.is_some();
        // What comes before all stages.
        let mut before = Think::default();
        if with_cores {
            self.stages.push(Stage::Enter { think: Think::default() });
        }
        for step in steps {
            let think = match self.stages[first as usize..].last_mut() {
                Some(Stage::Enter { think } | Stage::Serve { think, .. }) => think,
                _ => &mut before,
            };
            match step {
                RouteStep::Disk(us) if with_cores => {
                    self.stages
                        .push(Stage::Leave { think: Think { compute_us: 0.0, disk_us: *us } });
                    self.stages.push(Stage::Enter { think: Think::default() });
                }
                RouteStep::Compute(us) => think.compute_us += us,
                RouteStep::Disk(us) => think.disk_us += us,
                RouteStep::Visit(visit) => {
                    let station = network.stations()[visit.station];
                    self.services.push(Service {
                        servers: servers[visit.station],
                        copies: station.copies,
                        per_copy: station.servers as usize,
                        shape: Shape::of(distribution, &visit.time),
                        time: visit.time.clone(),
                    });
                    let service = self.services.len() - 1;
                    self.stages.push(Stage::Serve { service, think: Think::default() });
                }
            }
        }
        if with_cores {
            self.stages.push(Stage::End);
        } else if let Some(last) = self.stages[first as usize..].last_mut()
            && let Stage::Serve { service, think } = *last
        {
            *last = Stage::ServeLast { service, think };
        }
        (before, (self.stages.len() as u32 > first).then_some(first))
    }

    /// Processes all events up to a time.
    fn until(&mut self, end_us: f64, batches: &mut Batches) {
        loop {
            let (now, request) = self.calendar.first();
            if now > end_us {
                return;
            }
            let next = match self.next[request] {
                None => self.begin(request, now, end_us, batches),
                Some(stage) => self.advance(request, stage, now, end_us, batches),
            };
            self.calendar.set(request, next);
        }
    }

    /// Moves a request through one stage; returns the time of its next event.
    #[inline]
    fn advance(
        &mut self,
        request: usize,
        stage: u32,
        now: f64,
        end_us: f64,
        batches: &mut Batches,
    ) -> f64 {
        self.next[request] = Some(stage + 1);
        match self.stages[stage as usize] {
            Stage::Serve { service, think } => {
                let served = self.serve(service, now);
                self.think(think, served)
            }
            Stage::ServeLast { service, think } => {
                let served = self.serve(service, now);
                let done = self.think(think, served);
                batches.completed(done);
                self.begin(request, done, end_us, batches)
            }
            Stage::Enter { .. } => self.enter(request, stage, now),
            Stage::Leave { think } => {
                self.give_back(now);
                self.think(think, now)
            }
            Stage::End => {
                self.give_back(now);
                batches.completed(now);
                self.begin(request, now, end_us, batches)
            }
        }
    }

    /// Begins a request, and completes requests as long as they wait for nothing. Returns the time
    /// of the next event.
    #[inline]
    fn begin(&mut self, request: usize, mut now: f64, end_us: f64, batches: &mut Batches) -> f64 {
        loop {
            let place = self.random.unit();
            // Rounding may leave the sum of all just below 1.
            let last = self.courses.len() - 1;
            let course = &self.courses[..last].iter().find(|course| place < course.probability);
            let course = course.unwrap_or(&self.courses[last]);
            let (think, first) = (course.think, course.first);
            self.misses += u64::from(course.is_miss);
            now = self.think(think, now);
            if let Some(first) = first {
                self.next[request] = Some(first);
                return if self.cores.is_some() { self.enter(request, first, now) } else { now };
            }
            self.visits += 1;
            batches.completed(now);
            if now > end_us {
                self.next[request] = None;
                return now;
            }
        }
    }

    /// Returns the time at which a request that starts to think now is done.
    #[inline]
    fn think(&mut self, Think { compute_us, disk_us }: Think, now: f64) -> f64 {
        let disk_us = if disk_us > 0.0 { disk_us * self.disk.draw(&mut self.random) } else { 0.0 };
        now + compute_us + disk_us
    }

    /// Returns the time at which a visit that arrives now will be done.
    #[inline]
    fn serve(&mut self, service: usize, now: f64) -> f64 {
        self.visits += 1;
        let Service { servers, copies, per_copy, ref time, ref shape } = self.services[service];
        let copy = if copies == 1 { 0 } else { (self.random.unit() * f64::from(copies)) as usize };
        let first = servers + copy * per_copy;
        let own = shape.draw(&mut self.random);
        let free = self.free_us[first..first + per_copy].iter_mut().min_by(|a, b| a.total_cmp(b));
        let free = free.expect("a station has a server");
        if time.contended.is_empty() {
            *free = free.max(now) + own * time.alone_us;
            return *free;
        }
        let present = &mut self.present[first];
        while present.front().is_some_and(|&gone| gone <= now) {
            present.pop_front();
        }
        *free = free.max(now) + own * time.at_us(present.len() as u32 + 1);
        let place = present.partition_point(|&gone| gone <= *free);
        present.insert(place, *free);
        *free
    }

    /// Takes a core for a request, or makes it wait for one. Returns the time of its next event.
    fn enter(&mut self, request: usize, stage: u32, now: f64) -> f64 {
        let (Some(cores), Stage::Enter { think }) = (&mut self.cores, &self.stages[stage as usize])
        else {
            return now;
        };
        self.next[request] = Some(stage + 1);
        if cores.free == 0 {
            cores.waiting.push_back(request as u32);
            return NEVER;
        }
        cores.free -= 1;
        now + think.compute_us
    }

    /// Passes a core on to the request that has waited longest, or frees it.
    fn give_back(&mut self, now: f64) {
        let Some(cores) = &mut self.cores else { return };
        let Some(request) = cores.waiting.pop_front() else {
            cores.free += 1;
            return;
        };
        let entered = self.next[request as usize].expect("who waits has a course") as usize - 1;
        let Stage::Enter { think } = self.stages[entered] else {
            unreachable!("only who enters waits")
        };
        self.calendar.set(request as usize, now + think.compute_us);
    }
}

/// Returns the 97.5 % quantile of Student's t, for 95 % intervals with `freedom` degrees of
/// freedom. Computed from the normal quantile by Fisher's expansion; exact to 0.001 from 10 degrees
/// on, to 0.01 from 4 on.
pub fn t_975(freedom: f64) -> f64 {
    let z: f64 = 1.959_964;
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

#[cfg(test)]
mod batches_tests {
    use super::*;

    #[test]
    fn growing_keeps_every_request_at_its_time() {
        let mut batches = Batches::of(1.0);
        (0..BATCHES).for_each(|at| (0..=at).for_each(|_| batches.completed(at as f64 + 0.5)));
        batches.note_ready(BATCHES);
        let all: u64 = batches.counts.iter().sum();
        batches.grow();
        assert_eq!((batches.ready(), batches.end_of(BATCHES / 2)), (BATCHES / 2, BATCHES as f64));
        assert_eq!(batches.counts.iter().sum::<u64>(), all);
        assert_eq!(batches.counts[..3], [3, 7, 11]);
    }
}

#[cfg(test)]
mod calendar_tests {
    use super::*;

    #[test]
    fn the_earliest_wins_whatever_changes() {
        for requests in [1u32, 2, 3, 7, 64, 72] {
            let mut calendar = Calendar::new(requests);
            let mut plain = vec![0.0; requests as usize];
            let mut random = super::Random::new(u64::from(requests));
            for _ in 0..2000 {
                let request = (random.unit() * f64::from(requests)) as usize;
                let time = if random.unit() < 0.1 { NEVER } else { random.unit() };
                calendar.set(request, time);
                plain[request] = time;
                let earliest = plain.iter().fold(NEVER, |a, &b| a.min(b));
                let (time, first) = calendar.first();
                assert_eq!(time, earliest, "{requests} requests");
                assert!(time == NEVER || plain[first] == time, "{requests} requests");
            }
        }
    }
}

#[cfg(test)]
mod shape_tests {
    use super::*;

    #[test]
    fn shapes_have_mean_one_and_the_variation_asked_for() {
        let histogram: Vec<(f64, f64)> = vec![(0.5, 10.0), (1.0, 80.0), (3.0, 9.0), (100.0, 1.0)];
        let total: f64 = histogram.iter().map(|(_, weight)| weight).sum();
        let moment = |power| {
            histogram.iter().map(|(us, weight)| us.powi(power) * weight / total).sum::<f64>()
        };
        let of_histogram = moment(2) / moment(1).powi(2) - 1.0;
        let time = Time { histogram: histogram.clone(), ..Time::of(7.0) };
        for (distribution, squared) in [
            (Distribution::Exponential, 1.0f64),
            (Distribution::Deterministic, 0.0),
            (Distribution::Hyperexponential(4.0), 4.0),
            (Distribution::Hyperexponential(1.0), 1.0),
            (Distribution::Measured, of_histogram),
        ] {
            let shape = Shape::of(&distribution, &time);
            let mut random = Random::new(7);
            let draws: Vec<f64> = (0..1_000_000).map(|_| shape.draw(&mut random)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let second = draws.iter().map(|draw| draw * draw).sum::<f64>() / draws.len() as f64;
            let found = second / (mean * mean) - 1.0;
            // Five standard errors of the mean, and the seed is fixed.
            assert!(
                (mean - 1.0).abs() < 5.0 * (squared / 1e6).sqrt() + 1e-9,
                "{distribution:?}: mean {mean}"
            );
            assert!(
                (found - squared).abs() < 0.05 * squared + 1e-9,
                "{distribution:?}: {found} for {squared}"
            );
        }
    }
}

#[cfg(test)]
mod student_tests {
    use super::*;

    #[test]
    fn students_t_is_as_in_the_tables() {
        for (freedom, t, off) in [
            (4.0, 2.776, 0.01),
            (15.0, 2.131, 0.001),
            (35.0, 2.030, 0.001),
            (47.0, 2.012, 0.001),
            (100.0, 1.984, 0.001),
        ] {
            assert!((t_975(freedom) - t).abs() < off, "{freedom}: {}", t_975(freedom));
        }
    }
}
