//! A simulated disk: a volatile write cache in front of a medium, made to be cut off a hundred
//! thousand times.
//!
//! An operation ends at a time drawn by chance, so operations overtake each other; it takes effect
//! when it ends, except that a read may come upon parts of writes under way. What was written stays
//! in a log of versions until a flush or a durable write makes it survive; when the power fails,
//! every unit of 512 bytes keeps any one of its versions: the one on the medium, one of the log, or
//! one that was still under way. A process that merely dies leaves the log as it is.
//!
//! Devices also fail: single operations, after having done any part of what they were to do, or all
//! of them while the device is dead. And for the sake of testing the test, a disk can [lie](Lie).

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use floe_device::{Action, Completion, Device, Operation, SECTOR_BYTES, Slice};
use rand::Rng;

use crate::machine::Machine;
use crate::outage::Outage;
use crate::stamp::UNIT;

const UNITS_A_SECTOR: u32 = (SECTOR_BYTES / UNIT as u64) as u32;

/// What a failed read leaves in its buffer.
const POISON: u8 = 0xee;

/// Time that operations take: most little, so that they overtake each other; some much, so that
/// they are overtaken by many.
const USUAL_TICKS: u64 = 20;
const LONG_TICKS: u64 = 300;
const LONG_SHARE: f64 = 0.05;

/// How often a read finds something of a write that is under way.
const EARLY_SHARE: f64 = 0.25;

/// One lie is told in so many chances.
const LIE_PERIOD: u32 = 40;

/// What a bad disk, or a cache that misuses a good one, does wrong while it answers that all is
/// well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// A flush makes nothing survive.
    FlushDoesNothing,
    /// A durable write is like any other.
    DurableIsNot,
    /// Some writes do not happen.
    LosesWrites,
    /// Some writes happen in part.
    TearsWrites,
    /// Some writes happen a sector further on.
    MisplacesWrites,
    /// Some reads give what is on the medium, and not what was written since.
    ReadsStale,
    /// Some reads have a bit flipped.
    FlipsBits,
    /// Some writes fail, without a reason.
    FailsForNoReason,
    /// Some operations never end.
    Forgets,
}

/// A disk, as the world around the machine holds it. Its content stays when drivers go. A mirror
/// has a second half.
pub struct Disk(Rc<RefCell<State>>, Option<Box<twin::Half>>);

/// A disk, as a driver has it.
pub struct Handle {
    state: Rc<RefCell<State>>,
    owner: u32,
}

struct State {
    machine: Rc<Machine>,
    /// What reads find.
    bytes: Vec<u8>,
    /// What has certainly reached the medium.
    medium: Vec<u8>,
    /// What has been written since, oldest first, and where its bytes are.
    log: Vec<Version>,
    versions: u64,
    kept: Vec<[u8; UNIT]>,
    free: Vec<u32>,
    under_way: Vec<UnderWay>,
    handles: u32,
    operations: u32,
    zeroes_fast: bool,
    failing: f64,
    dead: bool,
    failed: u64,
    flipping: f64,
    flips_from: u32,
    flipped: u64,
    /// Units written since bits began to flip.
    written: Vec<bool>,
    lie: Option<Lie>,
    spare: Vec<u8>,
}

/// A version of a unit, by the number of the operation that wrote it, and where its bytes are.
struct Version {
    number: u64,
    unit: u32,
    operation: u32,
    bytes: u32,
}

/// What a failing operation does all the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fails {
    /// Any part of what it was to do.
    InPart,
    /// Nothing: the device is dead.
    Wholly,
}

struct UnderWay {
    owner: u32,
    operation: u32,
    token: u64,
    due: u64,
    fails: Option<Fails>,
    units: Range<u32>,
    action: Action,
    /// How many versions there had been when it was submitted.
    versions: u64,
}

