//! Cutting: divides a task in two, so that one part need not wait for the other.
//!
//! Requests are split at region ends only, and a region is long. Within a region, a sub-request may
//! find some sectors cached and others not, or some free and others locked. It then becomes a task
//! for each such run. Available runs are served at once, and later requests wait only for sectors
//! in use. The sub-request is answered, and ends, with the last of its tasks.

use crate::engine::request::Fault;

/// A sub-request that has become several tasks.
#[derive(Debug)]
struct Cut {
    unanswered: u32,
    unfinished: u32,
    result: Result<(), Fault>,
    hit: bool,
}

/// The sub-requests that have become several tasks, by the number that those tasks store.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    cuts: Vec<Cut>,
    free: Vec<u32>,
}

impl Cuts {
    /// Registers a sub-request whose task has become two, and returns its number.
    pub(crate) fn begin(&mut self) -> u32 {
        let cut = Cut { unanswered: 2, unfinished: 2, result: Ok(()), hit: true };
        match self.free.pop() {
            Some(number) => {
                self.cuts[number as usize] = cut;
                number
            }
            None => {
                self.cuts.push(cut);
                self.cuts.len() as u32 - 1
            }
        }
    }

    /// Notes that one of its tasks has become two.
    pub(crate) fn grow(&mut self, number: u32) {
        let cut = &mut self.cuts[number as usize];
        cut.unanswered += 1;
        cut.unfinished += 1;
    }

    /// Notes a task's answer. Returns, with the last one, the sub-request's result and whether all
    /// was cached.
    #[inline]
    pub(crate) fn answered(
        &mut self,
        number: u32,
        result: Result<(), Fault>,
        hit: bool,
    ) -> Option<(Result<(), Fault>, bool)> {
        let cut = &mut self.cuts[number as usize];
        cut.unanswered -= 1;
        cut.result = cut.result.and(result);
        cut.hit &= hit;
        (cut.unanswered == 0).then_some((cut.result, cut.hit))
    }

    /// Notes the end of a task; returns whether it was the last.
    #[inline]
    pub(crate) fn finished(&mut self, number: u32) -> bool {
        let cut = &mut self.cuts[number as usize];
        cut.unfinished -= 1;
        if cut.unfinished == 0 {
            self.free.push(number);
        }
        cut.unfinished == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_task_answers_with_the_first_failure() {
        let mut cuts = Cuts::default();
        let number = cuts.begin();
        cuts.grow(number);
        assert_eq!(cuts.answered(number, Ok(()), true), None);
        assert_eq!(cuts.answered(number, Err(Fault::Io), true), None);
        assert!(!cuts.finished(number) && !cuts.finished(number));
        assert_eq!(cuts.answered(number, Ok(()), false), Some((Err(Fault::Io), false)));
        assert!(cuts.finished(number));
        assert_eq!(cuts.begin(), number, "the number is free again");
    }
}
