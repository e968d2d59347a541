//! The simulation itself: requests go from station to station.
//!
//! A station serves in order of arrival, and arrivals are taken in order of time; so when a request
//! arrives it is known at once when it will be done: when the server is free, and then its own
//! time. Each request so has exactly one event ahead, its next arrival, and a visit costs one step
//! of the [`Calendar`]. Requests that visit no station need not even that. With fewer cores than
//! requests a core is taken before computing and given back before the disk and at the end, first
//! come, first served; giving back is an event of its own.
//!
//! Nothing is allocated while events go by, but where service times depend on the queue and it
//! grows longer than before.

use std::collections::VecDeque;

use super::Distributions;
use super::batches::Batches;
use super::calendar::{Calendar, NEVER};
use super::shape::{Distribution, Random, Shape};
use crate::network::{Network, RouteStep};
use crate::{Load, Time};

/// Time spent side by side with all others.
#[derive(Debug, Clone, Copy, Default)]
struct Think {
    compute_us: f64,
    /// The mean time of the disk.
    disk_us: f64,
}

/// A stage in the course of a request; the next one follows it in the list.
enum Stage {
    /// Takes a core, and then thinks.
    Enter { think: Think },
    /// Is served, and then thinks.
    Serve { service: usize, think: Think },
    /// Is served, thinks, and ends.
    ServeLast { service: usize, think: Think },
    /// Gives its core back and thinks.
    Leave { think: Think },
    /// Gives its core back and ends.
    End,
}

/// A list operation.
struct Service {
    /// The first of its station's servers, and how many each copy has.
    servers: usize,
    copies: u32,
    per_copy: usize,
    time: Time,
    shape: Shape,
}

/// The possible outcomes of a request.
struct Course {
    /// Of this and all before it.
    probability: f64,
    is_miss: bool,
    /// The time before the first stage.
    think: Think,
    /// The first stage; none when it has nothing to wait for.
    first: Option<u32>,
}

/// Cores, when there are fewer of them than requests.
struct Cores {
    free: u32,
    waiting: VecDeque<u32>,
}

/// A simulation under way.
pub(super) struct Run {
    /// Visits so far, and requests without any.
    pub(super) visits: u64,
    /// Misses so far.
    pub(super) misses: u64,
    calendar: Calendar,
    /// Each request's next stage; none when it begins anew.
    next: Vec<Option<u32>>,
    courses: Vec<Course>,
    stages: Vec<Stage>,
    services: Vec<Service>,
    /// When each server is done with all that have come.
    free_us: Vec<f64>,
    /// When each of those at a station will be gone, for copies whose times depend on that.
    present: Vec<VecDeque<f64>>,
    cores: Option<Cores>,
    disk: Shape,
    random: Random,
}

impl Run {
    pub(super) fn new(
        network: &Network,
        load: &Load,
        distributions: &Distributions,
        seed: u64,
    ) -> Self {
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

    /// Lets all happen that happens up to a time.
    pub(super) fn until(&mut self, end_us: f64, batches: &mut Batches) {
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

    /// Takes a request through one stage; when the next is due.
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

    /// Begins a request, and goes through as many as wait for nothing.
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

    /// Returns the time at which a client that thinks from now on is done.
    #[inline]
    fn think(&mut self, Think { compute_us, disk_us }: Think, now: f64) -> f64 {
        let disk_us = if disk_us > 0.0 { disk_us * self.disk.draw(&mut self.random) } else { 0.0 };
        now + compute_us + disk_us
    }

    /// When a visit that arrives now will be done.
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

    /// Takes a core and goes on, or waits for one.
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

    /// Gives a core to the request that has waited longest.
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
