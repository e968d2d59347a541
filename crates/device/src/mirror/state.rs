//! The state machine of a mirror, without I/O, clocks or threads. All handles of a process share
//! one.
//!
//! Handles ask before they submit an operation ([`State::begin_write`]) and report its end. Three
//! lanes carry out [`Job`]s in parallel, one job at a time each: headers, the witness, copies.
//!
//! **A half leaves** when an operation on it failed. From then on no write begins, until the
//! remaining halves' headers and then the witness have the next generation. A write that the half
//! missed is acknowledged only after that. The last half never leaves; its errors are the mirror's.
//!
//! **A half returns**: it gets all writes from now on, and a copy of each region marked so far.
//! Then it is flushed, and the next generation includes it. No write begins in a region while the
//! region is copied.
//!
//! **Each start** raises the generation, so that a copy of a half made before it is stale.
//!
//! **After a crash** the halves in sync may differ in the regions marked. Each is copied from the
//! first half to the others before it is read, so that data that was read once does not change when
//! a half leaves.

use std::ops::RangeInclusive;

use super::layout::Header;
use super::marks::{Marks, Regions};
use super::witness::Generation;
use crate::device::Halves;

/// The range of regions that an operation touches.
pub(crate) type Span = RangeInclusive<usize>;

/// The state machine's answer to an operation that asks to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// The operation begins on these halves.
    Go(Halves),
    /// The operation waits, and asks again after the next state change.
    Hold,
    /// The operation fails, because another server owns the mirror.
    Fenced,
}

/// The replacement of a generation by the next one.
#[derive(Debug, Clone, Copy)]
struct Change {
    from: Generation,
    to: Generation,
    /// True if the witness may have no generation of this mirror yet.
    anew: bool,
    /// True once the headers have the new generation. From then on the witness may have it too.
    prepared: bool,
}

/// The facts from which a mirror's state is initialised.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// The number of halves in the mirror.
    pub(crate) count: usize,
    /// Halves in the order in which reads prefer them.
    pub(crate) order: Vec<usize>,
    /// The generation of the witness, or that of the headers if the witness cannot be reached.
    pub(crate) generation: Generation,
    /// Halves in sync in that generation that are absent now.
    pub(crate) missing: Halves,
    /// True if the witness still has to be given the generation.
    pub(crate) unconfirmed: bool,
    /// The highest header number found; new headers continue from it.
    pub(crate) sequence: u64,
    /// The highest header number known to be on each half.
    pub(crate) known: [u64; Halves::MAX],
    /// The number of regions in the mirror.
    pub(crate) regions: usize,
    /// Regions in which halves may differ.
    pub(crate) map: Regions,
}

/// Header numbers: the last one used, and the newest on each half.
#[derive(Debug)]
struct Numbers {
    last: u64,
    /// The highest header number known to be on each half.
    known: [u64; Halves::MAX],
}

/// The halves of a mirror, its generation, and the jobs in progress.
#[derive(Debug)]
pub(crate) struct State {
    all: Halves,
    order: Vec<usize>,
    /// The newest generation that the witness has confirmed.
    generation: Generation,
    change: Option<Change>,
    /// Halves that have failed and must leave. Each is in the current generation, or in a next one
    /// that the witness may already have.
    failed: Halves,
    returning: Halves,
    fenced: bool,
    marks: Marks,
    /// Regions in which halves in sync may differ.
    unequal: Regions,
    /// Regions that returning halves still lack.
    behind: Regions,
    lanes: Lanes,
    numbers: Numbers,
    /// True until this start has raised the generation, which makes earlier copies of the halves
    /// stale.
    renews: bool,
    /// A counter that grows each time the operations held so far must fail.
    refusals: u64,
    /// True while no judge can detect damaged data. Until then only regions for which readers wait
    /// are copied.
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

    /// Returns the halves that are in sync and have not failed.
    pub(crate) fn members(&self) -> Halves {
        self.generation.halves.without(self.failed)
    }

    /// Sets whether copies wait until a judge can detect damaged data.
    pub(crate) fn await_judge(&mut self, waits: bool) {
        self.unjudged = waits;
    }

