//! A trace, read twice: once to know what it asks for, and once to ask for it.
//!
//! The first reading ([`Survey`]) finds what would otherwise stop a long run in its middle. The
//! second runs ahead in a thread of its own ([`Feed`]), so that decompressing a trace delays no
//! request; it keeps a bounded part of the trace in memory.

use std::sync::mpsc::{Receiver, sync_channel};
use std::vec::IntoIter;

use floe_trace::{Error, Op, Request, Trace};

/// Requests handed over at a time, and how often ahead of use.
const BATCH_REQUESTS: usize = 8192;
const BATCHES_AHEAD: usize = 8;

/// The properties of a trace's requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// The number of requests.
    pub requests: u64,
    /// The number of requests that change data.
    pub changes: u64,
    /// True if requests have times.
    pub has_times: bool,
    /// Volumes in order of appearance, by their number in the trace, with the first byte past all
    /// requests.
    pub volumes: Vec<(u32, u64)>,
    /// The longest read or write, in bytes.
    pub longest_bytes: u64,
}

impl Survey {
    /// Reads requests to the end.
    ///
    /// # Errors
    /// The first error of the trace.
    pub fn of(requests: impl Iterator<Item = Result<Request, Error>>) -> Result<Self, Error> {
        let mut survey = Self::default();
        let mut places = hashbrown::HashMap::<u32, usize, foldhash::fast::FixedState>::default();
        for request in requests {
            let request = request?;
            survey.requests += 1;
            survey.changes += u64::from(request.op != Op::Read);
            survey.has_times |= request.time_ns > 0;
            let place = *places.entry(request.volume).or_insert_with(|| {
                survey.volumes.push((request.volume, 0));
                survey.volumes.len() - 1
            });
            let end = &mut survey.volumes[place].1;
            *end = (*end).max(request.key + request.bytes);
            if request.op != Op::Delete {
                survey.longest_bytes = survey.longest_bytes.max(request.bytes);
            }
        }
        Ok(survey)
    }
}

/// Requests of a trace, read ahead in a thread of its own.
#[derive(Debug)]
pub struct Feed {
    batches: Receiver<(Vec<Request>, Option<Error>)>,
    batch: IntoIter<Request>,
    failed: Option<Error>,
}

impl Feed {
    /// Begins to read the first `limit` requests.
    pub fn start(trace: Trace, limit: u64) -> Self {
        let (tell, batches) = sync_channel(BATCHES_AHEAD);
        std::thread::spawn(move || {
            let mut requests = trace.take(usize::try_from(limit).unwrap_or(usize::MAX));
            loop {
                let mut failed = None;
                let sound = requests
                    .by_ref()
                    .map_while(|request| request.map_err(|error| failed = Some(error)).ok());
                let batch: Vec<Request> = sound.take(BATCH_REQUESTS).collect();
                let last = batch.len() < BATCH_REQUESTS;
                // The receiver is gone when the replay has failed.
                if tell.send((batch, failed)).is_err() || last {
                    return;
                }
            }
        });
        Self { batches, batch: Vec::new().into_iter(), failed: None }
    }
}

impl Iterator for Feed {
    type Item = Result<Request, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(request) = self.batch.next() {
                return Some(Ok(request));
            }
            if let Some(error) = self.failed.take() {
                return Some(Err(error));
            }
            let (batch, failed) = self.batches.recv().ok()?;
            self.batch = batch.into_iter();
            self.failed = failed;
        }
    }
}
