//! Locks of sectors: shared and exclusive locks on ranges, with waiting in order of arrival.
//!
//! Every task of a shard holds a lock on the sectors it works on while its I/O is under way. Ranges
//! never reach over a region, so a conflict is searched among the few tasks of one region only; a
//! region without tasks has no entry.
//!
//! A release wakes only waiters whose locks may now be free. The need of a task can shrink while it
//! waits: a read that was to fetch a block only reads it once another task has fetched it. So a
//! waiter is judged by the least it may need, and states its actual need when it is tried again.
//!
//! Invariants: no two holders overlap unless both are shared; a waiter never overtakes an earlier
//! one it conflicts with.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::geometry::{Place, Sectors};

/// A task of a shard, by its number.
pub(crate) type TaskId = u32;

/// The lock that a task needs, and the least that it may need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    range: Sectors,
    exclusive: bool,
    /// Sectors on which a shared lock may suffice when the task is tried again; `None` if the need
    /// cannot shrink.
    least: Option<Sectors>,
}

impl Need {
    pub(crate) fn shared(range: Sectors) -> Self {
        Self { range, exclusive: false, least: None }
    }

    pub(crate) fn exclusive(range: Sectors) -> Self {
        Self { range, exclusive: true, least: None }
    }

    /// Returns an exclusive need that may later shrink to a shared lock on `least`.
    pub(crate) fn exclusive_or_shared(range: Sectors, least: Sectors) -> Self {
        Self { range, exclusive: true, least: Some(least) }
    }

    /// Divides the need into the sectors before `at` and those from `at` on.
    pub(crate) fn cut(self, at: u64) -> (Self, Self) {
        let cut = |Sectors { start, end }| (start..at, at..end);
        let (range, least) = (cut(self.range), self.least.map(cut).unzip());
        let part = |range, least| Self { range, least, ..self };
        (part(range.0, least.0), part(range.1, least.1))
    }

    /// Returns the least lock that may suffice: its range, and whether it is exclusive.
    fn at_least(&self) -> (&Sectors, bool) {
        self.least.as_ref().map_or((&self.range, self.exclusive), |least| (least, false))
    }

    fn now(&self) -> (&Sectors, bool) {
        (&self.range, self.exclusive)
    }
}

fn overlap(a: &Sectors, b: &Sectors) -> bool {
    a.start < b.end && b.start < a.end
}

/// Returns whether two locks, each of a range and exclusive or not, cannot be held at once.
fn conflict((a, a_exclusive): (&Sectors, bool), (b, b_exclusive): (&Sectors, bool)) -> bool {
    (a_exclusive || b_exclusive) && overlap(a, b)
}

#[derive(Debug, Default)]
struct Lane {
    held: Vec<(TaskId, Need)>,
    waiting: VecDeque<(TaskId, Need)>,
}

impl Lane {
    /// Returns whether the waiter at a position in the queue could have the least lock it may need.
    fn may_have(&self, at: usize) -> bool {
        let least = self.waiting[at].1.at_least();
        let holders = self.held.iter().map(|(_, need)| need.now());
        let ahead = self.waiting.iter().take(at).map(|(_, need)| need.at_least());
        !holders.chain(ahead).any(|other| conflict(other, least))
    }
}

/// The locks of a shard, by region.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    lanes: HashMap<Place, Lane, foldhash::fast::FixedState>,
    /// Emptied lanes, kept so that a busy shard does not allocate.
    spare: Vec<Lane>,
}

impl Locks {
    /// Takes the lock that `task` needs, or leaves the task waiting; returns whether it was taken.
    /// A task that already waits keeps its turn.
    pub(crate) fn take(&mut self, region: Place, task: TaskId, need: Need) -> bool {
        let spare = &mut self.spare;
        let lane = self.lanes.entry(region).or_insert_with(|| spare.pop().unwrap_or_default());
        let turn = lane.waiting.iter().position(|(waiter, _)| *waiter == task);
        let ahead = lane.waiting.iter().take(turn.unwrap_or(usize::MAX)).map(|(_, need)| need);
        let holders = lane.held.iter().map(|(_, need)| need);
        let blocked = holders.chain(ahead).any(|other| conflict(other.now(), need.now()));
        match (blocked, turn) {
            (true, Some(turn)) => lane.waiting[turn].1 = need,
            (true, None) => lane.waiting.push_back((task, need)),
            (false, turn) => {
                if let Some(turn) = turn {
                    lane.waiting.remove(turn);
                }
                lane.held.push((task, need));
            }
        }
        !blocked
    }

    /// Returns the sector at which the conflicts of a waiting task begin or end, rounded outwards
    /// to multiples of `unit`; `None` when its whole range conflicts.
    pub(crate) fn seam(&self, region: Place, task: TaskId, unit: u64) -> Option<u64> {
        let lane = self.lanes.get(&region)?;
        let turn = lane.waiting.iter().position(|(waiter, _)| *waiter == task)?;
        let need = &lane.waiting[turn].1;
        let ahead = lane.waiting.iter().take(turn);
        let others = lane.held.iter().chain(ahead).map(|(_, other)| other);
        let (mut free_until, mut kept_until) = (need.range.end, u64::MAX);
        for other in others.filter(|other| conflict(other.now(), need.now())) {
            let (start, end) =
                (other.range.start / unit * unit, other.range.end.next_multiple_of(unit));
            match start <= need.range.start {
                true => kept_until = kept_until.min(end),
                false => free_until = free_until.min(start),
            }
        }
        let at = if kept_until == u64::MAX { free_until } else { kept_until };
        (at < need.range.end).then_some(at)
    }

