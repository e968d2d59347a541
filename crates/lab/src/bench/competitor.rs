//! A cache that takes part in a measurement: its warm-up, and its runs at a place of the load.
//!
//! Each run begins with a ramp that does not count, in which the processor's caches fill with what
//! belongs to this cache and the clients spread over the disk.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use floe_memory::AdmissionStats;

use super::load::{Feed, Load, Place};
use super::subject::Subject;
use super::warm_up::{EVERY, Run, Span, WarmUp, Watch, Window};
use super::worker::{Board, Clock, Disk, Job, Tally};

/// The use of a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// Threads of the operating system.
    pub threads: usize,
    /// Clients on all of them together; at least one each.
    pub mpl: usize,
    /// The disk that a miss waits for.
    pub disk: Disk,
}

/// The number and the length of measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// The number of runs of each cache.
    pub repetitions: usize,
    /// For how long each time, without the ramp.
    pub seconds: f64,
    /// Longest time to warm a cache up for.
    pub warm_up_seconds_max: f64,
    /// True if all begin each repetition at the same place of the load.
    pub in_step: bool,
}

/// Share of a repetition's time that is spent on its ramp.
const RAMP: f64 = 0.1;

/// The ramp lasts for at least so many answers of the disk, but no longer than the repetition
/// itself.
const RAMP_DISKS: u64 = 20;

/// So often a run must have been seen to advance, the first times perhaps by what did not count;
/// and for so many times longer that is waited for.
const MOVES_MIN: u32 = 4;
const PATIENCE: u32 = 100;

/// Between two looks at whether a cache that plays on has come to a place.
const NEAR: Duration = Duration::from_micros(100);

/// Windows that a repetition's time holds, in warming up, and the shortest and longest of them.
const WINDOWS: f64 = 10.0;
const WINDOW_SECONDS: (f64, f64) = (0.002, 0.1);

/// The warm-up of a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warmed {
    /// Its duration in seconds.
    pub seconds: f64,
    /// True if the cache was warm in the end, false if the time was up.
    pub settled: bool,
}

/// A cache that takes part.
pub trait Competitor {
    /// Runs it until it is warm, or for the longest time.
    fn warm_up(&self, load: &Load, plan: &Plan) -> Warmed;

    /// Returns its place in the load.
    fn place(&self) -> Place;

    /// Plays on to a place, uncounted, and goes there if it takes longer than `longest`.
    fn play_on(&self, load: &Load, to: Place, longest: Duration);

    /// Runs it for a time, after a ramp; a tally for each thread.
    fn run(&self, load: &Load, seconds: f64, clock_ns: u64) -> Vec<Tally>;

    /// Returns the observations of all runs.
    fn watch(&self) -> Watch;

    /// Returns the fate of offers in all runs, where it has an admission.
    fn admission(&self) -> Option<AdmissionStats>;
}

/// A cache, and how it is used.
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
    /// An empty cache of so many entries.
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

    /// The same with so many rounds of arithmetic after each operation, if there is a disk.
    pub(super) fn pausing(self, pause: u32) -> Self {
        Self { pause, ..self }
    }

    /// Runs the threads while `conduct` says what they do.
    fn play(
        &self,
        load: &Load,
        disk: Disk,
        clock_ns: u64,
        conduct: impl FnOnce(&Board),
    ) -> Vec<Tally> {
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

    /// Runs until warm, or the end of time; whether it is warm. One that freezes has to have tried
    /// that, too, if `concluded`.
    fn settle(
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
        let mut settled = false;
        self.play(load, disk, 0, |board| {
            let mut run = watch.begin(self.subject.freezes());
            let (mut seen, mut since) = (board.so_far(), Instant::now());
            while !(settled && (run.has_concluded() || !concluded)) && Instant::now() < end {
                std::thread::sleep(window);
                let (now, moment) = (board.so_far(), Instant::now());
                let [hits, misses, writes] = [0, 1, 2].map(|at| now[at] - seen[at]);
                let seconds = (moment - since).as_secs_f64();
                run.look(now, self.subject.freezes());
                settled |= warm_up.add(Window { hits, misses, writes, seconds });
                (seen, since) = (now, moment);
            }
        });
        settled
    }

    /// Plays on, uncounted, until a place or the end of time; whether it is there.
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
        // Some loads never settle: half of the time is left for the disk.
        let filled_by = if has_disk { began + (end - began) / 2 } else { end };
        let mut settled = self.settle(load, Disk::NONE, span, window, filled_by, !has_disk);
        // All of them go on from the same place, with the same part of the load behind them.
        if plan.in_step && self.play_to(load, Disk::NONE, load.pass_after(self.place()), end) {
            self.feed.go_to(load.pass_after(Place::default()));
        }
        if has_disk {
            // Its results so far are of misses that cost nothing.
            self.subject.forget();
            self.watch.borrow_mut().forget();
            settled &= self.settle(load, self.setup.disk, Span::ANY, window, end, true);
        }
        Warmed { seconds: began.elapsed().as_secs_f64(), settled }
    }

    fn place(&self) -> Place {
        self.feed.place()
    }

    fn play_on(&self, load: &Load, to: Place, longest: Duration) {
        if !self.play_to(load, self.setup.disk, to, Instant::now() + longest) {
            self.feed.go_to(to);
        }
    }

    fn run(&self, load: &Load, seconds: f64, clock_ns: u64) -> Vec<Tally> {
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