impl Disk {
    /// A disk of so many bytes, all alike.
    pub fn new(machine: &Rc<Machine>, size: usize, fill: u8, zeroes_fast: bool) -> Disk {
        assert!(size.is_multiple_of(UNIT));
        Disk(
            Rc::new(RefCell::new(State {
                machine: Rc::clone(machine),
                bytes: vec![fill; size],
                medium: vec![fill; size],
                log: Vec::new(),
                versions: 0,
                kept: Vec::new(),
                free: Vec::new(),
                under_way: Vec::new(),
                handles: 0,
                operations: 0,
                zeroes_fast,
                failing: 0.0,
                dead: false,
                failed: 0,
                flipping: 0.0,
                flips_from: 0,
                flipped: 0,
                written: Vec::new(),
                lie: None,
                spare: Vec::new(),
            })),
            None,
        )
    }

    /// A disk that holds these bytes.
    pub fn holding(machine: &Rc<Machine>, bytes: &[u8]) -> Disk {
        let disk = Disk::new(machine, bytes.len(), 0, true);
        {
            let mut state = disk.0.borrow_mut();
            state.bytes.copy_from_slice(bytes);
            state.medium.copy_from_slice(bytes);
        }
        disk
    }

    /// The disk for a driver, which hears of the operations it has submitted itself.
    pub fn handle(&self) -> Handle {
        let mut state = self.0.borrow_mut();
        state.handles += 1;
        Handle { state: Rc::clone(&self.0), owner: state.handles }
    }

    pub fn size_bytes(&self) -> u64 {
        self.0.borrow().bytes.len() as u64
    }

    /// What reads find now.
    pub fn peek(&self, bytes: Range<usize>) -> Vec<u8> {
        self.0.borrow().bytes[bytes].to_vec()
    }

    /// What survives a power cut, whatever else is lost.
    pub fn peek_durable(&self, bytes: Range<usize>) -> Vec<u8> {
        self.0.borrow().medium[bytes].to_vec()
    }

    /// A bit of a byte flips, in whatever version of it is or will be there.
    pub fn rot(&self, byte: usize) {
        self.0.borrow_mut().rot(byte);
    }

    /// From now on this share of reads find a bit flipped in what was written from now on beyond an
    /// offset.
    pub fn set_flipping(&self, share: f64, from: u64) {
        let mut state = self.0.borrow_mut();
        (state.flipping, state.flips_from, state.flipped) = (share, (from / UNIT as u64) as u32, 0);
        state.written.clear();
    }

    /// How many reads have found a bit flipped in this life.
    pub fn flipped(&self) -> u64 {
        self.0.borrow().flipped
    }

    /// When the next operation ends.
    pub fn next_due(&self) -> Option<u64> {
        let half = |state: &RefCell<State>| {
            state.borrow().under_way.iter().map(|under_way| under_way.due).min()
        };
        half(&self.0).into_iter().chain(self.second().and_then(half)).min()
    }

    /// How often operations fail from now on, and how many have failed is forgotten.
    pub fn set_failing(&self, share: f64) {
        let mut state = self.0.borrow_mut();
        (state.failing, state.dead, state.failed) = (share, false, 0);
    }

    /// Every operation that is submitted while a disk is dead fails, and does nothing.
    pub fn set_dead(&self, dead: bool) {
        self.0.borrow_mut().dead = dead;
    }

    /// How many operations have failed in this life.
    pub fn failed(&self) -> u64 {
        self.0.borrow().failed
    }

    pub fn set_lie(&self, lie: Lie) {
        self.0.borrow_mut().lie = Some(lie);
    }

    /// The power has failed and returned: what was not safe may be gone.
    pub fn lose_power(&self) {
        for half in [Some(&*self.0), self.second()].into_iter().flatten() {
            let mut state = half.borrow_mut();
            let outage = Outage::draw(&Rc::clone(&state.machine));
            state.end_all(&outage);
            state.settle(|version| outage.spares(version.operation, version.unit));
        }
    }

    /// Whoever used the disk is gone; the disk ends what it was about to do, or does not, and keeps
    /// the rest as it was.
    pub fn lose_user(&self) {
        for half in [Some(&*self.0), self.second()].into_iter().flatten() {
            let mut state = half.borrow_mut();
            let outage = Outage::draw(&Rc::clone(&state.machine));
            state.end_all(&outage);
        }
    }
}

