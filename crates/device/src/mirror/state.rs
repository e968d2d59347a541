//! The state of a mirror: a machine without I/O, clocks or threads. All handles of a process share
//! one.
//!
//! Handles ask before they submit an operation ([`State::begin_write`]) and report its end. Three
//! lanes carry out [`Job`]s beside each other, one at a time each: headers, the witness, copies.
//!
//! **A half leaves** when an operation on it failed. From then on no write begins, until the
//! remaining halves' headers and then the witness have the next generation. A write that the half
//! missed is acknowledged only after that. The last half never leaves; its errors are the mirror's.
//!
//! **A half returns**: it gets all writes from now on, and a copy of each region marked so far.
//! Then it is flushed, and the next generation has it again. No write begins in a region while the
//! region is copied.
//!
//! **Each start** raises the generation, so that a copy of a half made before it is stale.
//!
//! **After a crash** the halves in sync may differ in the regions marked. Each is copied from the
//! first half to the others before it is read, so that what was read once does not change when a
//! half leaves.

use std::ops::RangeInclusive;

use super::layout::Header;
use super::marks::{Marks, Regions};
use super::witness::Generation;
use crate::device::Halves;

/// The regions of an operation.
pub(crate) type Span = RangeInclusive<usize>;

/// The answer to an operation that wants to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// The operation begins on these halves.
    Go(Halves),
    /// The operation waits and asks again when the state has changed.
    Hold,
    /// Another server owns the mirror.
    Fenced,
}

/// A generation that is about to replace another.
#[derive(Debug, Clone, Copy)]
struct Change {
    from: Generation,
    to: Generation,
    /// The witness may know no generation.
    anew: bool,
    /// The headers have it, the witness may have it.
    prepared: bool,
}

/// The facts from which a mirror starts.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// All halves.
    pub(crate) count: usize,
    /// Halves in the order in which reads prefer them.
    pub(crate) order: Vec<usize>,
    /// The generation of the witness; of the headers where the witness is not reached.
    pub(crate) generation: Generation,
    /// Halves of the generation that are not there.
    pub(crate) missing: Halves,
    /// The witness is to be told the generation.
    pub(crate) unconfirmed: bool,
    /// Headers are newer from here on.
    pub(crate) sequence: u64,
    /// The highest number of a header that each half was known to have.
    pub(crate) known: [u64; Halves::MAX],
    /// Regions of the mirror.
    pub(crate) regions: usize,
    /// Regions in which halves may differ.
    pub(crate) map: Regions,
}

/// The numbers of headers.
#[derive(Debug)]
struct Numbers {
    last: u64,
    /// The highest one that each half was known to have.
    known: [u64; Halves::MAX],
}

/// The halves of a mirror, its generation, and the jobs under way.
#[derive(Debug)]
pub(crate) struct State {
    all: Halves,
    order: Vec<usize>,
    /// The witness has it.
    generation: Generation,
    change: Option<Change>,
    /// Halves of the generation, or of the one that the witness may have, that leave.
    failed: Halves,
    returning: Halves,
    fenced: bool,
    marks: Marks,
    /// Regions in which halves in sync may differ.
    unequal: Regions,
    /// Regions that returning halves do not have yet.
    behind: Regions,
    lanes: Lanes,
    numbers: Numbers,
    /// The next generation is due, so that copies made before now are told from the halves.
    renews: bool,
    /// Grows when operations that are held are to fail.
    refusals: u64,
    /// Nobody can tell damaged bytes yet: only regions for which readers wait are copied.
    unjudged: bool,
    plant: Option<Plant>,
}

impl State {
    pub(crate) fn new(start: Start, plant: Option<Plant>) -> State {
        let Start { count, order, generation, missing, .. } = start;
        let change = start.unconfirmed.then_some(Change {
            from: generation,
            to: generation,
            anew: true,
            prepared: true,
        });
        let is_shared = generation.halves.without(missing).len() > 1;
        let is_shared = is_shared && plant != Some(Plant::RecoverNothing);
        let mut state = State {
            all: Halves::first(count),
            order,
            generation,
            change,
            failed: missing,
            returning: Halves::NONE,
            fenced: false,
            unequal: if is_shared { start.map.clone() } else { Regions::none(start.regions) },
            behind: Regions::none(start.regions),
            marks: Marks::new(start.map, start.regions),
            lanes: Lanes::default(),
            numbers: Numbers { last: start.sequence, known: start.known },
            renews: true,
            refusals: 0,
            unjudged: false,
            plant,
        };
        state.steer();
        state
    }

    /// Returns the halves in sync that work.
    pub(crate) fn members(&self) -> Halves {
        self.generation.halves.without(self.failed)
    }

    /// Makes copies wait for a judge, or no longer wait.
    pub(crate) fn await_judge(&mut self, waits: bool) {
        self.unjudged = waits;
    }

    /// Returns the halves that are being brought up to date.
    pub(crate) fn returning(&self) -> Halves {
        self.returning
    }

