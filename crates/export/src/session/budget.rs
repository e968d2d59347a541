//! Memory that sessions share, given out in turn.
//!
//! A session takes from the budget before a request gets a buffer, and gives back when the reply has left. When there is
//! not enough it stands in line, and nobody who comes later is served before it; so a session that wants much is not
//! passed over for ever by those who want little.
//!
//! Invariants: `used` is the sum of what was taken and not given back; it exceeds the limit only by a request that alone
//! is larger. A session stands in line once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// See the module.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    used: Cell<usize>,
    /// Sessions in line, and what each wants.
    line: RefCell<VecDeque<(u32, usize)>>,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: Cell::new(0), line: RefCell::default() }
    }

    /// Takes `bytes` for a session, or puts it in line for them: [`Budget::next_in_turn`] names it when they are taken.
    pub(crate) fn take(&self, session: u32, bytes: usize) -> bool {
        if bytes == 0 || (!self.is_waited_for() && self.fits(bytes)) {
            self.used.set(self.used.get() + bytes);
            return true;
        }
        self.line.borrow_mut().push_back((session, bytes));
        false
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.used.set(self.used.get() - bytes);
    }

    /// The session whose turn has come; what it wanted is taken.
    pub(crate) fn next_in_turn(&self) -> Option<u32> {
        let (session, bytes) = *self.line.borrow().front()?;
        if !self.fits(bytes) {
            return None;
        }
        self.line.borrow_mut().pop_front();
        self.used.set(self.used.get() + bytes);
        Some(session)
    }

    /// Takes a session out of the line.
    pub(crate) fn leave(&self, session: u32) {
        self.line.borrow_mut().retain(|(waiting, _)| *waiting != session);
    }

    /// Whether anybody stands in line.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.line.borrow().is_empty()
    }

    fn fits(&self, bytes: usize) -> bool {
        let used = self.used.get();
        used == 0 || used + bytes <= self.limit
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_later_is_not_served_before_who_waits() {
        let budget = Budget::new(100);
        assert!(budget.take(1, 60));
        assert!(!budget.take(2, 50));
        assert!(!budget.take(3, 10), "it would fit, but not before 2");
        assert_eq!(budget.next_in_turn(), None);
        budget.give_back(60);
        assert_eq!((budget.next_in_turn(), budget.next_in_turn()), (Some(2), Some(3)));
        assert_eq!((budget.used(), budget.is_waited_for()), (60, false));
    }

    #[test]
    fn a_request_larger_than_the_budget_is_served_alone() {
        let budget = Budget::new(100);
        assert!(budget.take(1, 10));
        assert!(!budget.take(2, 1000));
        budget.give_back(10);
        assert_eq!(budget.next_in_turn(), Some(2));
        assert!(!budget.take(1, 1));
    }

    #[test]
    fn who_leaves_the_line_is_not_called() {
        let budget = Budget::new(100);
        assert!(budget.take(1, 100) && !budget.take(2, 1) && !budget.take(3, 1));
        budget.leave(2);
        budget.give_back(100);
        assert_eq!((budget.next_in_turn(), budget.next_in_turn()), (Some(3), None));
    }
}
