//! The log of a shard in memory: changes that wait for a commit, and tasks that wait for it.

use hashbrown::HashMap;

use crate::engine::turns::Turns;
use crate::geometry::Place;
use crate::order::{Noted, OpId, Order};
use crate::store::journal::Change;

/// The log of a shard, as the shard sees it.
#[derive(Debug)]
pub(crate) struct Log {
    /// The shard has a log.
    kept: bool,
    /// The shard's number.
    shard: u8,
    commits: Turns,
    /// Changes have been noted since the last commit began; some of them make data dirty.
    noted: bool,
    noted_dirty: bool,
    /// The commit under way makes data dirty.
    committing_dirty: bool,
    waiting: Vec<(u64, OpId)>,
    /// Regions with dropped copies, by the commit that makes the drop durable.
    gone: HashMap<Place, u64, foldhash::fast::FixedState>,
}

impl Log {
    /// Creates the log state of the shard with this number.
    pub(crate) fn new(kept: bool, shard: u8) -> Self {
        Self {
            kept,
            shard,
            commits: Turns::default(),
            noted: false,
            noted_dirty: false,
            committing_dirty: false,
            waiting: Vec::new(),
            gone: HashMap::default(),
        }
    }

    /// Returns whether the shard has a log.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Notes a change, for the next commit.
    pub(crate) fn note(&mut self, change: Change, orders: &mut Vec<Order>) {
        self.noted = true;
        orders.push(Order::Note { shard: self.shard, noted: Noted(change) });
    }

    /// Notes that the next commit makes data dirty.
    pub(crate) fn note_dirty(&mut self) {
        self.noted_dirty = true;
    }

    /// Notes an overwrite of data that the log calls dirty: the next commit has to flush it.
    #[inline]
    pub(crate) fn note_rewritten(&mut self) {
        (self.noted, self.noted_dirty) = (true, true);
    }

    /// Returns whether some dirty data may not be durable.
    pub(crate) fn has_uncommitted_dirty(&self) -> bool {
        self.noted_dirty || self.committing_dirty
    }

    /// Returns whether a noted change is not part of the commit under way.
    pub(crate) fn has_noted(&self) -> bool {
        self.noted
    }

    /// Notes that copies in a region are gone.
    pub(crate) fn note_gone(&mut self, region: Place) {
        self.gone.insert(region, self.commits.next());
    }

    /// Returns whether the log may still have copies in a region that are gone.
    pub(crate) fn has_gone_in(&self, region: Place) -> bool {
        self.gone.contains_key(&region)
    }

    /// Makes an operation wait for the next commit.
    pub(crate) fn wait(&mut self, op: OpId) {
        self.waiting.push((self.commits.next(), op));
    }

    /// Begins a commit of all noted changes. Returns whether some of them make data dirty.
    pub(crate) fn begin(&mut self) -> bool {
        self.commits.begin();
        self.noted = false;
        self.committing_dirty = std::mem::take(&mut self.noted_dirty);
        self.committing_dirty
    }

    /// Ends the commit, and returns the operations that waited for it.
    pub(crate) fn end(&mut self, is_durable: bool) -> Vec<OpId> {
        let ended = self.commits.end();
        if is_durable {
            self.committing_dirty = false;
            self.gone.retain(|_, due| *due > ended);
        } else {
            self.noted = true;
        }
        self.waiting.extract_if(.., |(due, _)| *due <= ended).map(|(_, op)| op).collect()
    }

    /// Abandons the commit: the next serves the operations that wait.
    pub(crate) fn abandon(&mut self) {
        self.commits.end();
    }

    /// Returns the operations that wait for commits.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = OpId> {
        self.waiting.iter().map(|(_, op)| *op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::VolumeId;

    const REGION: fn() -> Place = || Place::new(VolumeId(1), 0);

    #[test]
    fn a_commit_makes_the_changes_before_it_durable() {
        let mut log = Log::new(true, 3);
        log.note_rewritten();
        log.note_gone(REGION());
        log.wait(OpId(1));
        assert!(log.has_noted() && log.begin() && !log.has_noted());
        log.note_gone(Place::new(VolumeId(2), 0));
        log.wait(OpId(2));
        assert_eq!(log.end(true), [OpId(1)]);
        assert!(!log.has_gone_in(REGION()) && log.has_gone_in(Place::new(VolumeId(2), 0)));
        assert!(!log.has_uncommitted_dirty() && log.waiting().eq([OpId(2)]));
    }

    #[test]
    fn a_failed_commit_leaves_everything_to_be_noted() {
        let mut log = Log::new(true, 3);
        log.note_dirty();
        log.note_gone(REGION());
        log.wait(OpId(1));
        assert!(log.begin());
        log.abandon();
        assert!(log.waiting().eq([OpId(1)]), "the next commit serves it");
        log.begin();
        assert_eq!(log.end(false), [OpId(1)]);
        assert!(log.has_noted() && log.has_gone_in(REGION()));
    }
}
