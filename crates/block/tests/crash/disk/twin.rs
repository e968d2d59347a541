//! A second half of a disk, so that both are a mirror whose halves stay in sync.
//!
//! Writes go to both halves. After a crash they may differ; as in a mirror, single halves can be
//! read at once, and the others are made equal when there is a judge of what is stored. The lab of
//! halves that leave and return is the simulator of mirrors in `crates/device`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use floe_device::{Action, Completion, Device, Halves, Judge, Operation, SECTOR_BYTES};
use rand::Rng;

use super::{Disk, Handle, State, UNITS_A_SECTOR, bytes_of};
use crate::machine::Machine;
use crate::stamp::UNIT;

const SECTOR: usize = SECTOR_BYTES as usize;

/// Bytes that are written as one: a copy of the superblock or a sector.
const SUPERBLOCK: usize = 32 << 10;

/// The second half of a mirror.
pub struct Half {
    state: Rc<RefCell<State>>,
    /// Sectors in which a bit of one half has flipped.
    rotten: Rc<RefCell<BTreeSet<usize>>>,
    mended: Rc<Cell<u64>>,
}

/// The mirror, as a driver has it.
struct Mirror {
    halves: [Handle; 2],
    states: [Rc<RefCell<State>>; 2],
    rotten: Rc<RefCell<BTreeSet<usize>>>,
    mended: Rc<Cell<u64>>,
    parts: BTreeMap<u64, Part>,
    last: u64,
    early: Vec<Completion>,
}

/// An operation that is under way on some halves.
struct Part {
    token: u64,
    left: usize,
    failure: Option<io::Error>,
}

impl Disk {
    /// A mirror of so many bytes.
    pub fn mirror(machine: &Rc<Machine>, size: usize, fill: u8) -> Disk {
        let Disk(first, _) = Disk::new(machine, size, fill, false);
        let Disk(state, _) = Disk::new(machine, size, !fill, false);
        let half = Half { state, rotten: Rc::default(), mended: Rc::default() };
        Disk(first, Some(Box::new(half)))
    }

    pub fn is_mirror(&self) -> bool {
        self.1.is_some()
    }

    pub(super) fn second(&self) -> Option<&RefCell<State>> {
        self.1.as_ref().map(|half| &*half.state)
    }

    /// The disk, or the mirror, for a driver.
    pub fn device(&self) -> Box<dyn Device> {
        let first = self.handle();
        let Some(half) = &self.1 else { return Box::new(first) };
        let second = Disk(Rc::clone(&half.state), None).handle();
        Box::new(Mirror {
            halves: [first, second],
            states: [Rc::clone(&self.0), Rc::clone(&half.state)],
            rotten: Rc::clone(&half.rotten),
            mended: Rc::clone(&half.mended),
            parts: BTreeMap::new(),
            last: 0,
            early: Vec::new(),
        })
    }

    /// A bit of one half flips, where the other half is intact for certain. Returns whether it did.
    pub fn rot_half(&self, second: bool, byte: usize) -> bool {
        let Some(half) = &self.1 else { return false };
        let unit = if byte < 2 * SUPERBLOCK { SUPERBLOCK } else { SECTOR };
        let range = byte / unit * unit..byte / unit * unit + unit;
        let (first, other) = (self.0.borrow(), half.state.borrow());
        let wanted = &first.medium[range.clone()];
        let all = [&first.bytes, &other.bytes, &other.medium];
        if all.iter().any(|bytes| bytes[range.clone()] != *wanted) {
            return false;
        }
        drop((first, other));
        let state = if second { &half.state } else { &self.0 };
        state.borrow_mut().rot(byte);
        half.rotten.borrow_mut().insert(byte / SECTOR);
        true
    }

    /// How many bytes were mended on one half.
    pub fn mended(&self) -> u64 {
        self.1.as_ref().map_or(0, |half| half.mended.get())
    }
}

