//! A cache that takes part in a measurement: its warm-up, and its runs from a position in the load.
//!
//! Each run begins with a ramp that does not count: the processor's caches fill with the data of
//! this cache, and the clients' disk accesses spread over time.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use floe_memory::AdmissionStats;

use super::load::{Feed, Load, Place};
use super::subject::Subject;
use super::warm_up::{EVERY, Run, Span, WarmUp, Watch, Window};
use super::worker::{Board, Clock, Disk, Job, WorkerCounts};

/// Threads, clients and emulated disk that use a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// Number of operating-system threads.
    pub threads: usize,
    /// Number of clients on all threads together, at least one per thread.
    pub mpl: usize,
    /// The emulated disk that serves misses.
    pub disk: Disk,
}

/// Number and length of the runs of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Number of runs of each cache.
    pub repetitions: usize,
    /// Seconds of each run, without the ramp.
    pub seconds: f64,
    /// Longest warm-up of a cache in seconds.
    pub warm_up_seconds_max: f64,
    /// True if all caches begin each repetition at the same position in the load.
    pub in_step: bool,
    /// Largest share of a run's time that other work on the machine may take. A run that loses more
    /// is made again, up to [`TRIES`](super::TRIES) times in all; if it never keeps to this, all
    /// caches go without that repetition. `None` keeps every run.
    pub disturbed_max: Option<f64>,
}

/// Length of the ramp as a share of a repetition.
const RAMP: f64 = 0.1;

/// Shortest ramp in mean disk latencies; the ramp is never longer than the repetition.
const RAMP_DISKS: u64 = 20;

/// Number of observations in which a run must have advanced before it ends; the first may show
/// operations from before the count began. A run that falls short is extended, at most [`PATIENCE`]
/// times.
const MOVES_MIN: u32 = 4;
const PATIENCE: u32 = 100;

/// Interval at which the position of a running cache is checked, until it reaches a given place.
const NEAR: Duration = Duration::from_micros(100);

/// Warm-up windows per length of a repetition. [`WINDOW_SECONDS`] limits their length.
const WINDOWS: f64 = 10.0;
const WINDOW_SECONDS: (f64, f64) = (0.002, 0.1);

/// Result of a cache's warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warmed {
    /// Duration of the warm-up in seconds.
    pub seconds: f64,
    /// True if the cache was warm at the end, false if the warm-up ran out of time.
    pub settled: bool,
}

/// A cache that takes part in a measurement.
pub trait Competitor {
    /// Runs the cache until it is warm, or until the longest warm-up of the plan is over.
    fn warm_up(&self, load: &Load, plan: &Plan) -> Warmed;

    /// Returns the cache's position in the load.
    fn place(&self) -> Place;

    /// Runs the cache, uncounted, up to a position in the load. After `longest`, the rest of the
    /// load is skipped.
    fn play_on(&self, load: &Load, to: Place, longest: Duration);

    /// Runs the cache for `seconds` after a ramp. Returns the counters of each thread.
    fn run(&self, load: &Load, seconds: f64, clock_ns: u64) -> Vec<WorkerCounts>;

    /// Returns the observations of all runs.
    fn watch(&self) -> Watch;

    /// Returns the counters of the admission policy over all runs; `None` without such a policy.
    fn admission(&self) -> Option<AdmissionStats>;
}

/// A cache with its threads, clients and disk.
#[derive(Debug)]
pub struct CacheCompetitor<S> {
    subject: S,
    setup: Setup,
    capacity: u64,
    pause: u32,
    feed: Feed,
    watch: RefCell<Watch>,
}

impl<S: Subject> CacheCompetitor<S> {
    /// Creates a competitor from an empty cache of `capacity` entries.
    ///
    /// # Panics
    /// Without threads, or with fewer clients than threads.
    pub fn new(subject: S, capacity: u64, setup: Setup) -> Self {
        assert!(
            setup.threads > 0 && setup.mpl >= setup.threads,
            "each thread has a client: {setup:?}"
        );
        Self {
            subject,
            setup,
            capacity,
            pause: 0,
            feed: Feed::default(),
            watch: RefCell::default(),
        }
    }

    /// Sets the rounds of arithmetic after each operation, which take effect only with a disk.
    pub(super) fn pausing(self, pause: u32) -> Self {
        Self { pause, ..self }
    }

