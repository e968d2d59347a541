//! A client that writes, reads and flushes at random, many requests at a time, until its server is
//! no more.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use floe_server::nbd_client::{Client, ClientError, Cookie};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::model::{Answered, Model, SECTOR};

/// Requests in flight.
const DEPTH: usize = 8;

/// Sectors in a row that are one client's.
const EXTENT: usize = 16;

/// What clients did, of which the server answered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Done {
    pub(crate) writes: u64,
    pub(crate) durable: u64,
    pub(crate) flushes: u64,
    pub(crate) reads: u64,
}

impl std::ops::AddAssign for Done {
    fn add_assign(&mut self, other: Done) {
        self.writes += other.writes;
        self.durable += other.durable;
        self.flushes += other.flushes;
        self.reads += other.reads;
    }
}

enum Request {
    Write { start: usize, count: usize, durable: bool },
    Read { start: usize },
    Flush(Answered),
}

/// One of several clients, each with extents of its own.
pub(crate) struct Load<'a> {
    pub(crate) model: &'a Mutex<Model>,
    pub(crate) client: Client,
    pub(crate) number: usize,
    pub(crate) clients: usize,
    pub(crate) seed: u64,
    /// How many of a thousand requests are flushes; twice as many are durable writes.
    pub(crate) flushes: u32,
}

impl Load<'_> {
    /// Goes on until the connection fails.
    pub(crate) fn run(mut self) -> Done {
        let mut random = SmallRng::seed_from_u64(self.seed);
        let mut done = Done::default();
        let mut under_way: HashMap<Cookie, Request> = HashMap::new();
        loop {
            while under_way.len() < DEPTH {
                match self.begin(&mut random) {
                    Ok(Some((cookie, request))) => drop(under_way.insert(cookie, request)),
                    Ok(None) => break,
                    Err(_) => return done,
                }
            }
            match self.client.next_reply() {
                Ok(Some(reply)) => {
                    reply.outcome.expect("the server fails no request");
                    let request = under_way.remove(&reply.cookie).expect("it was asked");
                    self.end(request, &reply.data, &mut done);
                    self.client.recycle(reply.data);
                }
                Ok(None) => unreachable!("something is under way"),
                Err(_) => return done,
            }
        }
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request at random; `None` when its sectors are busy.
    fn begin(&mut self, random: &mut SmallRng) -> Result<Option<(Cookie, Request)>, ClientError> {
        let kind = random.random_range(0..1000);
        if kind < self.flushes {
            let answered = self.model().begin_flush();
            return Ok(Some((self.client.submit_flush()?, Request::Flush(answered))));
        }
        let extents = self.model().sectors() / EXTENT / self.clients;
        // Some places are written again and again.
        let extents = if random.random() { extents } else { extents.div_ceil(16) };
        let extent = random.random_range(0..extents) * self.clients + self.number;
        let first = random.random_range(0..EXTENT);
        let (start, count) = (extent * EXTENT + first, random.random_range(1..=EXTENT - first));
        if !self.model().claim(start, count) {
            return Ok(None);
        }
        let (offset, length) = ((start * SECTOR) as u64, (count * SECTOR) as u32);
        if kind < 300 {
            return Ok(Some((self.client.submit_read(offset, length)?, Request::Read { start })));
        }
        let (zero, durable) = (kind < 330, kind >= 1000 - 2 * self.flushes);
        let bytes = self.model().begin_write(start, count, zero);
        let cookie = if zero {
            self.client.submit_write_zeroes(offset, length, random.random())?
        } else {
            self.client.submit_write(offset, &bytes, durable)?
        };
        Ok(Some((cookie, Request::Write { start, count, durable })))
    }

    fn end(&self, request: Request, data: &[u8], done: &mut Done) {
        match request {
            Request::Write { start, count, durable } => {
                self.model().end_write(start, count, durable);
                done.writes += 1;
                done.durable += u64::from(durable);
            }
            Request::Read { start } => {
                let read = self.model().end_read(start, data);
                read.unwrap_or_else(|wrong| panic!("under load: {wrong}"));
                done.reads += 1;
            }
            Request::Flush(answered) => {
                self.model().end_flush(&answered);
                done.flushes += 1;
            }
        }
    }
}