impl Mirror {
    fn begin(&mut self, halves: &[usize], operation: Operation) {
        let Operation { token, offset, action } = operation;
        self.last += 1;
        self.parts.insert(self.last, Part { token, left: halves.len(), failure: None });
        for half in halves {
            let (token, action) = (self.last, action.clone());
            self.halves[*half].submit(Operation { token, offset, action });
        }
    }

    /// Makes the halves equal, as a mirror does after a crash. Regions that were not written before
    /// it stay as they are.
    fn recover(&self, judge: &dyn Judge) {
        let [mut first, mut second] = [0, 1].map(|half| self.states[half].borrow_mut());
        let operation = u32::MAX;
        let put = |state: &mut State, range: std::ops::Range<usize>, bytes: &[u8]| {
            for (unit, bytes) in (range.start / UNIT..).zip(bytes.as_chunks::<UNIT>().0) {
                if state.bytes[bytes_of(unit as u32)] != *bytes {
                    state.put(operation, unit as u32, bytes);
                }
            }
        };
        let machine = Rc::clone(&first.machine);
        let mut rotten = self.rotten.borrow_mut();
        let mut skips = |sector: usize| {
            let skips = rotten.contains(&sector) && machine.draw(|rng| rng.random());
            if !skips {
                rotten.remove(&sector);
            }
            skips
        };
        let sectors = first.bytes.len() / SECTOR;
        let skipped: BTreeSet<usize> = (0..sectors)
            .filter(|sector| {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                first.bytes[range.clone()] != second.bytes[range] && skips(*sector)
            })
            .collect();
        for damage in judge.damage(0, &first.bytes.clone()) {
            let range = damage.range;
            let other = second.bytes[range.clone()].to_vec();
            let is_skipped = |at: usize| skipped.contains(&(at / SECTOR));
            if range.clone().step_by(SECTOR).any(is_skipped) {
                continue;
            }
            if judge.damage(range.start as u64, &other).is_empty() {
                put(&mut first, range, &other);
            }
        }
        for sector in (0..sectors).filter(|sector| !skipped.contains(sector)) {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            let bytes = first.bytes[range.clone()].to_vec();
            put(&mut second, range, &bytes);
        }
        const { assert!(SECTOR == UNITS_A_SECTOR as usize * UNIT) };
    }
}

impl Device for Mirror {
    fn size_bytes(&self) -> u64 {
        self.halves[0].size_bytes()
    }

    fn submit(&mut self, operation: Operation) {
        let Operation { token, offset, action } = operation;
        let action = match action {
            Action::Zero { fast: true, .. } => {
                let result = Err(io::ErrorKind::Unsupported.into());
                return self.early.push(Completion { token, result });
            }
            Action::Discard { len } => Action::Zero { len, may_unmap: true, fast: false },
            action => action,
        };
        let halves: &[usize] = if matches!(action, Action::Read(_)) { &[0] } else { &[0, 1] };
        self.begin(halves, Operation { token, offset, action });
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.early);
        let mut ended = Vec::new();
        self.halves.iter_mut().for_each(|half| half.poll(&mut ended));
        for Completion { token, result } in ended {
            let part = self.parts.get_mut(&token).expect("it is under way");
            part.left -= 1;
            part.failure = part.failure.take().or(result.err());
            if part.left == 0 {
                let Part { token, failure, .. } = self.parts.remove(&token).expect("it is there");
                done.push(Completion { token, result: failure.map_or(Ok(()), Err) });
            }
        }
    }

    fn copies(&self) -> Halves {
        Halves::first(2)
    }

    fn read_copy(&mut self, copy: usize, operation: Operation) {
        self.begin(&[copy], operation);
    }

    fn may_differ(&self, _: std::ops::Range<u64>) -> bool {
        true
    }

    fn mend(&mut self, wrong: Halves, operation: Operation) {
        if let Action::Write { from, .. } = &operation.action {
            self.mended.set(self.mended.get() + (wrong.len() * from.len()) as u64);
        }
        self.submit(operation);
    }

    fn set_judge(&mut self, judge: Option<Arc<dyn Judge>>) {
        if let Some(judge) = judge {
            self.recover(&*judge);
        }
    }
}
