//! The replies of workers to one question or command.

use super::messages::{Done, Problem, WorkerReply};
use crate::status::Snapshot;

/// Replies that have come, and workers whose replies have not.
#[derive(Debug)]
pub(super) struct Replies {
    /// Contains a worker once for each reply it owes.
    missing: Vec<usize>,
    come: Vec<(usize, Done)>,
    /// The first problem reported.
    problem: Option<Problem>,
}

impl Replies {
    /// Expects one reply of each of these workers.
    pub(super) fn of(workers: impl Iterator<Item = usize>) -> Self {
        Self { missing: workers.collect(), come: Vec::new(), problem: None }
    }

    pub(super) fn take(&mut self, reply: WorkerReply) {
        let WorkerReply { worker, result, .. } = reply;
        let at = self.missing.iter().position(|missing| *missing == worker);
        self.missing.swap_remove(at.expect("a worker replies once to each command"));
        match result {
            Ok(done) => self.come.push((worker, done)),
            Err(problem) => {
                self.problem.get_or_insert(problem);
            }
        }
    }

    pub(super) fn missing(&self) -> &[usize] {
        &self.missing
    }

    /// All replies, in the order of the workers, or the first problem.
    pub(super) fn finish(self) -> Result<Vec<Done>, Problem> {
        let Self { mut come, problem, .. } = self;
        come.sort_by_key(|(worker, _)| *worker);
        problem.map_or_else(|| Ok(come.into_iter().map(|(_, done)| done).collect()), Err)
    }
}

/// The snapshots among replies.
pub(super) fn snapshots(replies: Vec<Done>) -> Vec<Snapshot> {
    let snapshot = |done| match done {
        Done::Snapshot(snapshot) => Some(*snapshot),
        _ => None,
    };
    replies.into_iter().filter_map(snapshot).collect()
}