impl Handle {
    /// Ends one operation, all by itself; `None` when the power has failed before.
    pub fn carry_out(&mut self, offset: u64, action: Action) -> Option<io::Result<()>> {
        self.submit(Operation { token: 0, offset, action });
        let (machine, mut done) = (Rc::clone(&self.state.borrow().machine), Vec::new());
        while machine.has_power() {
            self.poll(&mut done);
            if let Some(Completion { result, .. }) = done.pop() {
                return Some(result);
            }
            let due = self.state.borrow().under_way.iter().map(|under_way| under_way.due).min();
            machine.pass_until(due?.max(machine.now()));
        }
        None
    }
}

impl Device for Handle {
    fn size_bytes(&self) -> u64 {
        self.state.borrow().bytes.len() as u64
    }

    fn submit(&mut self, operation: Operation) {
        self.state.borrow_mut().submit(self.owner, operation);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.state.borrow_mut().poll(self.owner, done);
    }
}

/// The units that an operation means, of a disk that has so many.
fn units_of(operation: &Operation, all: u32) -> Range<u32> {
    let len = match &operation.action {
        Action::Read(into) => into.len() as u64,
        Action::Write { from, .. } => from.len() as u64,
        Action::Zero { len, .. } | Action::Discard { len } => *len,
        Action::Flush => 0,
    };
    let (first, end) =
        (operation.offset / UNIT as u64, (operation.offset + len).div_ceil(UNIT as u64));
    let whole = len.is_multiple_of(SECTOR_BYTES) || end == u64::from(all);
    assert!(
        operation.offset.is_multiple_of(SECTOR_BYTES)
            && whole
            && first <= u64::from(all)
            && end <= u64::from(all.next_multiple_of(UNITS_A_SECTOR)),
        "{operation:?} of {len} bytes on a device of {all} units"
    );
    first as u32..(end as u32).min(all)
}

fn bytes_of(unit: u32) -> Range<usize> {
    unit as usize * UNIT..(unit as usize + 1) * UNIT
}

impl State {
    fn chance(&self, share: f64) -> bool {
        share > 0.0 && self.machine.draw(|rng| rng.random_bool(share))
    }

    /// Whether this is the moment for a lie.
    fn lies(&self, lie: Lie) -> bool {
        self.lie == Some(lie) && self.machine.draw(|rng| rng.random_ratio(1, LIE_PERIOD))
    }

    fn submit(&mut self, owner: u32, operation: Operation) {
        let units = units_of(&operation, (self.bytes.len() / UNIT) as u32);
        if !self.machine.happens() || self.lies(Lie::Forgets) {
            return;
        }
        let ticks = self.machine.draw(|rng| {
            let most = if rng.random_bool(LONG_SHARE) { LONG_TICKS } else { USUAL_TICKS };
            rng.random_range(1..=most)
        });
        let fails = match () {
            () if self.dead => Some(Fails::Wholly),
            () if self.chance(self.failing) => Some(Fails::InPart),
            () => None,
        };
        self.failed += u64::from(fails.is_some());
        self.operations += 1;
        self.under_way.push(UnderWay {
            owner,
            operation: self.operations,
            token: operation.token,
            due: self.machine.now() + ticks,
            fails: fails.or_else(|| self.lies(Lie::FailsForNoReason).then_some(Fails::Wholly)),
            units,
            action: operation.action,
            versions: self.versions,
        });
    }

    fn poll(&mut self, owner: u32, done: &mut Vec<Completion>) {
        let mut at = 0;
        while let Some(under_way) = self.under_way.get(at) {
            if under_way.owner != owner || under_way.due > self.machine.now() {
                at += 1;
                continue;
            }
            if !self.machine.happens() {
                return;
            }
            let under_way = self.under_way.swap_remove(at);
            let token = under_way.token;
            done.push(Completion { token, result: self.end(under_way) });
        }
    }

