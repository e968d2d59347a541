//! The home of a pool's buffers: blocks in use, kept whole, on loan, and returned.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;

use super::super::buddy::{Buddy, ORDERS};
use super::super::ground::{Family, PAGE};
use super::{Buffer, Memory, Place};

/// The number of free blocks of each order that are kept whole for the next buffer, past the buddy
/// allocator.
const KEPT: usize = 16;

/// A pool's arena and its buffers, on the thread of the pool.
pub(super) struct Home {
    pub(super) family: Arc<Family>,
    /// Where in the mapping this pool's arena begins.
    pub(super) first: usize,
    pub(super) buddy: RefCell<Buddy>,
    /// Buffers that ended, by order, with their blocks: the next buffer of that order.
    pub(super) kept: RefCell<[Vec<Rc<Memory>>; ORDERS]>,
    /// Counts of arena buffers whose blocks went back to the buddy allocator.
    pub(super) spare: RefCell<Vec<Rc<Memory>>>,
    /// Buffers whose local count is zero but which a loan still holds.
    pub(super) on_loan: RefCell<VecDeque<Rc<Memory>>>,
    pub(super) used_bytes: Cell<usize>,
    pub(super) fallbacks: Cell<u64>,
    pub(super) fallback_bytes: Cell<usize>,
}

impl Home {
    /// A buffer in a block that was kept whole.
    pub(super) fn again(self: &Rc<Home>, order: u32, len: usize) -> Option<Buffer> {
        let mut memory = self.kept.borrow_mut().get_mut(order as usize)?.pop()?;
        self.used_bytes.set(self.used_bytes.get() + (PAGE << order));
        let inside = Rc::get_mut(&mut memory).expect("a kept block has one owner");
        (inside.len, inside.home) = (len, Some(Rc::clone(self)));
        Some(Buffer(ManuallyDrop::new(memory)))
    }

    /// Gives all kept blocks back to the buddy allocator, to become larger ones.
    pub(super) fn merge(&self) {
        for memory in self.kept.borrow_mut().iter_mut().flat_map(|kept| kept.drain(..)) {
            if let Place::Arena { page, order } = memory.place {
                self.buddy.borrow_mut().free(page, order);
            }
            self.spare.borrow_mut().push(memory);
        }
    }

    /// Looks at up to `most` buffers on loan, the longest waiting first, and takes back those that
    /// have returned.
    pub(super) fn collect(&self, most: usize) {
        let mut on_loan = self.on_loan.borrow_mut();
        for _ in 0..most.min(on_loan.len()) {
            let memory = on_loan.pop_front().expect("no more than there are");
            if let Some(memory) = self.free(memory) {
                on_loan.push_back(memory);
            }
        }
    }

    /// Takes back a buffer that nobody here uses; gives it back if another thread still does.
    pub(super) fn free(&self, mut memory: Rc<Memory>) -> Option<Rc<Memory>> {
        let (place, ground) = {
            let memory = Rc::get_mut(&mut memory).expect("nobody here uses it");
            (memory.place, memory.ground.as_mut().expect("home buffers stand on something"))
        };
        // The other owners are the loans; this is the acquiring look of the invariants.
        if Arc::get_mut(ground).is_none() {
            return Some(memory);
        }
        match place {
            Place::Arena { page, order } => {
                self.used_bytes.set(self.used_bytes.get() - (PAGE << order));
                let kept = &mut self.kept.borrow_mut()[order as usize];
                if kept.len() < KEPT {
                    kept.push(memory);
                } else {
                    self.buddy.borrow_mut().free(page, order);
                    self.spare.borrow_mut().push(memory);
                }
            }
            Place::Heap { bytes } => self.fallback_bytes.set(self.fallback_bytes.get() - bytes),
            Place::Borrowed => unreachable!("what is borrowed has no home here"),
        }
        None
    }
}
