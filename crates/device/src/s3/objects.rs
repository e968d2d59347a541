//! The known versions of a volume's objects, and the writes that wait for them.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::bucket::{Failure, Version};
use super::content::{Change, is_covered};

/// Objects whose versions are remembered, about 100 bytes each.
const MOST_KNOWN: usize = 200_000;

/// Bytes of objects that were put last, kept as the bases of further writes.
const RECENT_BYTES: usize = 32 << 20;

/// A write that waits for its object.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) range: Range<usize>,
    pub(super) change: Change,
    pub(super) done: oneshot::Sender<Result<(), Failure>>,
}

/// The state of knowledge about an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Known {
    /// This server has not seen the object, or has forgotten it.
    #[default]
    Nothing,
    /// The object is of this version.
    Version(Version),
    /// The object was of this version before a put or a deletion whose answer was lost.
    Before(Version),
}

#[derive(Debug, Default)]
struct ObjectState {
    known: Known,
    waiting: Vec<Pending>,
    /// True while a task writes the object.
    is_busy: bool,
    /// The number of turns of such tasks that have ended.
    turns: u64,
}

/// A moment in the history of an object; two equal ones have no put between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) known: Known,
    pub(super) is_busy: bool,
    turns: u64,
    /// The number of times that objects have been forgotten.
    rounds: u64,
}

/// The knowledge that a task needs to prepare a put.
#[derive(Debug)]
pub(super) struct Prospect {
    pub(super) known: Known,
    /// True if the waiting writes cover the whole object.
    pub(super) is_covered: bool,
    /// The object's content, if it is known.
    pub(super) base: Option<Bytes>,
}

/// The objects of a volume of which something is known.
#[derive(Debug)]
pub(super) struct Objects {
    state: Mutex<State>,
    most_recent: usize,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<u64, ObjectState>,
    /// The contents of the objects that were put last, the newest at the end.
    recent: VecDeque<(u64, Bytes)>,
    /// The number of times that objects have been forgotten.
    rounds: u64,
}

impl State {
    fn object(&mut self, number: u64) -> &mut ObjectState {
        if self.objects.len() >= MOST_KNOWN && !self.objects.contains_key(&number) {
            self.rounds += 1;
            let parity = self.rounds % 2;
            self.objects.retain(|number, object| object.is_busy || number % 2 == parity);
        }
        self.objects.entry(number).or_default()
    }

    fn forget_content(&mut self, number: u64) -> Option<Bytes> {
        let at = self.recent.iter().position(|(of, _)| *of == number)?;
        self.recent.remove(at).map(|(_, bytes)| bytes)
    }
}

impl Objects {
    pub(super) fn new(object_bytes: u64) -> Self {
        let most_recent = (RECENT_BYTES / object_bytes as usize).max(1);
        Self { state: Mutex::default(), most_recent }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is whole under one lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a write. Returns true if the caller has to begin a task for the object.
    pub(super) fn add(&self, number: u64, pending: Pending) -> bool {
        let mut state = self.state();
        let object = state.object(number);
        object.waiting.push(pending);
        !std::mem::replace(&mut object.is_busy, true)
    }

    /// Returns the knowledge about an object that has waiting writes. A task does not read what
    /// they replace.
    pub(super) fn prospect(&self, number: u64, len: usize) -> Prospect {
        let mut state = self.state();
        let base = state.forget_content(number);
        let object = state.object(number);
        let is_covered = is_covered(len, object.waiting.iter().map(|it| &it.range));
        let known = object.known.clone();
        let base = base.filter(|_| matches!(known, Known::Version(_)));
        Prospect { known, is_covered, base }
    }

    /// Takes the writes that wait for an object.
    pub(super) fn take(&self, number: u64) -> Vec<Pending> {
        std::mem::take(&mut self.state().object(number).waiting)
    }

    /// Records the result of a put or deletion, and its content if it was put. Reads that overlap
    /// it learn nothing.
    pub(super) fn learn(&self, number: u64, known: Known, content: Option<Bytes>) {
        let mut state = self.state();
        state.object(number).known = known;
        state.forget_content(number);
        if let Some(bytes) = content {
            if state.recent.len() >= self.most_recent {
                state.recent.pop_front();
            }
            state.recent.push_back((number, bytes));
        }
    }

    /// Ends a turn of an object's task. Returns true if more writes wait, which the task has to
    /// take.
    pub(super) fn end_turn(&self, number: u64) -> bool {
        let mut state = self.state();
        let object = state.object(number);
        object.turns += 1;
        object.is_busy = !object.waiting.is_empty();
        object.is_busy
    }

    /// Returns the present moment of an object.
    pub(super) fn moment(&self, number: u64) -> Moment {
        let state = self.state();
        let rounds = state.rounds;
        match state.objects.get(&number) {
            None => Moment { known: Known::Nothing, is_busy: false, turns: 0, rounds },
            Some(it) => {
                let known = it.known.clone();
                Moment { known, is_busy: it.is_busy, turns: it.turns, rounds }
            }
        }
    }

    /// Records the version that a read has found, unless the object was written since `moment`.
    pub(super) fn learn_by_read(&self, number: u64, moment: &Moment, version: Version) {
        let mut state = self.state();
        if state.rounds != moment.rounds {
            return;
        }
        let object = state.object(number);
        if !object.is_busy && object.turns == moment.turns && object.known == Known::Nothing {
            object.known = Known::Version(version);
        }
    }
}

#[cfg(test)]
mod objects_tests {
    use super::*;

    #[test]
    fn the_first_write_begins_a_task_and_the_others_join_it() {
        let objects = Objects::new(1 << 20);
        let pending = |range| Pending { range, change: Change::Zero, done: oneshot::channel().0 };
        assert!(objects.add(7, pending(0..10)));
        assert!(!objects.add(7, pending(10..20)));
        assert!(objects.prospect(7, 20).is_covered && !objects.prospect(7, 21).is_covered);
        assert_eq!(objects.take(7).len(), 2);
        assert!(!objects.add(7, pending(0..1)));
        assert!(objects.end_turn(7), "one more waits");
        assert_eq!(objects.take(7).len(), 1);
        assert!(!objects.end_turn(7) && objects.add(7, pending(0..1)));
    }

    #[test]
    fn versions_of_idle_objects_are_forgotten_when_there_are_too_many() {
        let objects = Objects::new(1 << 20);
        let pending = Pending { range: 0..1, change: Change::Zero, done: oneshot::channel().0 };
        objects.add(0, pending);
        for number in 1..2 * MOST_KNOWN as u64 {
            objects.learn(number, Known::Version(Version::Missing), None);
        }
        let state = objects.state();
        assert!(state.objects.len() <= MOST_KNOWN && state.objects.contains_key(&0));
    }
}
