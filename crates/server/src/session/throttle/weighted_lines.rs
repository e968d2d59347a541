//! The lines of one thread for a rate that volumes, or clients of a volume, share by weight.
//!
//! Each volume or client has a number and a line. The first connection in a line has an entry in
//! the queue of all threads, which decides by weight.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::Place;
use crate::rate::{Grant, SharedRate};

/// The lines of one thread for a rate that is shared by weight.
#[derive(Debug, Default)]
pub(super) struct WeightedLines {
    /// The rate, and the number of this thread; `None` without a rate.
    rate: Option<(Arc<SharedRate>, usize)>,
    /// Lines by number. No line is empty.
    lines: BTreeMap<u16, WeightedLine>,
    /// Lines that do not wait any more.
    free: BTreeSet<u16>,
}

#[derive(Debug, Default)]
struct WeightedLine {
    waiting: VecDeque<Place>,
    /// The share of the first in line, between its turn and its start.
    granted: Option<Grant>,
}

impl WeightedLines {
    /// Sets the rate. Connections that wait must wait for this one, or be free to go.
    pub(super) fn set_rate(&mut self, rate: &Arc<SharedRate>, thread: usize) {
        self.rate = Some((Arc::clone(rate), thread));
    }

    /// Returns whether this is the rate, or whether there is none.
    pub(super) fn waits_for(&self, rate: Option<&Arc<SharedRate>>) -> bool {
        match (&self.rate, rate) {
            (Some((own, _)), Some(rate)) => Arc::ptr_eq(own, rate),
            (own, rate) => own.is_none() && rate.is_none(),
        }
    }

    /// Returns whether there is a rate.
    pub(super) fn has_rate(&self) -> bool {
        self.rate.is_some()
    }

    /// Takes the share of a request that may start at once. Otherwise the connection of the request
    /// stands in line.
    pub(super) fn take_or_enter(
        &mut self,
        number: u16,
        bytes: u64,
        place: impl FnOnce() -> Place,
        now: Instant,
    ) -> Option<Grant> {
        let (rate, thread) = self.rate.as_ref().expect("requests wait for a rate");
        if !self.lines.contains_key(&number)
            && let Some(grant) = rate.take_or_enter(*thread, number, bytes, now)
        {
            return Some(grant);
        }
        self.lines.entry(number).or_default().waiting.push_back(place());
        None
    }

    /// Puts a connection in line.
    pub(super) fn enter(&mut self, number: u16, place: Place, now: Instant) {
        let line = self.lines.entry(number).or_default();
        line.waiting.push_back(place);
        if line.waiting.len() == 1 {
            self.line_up_first(number, now);
        }
    }

    /// Has the first connection in line wait for its turn.
    fn line_up_first(&mut self, number: u16, now: Instant) {
        let first = self.lines.get(&number).and_then(|line| line.waiting.front());
        let Some(bytes) = first.map(|place| place.bytes) else {
            self.lines.remove(&number);
            self.free.remove(&number);
            return;
        };
        match &self.rate {
            _ if self.free.contains(&number) => {} // all that wait there go
            Some((rate, thread)) => rate.enter(*thread, number, bytes, now),
            None => drop(self.free.insert(number)),
        }
    }

    /// Lets all in one line go.
    pub(super) fn free(&mut self, number: u16, now: Instant) {
        if self.lines.contains_key(&number)
            && self.free.insert(number)
            && let Some((rate, thread)) = &self.rate
        {
            rate.leave(*thread, number, now);
        }
    }