    /// Divides a task's lock, or its place in the queue, at a sector. The task `rest` gets the part
    /// from `at` on, with the same turn.
    pub(crate) fn cut(&mut self, region: Place, task: TaskId, at: u64, rest: TaskId) {
        let Some(lane) = self.lanes.get_mut(&region) else { return };
        if let Some(held) = lane.held.iter_mut().find(|(holder, _)| *holder == task) {
            let (front, back) = held.1.clone().cut(at);
            held.1 = front;
            lane.held.push((rest, back));
        } else if let Some(turn) = lane.waiting.iter().position(|(waiter, _)| *waiter == task) {
            let (front, back) = lane.waiting[turn].1.clone().cut(at);
            lane.waiting[turn].1 = front;
            lane.waiting.insert(turn + 1, (rest, back));
        }
    }

    /// Releases the lock of `task` or removes it from the queue; returns whether others wait in the
    /// region.
    pub(crate) fn release(&mut self, region: Place, task: TaskId) -> bool {
        let Entry::Occupied(mut entry) = self.lanes.entry(region) else { return false };
        let lane = entry.get_mut();
        lane.held.retain(|(holder, _)| *holder != task);
        lane.waiting.retain(|(waiter, _)| *waiter != task);
        let others_wait = !lane.waiting.is_empty();
        if lane.held.is_empty() && !others_wait {
            self.spare.push(entry.remove());
        }
        others_wait
    }

    /// Returns the tasks that wait in a region, in order of arrival.
    pub(crate) fn waiting(&self, region: Place) -> impl Iterator<Item = TaskId> + '_ {
        self.lanes.get(&region).into_iter().flat_map(|lane| &lane.waiting).map(|(task, _)| *task)
    }

    /// Returns the waiting tasks of a region whose locks may now be free, in order of arrival.
    pub(crate) fn wakeable(&self, region: Place) -> impl Iterator<Item = TaskId> + '_ {
        let lane = self.lanes.get(&region);
        lane.into_iter().flat_map(|lane| {
            (0..lane.waiting.len()).filter(|&at| lane.may_have(at)).map(|at| lane.waiting[at].0)
        })
    }

    /// Returns whether a task waits in a region and its lock may now be free.
    pub(crate) fn is_wakeable(&self, region: Place, task: TaskId) -> bool {
        let Some(lane) = self.lanes.get(&region) else { return false };
        let turn = lane.waiting.iter().position(|(waiter, _)| *waiter == task);
        turn.is_some_and(|turn| lane.may_have(turn))
    }

    /// Returns the tasks that hold a lock in a region.
    pub(crate) fn holders(&self, region: Place) -> impl Iterator<Item = TaskId> + '_ {
        self.lanes.get(&region).into_iter().flat_map(|lane| &lane.held).map(|(task, _)| *task)
    }

    /// Returns whether any task holds or waits for some of these sectors. If none does, they can be
    /// locked at once.
    pub(crate) fn in_use(&self, region: Place, range: &Sectors) -> bool {
        let touches = |lane: &Lane| {
            lane.held.iter().chain(&lane.waiting).any(|(_, need)| overlap(&need.range, range))
        };
        self.lanes.get(&region).is_some_and(touches)
    }

    /// Returns whether no task holds or waits for a lock.
    pub(crate) fn is_idle(&self) -> bool {
        self.lanes.is_empty()
    }
}

/// Counters of the turns in which commits or settlements run: turns begun and turns ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    begun: u64,
    ended: u64,
}

impl Turns {
    /// Returns the number of the first turn that begins after now.
    pub(crate) fn next(&self) -> u64 {
        self.begun + 1
    }

    /// Begins the next turn of commits or settlements.
    pub(crate) fn begin(&mut self) {
        debug_assert_eq!(self.begun, self.ended, "one at a time");
        self.begun += 1;
    }

    /// Ends the turn under way; returns its number.
    pub(crate) fn end(&mut self) -> u64 {
        self.ended = self.begun;
        self.ended
    }

    /// Returns whether a turn is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.begun > self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::VolumeId;

    const REGION: fn() -> Place = || Place::new(VolumeId(0), 0);

    #[test]
    fn readers_share_and_writers_wait() {
        let mut locks = Locks::default();
        assert!(locks.take(REGION(), 1, Need::shared(0..4)));
        assert!(locks.take(REGION(), 2, Need::shared(2..8)));
        assert!(!locks.take(REGION(), 3, Need::exclusive(3..5)));
        assert!(locks.take(REGION(), 4, Need::exclusive(8..9)), "another range is free");
        locks.release(REGION(), 1);
        assert!(!locks.take(REGION(), 3, Need::exclusive(3..5)));
        locks.release(REGION(), 2);
        assert!(locks.take(REGION(), 3, Need::exclusive(3..5)));
        locks.release(REGION(), 3);
        locks.release(REGION(), 4);
        assert!(locks.is_idle());
    }

