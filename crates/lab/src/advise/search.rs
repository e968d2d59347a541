//! The search: rounds of trials, coarse to fine, on all cores.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use floe_block::{Evict, WriteMode};
use floe_trace::Info;

use super::candidate::AUTOMATIC;
use super::{Advice, AdviseError, Candidate, Question, Trial, Workload, verdict};
use crate::replay::Layout;

/// Requests of a trial before the last round.
const COARSE_REQUESTS: usize = 200_000;

/// Sizes of the cache as shares of the footprint.
const SHARES: [f64; 6] = [1.0 / 64.0, 1.0 / 32.0, 1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 1.0 / 2.0];
/// Sizes are multiples of this and at least four of it, unless the footprint is less: no size is
/// larger, and none smaller than this.
const SIZE_UNIT_BYTES: u64 = 4 << 20;

/// Requests that count, below which advice is doubtful.
const FEW_REQUESTS: usize = 10_000;

/// A span of time in seconds, below which its pace says little of a year.
const SHORT_SECONDS: f64 = 3600.0;

/// The smallest size this close to the best one is chosen.
const CLOSE: f64 = 1.05;

const BLOCK_SIZES: [&str; 8] = [
    AUTOMATIC,
    "4KiB",
    "4KiB,8KiB,16KiB,32KiB",
    "16KiB",
    "32KiB,64KiB,128KiB,256KiB",
    "64KiB",
    "64KiB,128KiB,256KiB,512KiB,1MiB",
    "256KiB",
];
const ADMISSIONS: [&str; 6] =
    ["always", "second-access", "duel", "sequential", "fussy", "probability:p=0.5"];

/// Candidates that go on to the next round, and to the last.
const GO_ON: usize = 3;
const FINALISTS: usize = 6;

/// The progress of a search: trials done, and expected at most. Returning false ends it.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) -> bool + Sync);

/// Searches for the best settings.
///
/// # Errors
/// When the trace does not fit, a given size is impossible, or `progress` says no.
pub fn advise(
    question: &Question,
    workload: &Workload,
    progress: Progress<'_>,
) -> Result<Advice, AdviseError> {
    if workload.info().touches == 0 {
        return Err(AdviseError::Untouched);
    }
    let layout = workload.layout()?;
    let mut search = Search {
        question,
        workload,
        layout,
        progress,
        done: AtomicUsize::new(0),
        expected: 0,
        known: HashMap::new(),
    };
    search.run()
}

struct Search<'a> {
    question: &'a Question,
    workload: &'a Workload,
    layout: Layout,
    progress: Progress<'a>,
    done: AtomicUsize,
    expected: usize,
    /// Trials by settings and number of requests; none where the settings are impossible.
    known: HashMap<(Candidate, usize), Option<Trial>>,
}

