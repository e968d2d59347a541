//! Reads a trace twice: first to check all requests, and then to replay them.
//!
//! The first reading ([`Survey`]) finds errors that would otherwise stop a long replay midway. The
//! second runs ahead in a thread of its own ([`Feed`]), so that decompressing a trace delays no
//! request. It keeps a bounded part of the trace in memory.

use std::sync::mpsc::{Receiver, sync_channel};
use std::vec::IntoIter;

use floe_block::format_size;
use floe_trace::{Error, Op, Request, Trace};
use hashbrown::HashMap;

/// Number of requests that the reading thread hands over at a time. It reads up to
/// [`BATCHES_AHEAD`] such batches ahead.
const BATCH_REQUESTS: usize = 8192;
const BATCHES_AHEAD: usize = 8;

/// Properties of all requests of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that change data.
    pub changes: u64,
    /// True if requests have recorded times.
    pub has_times: bool,
    /// Volumes in order of appearance: the number in the trace, and the end of the highest request
    /// in bytes.
    pub volumes: Vec<(u32, u64)>,
    /// Length in bytes of the longest read or write.
    pub longest_bytes: u64,
}

impl Survey {
    /// Reads all requests of a trace.
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
    /// Starts a thread that reads the first `limit` requests.
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

/// Longest request in bytes that a server accepts.
pub const LONGEST_REQUEST_BYTES: u64 = 32 << 20;

/// Alignment in bytes of volumes that are laid end to end. Folded addresses keep their position
/// within units of [`UNIT_BYTES`].
const ALIGNMENT_BYTES: u64 = 1 << 20;
const UNIT_BYTES: u64 = 4096;

/// Options for traces whose addresses do not fit the volumes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fit {
    /// True to take addresses beyond a volume modulo its size.
    pub wrap: bool,
    /// True to lay the trace's volumes end to end on the first volume.
    pub concatenate: bool,
}

/// Reasons why a trace does not fit the volumes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutError {
    /// The trace has more volumes than are configured.
    #[error(
        "the trace has {wanted} volumes, and {there} are configured: configure as many, or lay \
         them end to end on the first with --concatenate"
    )]
    Volumes {
        /// Number of volumes in the trace.
        wanted: usize,
        /// Number of configured volumes.
        there: usize,
    },
    /// The trace has addresses beyond the end of a volume.
    #[error(
        "the trace needs {} of volume {volume}, which has {}: give it memory:{large} or \
         file:PATH,size={large}, which take only what is written, or fold addresses into it with \
         --wrap",
        exact(*wanted_bytes),
        exact(*there_bytes),
        large = format_size(wanted_bytes.next_multiple_of(1 << 30))
    )]
    Size {
        /// Number of the volume, counted from 1.
        volume: usize,
        /// Bytes that the volume must have for all requests to fit.
        wanted_bytes: u64,
        /// Size of the volume in bytes.
        there_bytes: u64,
    },
    /// The trace has a request that is too long for a server.
    #[error(
        "the trace has a request of {}; the longest a server takes are {}",
        exact(*bytes),
        exact(LONGEST_REQUEST_BYTES)
    )]
    Longest {
        /// Length of the request in bytes.
        bytes: u64,
    },
}

/// Mapping of a trace's addresses to the configured volumes.
#[derive(Debug)]
pub struct Layout {
    /// Volume index and offset of the first byte, by the volume's number in the trace.
    places: HashMap<u32, (usize, u64), foldhash::fast::FixedState>,
    sizes: Vec<u64>,
}

impl Layout {
    /// Maps a trace to volumes with these sizes in bytes.
    ///
    /// # Errors
    /// When the trace does not fit, and `fit` does not allow to change addresses.
    pub fn new(survey: &Survey, sizes: &[u64], fit: Fit) -> Result<Self, LayoutError> {
        if survey.longest_bytes > LONGEST_REQUEST_BYTES {
            return Err(LayoutError::Longest { bytes: survey.longest_bytes });
        }
        if !fit.concatenate && survey.volumes.len() > sizes.len() {
            return Err(LayoutError::Volumes { wanted: survey.volumes.len(), there: sizes.len() });
        }
        let mut places = HashMap::default();
        let mut ends = vec![0u64; sizes.len()];
        for (index, &(number, end_bytes)) in survey.volumes.iter().enumerate() {
            let volume = if fit.concatenate { 0 } else { index };
            let start = ends[volume];
            places.insert(number, (volume, start));
            ends[volume] = start + end_bytes;
            if fit.concatenate && index + 1 < survey.volumes.len() {
                ends[volume] = ends[volume].next_multiple_of(ALIGNMENT_BYTES);
            }
        }
        for (index, (&wanted_bytes, &there_bytes)) in ends.iter().zip(sizes).enumerate() {
            // A folded volume must be able to hold its longest request.
            let wanted_bytes =
                if fit.wrap { wanted_bytes.min(survey.longest_bytes) } else { wanted_bytes };
            if wanted_bytes > there_bytes {
                return Err(LayoutError::Size { volume: index + 1, wanted_bytes, there_bytes });
            }
        }
        Ok(Self { places, sizes: sizes.to_vec() })
    }