    /// Returns the halves that neither are in sync nor may be soon.
    pub(crate) fn out(&self) -> Halves {
        let soon = self.change.map_or(Halves::NONE, |change| change.to.halves);
        self.all.without(self.generation.halves).without(soon).without(self.returning)
    }

    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Returns whether halves in sync may differ.
    pub(crate) fn is_recovering(&self) -> bool {
        self.members().len() > 1 && !self.unequal.is_empty()
    }

    /// Returns whether halves in sync may differ in some of these regions.
    pub(crate) fn may_differ(&self, mut span: Span) -> bool {
        self.members().len() > 1 && span.any(|region| self.unequal.contains(region))
    }

    /// Returns the regions that are still to be copied.
    pub(crate) fn regions_left(&self) -> usize {
        self.unequal.len() + self.behind.len()
    }

    /// Returns the regions in which halves may differ.
    pub(crate) fn regions_marked(&self) -> usize {
        self.marks.map().len()
    }

    /// Returns whether writes wait until a half has left.
    pub(crate) fn holds_writes(&self) -> bool {
        let leaves = |change: Change| !self.generation.halves.are_in(change.to.halves);
        !self.failed.is_empty() || self.change.is_some_and(leaves)
    }

    /// Asks for a read. One half is returned.
    pub(crate) fn begin_read(&mut self, mut span: Span) -> Begin {
        if self.fenced {
            return Begin::Fenced;
        }
        let members = self.members();
        let half = *self.order.iter().find(|half| members.contains(**half)).expect("one stays");
        let is_shared = members.len() > 1;
        // A copy may still arrive on a half that was its target when it began.
        let waits = |region: &usize| {
            is_shared && self.unequal.contains(*region) || self.lanes.overwrites(half, *region)
        };
        if let Some(region) = span.find(waits) {
            self.lanes.urgent = Some(region);
            return Begin::Hold;
        }
        Begin::Go(Halves::one(half))
    }

    /// Asks for a read of one half, which may differ from the others. `None` where the half lacks a
    /// part of it.
    pub(crate) fn begin_read_copy(&mut self, half: usize, mut span: Span) -> Option<Begin> {
        if self.fenced {
            return Some(Begin::Fenced);
        }
        let lacks = |region| self.returning.contains(half) && self.behind.contains(region);
        if !self.members().with(self.returning).contains(half) || span.clone().any(lacks) {
            return None;
        }
        let waits = |region: &usize| self.lanes.overwrites(half, *region);
        Some(if span.any(|region| waits(&region)) {
            Begin::Hold
        } else {
            Begin::Go(Halves::one(half))
        })
    }

    /// A read failed on a half. True if another one can be asked.
    pub(crate) fn read_failed(&mut self, half: usize, span: Span) -> bool {
        if !self.fail(half) {
            return false;
        }
        // The copy overwrites what the half cannot read.
        span.for_each(|region| self.marks.insert(region));
        true
    }

    /// Asks for a write, or anything else that changes data.
    pub(crate) fn begin_write(&mut self, span: Span) -> Begin {
        if self.fenced {
            return Begin::Fenced;
        }
        let is_copied = |region| self.lanes.copies(region);
        if self.holds_writes() || span.clone().any(is_copied) && !self.has(Plant::CopyUnguarded) {
            return Begin::Hold;
        }
        if !span.clone().all(|region| self.marks.has(region)) && !self.has(Plant::WriteUnmarked) {
            span.for_each(|region| self.marks.insert(region));
            return Begin::Hold;
        }
        self.marks.begin(span);
        Begin::Go(self.writers())
    }

    /// A write on `sent` has ended, and failed on `missed`. These leave. False if no half in sync
    /// has it: it has failed.
    pub(crate) fn end_write(&mut self, span: Span, sent: Halves, missed: Halves) -> bool {
        self.marks.end(span);
        let done = self.end_flush(sent, missed);
        if !missed.and(self.members()).is_empty() {
            // The last half may not have it, and a half that returns may.
            self.fail_all(self.returning);
        }
        done
    }

    /// Asks for a flush.
    pub(crate) fn begin_flush(&mut self) -> Begin {
        match () {
            () if self.fenced => Begin::Fenced,
            () if self.holds_writes() => Begin::Hold,
            () => Begin::Go(self.writers()),
        }
    }

    /// A flush has ended. As [`State::end_write`].
    pub(crate) fn end_flush(&mut self, sent: Halves, missed: Halves) -> bool {
        self.fail_all(missed);
        !self.members().and(sent.without(missed)).is_empty()
    }

    /// Returns whether an operation that these halves missed may be acknowledged.
    pub(crate) fn may_acknowledge(&self, missed: Halves) -> bool {
        missed.and(self.failed).is_empty() || self.has(Plant::AcknowledgeEarly)
    }

    fn writers(&self) -> Halves {
        match self.plant {
            Some(Plant::SkipReturning) => self.members(),
            _ => self.members().with(self.returning),
        }
    }

