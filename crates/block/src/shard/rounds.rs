//! Rounds of cleaning: which runs and blocks of a volume are next, and which drains wait for them.
//!
//! A round takes every block of a volume that is dirty when it begins, in address order, a bounded
//! number at once. Before that it writes back the volume's unflushed sectors; a round that only
//! makes room in memory ends there. Drains that arrive during their volume's round wait for the
//! next one. So any number of them costs at most two rounds, and none waits for another volume's
//! device.
//!
//! Where cleaning is paced, a round that no drain waits for begins to clean a block only when it is
//! given a turn. Such a round may last long. A drain that arrives interrupts it: only the blocks
//! under way are awaited, and one more if it was interrupted before. The rest is cleaned in the
//! drain's own round, or after that.

use std::collections::VecDeque;

use crate::geometry::{Sectors, VolumeId};
use crate::join::Fault;
use crate::mapping::CLEANED_AT_ONCE;

/// The rounds under way, at most one for each volume.
#[derive(Debug, Default)]
pub(crate) struct Rounds(Vec<Round>);

/// A round of a volume, and the drains that wait for it.
#[derive(Debug)]
struct Round {
    volume: VolumeId,
    /// Set when an operation has ended, or work was added, since the round was last advanced.
    moved: bool,
    /// Set when the next round was due before this one had ended.
    overdue: bool,
    /// Blocks that may begin to be cleaned, while the round is paced.
    turns: usize,
    stage: Stage,
    /// Runs still to be written back, or blocks still to be cleaned.
    left: VecDeque<Sectors>,
    /// Blocks that an interrupted round has left, to be cleaned after this one.
    rest: VecDeque<Sectors>,
    /// Blocks that have to be begun before a drain may interrupt the round: 1 if it was interrupted
    /// before, so that it gets on.
    held: usize,
    /// Set if the round covers all that was dirty when it began.
    whole: bool,
    under_way: usize,
    /// The first failure of an operation in this round.
    fault: Option<Fault>,
    /// Drains that the end of this round answers, and drains that wait for the next round.
    serving: Vec<Drain>,
    waiting: Vec<Drain>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Writing unflushed sectors to the tiers below. With `last`, the round ends with this stage.
    WritingBack {
        last: bool,
    },
    Cleaning,
}

/// A client's flush, or the end of the server, that waits for a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drain {
    pub(crate) number: u32,
    /// Set if the drain goes to the backing device, and not only from memory to the cache device.
    pub(crate) to_backing: bool,
    /// Set when an answered write of the volume is on no device, now or since the drain began. A
    /// replacement written meanwhile does not help: it need not be part of the round.
    pub(crate) lost: bool,
}

impl Drain {
    /// Returns the drain's result after a round whose first failure was `fault`.
    pub(crate) fn result(&self, fault: Option<Fault>) -> Result<(), Fault> {
        match fault {
            Some(fault) => Err(fault),
            None if self.lost => Err(Fault::Io),
            None => Ok(()),
        }
    }
}

/// The next action for a round.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Write an unflushed run back.
    WriteBack(Sectors),
    /// Clean the block that begins at this sector.
    Clean(u64),
    /// Pass the dirty blocks of the volume to the round: see [`Rounds::clean`].
    Blocks,
    /// End the round.
    Ended {
        fault: Option<Fault>,
        /// Set if the round has read all dirty data of its volume.
        has_cleaned: bool,
        /// Drains to be answered.
        serving: Vec<Drain>,
        /// Drains for the next round.
        waiting: Vec<Drain>,
        /// Blocks that were not cleaned because a drain has interrupted the round.
        rest: VecDeque<Sectors>,
    },
    /// Do nothing: enough operations are under way, or there is no round.
    Wait,
}

impl Round {
    fn is_awaited(&self) -> bool {
        !self.serving.is_empty() || !self.waiting.is_empty()
    }

    /// Returns whether the round needs turns where cleaning is paced: nothing waits for its end.
    fn needs_turns(&self) -> bool {
        self.stage == Stage::Cleaning && !self.is_awaited()
    }

    /// Returns whether a turn would begin to clean a block.
    fn wants_turn(&self) -> bool {
        let may_begin = self.under_way + self.turns < CLEANED_AT_ONCE;
        self.needs_turns() && self.turns < self.left.len() && may_begin
    }
}

impl Rounds {
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn has(&self, volume: VolumeId) -> bool {
        self.0.iter().any(|round| round.volume == volume)
    }

    fn of(&mut self, volume: VolumeId) -> Option<&mut Round> {
        self.0.iter_mut().find(|round| round.volume == volume)
    }