    fn rot(&mut self, byte: usize) {
        const BIT: u8 = 4;
        (self.bytes[byte], self.medium[byte]) = (self.bytes[byte] ^ BIT, self.medium[byte] ^ BIT);
        for version in self.log.iter().filter(|version| version.unit as usize == byte / UNIT) {
            self.kept[version.bytes as usize][byte % UNIT] ^= BIT;
        }
    }

    /// Ends an operation.
    fn end(
        &mut self,
        UnderWay { operation, fails, units, action, versions, .. }: UnderWay,
    ) -> io::Result<()> {
        if let Some(fails) = fails {
            match fails {
                Fails::InPart => self.end_in_part(operation, units, &action),
                Fails::Wholly => {}
            }
            return Err(io::Error::other("the disk fails"));
        }
        match action {
            Action::Read(into) => self.read(units, &into),
            Action::Write { from, durable } => {
                let units = self.befalls(units);
                self.write(operation, units.clone(), &from, |_| true);
                if durable && self.lie != Some(Lie::DurableIsNot) {
                    self.settle_range(&units);
                }
            }
            Action::Zero { fast: true, .. } if !self.zeroes_fast => {
                return Err(io::ErrorKind::Unsupported.into());
            }
            Action::Zero { .. } => units.for_each(|unit| self.put(operation, unit, &[0; UNIT])),
            Action::Discard { .. } => {
                let sectors = self.machine.draw(|rng| rng.random::<u64>());
                for unit in units.filter(|unit| sectors >> (unit / UNITS_A_SECTOR % 64) & 1 == 1) {
                    self.put(operation, unit, &[0; UNIT]);
                }
            }
            Action::Flush if self.lie == Some(Lie::FlushDoesNothing) => {}
            Action::Flush => self.settle_older(versions),
        }
        Ok(())
    }

    /// What becomes of a write on a disk that may lie.
    fn befalls(&self, units: Range<u32>) -> Range<u32> {
        let all = (self.bytes.len() / UNIT) as u32;
        if self.lies(Lie::LosesWrites) {
            units.start..units.start
        } else if self.lies(Lie::TearsWrites) {
            units.start..self.machine.draw(|rng| rng.random_range(units.clone()))
        } else if self.lies(Lie::MisplacesWrites) && units.end + UNITS_A_SECTOR <= all {
            units.start + UNITS_A_SECTOR..units.end + UNITS_A_SECTOR
        } else {
            units
        }
    }

    /// Whether a read of some units meets a flipped bit.
    fn flip(&mut self, units: &Range<u32>, into: &Slice) {
        if units.start < self.flips_from || !self.chance(self.flipping) {
            return;
        }
        let (unit, byte, bit) = self.machine.draw(|rng| {
            (
                rng.random_range(units.clone()),
                rng.random_range(0..UNIT),
                1 << rng.random_range(0..8),
            )
        });
        if self.written.get(unit as usize) == Some(&true) {
            self.flipped += 1;
            let at = (unit - units.start) as usize * UNIT + byte;
            into.slice(at..at + 1).copy_from(&[self.bytes[unit as usize * UNIT + byte] ^ bit]);
        }
    }

    fn read(&mut self, units: Range<u32>, into: &Slice) {
        for at in 0..self.under_way.len() {
            let other = &self.under_way[at];
            let meet = other.units.start < units.end && units.start < other.units.end;
            if meet && matches!(other.action, Action::Write { .. }) && self.chance(EARLY_SHARE) {
                let (operation, range) = (other.operation, other.units.clone());
                let action = other.action.clone();
                self.end_in_part(operation, range, &action);
            }
        }
        let bytes = units.start as usize * UNIT..units.end as usize * UNIT;
        let source = if self.lies(Lie::ReadsStale) { &self.medium } else { &self.bytes };
        into.slice(0..bytes.len()).copy_from(&source[bytes.clone()]);
        into.slice(bytes.len()..into.len()).fill_zero();
        self.flip(&units, into);
        if self.lies(Lie::FlipsBits) {
            let at = self.machine.draw(|rng| rng.random_range(0..bytes.len()));
            into.slice(at..at + 1).copy_from(&[self.bytes[bytes.start + at] ^ 1]);
        }
    }

