//! Questions to the admission ([`super::admission`]) about the missing blocks of reads and writes.

use floe_policy::Direction;

use super::admission::Asked;
use super::parts::Parts;
use crate::engine::locks::TaskId;
use crate::engine::{Offer, common, units};
use crate::geometry::Sectors;

impl Parts {
    /// Asks the admission whether a task's smallest block at a sector is to be inserted.
    pub(super) fn ask(&mut self, id: TaskId, start: u64, direction: Direction) -> bool {
        let task = &self.tasks[id];
        let in_a_row = task.in_a_row(start, self.config.sizes.smallest());
        let asked = Asked { volume: task.volume, start, direction, in_a_row };
        self.admission.admits(asked, &mut self.map.directory, &mut self.counters)
    }

    /// Ends the admission's window of counts when it has enough lookups.
    pub(super) fn close_window_in_time(&mut self) {
        self.admission.close_window_in_time(&self.map.directory, &mut self.fetches);
    }

    /// Decides which of a read's missing runs are admitted, and moves them into `offered`.
    pub(super) fn offer_fetches(
        &mut self,
        id: TaskId,
        fetches: &mut Vec<Sectors>,
        offered: &mut Vec<(Sectors, bool)>,
    ) {
        let task = &self.tasks[id];
        let (volume, range) = (task.volume, task.range.clone());
        let may_come_in = self.mode().caches_reads();
        let known = match task.offer {
            Offer::Admitted => Some(may_come_in),
            Offer::Bypassed => Some(false),
            Offer::NotMade => (!self.admission.asks()).then_some(may_come_in),
        };
        if let Some(admitted) = known {
            return offered.extend(fetches.drain(..).map(|run| (run, admitted)));
        }
        self.admission.request();
        let mut last = None;
        for fetch in fetches.drain(..) {
            let mut before: Option<bool> = None;
            for (start, part) in units(&fetch, self.config.sizes.smallest()) {
                let admitted = match last {
                    Some((asked, admitted)) if asked == start => admitted, // of another part of it
                    _ => {
                        self.admission.look_up(
                            volume,
                            start,
                            &common(&part, &range),
                            false,
                            Direction::Read,
                        );
                        may_come_in && self.ask(id, start, Direction::Read)
                    }
                };
                last = Some((start, admitted));
                match offered.last_mut() {
                    Some((run, _)) if before == Some(admitted) => run.end = part.end,
                    _ => offered.push((part, admitted)),
                }
                before = Some(admitted);
            }
        }
        self.close_window_in_time();
    }

    /// Counts a read whose whole range is cached.
    pub(super) fn note_read_hit(&mut self, id: TaskId) {
        let task = &mut self.tasks[id];
        if !self.admission.asks() || task.offer != Offer::NotMade {
            return; // it was looked up before it had to wait
        }
        task.offer = Offer::Admitted;
        let (volume, range) = (task.volume, task.range.clone());
        self.admission.request();
        for (start, part) in units(&range, self.config.sizes.smallest()) {
            self.admission.look_up(volume, start, &part, true, Direction::Read);
        }
        self.close_window_in_time();
    }

    /// Decides which blocks a write may make, just before its data goes to the cache.
    pub(super) fn offer_write(&mut self, id: TaskId) {
        if !self.admission.asks() {
            return;
        }
        self.admission.request();
        let survey = self.survey(id);
        let task = &mut self.tasks[id];
        let (volume, range) = (task.volume, task.range.clone());
        let mut bypassed = std::mem::take(&mut task.store.bypassed);
        for (start, part) in units(&range, self.config.sizes.smallest()) {
            let missing = survey.missing.iter().any(|run| run.contains(&start));
            self.admission.look_up(volume, start, &part, !missing, Direction::Write);
            if missing && !self.ask(id, start, Direction::Write) {
                match bypassed.last_mut() {
                    Some(run) if run.end == part.start => run.end = part.end,
                    _ => bypassed.push(part),
                }
            }
        }
        self.tasks[id].store.bypassed = bypassed;
        self.map.reuse(survey);
        self.close_window_in_time();
    }
}
