//! A trace, read twice: once to know what it asks for, and once to ask for it.
//!
//! The first reading ([`Survey`]) finds what would otherwise stop a long run in its middle. The
//! second runs ahead in a thread of its own ([`Feed`]), so that decompressing a trace delays no
//! request; it keeps a bounded part of the trace in memory.

use std::sync::mpsc::{Receiver, sync_channel};
use std::vec::IntoIter;

use floe_block::format_size;
use floe_trace::{Error, Op, Request, Trace};
use hashbrown::HashMap;

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

/// The longest request of one piece; a server takes no longer one.
pub const LONGEST_REQUEST_BYTES: u64 = 32 << 20;

/// The boundary at which volumes laid end to end begin, and to which folded addresses keep.
const ALIGNMENT_BYTES: u64 = 1 << 20;
const UNIT_BYTES: u64 = 4096;

/// The treatment of addresses that do not fit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fit {
    /// Take addresses beyond a volume modulo its size.
    pub wrap: bool,
    /// Lay the trace's volumes end to end on the first volume.
    pub concatenate: bool,
}

/// Why a trace does not fit.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutError {
    /// More volumes than there are.
    #[error(
        "the trace speaks of {wanted} volumes and there are {there}: configure as many, or lay \
         them end to end on the first with --concatenate"
    )]
    Volumes {
        /// Volumes of the trace.
        wanted: usize,
        /// Volumes there are.
        there: usize,
    },
    /// Addresses beyond a volume.
    #[error(
        "the trace needs {} of volume {volume}, which has {}: give it memory:{large} or \
         file:PATH,size={large}, which take only what is written, or fold addresses into it with \
         --wrap",
        exact(*wanted_bytes),
        exact(*there_bytes),
        large = format_size(wanted_bytes.next_multiple_of(1 << 30))
    )]
    Size {
        /// The volume, counted from 1.
        volume: usize,
        /// The first byte past all requests.
        wanted_bytes: u64,
        /// The volume's size.
        there_bytes: u64,
    },
    /// A request that no server takes.
    #[error(
        "the trace has a request of {}; the longest a server takes are {}",
        exact(*bytes),
        exact(LONGEST_REQUEST_BYTES)
    )]
    Longest {
        /// Its length.
        bytes: u64,
    },
}

/// Where requests go.
#[derive(Debug)]
pub struct Layout {
    /// By the volume's number in the trace: which volume it is, and where on it its first byte is.
    places: HashMap<u32, (usize, u64), foldhash::fast::FixedState>,
    sizes: Vec<u64>,
}

impl Layout {
    /// A layout of a trace on volumes of these sizes in bytes.
    ///
    /// # Errors
    /// When it does not fit and may not be made to.
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

    /// The volume of a request, and its range there.
    ///
    /// # Panics
    /// When the request is of a volume that the survey did not see.
    pub(super) fn place(&self, request: &Request) -> (usize, u64, u64) {
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

/// A size that hides nothing.
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