    /// Returns the halves that are being brought up to date.
    pub(crate) fn returning(&self) -> Halves {
        self.returning
    }

    /// Returns the halves that are neither in sync, nor returning, nor about to join.
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

    /// Returns whether some regions may differ between halves in sync, so that recovery is
    /// incomplete.
    pub(crate) fn is_recovering(&self) -> bool {
        self.members().len() > 1 && !self.unequal.is_empty()
    }

    /// Returns whether halves in sync may differ in one of these regions.
    pub(crate) fn may_differ(&self, mut span: Span) -> bool {
        self.members().len() > 1 && span.any(|region| self.unequal.contains(region))
    }

    /// Returns the number of regions still to be copied.
    pub(crate) fn regions_left(&self) -> usize {
        self.unequal.len() + self.behind.len()
    }

    /// Returns the number of regions in which halves may differ.
    pub(crate) fn regions_marked(&self) -> usize {
        self.marks.map().len()
    }

    /// Returns whether writes are held until a failed half has left.
    pub(crate) fn holds_writes(&self) -> bool {
        let leaves = |change: Change| !self.generation.halves.are_in(change.to.halves);
        !self.failed.is_empty() || self.change.is_some_and(leaves)
    }

    /// Asks to begin a read, and returns the one half to read from.
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

    /// Asks to begin a read of one particular half, which may differ from the others. Returns
    /// `None` if that half lacks part of the range.
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

    /// Records that a read of a half has failed. Returns true if another half can be read.
    pub(crate) fn read_failed(&mut self, half: usize, span: Span) -> bool {
        if !self.fail(half) {
            return false;
        }
        // The copy overwrites what the half cannot read.
        span.for_each(|region| self.marks.insert(region));
        true
    }

    /// Asks to begin a write or another operation that changes data.
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

    /// Ends a write that was sent to the halves `sent` and failed on `missed`, which leave. Returns
    /// false if the write has failed because no half in sync has it.
    pub(crate) fn end_write(&mut self, span: Span, sent: Halves, missed: Halves) -> bool {
        self.marks.end(span);
        let done = self.end_flush(sent, missed);
        if !missed.and(self.members()).is_empty() {
            // The last half may not have it, and a half that returns may.
            self.fail_all(self.returning);
        }
        done
    }

    pub(crate) fn begin_flush(&mut self) -> Begin {
        match () {
            () if self.fenced => Begin::Fenced,
            () if self.holds_writes() => Begin::Hold,
            () => Begin::Go(self.writers()),
        }
    }

    /// Ends a flush that was sent to the halves `sent` and failed on `missed`, which leave. Returns
    /// false if the flush has failed because no half in sync has completed it.
    pub(crate) fn end_flush(&mut self, sent: Halves, missed: Halves) -> bool {
        self.fail_all(missed);
        !self.members().and(sent.without(missed)).is_empty()
    }

    /// Returns whether an operation that these halves missed may be acknowledged, because they have
    /// left.
    pub(crate) fn may_acknowledge(&self, missed: Halves) -> bool {
        missed.and(self.failed).is_empty() || self.has(Plant::AcknowledgeEarly)
    }

    fn writers(&self) -> Halves {
        match self.plant {
            Some(Plant::SkipReturning) => self.members(),
            _ => self.members().with(self.returning),
        }
    }

    /// Records that a half has failed. Returns false for the last working half, which cannot leave.
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

    /// Records that several halves have failed. Returns the last working half if it is among them.
    pub(crate) fn fail_all(&mut self, halves: Halves) -> Halves {
        halves
            .iter()
            .filter(|half| !self.fail(*half))
            .map(Halves::one)
            .fold(Halves::NONE, Halves::with)
    }

    /// Begins the return of a half that is reachable again. `sequence` is the number of its header,
    /// or `None` if its content is worthless. An old copy gets every region. Any other half lacks
    /// only marked regions, since a write begins only when all halves in sync have its mark.
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

    /// Makes the operations held now fail, because the witness has not answered within the timeout.
    pub(crate) fn refuse_held(&mut self) {
        self.refusals += 1;
    }

