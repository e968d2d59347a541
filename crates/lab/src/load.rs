//! Runs a load of random requests on an NBD export, for `floe demo --real`.
//!
//! A closed loop: one connection keeps a number of requests in flight, and each reply is followed
//! by the next request, which [`Load`] describes.

use std::time::{Duration, Instant};

use floe_nbd::uri::Uri;
use floe_server::nbd_client::{Client, ClientError, Cookie};
use hdrhistogram::Histogram;
use rand::Rng;
use std::collections::HashMap;

use crate::draw::Source;
pub use crate::draw::{DrawError, Load};

/// Longest latency that histograms distinguish: a minute, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// Errors of running a load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The connection failed, or the server failed a request.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The caller stopped the load.
    #[error("interrupted")]
    Interrupted,
    /// The requests of the load cannot be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
}

/// Duration, bytes and latencies of a load.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Time from the first request to the last reply.
    pub elapsed: Duration,
    /// Bytes read and written.
    pub bytes: u64,
    /// Latencies of reads in nanoseconds.
    pub read_ns: Histogram<u64>,
    /// Latencies of writes in nanoseconds.
    pub write_ns: Histogram<u64>,
}

impl Measured {
    /// Returns the latencies of reads and writes together, in nanoseconds.
    pub fn all_ns(&self) -> Histogram<u64> {
        let mut all = self.read_ns.clone();
        all.add(&self.write_ns).expect("both histograms have the same bounds");
        all
    }
}

/// Runs a load for a time. `go_on` is called after each reply with the time passed, and returns
/// whether to go on.
///
/// # Errors
/// When the connection fails, the server fails a request, or `go_on` returns false.
pub fn run(
    uri: &Uri,
    load: &Load,
    time: Duration,
    mut go_on: impl FnMut(Duration) -> bool,
) -> Result<Measured, LoadError> {
    let mut client = Client::connect(uri)?;
    let mut source = Source::new(load, client.info().size_bytes)?;
    let mut payload = vec![0; load.sizes.iter().copied().max().unwrap_or(0) as usize];
    source.random.fill(&mut payload[..]);
    let histogram =
        || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order");
    let mut measured =
        Measured { elapsed: Duration::ZERO, bytes: 0, read_ns: histogram(), write_ns: histogram() };
    let mut in_flight: HashMap<Cookie, (bool, u64, Instant)> = HashMap::with_capacity(load.depth);
    let begun = Instant::now();
    loop {
        while in_flight.len() < load.depth && begun.elapsed() < time {
            let (reads, offset, size) = source.draw();
            let sent = Instant::now();
            let cookie = if reads {
                client.submit_read(offset, size as u32)?
            } else {
                client.submit_write(offset, &payload[..size as usize], false)?
            };
            in_flight.insert(cookie, (reads, size, sent));
        }
        let Some(reply) = client.next_reply()? else { break };
        let (reads, size, sent) =
            in_flight.remove(&reply.cookie).expect("a reply belongs to a request in flight");
        reply.outcome.map_err(ClientError::from)?;
        client.recycle(reply.data);
        let latencies = if reads { &mut measured.read_ns } else { &mut measured.write_ns };
        latencies.saturating_record(sent.elapsed().as_nanos() as u64);
        measured.bytes += size;
        if !go_on(begun.elapsed()) {
            return Err(LoadError::Interrupted);
        }
    }
    measured.elapsed = begun.elapsed();
    client.disconnect()?;
    Ok(measured)
}
