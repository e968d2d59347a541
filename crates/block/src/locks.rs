//! Who may touch which sectors now: shared and exclusive locks on ranges, with waiting in order of arrival.
//!
//! Every task of a shard holds a lock on the sectors it works on while its I/O is under way. Ranges never reach over
//! a region, so conflicts are looked for among the few tasks of one region only; a region without tasks has no entry.
//!
//! Invariants: no two holders overlap unless both are shared; a waiter never overtakes an earlier one it conflicts
//! with.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::geometry::{Place, Sectors};

/// A task of a shard, by its number.
pub(crate) type TaskId = u32;

/// What a task needs to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) range: Sectors,
    pub(crate) exclusive: bool,
}

impl Need {
    pub(crate) fn shared(range: Sectors) -> Self {
        Self { range, exclusive: false }
    }

    pub(crate) fn exclusive(range: Sectors) -> Self {
        Self { range, exclusive: true }
    }

    fn overlaps(&self, range: &Sectors) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }

    fn conflicts(&self, other: &Need) -> bool {
        (self.exclusive || other.exclusive) && self.overlaps(&other.range)
    }
}

#[derive(Debug, Default)]
struct Lane {
    held: Vec<(TaskId, Need)>,
    waiting: VecDeque<(TaskId, Need)>,
}

/// The locks of a shard, by region.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    lanes: HashMap<Place, Lane, foldhash::fast::FixedState>,
    /// Emptied lanes, kept so that a busy shard does not allocate.
    spare: Vec<Lane>,
}

impl Locks {
    /// Takes what `task` needs, or leaves it waiting; answers whether it was taken. A task that already waits keeps
    /// its turn.
    pub(crate) fn take(&mut self, region: Place, task: TaskId, need: Need) -> bool {
        let spare = &mut self.spare;
        let lane = self.lanes.entry(region).or_insert_with(|| spare.pop().unwrap_or_default());
        let turn = lane.waiting.iter().position(|(waiter, _)| *waiter == task);
        let ahead = lane.waiting.iter().take(turn.unwrap_or(usize::MAX)).map(|(_, need)| need);
        let holders = lane.held.iter().map(|(_, need)| need);
        let blocked = holders.chain(ahead).any(|other| other.conflicts(&need));
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

    /// Gives back what `task` holds or stops it waiting.
    pub(crate) fn release(&mut self, region: Place, task: TaskId) {
        let Some(lane) = self.lanes.get_mut(&region) else { return };
        lane.held.retain(|(holder, _)| *holder != task);
        lane.waiting.retain(|(waiter, _)| *waiter != task);
        if lane.held.is_empty() && lane.waiting.is_empty() {
            self.spare.extend(self.lanes.remove(&region));
        }
    }

    /// The tasks that wait in a region, in order of arrival.
    pub(crate) fn waiting(&self, region: Place) -> impl Iterator<Item = TaskId> + '_ {
        self.lanes.get(&region).into_iter().flat_map(|lane| &lane.waiting).map(|(task, _)| *task)
    }

    /// The tasks that hold a lock in a region.
    pub(crate) fn holders(&self, region: Place) -> impl Iterator<Item = TaskId> + '_ {
        self.lanes.get(&region).into_iter().flat_map(|lane| &lane.held).map(|(task, _)| *task)
    }

    /// Whether any task holds or waits for some of these sectors: if none does, a lock on them is to be had at once.
    pub(crate) fn in_use(&self, region: Place, range: &Sectors) -> bool {
        let touches =
            |lane: &Lane| lane.held.iter().chain(&lane.waiting).any(|(_, need)| need.overlaps(range));
        self.lanes.get(&region).is_some_and(touches)
    }

    /// Whether no task holds or waits for anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.lanes.is_empty()
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
}