    /// Begins a round of a volume, which first writes unflushed runs back. With `only_write_back`
    /// the round ends there.
    pub(crate) fn begin(
        &mut self,
        volume: VolumeId,
        unflushed: VecDeque<Sectors>,
        serving: Vec<Drain>,
        only_write_back: bool,
    ) {
        debug_assert!(!self.has(volume));
        self.0.push(Round {
            volume,
            moved: true,
            overdue: false,
            turns: 0,
            stage: Stage::WritingBack { last: only_write_back },
            left: unflushed,
            rest: VecDeque::new(),
            held: 0,
            whole: true,
            under_way: 0,
            fault: None,
            serving,
            waiting: Vec::new(),
        });
    }

    /// Has the rest of an interrupted round cleaned after a round that only writes back.
    pub(crate) fn leave_rest(&mut self, volume: VolumeId, rest: VecDeque<Sectors>) {
        if let Some(round) = self.of(volume) {
            round.rest = rest;
        }
    }

    /// Begins a round that cleans the rest of an interrupted one.
    pub(crate) fn resume(&mut self, volume: VolumeId, rest: VecDeque<Sectors>) {
        self.begin(volume, rest, Vec::new(), false);
        let round = self.0.last_mut().expect("it has just begun");
        (round.stage, round.held, round.whole) = (Stage::Cleaning, 1, false);
        round.overdue = true; // or one flush after another would keep the data dirty
    }

    /// Ends rounds that no drain waits for after the blocks under way.
    pub(crate) fn cut_short(&mut self) {
        for round in self.0.iter_mut().filter(|round| round.needs_turns()) {
            (round.moved, round.whole) = (true, false);
            round.left.clear();
        }
    }

    /// Drops the round of a volume that is removed.
    pub(crate) fn forget(&mut self, volume: VolumeId) {
        self.0.retain(|round| round.volume != volume || round.under_way > 0);
    }

    /// Makes a drain wait for the round after its volume's; returns whether there is a round.
    pub(crate) fn wait(&mut self, volume: VolumeId, drain: Drain) -> bool {
        let Some(round) = self.of(volume) else { return false };
        round.waiting.push(drain);
        round.moved = true; // it no longer yields
        true
    }

    /// Returns the next action of a volume's round, and counts it as under way. While no drain
    /// waits, all rounds together may have only `yielding` operations under way. With `paced` a
    /// round then cleans a block only when it has a turn.
    pub(crate) fn next(&mut self, volume: VolumeId, yielding: usize, paced: bool) -> Next {
        let needs_none = |round: &&Round| !(paced && round.needs_turns());
        let rounds = self.0.iter().filter(needs_none).count().max(1);
        let Some(round) = self.of(volume) else { return Next::Wait };
        let interrupts = paced && round.serving.is_empty() && !round.waiting.is_empty();
        if interrupts && round.stage == Stage::Cleaning && round.held == 0 {
            round.whole &= round.left.is_empty();
            round.rest.append(&mut round.left);
        }
        let at_once = match paced && round.needs_turns() {
            true => (round.under_way + round.turns).min(CLEANED_AT_ONCE),
            false => (if round.is_awaited() { CLEANED_AT_ONCE } else { yielding } / rounds).max(1),
        };
        if round.under_way < at_once
            && let Some(run) = round.left.pop_front()
        {
            round.under_way += 1;
            return match round.stage {
                Stage::WritingBack { .. } => Next::WriteBack(run),
                Stage::Cleaning => {
                    round.turns = round.turns.saturating_sub(1);
                    round.held = round.held.saturating_sub(1);
                    Next::Clean(run.start)
                }
            };
        }
        if round.under_way > 0 || !round.left.is_empty() {
            return Next::Wait;
        }
        if round.stage == (Stage::WritingBack { last: false }) {
            return Next::Blocks;
        }
        let at = self.0.iter().position(|round| round.volume == volume);
        let Round { fault, stage, serving, waiting, rest, whole, .. } =
            self.0.swap_remove(at.expect("it has just been found"));
        let has_cleaned = stage == Stage::Cleaning && whole;
        Next::Ended { fault, has_cleaned, serving, waiting, rest }
    }

    /// Sets the blocks of the volume that the round is to clean.
    pub(crate) fn clean(&mut self, volume: VolumeId, blocks: VecDeque<Sectors>) {
        if let Some(round) = self.of(volume) {
            (round.stage, round.left) = (Stage::Cleaning, blocks);
        }
    }

    /// Returns whether drains wait for a volume's round.
    pub(crate) fn is_awaited(&self, volume: VolumeId) -> bool {
        self.0.iter().any(|round| round.volume == volume && round.is_awaited())
    }