    /// Returns the volume index of a request, and its offset and length there in bytes.
    ///
    /// # Panics
    /// When the survey did not see the request's volume.
    pub(crate) fn place(&self, request: &Request) -> (usize, u64, u64) {
        let (volume, start) = self.places[&request.volume];
        let (offset, size) = (start + request.key, self.sizes[volume]);
        if offset + request.bytes <= size {
            return (volume, offset, request.bytes);
        }
        let bytes = match request.op {
            Op::Delete => request.bytes.min(size),
            Op::Read | Op::Write => request.bytes,
        };
        // Whole units are folded, so that a request keeps its place within them; the last may not
        // stick out.
        let folded = if size < UNIT_BYTES { 0 } else { offset % (size / UNIT_BYTES * UNIT_BYTES) };
        let last = size - bytes;
        let skew = offset % UNIT_BYTES;
        let moved =
            if last >= skew { (last - skew) / UNIT_BYTES * UNIT_BYTES + skew } else { last };
        (volume, if folded <= last { folded } else { moved }, bytes)
    }
}

/// Formats a size briefly if that is exact, or else in bytes.
fn exact(bytes: u64) -> String {
    let short = format_size(bytes);
    if short.len() < 8 { short } else { format!("{bytes} bytes") }
}

#[cfg(test)]
mod layout_tests {
    use super::*;

    fn survey(volumes: &[(u32, u64)], longest_bytes: u64) -> Survey {
        Survey { volumes: volumes.to_vec(), longest_bytes, ..Survey::default() }
    }

    fn read(volume: u32, key: u64, bytes: u64) -> Request {
        Request { time_ns: 0, key, bytes, volume, op: Op::Read }
    }

    #[test]
    fn volumes_take_their_places_in_order_or_end_to_end() {
        let survey = survey(&[(7, 10_000), (3, 5_000)], 4096);
        let apart = Layout::new(&survey, &[10_000, 5_000], Fit::default()).unwrap();
        assert_eq!(apart.place(&read(3, 512, 512)), (1, 512, 512));
        let wanted = LayoutError::Volumes { wanted: 2, there: 1 };
        assert_eq!(Layout::new(&survey, &[1 << 30], Fit::default()).err(), Some(wanted));
        let concatenate = Fit { concatenate: true, wrap: false };
        let together = Layout::new(&survey, &[(1 << 20) + 5_000], concatenate).unwrap();
        assert_eq!(together.place(&read(7, 512, 512)), (0, 512, 512));
        assert_eq!(together.place(&read(3, 512, 512)), (0, (1 << 20) + 512, 512));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_size_it_needs() {
        let survey = survey(&[(0, (3 << 40) + 1)], 4096);
        let refused = Layout::new(&survey, &[10 << 30], Fit::default()).unwrap_err().to_string();
        for words in ["3298534883329 bytes", "10GiB", "memory:3073GiB", "--wrap"] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
    }

    #[test]
    fn folded_requests_keep_their_alignment_and_stay_inside() {
        let survey = survey(&[(0, 1 << 40)], 65536);
        let size = (1 << 20) + 512;
        let layout = Layout::new(&survey, &[size], Fit { wrap: true, concatenate: false }).unwrap();
        for step in 0..10_000 {
            let request = read(0, step * 7 * 512, 65536 - step % 128 * 512);
            let (_, offset, bytes) = layout.place(&request);
            assert!(offset + bytes <= size, "{request:?} goes to {offset}");
            assert_eq!(offset % 4096, request.key % 4096);
        }
    }
}