    /// Advances the clock of the marks: marks of regions not written lately can be removed.
    pub(crate) fn tick(&mut self) {
        if self.is_whole() && self.unequal.is_empty() {
            self.marks.tick();
        }
    }

    /// Returns whether all halves are in sync and no change of generation is in progress.
    pub(crate) fn is_whole(&self) -> bool {
        self.members() == self.all && self.change.is_none()
    }

    /// Begins the next change of the generation, if a half is to leave or join or the start
    /// requires it.
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

    /// Ends the writing of a header that failed on the halves `missed`.
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

    /// Returns the next job of the lane that talks to the witness.
    pub(crate) fn next_witness(&mut self) -> Option<Job> {
        let change = self.change.filter(|change| change.prepared)?;
        if self.fenced || std::mem::replace(&mut self.lanes.witness, true) {
            return None;
        }
        Some(Job::Raise { from: change.from, to: change.to, anew: change.anew })
    }

    /// Ends a [`Job::Raise`] with the answer of the witness.
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

    /// Ends the copy of a region. `unread` is the source if reading from it failed; `missed` are
    /// the halves that could not be written.
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

    /// Ends a flush that failed on the halves `missed`.
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

/// A unit of work for one of the lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// Write this header to these halves, durably.
    Header(Header, Halves),
    /// Replace a generation at the witness. With `anew`, also if the witness has none.
    Raise { from: Generation, to: Generation, anew: bool },
    /// Copy a region from one half to others.
    Copy { region: usize, from: usize, to: Halves },
    /// Flush these halves.
    Flush(Halves),
}

/// The outcome of a [`Job::Raise`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raised {
    Done,
    /// The witness has a generation set by another server.
    Refused,
    /// The witness did not answer, and may or may not have the new generation.
    Unknown,
}

/// The jobs in progress on the lanes.
#[derive(Debug, Default)]
struct Lanes {
    /// The halves whose headers are being written, and the generation that this prepares.
    header: Option<(Halves, Option<Generation>)>,
    witness: bool,
    /// The region that is being copied, or will be once no write is in flight in it.
    copying: Option<usize>,
    copy: Option<Copying>,
    /// The halves to which that region is copied.
    targets: Halves,
    /// A region that readers wait for, to be copied first.
    urgent: Option<usize>,
    /// True once the returning halves durably have all data.
    joins: bool,
}

/// The kind of job that the copying lane carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copying {
    Region(Halves),
    /// A flush before a half joins.
    Join,
    /// A flush before marks are removed.
    Clear,
    /// A job whose result is ignored, because another half has begun to return since.
    Stale,
}

impl Lanes {
    /// Returns whether a region is being copied, or waits for its writes to end before it is.
    fn copies(&self, region: usize) -> bool {
        self.copying == Some(region)
    }

    /// Returns whether a copy of a region to this half is in progress.
    fn overwrites(&self, half: usize, region: usize) -> bool {
        self.copying == Some(region) && self.copy.is_some() && self.targets.contains(half)
    }

    /// Invalidates the copy in progress, because a half that now returns is not among its targets.
    fn restart(&mut self) {
        self.joins = false;
        if matches!(self.copy, Some(Copying::Region(_) | Copying::Join)) {
            self.copy = Some(Copying::Stale);
        }
    }
}

/// A deliberate fault in the state machine, which tests must detect.
#[cfg_attr(not(test), expect(dead_code, reason = "only tests plant faults"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// Acknowledges a write that a half missed before that half has left.
    AcknowledgeEarly,
    /// Skips the witness.
    RaiseNothing,
    /// Writes to regions that are not marked in the headers.
    WriteUnmarked,
    /// Removes marks without a flush.
    ClearUnflushed,
    /// Allows writes to a region while it is copied.
    CopyUnguarded,
    /// Copies nothing after a crash.
    RecoverNothing,
    /// Takes a half back without a flush of what was copied.
    JoinUnflushed,
    /// Serves from the half with the highest generation, whatever the witness says.
    TrustHeaders,
    /// Does not write to halves that are returning.
    SkipReturning,
    /// Copies damaged data over an intact half.
    CopyRot,
    /// Repairs damaged data without a flush.
    MendUnflushed,
}
