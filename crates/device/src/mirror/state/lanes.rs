//! The jobs of a mirror: headers, the witness, and copies, one at a time of each.

use super::super::generation::{Generation, Halves};
use super::{Change, Header, Job, Plant, Raised, State};

/// The jobs under way.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// The halves whose headers are being written, and the generation that becomes prepared by it.
    header: Option<(Halves, Option<Generation>)>,
    witness: bool,
    /// The region that is copied, or as soon as no write is in flight there.
    copying: Option<usize>,
    copy: Option<Copying>,
    /// The halves to which it is copied.
    targets: Halves,
    /// A region whose readers wait.
    pub(super) urgent: Option<usize>,
    /// The returning halves have everything, durably.
    pub(super) joins: bool,
}

/// A job of the copying lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copying {
    Region(Halves),
    /// A flush before a half joins.
    Join,
    /// A flush before marks go.
    Clear,
    /// A job whose result no longer counts: another half returns since.
    Stale,
}

impl Lanes {
    /// Returns whether a region is being copied.
    pub(super) fn copies(&self, region: usize) -> bool {
        self.copying == Some(region)
    }

    /// Returns whether a copy of a region to a half is under way.
    pub(super) fn overwrites(&self, half: usize, region: usize) -> bool {
        self.copying == Some(region) && self.copy.is_some() && self.targets.contains(half)
    }

    /// Another half returns: it lacks what is being copied.
    pub(super) fn restart(&mut self) {
        self.joins = false;
        if matches!(self.copy, Some(Copying::Region(_) | Copying::Join)) {
            self.copy = Some(Copying::Stale);
        }
    }
}

impl State {
    /// Returns the next job of the lane that writes headers.
    pub(crate) fn next_header(&mut self) -> Option<Job> {
        let target = self.change.filter(|change| !change.prepared);
        let is_due = target.is_some() || self.marks.is_changed();
        if self.fenced || self.lanes.header.is_some() || !is_due {
            return None;
        }
        let (generation, previous, halves) = match self.change {
            Some(Change { from, to, .. }) => (to, from, self.members().with(to.halves)),
            None => (self.generation, self.generation, self.members()),
        };
        let halves = halves.without(self.failed);
        self.lanes.header = Some((halves, target.map(|change| change.to)));
        self.numbers.last += 1;
        let (sequence, known, map) = (self.numbers.last, self.numbers.known, self.marks.write());
        Some(Job::Header(Header { sequence, generation, previous, known, map }, halves))
    }

    /// A header was written, except to these halves.
    pub(crate) fn header_done(&mut self, missed: Halves) {
        let (halves, target) = self.lanes.header.take().expect("a header was being written");
        halves.without(missed).iter().for_each(|half| self.numbers.known[half] = self.numbers.last);
        let everywhere = self.fail_all(missed).is_empty();
        self.marks.written(everywhere);
        if !everywhere {
            self.refusals += 1;
            return;
        }
        if let Some(change) = &mut self.change
            && target == Some(change.to)
            && change.to.halves.are_in(halves.without(missed))
        {
            change.prepared = true;
        }
    }

    /// Returns the next job of the lane that speaks to the witness.
    pub(crate) fn next_witness(&mut self) -> Option<Job> {
        let change = self.change.filter(|change| change.prepared)?;
        if self.fenced || std::mem::replace(&mut self.lanes.witness, true) {
            return None;
        }
        Some(Job::Raise { from: change.from, to: change.to, anew: change.anew })
    }

    /// The witness has answered, or not.
    pub(crate) fn witness_done(&mut self, raised: Raised) {
        self.lanes.witness = false;
        match raised {
            Raised::Unknown => {}
            Raised::Refused => {
                self.fenced = true;
                self.refusals += 1;
            }
            Raised::Done => {
                let change = self.change.take().expect("the witness was told of a change");
                self.renews &= change.to.number == change.from.number;
                self.generation = change.to;
                // The next header says that the witness has it.
                self.marks.rewrite();
                self.returning = self.returning.without(change.to.halves);
                self.failed = self.failed.and(change.to.halves);
                if self.returning.is_empty() {
                    self.behind.clear();
                }
                self.lanes.joins = false;
                self.steer();
            }
        }
    }

    /// Returns the next job of the lane that copies regions and flushes halves.
    pub(crate) fn next_copy(&mut self) -> Option<Job> {
        if self.fenced || self.lanes.copy.is_some() {
            return None;
        }
        if self.lanes.copying.is_none() {
            self.lanes.copying = self.region_to_copy();
        }
        let (members, returning) = (self.members(), self.returning);
        if let Some(region) = self.lanes.copying {
            if self.marks.is_busy(region) && !self.has(Plant::CopyUnguarded) {
                return None;
            }
            let from = *self.order.iter().find(|half| members.contains(**half))?;
            let shared = self.unequal.contains(region);
            let to = if shared { members.with(returning) } else { returning };
            let to = to.without(Halves::one(from));
            if to.is_empty() {
                // The halves that needed it have left.
                self.lanes.copying = None;
                return None;
            }
            (self.lanes.copy, self.lanes.targets) = (Some(Copying::Region(to)), to);
            return Some(Job::Copy { region, from, to });
        }
        if self.unjudged && !self.behind.is_empty() {
            return None;
        }
        if self.marks.wants_flush() {
            if self.is_whole() {
                self.lanes.copy = Some(Copying::Clear);
                let none = self.has(Plant::ClearUnflushed);
                return Some(Job::Flush(if none { Halves::NONE } else { members }));
            }
            self.marks.keep();
        }
        if returning.is_empty() || self.lanes.joins || self.change.is_some() {
            return None;
        }
        self.lanes.copy = Some(Copying::Join);
        let all = if self.has(Plant::JoinUnflushed) { Halves::NONE } else { returning };
        Some(Job::Flush(all))
    }

    fn region_to_copy(&mut self) -> Option<usize> {
        if self.members().len() > 1 && !self.unequal.is_empty() {
            let urgent = self.lanes.urgent.take();
            let urgent = urgent.filter(|region| self.unequal.contains(*region));
            return urgent.or_else(|| self.unequal.first().filter(|_| !self.unjudged));
        }
        if self.returning.is_empty() || self.unjudged { None } else { self.behind.first() }
    }

    /// A region was copied, except that its half could not be read, or these not be written.
    pub(crate) fn copy_done(&mut self, unread: Option<usize>, missed: Halves) {
        let region = self.lanes.copying.take().expect("a region was being copied");
        let copying = self.lanes.copy.take().expect("a region was being copied");
        self.fail_all(missed);
        if let Some(from) = unread {
            self.marks.insert(region);
            if !self.fail(from) {
                // No half has the region: what returns cannot have it.
                self.fail_all(self.returning);
            }
            return;
        }
        if copying != Copying::Stale {
            self.behind.remove(region);
        }
        if let Copying::Region(to) = copying
            && self.members().len() - self.members().and(to).len() <= 1
        {
            self.unequal.remove(region);
        }
    }

    /// A flush has ended, except on these halves.
    pub(crate) fn flush_done(&mut self, missed: Halves) {
        let copying = self.lanes.copy.take().expect("a flush was under way");
        match copying {
            Copying::Clear if missed.is_empty() && self.is_whole() => self.marks.flushed(),
            Copying::Clear => self.marks.keep(),
            Copying::Join => self.lanes.joins = missed.is_empty() && !self.returning.is_empty(),
            Copying::Region(_) | Copying::Stale => {}
        }
        self.fail_all(missed);
        self.steer();
    }
}