    /// Records that the next rounds are due.
    pub(crate) fn note_due(&mut self) {
        self.0.iter_mut().for_each(|round| round.overdue = true);
    }

    /// Returns whether some round is overdue.
    pub(crate) fn is_overdue(&self) -> bool {
        self.0.iter().any(|round| round.overdue)
    }

    /// Returns the volumes whose rounds wait for a turn to clean.
    pub(crate) fn waiting_for_turns(&self) -> impl Iterator<Item = VolumeId> {
        self.0.iter().filter(|round| round.wants_turn()).map(|round| round.volume)
    }

    /// Gives a volume's round a turn to clean a block; returns false if it does not wait for one.
    pub(crate) fn give_turn(&mut self, volume: VolumeId) -> bool {
        let Some(round) = self.of(volume).filter(|round| round.wants_turn()) else { return false };
        round.turns += 1;
        round.moved = true;
        true
    }

    /// Has all rounds advanced: they may no longer have to wait for turns.
    pub(crate) fn wake(&mut self) {
        self.0.iter_mut().for_each(|round| round.moved = true);
    }

    /// Records a loss of a volume's data: the drains that came before must fail.
    pub(crate) fn note_loss(&mut self, volume: VolumeId) {
        if let Some(round) = self.of(volume) {
            round.serving.iter_mut().chain(&mut round.waiting).for_each(|drain| drain.lost = true);
        }
    }

    /// Puts unflushed runs back into the round, to be written back one by one.
    pub(crate) fn take_back(
        &mut self,
        volume: VolumeId,
        runs: impl DoubleEndedIterator<Item = Sectors>,
    ) {
        let round = self.of(volume).expect("what sinks does so in a round");
        runs.rev().for_each(|run| round.left.push_front(run));
    }

    /// Handles the end of one of a round's operations.
    pub(crate) fn ended_one(&mut self, volume: VolumeId, fault: Option<Fault>) {
        let round = self.of(volume).expect("a round ends after the last of it");
        round.under_way -= 1;
        round.moved = true;
        round.fault = round.fault.or(fault);
    }

    /// Returns whether some round is to be advanced.
    #[inline]
    pub(crate) fn has_moved(&self) -> bool {
        self.0.iter().any(|round| round.moved)
    }