    /// Any part of an operation happens.
    fn end_in_part(&mut self, operation: u32, units: Range<u32>, action: &Action) {
        let outage = Outage::draw(&Rc::clone(&self.machine));
        self.end_so_far(operation, units, action, &outage);
    }

    fn end_so_far(&mut self, operation: u32, units: Range<u32>, action: &Action, outage: &Outage) {
        match action {
            Action::Read(into) => into.copy_from(&vec![POISON; into.len()]),
            Action::Write { from, .. } => {
                self.write(operation, units, from, |unit| outage.spares(operation, unit));
            }
            Action::Zero { .. } | Action::Discard { .. } => {
                for unit in units.filter(|&unit| outage.spares(operation, unit)) {
                    self.put(operation, unit, &[0; UNIT]);
                }
            }
            Action::Flush => {}
        }
    }

    /// Whatever is under way has happened in part, and nobody hears of it.
    fn end_all(&mut self, outage: &Outage) {
        let mut under_way = std::mem::take(&mut self.under_way);
        for UnderWay { operation, units, action, fails, .. } in under_way.drain(..) {
            if fails != Some(Fails::Wholly) && !matches!(action, Action::Read(_)) {
                self.end_so_far(operation, units, &action, outage);
            }
        }
        self.under_way = under_way; // its memory
    }

    fn write(
        &mut self,
        operation: u32,
        units: Range<u32>,
        from: &Slice,
        happens: impl Fn(u32) -> bool,
    ) {
        let mut bytes = std::mem::take(&mut self.spare);
        bytes.resize(units.len() * UNIT, 0);
        from.slice(0..bytes.len()).copy_to(&mut bytes);
        for (unit, bytes) in units.zip(bytes.as_chunks().0) {
            if happens(unit) {
                self.put(operation, unit, bytes);
            }
        }
        self.spare = bytes;
    }

    /// A unit has a new version.
    fn put(&mut self, operation: u32, unit: u32, bytes: &[u8; UNIT]) {
        self.bytes[bytes_of(unit)].copy_from_slice(bytes);
        if self.flipping > 0.0 {
            self.written.resize(self.bytes.len() / UNIT, false);
            self.written[unit as usize] = true;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.kept.push([0; UNIT]);
            self.kept.len() as u32 - 1
        });
        self.kept[at as usize] = *bytes;
        self.log.push(Version { number: self.versions, unit, operation, bytes: at });
        self.versions += 1;
    }

    /// The versions for which `reaches` holds reach the medium; the others are forgotten, and reads
    /// no longer find them.
    fn settle(&mut self, reaches: impl Fn(&Version) -> bool) {
        for version in self.log.iter().filter(|version| reaches(version)) {
            self.medium[bytes_of(version.unit)].copy_from_slice(&self.kept[version.bytes as usize]);
        }
        for version in self.log.drain(..) {
            let unit = bytes_of(version.unit);
            self.bytes[unit.clone()].copy_from_slice(&self.medium[unit]);
            self.free.push(version.bytes);
        }
    }

    /// The first versions reach the medium.
    fn settle_older(&mut self, versions: u64) {
        let older = self.log.partition_point(|version| version.number < versions);
        for version in self.log.drain(..older) {
            self.medium[bytes_of(version.unit)].copy_from_slice(&self.kept[version.bytes as usize]);
            self.free.push(version.bytes);
        }
    }

    /// The newest versions of some units reach the medium.
    fn settle_range(&mut self, units: &Range<u32>) {
        for unit in units.clone() {
            self.medium[bytes_of(unit)].copy_from_slice(&self.bytes[bytes_of(unit)]);
        }
        let (log, free) = (&mut self.log, &mut self.free);
        free.extend(
            log.extract_if(.., |version| units.contains(&version.unit))
                .map(|version| version.bytes),
        );
    }
}

#[cfg(test)]
mod tests;
mod twin;
