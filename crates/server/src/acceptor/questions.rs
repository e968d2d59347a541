//! Questions of the acceptor to the workers: one round of replies, then a reply to the admin
//! client.
//!
//! Questions ask for counters, flushes, prefetches and evictions. They change neither volumes nor
//! tiers, so they need not wait for the control thread.

use std::time::{Duration, Instant};

use floe_block::Request;

use crate::acceptor::eviction::{CacheSearch, Eviction};
use crate::messages::{Problem, Replies, WorkerReply};
use crate::worker::handle::Workers;

/// A question to workers, and the replies received so far.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) purpose: Purpose,
    pub(crate) replies: Replies,
}

/// The purpose of a question; `admin` is the number of the admin session that gets the answer.
#[derive(Debug, Clone)]
pub(crate) enum Purpose {
    Status {
        admin: u32,
    },
    Metrics {
        admin: u32,
    },
    Volumes {
        admin: u32,
    },
    Tiers {
        admin: u32,
    },
    Flushed {
        admin: u32,
    },
    Warmed {
        admin: u32,
    },
    /// The volume's dirty data is written back, and then a part of it leaves the cache.
    Drained {
        admin: u32,
        part: Request,
    },
    /// The blocks of a part that the cache has are searched for.
    Search {
        admin: u32,
        search: CacheSearch,
    },
    /// A part of a volume leaves the cache bit by bit; `left` is to be dropped after the reply.
    Evict {
        admin: u32,
        left: Eviction,
    },
    /// The replies make a point of the live page's history.
    Sample,
    /// The replies make a log line with the bytes that are still dirty.
    LogDirty,
}

/// Questions under way, by number.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    asked: Vec<(u32, Question)>,
    last_number: u32,
    /// Time of the next check for workers that do not answer.
    look: Option<Instant>,
}

impl Questions {
    /// Registers a question to these workers. Returns its number, which their replies carry.
    pub(crate) fn insert(&mut self, purpose: Purpose, workers: impl Iterator<Item = usize>) -> u32 {
        self.last_number = self.last_number.wrapping_add(1);
        let question = Question { purpose, replies: Replies::of(workers) };
        self.asked.push((self.last_number, question));
        self.last_number
    }

    /// Adds a worker's reply. Returns its question once all replies have arrived.
    pub(crate) fn replied(&mut self, reply: WorkerReply) -> Option<Question> {
        let number = reply.number;
        // Later replies to an abandoned question are dropped.
        let at = self.asked.iter().position(|(asked, _)| *asked == number)?;
        let replies = &mut self.asked[at].1.replies;
        replies.take(reply);
        replies.missing().is_empty().then(|| self.asked.swap_remove(at).1)
    }

    /// Returns the time of the next check for workers that do not answer, if any question is under
    /// way.
    pub(crate) fn due(&mut self, patience: Duration) -> Option<Instant> {
        match self.asked.is_empty() {
            true => self.look = None,
            false => drop(self.look.get_or_insert_with(|| Instant::now() + patience / 4)),
        }
        self.look
    }

    /// Abandons all questions once a worker has taken no message for as long as `patience`.
    pub(crate) fn give_up(
        &mut self,
        workers: &Workers,
        patience: Duration,
    ) -> Vec<(Purpose, Problem)> {
        let now = Instant::now();
        if self.look.take_if(|look| *look <= now).is_none() {
            return Vec::new();
        }
        // Any of them: a worker that answers may wait for another one's shards.
        let Some(problem) = workers.silent(now, patience) else { return Vec::new() };
        let given_up = std::mem::take(&mut self.asked).into_iter();
        given_up.map(|(_, question)| (question.purpose, problem.clone())).collect()
    }
}