impl Search<'_> {
    fn run(&mut self) -> Result<Advice, AdviseError> {
        let all = self.workload.len();
        let coarse = all.min(COARSE_REQUESTS);
        let sizes = self.sizes();
        let policies: Vec<String> = Evict::all().map(|evict| evict.to_string()).collect();
        let writes = self.question.writes.len();
        self.expected = (sizes.len() + BLOCK_SIZES.len()) * writes
            + GO_ON * (policies.len() + ADMISSIONS.len())
            + 3 * FINALISTS;

        let with_write = |candidate: &Candidate, write: &String| Candidate {
            write: write.clone(),
            ..candidate.clone()
        };
        let first: Vec<Candidate> = sizes
            .iter()
            .flat_map(|&size| {
                let default = Candidate::default_of(size);
                self.question.writes.iter().map(move |write| with_write(&default, write))
            })
            .collect();
        let ranked = self.round(&first, coarse)?;
        let size = smallest_close(&ranked).ok_or_else(|| self.impossible(&first[0], coarse))?;
        let blocks = self.question.writes.iter().flat_map(|write| {
            BLOCK_SIZES.iter().map(move |blocks| Candidate {
                block_sizes: (*blocks).to_owned(),
                ..with_write(&Candidate::default_of(size), write)
            })
        });
        let ranked = self.round(&blocks.collect::<Vec<_>>(), coarse)?;
        let safest = ranked.iter().find(|trial| !keeps_writes(trial)).cloned();
        let evict = vary(&ranked, &policies, |candidate, evict| candidate.evict = evict);
        let ranked = self.round(&evict, coarse)?;
        let admissions: Vec<String> = ADMISSIONS.map(str::to_owned).into();
        let admit = vary(&ranked, &admissions, |candidate, admit| candidate.admit = admit);
        let ranked = self.round(&admit, coarse)?;

        let mut last: Vec<Candidate> =
            ranked.iter().take(FINALISTS).map(|trial| trial.candidate.clone()).collect();
        if self.question.cache_bytes.is_none() {
            let best = last[0].clone();
            for cache_bytes in [size / 2, size * 2].map(|bytes| self.rounded(bytes)) {
                last.push(Candidate { cache_bytes, ..best.clone() });
            }
        }
        let writes = &self.question.writes;
        last.extend(writes.iter().map(|write| with_write(&Candidate::default_of(size), write)));
        let finalists = self.round(&last, all)?;
        let size = smallest_close(&finalists).unwrap_or(size);
        let best = finalists.iter().find(|trial| trial.candidate.cache_bytes == size);
        let best = best.expect("a size comes from a trial").clone();
        let mut reference = |candidate: Candidate| -> Result<Trial, AdviseError> {
            let found = self.round(std::slice::from_ref(&candidate), all)?.pop();
            found.ok_or_else(|| self.impossible(&candidate, all))
        };
        let default = reference(Candidate::default_of(size))?;
        let bare = reference(Candidate::bare(size))?;
        // Equal settings are the defaults, and nothing is gained by others within noise.
        let best = if default.mean_us <= best.mean_us { default.clone() } else { best };
        let without_write_back = match safest.filter(|_| keeps_writes(&best)) {
            Some(safe) => self.safest(&safe, &best, &default, all)?,
            None => None,
        };
        let (verdict, toml) = verdict::of(self.question, &best, &default, &bare);
        Ok(Advice {
            trace: self.question.trace.clone(),
            requests: all as u64,
            coarse_requests: coarse as u64,
            footprint_bytes: self.workload.info().footprint_bytes,
            footprint_in_cache_bytes: self.workload.footprint_in_cache_bytes(),
            warnings: self.warnings(&best),
            verdict,
            toml,
            without_write_back,
            best,
            default,
            bare,
            finalists,
            trials: self.known.len(),
        })
    }

    /// Returns the best of a candidate without write-back, with its own policy and with the best
    /// one, and of the defaults.
    fn safest(
        &mut self,
        safe: &Trial,
        best: &Trial,
        default: &Trial,
        count: usize,
    ) -> Result<Option<Trial>, AdviseError> {
        let Candidate { cache_bytes, evict, .. } = best.candidate.clone();
        let safe = Candidate { cache_bytes, ..safe.candidate.clone() };
        let other = Candidate { evict, ..safe.clone() };
        let mut trials = self.round(&[safe, other], count)?;
        trials.extend((!keeps_writes(default)).then(|| default.clone()));
        Ok(trials.into_iter().min_by(|a, b| a.mean_us.total_cmp(&b.mean_us)))
    }

    /// Returns the sizes to try.
    fn sizes(&self) -> Vec<u64> {
        if let Some(size) = self.question.cache_bytes {
            return vec![size];
        }
        let footprint = self.workload.footprint_in_cache_bytes() as f64;
        let mut sizes: Vec<u64> =
            SHARES.iter().map(|share| self.rounded((footprint * share) as u64)).collect();
        sizes.dedup();
        sizes
    }

    /// Returns a size that may be tried, about as large as another.
    fn rounded(&self, bytes: u64) -> u64 {
        let size = bytes.next_multiple_of(SIZE_UNIT_BYTES).max(4 * SIZE_UNIT_BYTES);
        size.min(self.workload.footprint_in_cache_bytes().max(SIZE_UNIT_BYTES))
    }

    /// Returns the reasons to doubt the answer.
    fn warnings(&self, best: &Trial) -> Vec<String> {
        let Info { seconds, touches, unique, footprint_bytes, .. } = *self.workload.info();
        let counted =
            self.workload.len() - (self.workload.len() as f64 * self.question.warmup) as usize;
        let mut warnings = Vec::new();
        if counted < FEW_REQUESTS {
            warnings.push(format!(
                "{counted} requests count, which is too few to decide by: give a trace of \
                 {FEW_REQUESTS} or more."
            ));
        }
        if footprint_bytes < SIZE_UNIT_BYTES {
            warnings.push(format!(
                "The trace touches {}, less than the smallest cache that is tried.",
                floe_block::format_size(footprint_bytes)
            ));
        }
        if touches == unique {
            warnings.push("No block is touched twice: nothing that is cached is used.".to_owned());
        }
        if !best.has_pace() {
            warnings.push(
                "The trace has no times. Written a year and drive writes a day are not known; \
                 those of --json are at the pace of the replay, whose volume is never idle."
                    .to_owned(),
            );
        } else if seconds < SHORT_SECONDS && best.writes_per_day > 0.0 {
            warnings.push(format!(
                "The trace spans {seconds:.0} s: written a year and drive writes a day suppose \
                 that the volume is as busy all year."
            ));
        }
        warnings
    }

    /// Returns why a candidate has no trial.
    fn impossible(&self, candidate: &Candidate, count: usize) -> AdviseError {
        let trial = self.workload.trial(candidate, self.question, &self.layout, count);
        trial.err().unwrap_or(AdviseError::Interrupted)
    }

    /// Replays candidates that are not known yet, and returns those that are possible, best first.
    fn round(&mut self, candidates: &[Candidate], count: usize) -> Result<Vec<Trial>, AdviseError> {
        let mut wanted: Vec<&Candidate> = Vec::new();
        for candidate in candidates {
            let key = (candidate.clone(), count);
            if !self.known.contains_key(&key) && !wanted.contains(&candidate) {
                wanted.push(candidate);
            }
        }
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        let (this, wanted) = (&*self, &wanted[..]);
        let work = || {
            // The counter is all that threads share besides the results, which are locked.
            while let Some(candidate) = wanted.get(next.fetch_add(1, Relaxed)) {
                let trial = this.workload.trial(candidate, this.question, &this.layout, count);
                results.lock().expect("no trial panics").push(((*candidate).clone(), trial));
                let done = this.done.fetch_add(1, Relaxed) + 1;
                if !(this.progress)(done, this.expected.max(done)) {
                    return;
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(wanted.len()) {
                scope.spawn(work);
            }
        });
        let results = results.into_inner().expect("no trial panics");
        if results.len() < wanted.len() {
            return Err(AdviseError::Interrupted);
        }
        for (candidate, trial) in results {
            let trial = match trial {
                Ok(trial) => Some(trial),
                Err(AdviseError::Config(_)) => None,
                Err(error) => return Err(error),
            };
            self.known.insert((candidate, count), trial);
        }
        let trials = candidates.iter().filter_map(|candidate| {
            self.known.get(&(candidate.clone(), count)).and_then(Clone::clone)
        });
        let mut trials: Vec<Trial> = trials.collect();
        trials.sort_by(|a, b| a.mean_us.total_cmp(&b.mean_us));
        trials.dedup_by(|a, b| a.candidate == b.candidate);
        Ok(trials)
    }
}

/// Returns whether written data stays in the cache alone for a while.
fn keeps_writes(trial: &Trial) -> bool {
    trial.candidate.write.parse::<WriteMode>().is_ok_and(WriteMode::keeps_writes)
}

/// Returns the smallest size of which a trial is close to the best of all.
fn smallest_close(ranked: &[Trial]) -> Option<u64> {
    let best = ranked.first()?.mean_us;
    let close = ranked.iter().filter(|trial| trial.mean_us <= best * CLOSE);
    close.map(|trial| trial.candidate.cache_bytes).min()
}

/// Returns the best candidates, each with every value of a setting.
fn vary(
    ranked: &[Trial],
    values: &[String],
    set: impl Fn(&mut Candidate, String),
) -> Vec<Candidate> {
    let varied = |trial: &Trial| {
        let each = values.iter().map(|value| {
            let mut candidate = trial.candidate.clone();
            set(&mut candidate, value.clone());
            candidate
        });
        each.collect::<Vec<_>>()
    };
    ranked.iter().take(GO_ON).flat_map(varied).collect()
}