    /// Returns a volume whose round is to be advanced; each is returned once.
    #[inline]
    pub(crate) fn take_moved(&mut self) -> Option<VolumeId> {
        let round = self.0.iter_mut().find(|round| round.moved)?;
        round.moved = false;
        Some(round.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(1);

    fn drain(number: u32) -> Drain {
        Drain { number, to_backing: true, lost: false }
    }

    fn runs(starts: &[u64]) -> VecDeque<Sectors> {
        starts.iter().map(|&start| start..start + 8).collect()
    }

    #[test]
    fn a_round_writes_memory_back_before_it_cleans() {
        let mut rounds = Rounds::default();
        rounds.begin(VOLUME, runs(&[8]), vec![drain(1)], false);
        assert_eq!(rounds.next(VOLUME, 1, false), Next::WriteBack(8..16));
        assert_eq!(rounds.next(VOLUME, 1, false), Next::Wait);
        rounds.ended_one(VOLUME, None);
        assert_eq!((rounds.take_moved(), rounds.take_moved()), (Some(VOLUME), None));
        assert_eq!(rounds.next(VOLUME, 1, false), Next::Blocks);
        rounds.clean(VOLUME, runs(&[0]));
        assert_eq!(rounds.next(VOLUME, 1, false), Next::Clean(0));
        assert!(rounds.wait(VOLUME, drain(2)) && !rounds.wait(VolumeId(2), drain(3)));
        rounds.ended_one(VOLUME, Some(Fault::Io));
        let ended = Next::Ended {
            fault: Some(Fault::Io),
            has_cleaned: true,
            serving: vec![drain(1)],
            waiting: vec![drain(2)],
            rest: VecDeque::new(),
        };
        assert_eq!(rounds.next(VOLUME, 1, false), ended);
        assert!(rounds.is_idle());
    }

    #[test]
    fn a_round_yields_unless_a_drain_waits() {
        let mut rounds = Rounds::default();
        rounds.begin(VOLUME, runs(&[0, 8, 16]), Vec::new(), true);
        assert_eq!(rounds.next(VOLUME, 1, false), Next::WriteBack(0..8));
        assert_eq!(rounds.next(VOLUME, 1, false), Next::Wait);
        rounds.wait(VOLUME, drain(1));
        assert_eq!(rounds.next(VOLUME, 1, false), Next::WriteBack(8..16));
        rounds.take_back(VOLUME, [32..40, 48..56].into_iter());
        assert_eq!(rounds.next(VOLUME, 1, false), Next::WriteBack(32..40));
    }

    #[test]
    fn a_drain_before_a_loss_fails_though_its_round_succeeds() {
        let mut rounds = Rounds::default();
        rounds.begin(VOLUME, runs(&[]), vec![drain(1)], true);
        rounds.note_loss(VOLUME);
        rounds.note_loss(VolumeId(2));
        let Next::Ended { fault, has_cleaned, serving, .. } = rounds.next(VOLUME, 1, false) else {
            panic!("it is over")
        };
        assert!(!has_cleaned, "it was for memory only");
        assert_eq!(serving[0].result(fault), Err(Fault::Io));
        assert_eq!(drain(2).result(None), Ok(()));
    }

    /// Begins a paced round of these blocks.
    fn paced(starts: &[u64]) -> Rounds {
        let mut rounds = Rounds::default();
        rounds.begin(VOLUME, runs(&[]), Vec::new(), false);
        assert_eq!(rounds.next(VOLUME, 1, true), Next::Blocks);
        rounds.clean(VOLUME, runs(starts));
        rounds
    }

    #[test]
    fn a_paced_round_cleans_a_block_a_turn() {
        let mut rounds = paced(&[0, 8, 16]);
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Wait, "it has not ended");
        assert_eq!(rounds.waiting_for_turns().collect::<Vec<_>>(), [VOLUME]);
        assert!(rounds.give_turn(VOLUME) && !rounds.give_turn(VolumeId(2)));
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Clean(0));
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Wait);
        assert!(rounds.give_turn(VOLUME) && rounds.give_turn(VOLUME) && !rounds.give_turn(VOLUME));
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Clean(8));
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Clean(16));
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Wait, "they are under way");
        (0..3).for_each(|_| rounds.ended_one(VOLUME, None));
        let Next::Ended { has_cleaned: true, rest, .. } = rounds.next(VOLUME, 32, true) else {
            panic!("it has cleaned all")
        };
        assert!(rest.is_empty());
    }

    #[test]
    fn a_round_that_is_no_longer_paced_needs_no_turns() {
        let mut rounds = paced(&[0, 8]);
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Wait);
        rounds.take_moved();
        rounds.wake();
        assert_eq!(rounds.take_moved(), Some(VOLUME));
        assert_eq!(rounds.next(VOLUME, 32, false), Next::Clean(0));
        assert_eq!(rounds.next(VOLUME, 32, false), Next::Clean(8));
    }

    #[test]
    fn a_drain_waits_only_for_the_blocks_under_way_of_a_paced_round() {
        let mut rounds = paced(&[0, 8, 16]);
        rounds.give_turn(VOLUME);
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Clean(0));
        rounds.wait(VOLUME, drain(1));
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Wait);
        rounds.ended_one(VOLUME, None);
        let Next::Ended { has_cleaned: false, waiting, rest, .. } = rounds.next(VOLUME, 32, true)
        else {
            panic!("the rest is left")
        };
        assert_eq!((waiting, &rest), (vec![drain(1)], &runs(&[8, 16])));
        // A drain from memory writes back first, and then the rest goes on.
        rounds.begin(VOLUME, runs(&[]), vec![drain(1)], true);
        rounds.leave_rest(VOLUME, rest);
        let Next::Ended { serving, rest, .. } = rounds.next(VOLUME, 32, true) else {
            panic!("nothing was to be written back")
        };
        assert_eq!((serving, &rest), (vec![drain(1)], &runs(&[8, 16])));
        rounds.resume(VOLUME, rest);
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Wait, "it is paced again");
        rounds.wait(VOLUME, drain(2));
        let next: Vec<_> = (0..2).map(|_| rounds.next(VOLUME, 1, true)).collect();
        assert_eq!(next, [Next::Clean(8), Next::Wait], "it is not interrupted at once");
    }

    #[test]
    fn a_round_cut_short_awaits_what_is_under_way() {
        let mut rounds = paced(&[0, 8]);
        rounds.give_turn(VOLUME);
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Clean(0));
        rounds.cut_short();
        assert_eq!(rounds.next(VOLUME, 32, true), Next::Wait);
        rounds.forget(VOLUME);
        rounds.ended_one(VOLUME, None);
        let Next::Ended { has_cleaned, rest, .. } = rounds.next(VOLUME, 32, true) else {
            panic!("the rest is dropped")
        };
        assert!(!has_cleaned && rest.is_empty() && rounds.is_idle());
    }
}