    /// A half does not work. False if it is the last one.
    pub(crate) fn fail(&mut self, half: usize) -> bool {
        let half = Halves::one(half);
        if half.are_in(self.returning) {
            self.returning = self.returning.without(half);
            self.lanes.joins = false;
            if self.returning.is_empty() {
                self.behind.clear();
            }
            match self.change {
                Some(change) if !half.are_in(change.to.halves) => {}
                Some(change) if change.prepared => self.failed = self.failed.with(half),
                _ => self.change = None,
            }
        } else if self.members() == half {
            return false;
        } else if half.are_in(self.members()) {
            self.failed = self.failed.with(half);
            if self.change.is_some_and(|change| !change.prepared) {
                self.change = None;
            }
            if self.members().len() == 1 {
                self.unequal.clear();
            }
        }
        self.steer();
        true
    }

    /// Some halves do not work. Returns the one that stays, if it is among them.
    pub(crate) fn fail_all(&mut self, halves: Halves) -> Halves {
        halves
            .iter()
            .filter(|half| !self.fail(*half))
            .map(Halves::one)
            .fold(Halves::NONE, Halves::with)
    }

    /// A half that is out can be reached again: its header has this number, or it has no content
    /// that counts. An old copy gets everything. Any other one lacks nothing but what is marked,
    /// since a write begins when all halves in sync have its mark.
    pub(crate) fn begin_return(&mut self, half: usize, sequence: Option<u64>) {
        debug_assert!(self.out().contains(half), "a half returns that is not out");
        match sequence {
            Some(sequence) if sequence >= self.numbers.known[half] => {
                self.numbers.last = self.numbers.last.max(sequence);
            }
            _ => self.marks.add(&Regions::all(self.behind.count())),
        }
        self.returning = self.returning.with(Halves::one(half));
        self.behind = self.marks.map().clone();
        self.lanes.restart();
    }

    /// Operations that are held fail: the witness has not answered for too long.
    pub(crate) fn refuse_held(&mut self) {
        self.refusals += 1;
    }

    /// Time has passed: marks of regions that are no longer written may go.
    pub(crate) fn tick(&mut self) {
        if self.is_whole() && self.unequal.is_empty() {
            self.marks.tick();
        }
    }

    /// Returns whether all halves are in sync, and nothing is about to change that.
    pub(crate) fn is_whole(&self) -> bool {
        self.members() == self.all && self.change.is_none()
    }

    /// Begins the next change of the generation, if one is due.
    fn steer(&mut self) {
        if self.fenced || self.change.is_some() {
            return;
        }
        let leave = self.failed.and(self.generation.halves);
        let halves = if !leave.is_empty() {
            self.generation.halves.without(leave)
        } else if !self.returning.is_empty() && self.behind.is_empty() && self.lanes.joins {
            self.generation.halves.with(self.returning)
        } else if self.renews {
            self.generation.halves
        } else {
            return;
        };
        let to = Generation { number: self.generation.number + 1, halves };
        self.change = Some(Change { from: self.generation, to, anew: false, prepared: false });
    }

    fn has(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }
}

/// Work for one of the lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// Write this header to these halves, durably.
    Header(Header, Halves),
    /// Have the witness replace a generation; with `anew` also where it knows none.
    Raise { from: Generation, to: Generation, anew: bool },
    /// Copy a region.
    Copy { region: usize, from: usize, to: Halves },
    /// Flush halves.
    Flush(Halves),
}

/// The outcome of a [`Job::Raise`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raised {
    Done,
    /// The witness has a generation of another server.
    Refused,
    /// The witness may or may not have it.
    Unknown,
}

/// The jobs under way.
#[derive(Debug, Default)]
struct Lanes {
    /// The halves whose headers are being written, and the generation that becomes prepared by it.
    header: Option<(Halves, Option<Generation>)>,
    witness: bool,
    /// The region that is copied, or as soon as no write is in flight there.
    copying: Option<usize>,
    copy: Option<Copying>,
    /// The halves to which it is copied.
    targets: Halves,
    /// A region whose readers wait.
    urgent: Option<usize>,
    /// The returning halves have everything, durably.
    joins: bool,
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
    fn copies(&self, region: usize) -> bool {
        self.copying == Some(region)
    }

    /// Returns whether a copy of a region to a half is under way.
    fn overwrites(&self, half: usize, region: usize) -> bool {
        self.copying == Some(region) && self.copy.is_some() && self.targets.contains(half)
    }

    /// Discards the copy under way, since another half returns and lacks it.
    fn restart(&mut self) {
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

/// A fault in the state machine.
#[cfg_attr(not(test), expect(dead_code, reason = "only tests plant faults"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// Acknowledges a write that a half missed before the half has left.
    AcknowledgeEarly,
    /// Leaves out the witness.
    RaiseNothing,
    /// Writes regions that are not marked in the headers.
    WriteUnmarked,
    /// Removes marks without a flush.
    ClearUnflushed,
    /// Lets writes into a region that is copied.
    CopyUnguarded,
    /// Copies nothing after a crash.
    RecoverNothing,
    /// Takes a half back without a flush of what was copied.
    JoinUnflushed,
    /// Serves the half with the highest number, whatever the witness says.
    TrustHeaders,
    /// Does not write to halves that are being brought up to date.
    SkipReturning,
    /// Copies a flipped bit over an intact half.
    CopyRot,
    /// Mends a flipped bit without a flush.
    MendUnflushed,
}
