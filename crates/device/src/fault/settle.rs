//! Moving cached sectors to the medium: what flushes and durable writes wait for.
//!
//! One job at a time, so that an older version of a sector can never overtake a newer one on the
//! way to the inner device. A job writes its sectors (reading those first that are only partly
//! written), then flushes. A pure queue: it says what the inner device should do next and is told
//! how that went.

use std::collections::VecDeque;
use std::io;

use crate::buffer::{Pool, Slice};
use crate::write_cache::Dirty;
use crate::{Action, SECTOR_BYTES};

/// Sectors that shall reach the medium, and who waits for it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) token: Option<u64>,
    pub(super) what: Vec<Dirty>,
    pub(super) flush: bool,
    pub(super) delay: u32,
}

/// A job's present operation on the inner device.
#[derive(Debug)]
pub(super) enum Step {
    Fetch { dirty: Dirty, into: Slice },
    Store,
    Flush,
}

#[derive(Debug, Default)]
pub(super) struct Settling {
    queue: VecDeque<Job>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    job: Job,
    /// Sectors of the job already begun.
    begun: usize,
    /// Fetched and patched, to be stored.
    fetched: Vec<(u64, Slice)>,
    /// Steps the inner device has not finished.
    open: usize,
    flushed: bool,
    result: io::Result<()>,
}

impl Settling {
    pub(super) fn push(&mut self, job: Job) {
        self.queue.push_back(job);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.current.is_none()
    }

    /// The next thing to ask of the inner device, if anything can be asked now.
    pub(super) fn next(&mut self, pool: &Pool) -> Option<(u64, Action, Step)> {
        if self.current.is_none() {
            let job = self.queue.pop_front()?;
            let fetched = Vec::new();
            self.current =
                Some(Current { job, begun: 0, fetched, open: 0, flushed: false, result: Ok(()) });
        }
        let current = self.current.as_mut()?;
        let step = current.step(pool)?;
        current.open += 1;
        Some(step)
    }

    pub(super) fn finished(&mut self, step: Step, result: io::Result<()>) {
        let current = self.current.as_mut().expect("a step belongs to the current job");
        current.open -= 1;
        match (step, result) {
            (Step::Fetch { .. }, Ok(())) if current.result.is_err() => {}
            (Step::Fetch { dirty, into }, Ok(())) => {
                dirty.patch(&into);
                current.fetched.push((dirty.offset, into));
            }
            (_, Err(error)) => current.result = Err(error),
            (Step::Store | Step::Flush, Ok(())) => {}
        }
    }

    /// The current job, once nothing is left to do for it.
    pub(super) fn take_finished(&mut self) -> Option<(Job, io::Result<()>)> {
        let current = self.current.take_if(|current| current.is_finished())?;
        Some((current.job, current.result))
    }

    /// Drops the jobs nobody began, and lets the current one run out unanswered. Returns who
    /// waited.
    pub(super) fn abandon(&mut self) -> Vec<u64> {
        let mut waiting: Vec<u64> = self.queue.drain(..).filter_map(|job| job.token).collect();
        if let Some(current) = &mut self.current {
            waiting.extend(current.job.token.take());
            // The power is gone: nothing more is begun.
            current.begun = current.job.what.len();
            current.fetched.clear();
            current.result = Err(io::ErrorKind::BrokenPipe.into());
        }
        waiting
    }
}

impl Current {
    fn step(&mut self, pool: &Pool) -> Option<(u64, Action, Step)> {
        if let Some((offset, from)) = self.fetched.pop() {
            return Some((offset, Action::Write { from, durable: false }, Step::Store));
        }
        if let Some(dirty) = self.job.what.get(self.begun) {
            self.begun += 1;
            let slice = pool.allocate(SECTOR_BYTES as usize).whole();
            let dirty = dirty.alone();
            if dirty.is_whole() {
                dirty.patch(&slice);
                let store = Action::Write { from: slice, durable: false };
                return Some((dirty.offset, store, Step::Store));
            }
            let fetch = Action::Read(slice.clone());
            return Some((dirty.offset, fetch, Step::Fetch { dirty, into: slice }));
        }
        if self.open == 0 && self.job.flush && !self.flushed && self.result.is_ok() {
            self.flushed = true;
            return Some((0, Action::Flush, Step::Flush));
        }
        None
    }

    fn is_finished(&self) -> bool {
        let all_begun = self.begun == self.job.what.len() && self.fetched.is_empty();
        let flushed = !self.job.flush || self.flushed || self.result.is_err();
        self.open == 0 && all_begun && flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_cache::WriteCache;

    #[test]
    fn a_job_flushes_once_all_it_stored_has_arrived_and_the_next_waits_for_it() {
        let pool = Pool::new(0);
        let mut cache = WriteCache::default();
        cache.write(0, &pool.allocate(2 * SECTOR_BYTES as usize).whole());
        let mut settling = Settling::default();
        for token in [1, 2] {
            settling.push(Job { token: Some(token), what: cache.all(), flush: true, delay: 0 });
        }
        for token in [1, 2] {
            let stores = [settling.next(&pool), settling.next(&pool)];
            assert!(stores.iter().all(|step| matches!(step, Some((_, _, Step::Store)))));
            assert!(settling.next(&pool).is_none(), "nothing to do until the stores are done");
            settling.finished(Step::Store, Ok(()));
            assert!(settling.next(&pool).is_none(), "one store is still under way");
            settling.finished(Step::Store, Ok(()));
            assert!(settling.take_finished().is_none(), "not flushed yet");
            assert!(matches!(settling.next(&pool), Some((_, Action::Flush, Step::Flush))));
            assert!(settling.take_finished().is_none(), "the flush is under way");
            settling.finished(Step::Flush, Ok(()));
            assert_eq!(settling.take_finished().and_then(|(job, _)| job.token), Some(token));
        }
        assert!(settling.is_idle());
    }

    #[test]
    fn a_job_whose_store_failed_fails_without_a_flush() {
        let pool = Pool::new(0);
        let mut cache = WriteCache::default();
        cache.zero(0, SECTOR_BYTES);
        let mut settling = Settling::default();
        settling.push(Job { token: Some(1), what: cache.all(), flush: true, delay: 0 });
        assert!(settling.next(&pool).is_some());
        settling.finished(Step::Store, Err(io::ErrorKind::Other.into()));
        assert!(settling.next(&pool).is_none());
        assert!(settling.take_finished().is_some_and(|(_, result)| result.is_err()));
    }
}
