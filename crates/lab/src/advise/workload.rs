//! A trace in memory, to be replayed many times.

use floe_trace::{Error, Info, Kind, Op, Request, Stats};
use hashbrown::HashSet;

use super::{AdviseError, Candidate, Question, Trial};
use crate::replay::{Fit, Layout, Pace, ReplayResult, Setup, Stage, Survey, run};

/// The smallest default block of a cache.
const UNIT_BYTES: u64 = 32 << 10;

/// Alignment of volumes laid end to end.
const ALIGNMENT_BYTES: u64 = 1 << 20;

/// The requests of a trace, and what is known of all of them.
#[derive(Debug)]
pub struct Workload {
    requests: Vec<Request>,
    survey: Survey,
    info: Info,
    footprint_in_cache_bytes: u64,
    volume_bytes: u64,
}

impl Workload {
    /// Reads requests to the end.
    ///
    /// # Errors
    /// The first error of the trace.
    pub fn read(requests: impl Iterator<Item = Result<Request, Error>>) -> Result<Self, Error> {
        let requests: Vec<Request> = requests.collect::<Result<_, _>>()?;
        let survey = Survey::of(requests.iter().copied().map(Ok))?;
        let mut units = HashSet::<(u32, u64), foldhash::fast::FixedState>::default();
        let mut stats = Stats::new(Kind::Block);
        requests.iter().for_each(|request| stats.add(request));
        let touching = |request: &&Request| request.op != Op::Delete && request.bytes > 0;
        for request in requests.iter().filter(touching) {
            let last = (request.key + request.bytes - 1) / UNIT_BYTES;
            units.extend((request.key / UNIT_BYTES..=last).map(|unit| (request.volume, unit)));
        }
        let ends = survey.volumes.iter().map(|(_, end)| end.next_multiple_of(ALIGNMENT_BYTES));
        let volume_bytes = ends.sum();
        let footprint_in_cache_bytes = units.len() as u64 * UNIT_BYTES;
        let info = stats.info("", "");
        Ok(Self { requests, survey, info, footprint_in_cache_bytes, volume_bytes })
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the sums of `floe trace info`.
    pub(super) fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the bytes that are read or written, in blocks of 32 KiB.
    pub fn footprint_in_cache_bytes(&self) -> u64 {
        self.footprint_in_cache_bytes
    }

    /// Returns the place of each request on a volume large enough for all.
    pub(super) fn layout(&self) -> Result<Layout, AdviseError> {
        let fit = Fit { concatenate: true, wrap: false };
        Ok(Layout::new(&self.survey, &[self.volume_bytes], fit)?)
    }

    /// Replays the first `count` requests with a candidate's settings.
    pub(super) fn trial(
        &self,
        candidate: &Candidate,
        question: &Question,
        layout: &Layout,
        count: usize,
    ) -> Result<Trial, AdviseError> {
        let (plan, config) =
            candidate.plan(&question.cache, &question.backing, self.volume_bytes)?;
        let stage = Stage::simulated(&plan, false)
            .map_err(|error| AdviseError::Config(error.to_string()))?;
        let warmup = (count as f64 * question.warmup) as usize;
        let setup = Setup {
            pace: Pace::Closed { in_flight: question.in_flight },
            warmup: warmup as u64,
            verify: false,
            flush_interval: config.serving.flush_interval(),
            shed_most: None,
            interval: None,
        };
        let requests = &self.requests[..count];
        let result =
            run(&question.trace, requests.iter().copied().map(Ok), layout, &setup, stage, |_| ())?;
        Ok(Trial::new(candidate, question, result))
    }
}

impl Trial {
    fn new(candidate: &Candidate, question: &Question, result: ReplayResult) -> Self {
        let time = |count: u64, mean: Option<f64>| count as f64 * mean.unwrap_or_default();
        let total_us =
            time(result.reads, result.read_us_mean) + time(result.writes, result.write_us_mean);
        let endurance = result.endurance.as_ref();
        let gibibytes = candidate.cache_bytes as f64 / (1u64 << 30) as f64;
        Self {
            candidate: candidate.clone(),
            mean_us: total_us / (result.reads + result.writes).max(1) as f64,
            written_tb_per_year: endurance.map_or(0.0, |it| it.terabytes_per_year),
            writes_per_day: endurance.map_or(0.0, |it| it.drive_writes_per_day),
            price: question.price.map(|price| price * gibibytes),
            result,
        }
    }
}