    /// Lifts the rate on this thread. All that wait go.
    pub(super) fn lift(&mut self, now: Instant) {
        let numbers: Vec<u16> = self.lines.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.free(number, now));
        if let Some((rate, thread)) = self.rate.take() {
            rate.give_up(thread, now);
        }
    }

    /// Lifts the rate on this thread, and removes and returns all that wait.
    pub(super) fn dissolve(&mut self, now: Instant) -> impl Iterator<Item = Place> + use<> {
        self.lift(now);
        self.free.clear();
        std::mem::take(&mut self.lines).into_values().flat_map(|line| line.waiting)
    }

    /// Returns the number of a line whose first connection may start now, and that connection.
    pub(super) fn first_due(&mut self, now: Instant) -> Option<(u16, u32)> {
        let number = match self.free.first() {
            Some(number) => *number,
            None => {
                let (rate, thread) = self.rate.as_ref()?;
                let grant = rate.grant(*thread, now)?;
                let line = self.lines.get_mut(&grant.volume);
                line.expect("it waits for its turn").granted = Some(grant);
                grant.volume
            }
        };
        let first = self.lines.get(&number).and_then(|line| line.waiting.front());
        Some((number, first.expect("it waits for its turn").connection))
    }

    /// Removes a connection. One that starts has the share that is returned; another one gives back
    /// what it has taken.
    pub(super) fn leave(
        &mut self,
        connection: u32,
        number: u16,
        starts: bool,
        now: Instant,
    ) -> (Place, Option<Grant>) {
        let line = self.lines.get_mut(&number).expect("it stands in this line");
        let at = line.waiting.iter().position(|place| place.connection == connection);
        let at = at.expect("it stands in this line");
        let place = line.waiting.remove(at).expect("it was found there");
        if at > 0 {
            return (place, None);
        }
        let grant = line.granted.take();
        match (&self.rate, grant) {
            (Some((rate, _)), Some(grant)) if !starts => rate.give_back(grant),
            (Some((rate, thread)), None) if !self.free.contains(&number) => {
                rate.leave(*thread, number, now);
            }
            _ => {}
        }
        self.line_up_first(number, now);
        (place, grant.filter(|_| starts))
    }

    /// Gives back the share of a request that was to start, and will not.
    pub(super) fn give_back(&self, grant: Grant) {
        self.rate.iter().for_each(|(rate, _)| rate.give_back(grant));
    }

    /// Returns the places of one line.
    pub(super) fn of_line(&mut self, number: u16) -> impl Iterator<Item = &mut Place> {
        self.lines.get_mut(&number).into_iter().flat_map(|line| &mut line.waiting)
    }

    /// Returns whether requests wait for no rate any more, and have not started yet.
    pub(super) fn is_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the time at which [`WeightedLines::first_due`] is to be asked next.
    /// `now` is called only if any connection waits.
    pub(super) fn next_due(&self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        match &self.rate {
            _ if self.is_free() => Some(now()),
            Some((rate, thread)) if !self.lines.is_empty() => rate.next_due(*thread, now()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_name::ClientName;
    use crate::rate::Rates;

    impl WeightedLines {
        /// Returns the numbers of lines and the connections that wait there.
        pub(in crate::session::throttle) fn check(&self) -> Vec<(u16, u32)> {
            let mut all = Vec::new();
            for (number, line) in &self.lines {
                assert!(!line.waiting.is_empty(), "an empty line is kept");
                assert!(line.granted.is_none(), "what is granted starts");
                let waits = self.rate.is_some() || self.free.contains(number);
                assert!(waits, "nothing ends the wait");
                all.extend(line.waiting.iter().map(|place| (*number, place.connection)));
            }
            assert!(self.free.iter().all(|number| self.lines.contains_key(number)));
            all
        }
    }

    fn place(connection: u32) -> Place {
        let client = ClientName::Unknown;
        Place { connection, bytes: 0, client, of_client: None, of_volume: None }
    }

    #[test]
    fn lines_that_are_dissolved_leave_the_rate_to_other_threads() {
        let begun = Instant::now();
        let rates = Rates { requests: Some(1), bytes: None, burst_ns: 1_000_000 };
        let rate = Arc::new(SharedRate::since(rates, begun));
        let mut threads = [WeightedLines::default(), WeightedLines::default()];
        for (thread, lines) in threads.iter_mut().enumerate() {
            lines.set_rate(&rate, thread);
        }
        let [first, second] = &mut threads;
        assert!(first.take_or_enter(1, 0, || place(0), begun).is_some());
        (1..4).for_each(|it| assert!(first.take_or_enter(1, 0, || place(it), begun).is_none()));
        assert!(second.take_or_enter(2, 0, || place(9), begun).is_none());
        let left: Vec<u32> = first.dissolve(begun).map(|place| place.connection).collect();
        assert_eq!(left, [1, 2, 3]);
        assert!(!first.has_rate() && first.next_due(|| begun).is_none());
        let second_later = begun + std::time::Duration::from_secs(1);
        assert_eq!(second.next_due(|| begun), Some(second_later));
        assert_eq!(second.first_due(second_later), Some((2, 9)));
        assert!(second.leave(9, 2, true, second_later).1.is_some());
        assert!(second.check().is_empty() && second.next_due(|| second_later).is_none());
    }
}