    #[test]
    fn a_reader_does_not_overtake_a_waiting_writer() {
        let mut locks = Locks::default();
        assert!(locks.take(REGION(), 1, Need::shared(0..4)));
        assert!(!locks.take(REGION(), 2, Need::exclusive(0..4)));
        assert!(!locks.take(REGION(), 3, Need::shared(3..4)));
        assert_eq!(locks.waiting(REGION()).collect::<Vec<_>>(), [2, 3]);
        locks.release(REGION(), 1);
        assert!(!locks.take(REGION(), 3, Need::shared(3..4)), "it is not its turn");
        assert!(locks.take(REGION(), 2, Need::exclusive(0..4)));
        assert!(!locks.take(REGION(), 3, Need::shared(3..4)));
        locks.release(REGION(), 2);
        assert!(locks.take(REGION(), 3, Need::shared(3..4)));
        assert!(locks.in_use(REGION(), &(0..8)) && !locks.in_use(REGION(), &(4..8)));
    }

    fn wakeable(locks: &Locks) -> Vec<TaskId> {
        locks.wakeable(REGION()).collect()
    }

    #[test]
    fn only_those_are_woken_who_may_have_their_lock_now() {
        let mut locks = Locks::default();
        assert!(locks.take(REGION(), 1, Need::exclusive(0..8)));
        for writer in 2..5 {
            assert!(!locks.take(REGION(), writer, Need::exclusive(0..1)));
        }
        for reader in 5..7 {
            assert!(!locks.take(REGION(), reader, Need::shared(0..2)));
        }
        assert!(!locks.take(REGION(), 7, Need::shared(4..5)));
        assert!(wakeable(&locks).is_empty());
        locks.release(REGION(), 1);
        assert_eq!(wakeable(&locks), [2, 7]);
        for task in 2..5 {
            assert!(locks.is_wakeable(REGION(), task));
            assert!(locks.take(REGION(), task, Need::exclusive(0..1)));
            locks.release(REGION(), task);
        }
        assert_eq!(wakeable(&locks), [5, 6, 7], "readers share");
    }

    #[test]
    fn a_waiter_is_cut_where_others_begin_and_cease_to_keep_it_waiting() {
        let mut locks = Locks::default();
        assert!(locks.take(REGION(), 1, Need::exclusive(8..12)));
        assert!(!locks.take(REGION(), 2, Need::exclusive(4..20)));
        assert_eq!(
            [1, 8, 16, 32].map(|unit| locks.seam(REGION(), 2, unit)),
            [Some(8), Some(8), Some(16), None]
        );
        assert!(!locks.take(REGION(), 3, Need::exclusive(19..20)));
        locks.cut(REGION(), 2, 8, 4);
        assert!(locks.take(REGION(), 2, Need::exclusive(4..8)));
        assert_eq!(locks.seam(REGION(), 4, 1), Some(12));
        assert_eq!(locks.waiting(REGION()).collect::<Vec<_>>(), [4, 3], "the rest keeps the turn");
        locks.release(REGION(), 1);
        assert_eq!(wakeable(&locks), [4]);
    }

    #[test]
    fn what_is_held_can_be_given_back_in_two_parts() {
        let mut locks = Locks::default();
        assert!(locks.take(REGION(), 1, Need::exclusive(0..8)));
        locks.cut(REGION(), 1, 4, 2);
        assert!(
            !locks.take(REGION(), 3, Need::exclusive(3..4))
                && !locks.take(REGION(), 4, Need::shared(4..5))
        );
        locks.release(REGION(), 1);
        assert_eq!(wakeable(&locks), [3]);
        locks.release(REGION(), 2);
        assert_eq!(wakeable(&locks), [3, 4]);
    }

    #[test]
    fn a_waiter_that_may_need_less_by_now_is_tried_again_in_its_turn() {
        let mut locks = Locks::default();
        assert!(locks.take(REGION(), 1, Need::exclusive(0..8)));
        assert!(!locks.take(REGION(), 2, Need::exclusive_or_shared(0..8, 0..1)));
        assert!(!locks.take(REGION(), 3, Need::exclusive_or_shared(0..8, 1..2)));
        assert!(!locks.take(REGION(), 4, Need::exclusive(0..1)));
        locks.release(REGION(), 1);
        assert_eq!(wakeable(&locks), [2, 3]);
        assert!(
            locks.take(REGION(), 2, Need::exclusive_or_shared(0..8, 0..1)),
            "it still needs all"
        );
        assert!(!locks.is_wakeable(REGION(), 3));
        locks.release(REGION(), 2);
        assert!(locks.take(REGION(), 3, Need::shared(1..2)));
        assert!(locks.take(REGION(), 4, Need::exclusive(0..1)));
    }
}