    /// Runs the threads until `conduct` returns, and returns the counters of each thread.
    fn play(
        &self,
        load: &Load,
        disk: Disk,
        clock_ns: u64,
        conduct: impl FnOnce(&Board),
    ) -> Vec<WorkerCounts> {
        let Setup { threads, mpl, .. } = self.setup;
        let board = Board::new(threads);
        let clock = Clock::new();
        let yielding = threads > std::thread::available_parallelism().map_or(1, usize::from);
        let job = |thread| Job {
            subject: &self.subject,
            load,
            feed: &self.feed,
            board: &board,
            thread,
            clients: (mpl + thread) / threads,
            disk,
            clock,
            reading_ns: clock_ns,
            yielding,
            pause: self.pause,
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let job = job(thread);
                    scope.spawn(move || job.work())
                })
                .collect();
            conduct(&board);
            board.stop();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a cache does not panic"))
                .collect()
        })
    }

    /// Runs the cache until it is warm or `end` has come, and returns whether it is warm. If
    /// `concluded`, a cache that freezes entries must also have decided whether to.
    fn run_until_warm(
        &self,
        load: &Load,
        disk: Disk,
        span: Span,
        window: Duration,
        end: Instant,
        concluded: bool,
    ) -> bool {
        let watch = &mut *self.watch.borrow_mut();
        let mut warm_up = WarmUp::new(span);
        let mut is_warm = false;
        self.play(load, disk, 0, |board| {
            let mut run = watch.begin(self.subject.freezes());
            let (mut seen, mut since) = (board.so_far(), Instant::now());
            while !(is_warm && (run.has_concluded() || !concluded)) && Instant::now() < end {
                std::thread::sleep(window);
                let (now, moment) = (board.so_far(), Instant::now());
                let [hits, misses, writes] = [0, 1, 2].map(|at| now[at] - seen[at]);
                let seconds = (moment - since).as_secs_f64();
                run.look(now, self.subject.freezes());
                is_warm |= warm_up.add(Window { hits, misses, writes, seconds });
                (seen, since) = (now, moment);
            }
        });
        is_warm
    }

    /// Runs the cache, uncounted, until it reaches `place` or `end` has come. Returns whether it
    /// has reached the place.
    fn play_to(&self, load: &Load, disk: Disk, place: Place, end: Instant) -> bool {
        let there = || self.feed.place() >= place;
        if !there() {
            let watch = &mut *self.watch.borrow_mut();
            self.play(load, disk, 0, |board| {
                let mut run = watch.begin(self.subject.freezes());
                let mut looked = Instant::now();
                while !there() && Instant::now() < end {
                    std::thread::sleep(NEAR);
                    if looked.elapsed() >= EVERY {
                        run.look(board.so_far(), self.subject.freezes());
                        looked = Instant::now();
                    }
                }
                run.look(board.so_far(), self.subject.freezes());
            });
        }
        there()
    }
}

impl<S: Subject> Competitor for CacheCompetitor<S> {
    fn warm_up(&self, load: &Load, plan: &Plan) -> Warmed {
        let began = Instant::now();
        let end = began + Duration::from_secs_f64(plan.warm_up_seconds_max);
        let (shortest, longest) = WINDOW_SECONDS;
        let window = Duration::from_secs_f64((plan.seconds / WINDOWS).clamp(shortest, longest));
        // Filled without waiting for the disk, a cache is warm much sooner; then it only has to get
        // used to it.
        let span = Span::of(self.capacity, load.len() as u64);
        let has_disk = self.setup.disk != Disk::NONE;
        // Some loads never become warm: half of the time is left for the disk.
        let filled_by = if has_disk { began + (end - began) / 2 } else { end };
        let mut is_warm = self.run_until_warm(load, Disk::NONE, span, window, filled_by, !has_disk);
        // All of them go on from the same place, with the same part of the load behind them.
        if plan.in_step && self.play_to(load, Disk::NONE, load.pass_after(self.place()), end) {
            self.feed.go_to(load.pass_after(Place::default()));
        }
        if has_disk {
            // Its results so far are of misses that cost nothing.
            self.subject.forget();
            self.watch.borrow_mut().forget();
            is_warm &= self.run_until_warm(load, self.setup.disk, Span::ANY, window, end, true);
        }
        Warmed { seconds: began.elapsed().as_secs_f64(), settled: is_warm }
    }

    fn place(&self) -> Place {
        self.feed.place()
    }

    fn play_on(&self, load: &Load, to: Place, longest: Duration) {
        if !self.play_to(load, self.setup.disk, to, Instant::now() + longest) {
            self.feed.go_to(to);
        }
    }

    fn run(&self, load: &Load, seconds: f64, clock_ns: u64) -> Vec<WorkerCounts> {
        let disks = Duration::from_nanos(RAMP_DISKS * self.setup.disk.mean_ns);
        let all = Duration::from_secs_f64(seconds);
        let ramp = all.mul_f64(RAMP).max(disks.min(all));
        let watch = &mut *self.watch.borrow_mut();
        self.play(load, self.setup.disk, clock_ns, |board| {
            let mut run = watch.begin(self.subject.freezes());
            let watch_for = |run: &mut Run<'_>, time: Duration| {
                let end = Instant::now() + time;
                let mut moves = 0;
                while let left = end.saturating_duration_since(Instant::now())
                    && !left.is_zero()
                {
                    std::thread::sleep(left.min(EVERY));
                    moves += u32::from(run.look(board.so_far(), self.subject.freezes()));
                }
                moves
            };
            watch_for(&mut run, ramp);
            board.count();
            run.count();
            // On a machine that is busy with other things the threads may hardly have come to run:
            // then some more time.
            let mut moves = watch_for(&mut run, all);
            for _ in 0..PATIENCE {
                if moves < MOVES_MIN {
                    moves += watch_for(&mut run, all.max(EVERY));
                }
            }
        })
    }

    fn watch(&self) -> Watch {
        self.watch.borrow().clone()
    }

    fn admission(&self) -> Option<AdmissionStats> {
        self.subject.admission()
    }
}
