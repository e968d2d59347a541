//! The lines of one thread for a rate that volumes, or clients of a volume, share by weight.
//!
//! Each client of a volume has a flow and a line. The first connection in a line has an entry in
//! the queue of all threads, which decides by weight.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use super::Place;
use crate::rate::{Flow, Grant, SharedRate};

/// The lines of one thread for a rate that is shared by weight.
#[derive(Debug, Default)]
pub(super) struct WeightedLines {
    /// The rate, and the number of this thread; `None` without a rate.
    rate: Option<(Arc<SharedRate>, usize)>,
    /// Lines by flow. No line is empty.
    lines: BTreeMap<Flow, WeightedLine>,
    /// Lines that do not wait any more.
    free: BTreeSet<Flow>,
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
        flow: Flow,
        bytes: u64,
        place: impl FnOnce() -> Place,
        now: Instant,
    ) -> Option<Grant> {
        let (rate, thread) = self.rate.as_ref().expect("requests wait for a rate");
        if !self.lines.contains_key(&flow)
            && let Some(grant) = rate.take_or_enter(*thread, flow, bytes, now)
        {
            return Some(grant);
        }
        self.lines.entry(flow).or_default().waiting.push_back(place());
        None
    }

    /// Puts a connection in line.
    pub(super) fn enter(&mut self, flow: Flow, place: Place, now: Instant) {
        let line = self.lines.entry(flow).or_default();
        line.waiting.push_back(place);
        if line.waiting.len() == 1 {
            self.line_up_first(flow, now);
        }
    }

    /// Has the first connection in line wait for its turn.
    fn line_up_first(&mut self, flow: Flow, now: Instant) {
        let first = self.lines.get(&flow).and_then(|line| line.waiting.front());
        let Some(bytes) = first.map(|place| place.bytes) else {
            self.lines.remove(&flow);
            self.free.remove(&flow);
            return;
        };
        match &self.rate {
            _ if self.free.contains(&flow) => {} // all that wait there go
            Some((rate, thread)) => rate.enter(*thread, flow, bytes, now),
            None => drop(self.free.insert(flow)),
        }
    }

    /// Lets all that wait with a volume go.
    pub(super) fn free(&mut self, volume: u16, now: Instant) {
        for (flow, _) in self.lines.range(flows_of(volume)) {
            if self.free.insert(*flow)
                && let Some((rate, thread)) = &self.rate
            {
                rate.leave(*thread, *flow, now);
            }
        }
    }

    /// Lifts the rate on this thread. All that wait go.
    pub(super) fn lift(&mut self, now: Instant) {
        let volumes: BTreeSet<u16> = self.lines.keys().map(|flow| flow.volume).collect();
        volumes.into_iter().for_each(|volume| self.free(volume, now));
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

    /// Returns the flow of a line whose first connection may start now, and that connection.
    pub(super) fn first_due(&mut self, now: Instant) -> Option<(Flow, u32)> {
        let flow = match self.free.first() {
            Some(flow) => *flow,
            None => {
                let (rate, thread) = self.rate.as_ref()?;
                let grant = rate.grant(*thread, now)?;
                let line = self.lines.get_mut(&grant.flow);
                line.expect("it waits for its turn").granted = Some(grant);
                grant.flow
            }
        };
        let first = self.lines.get(&flow).and_then(|line| line.waiting.front());
        Some((flow, first.expect("it waits for its turn").connection))
    }

    /// Removes a connection. One that starts has the share that is returned; another one gives back
    /// what it has taken.
    pub(super) fn leave(
        &mut self,
        connection: u32,
        flow: Flow,
        starts: bool,
        now: Instant,
    ) -> (Place, Option<Grant>) {
        let line = self.lines.get_mut(&flow).expect("it stands in this line");
        let at = line.waiting.iter().position(|place| place.connection == connection);
        let at = at.expect("it stands in this line");
        let place = line.waiting.remove(at).expect("it was found there");
        if at > 0 {
            return (place, None);
        }
        let grant = line.granted.take();
        match (&self.rate, grant) {
            (Some((rate, _)), Some(grant)) if !starts => rate.give_back(grant, now),
            (Some((rate, thread)), None) if !self.free.contains(&flow) => {
                rate.leave(*thread, flow, now);
            }
            _ => {}
        }
        self.line_up_first(flow, now);
        (place, grant.filter(|_| starts))
    }

    /// Gives back the share of a request that was to start, and will not.
    pub(super) fn give_back(&self, grant: Grant, now: Instant) {
        self.rate.iter().for_each(|(rate, _)| rate.give_back(grant, now));
    }

    /// Removes and returns all that wait with a volume.
    pub(super) fn dissolve_volume(&mut self, volume: u16, now: Instant) -> Vec<Place> {
        self.free(volume, now);
        let gone: Vec<Flow> = self.lines.range(flows_of(volume)).map(|(flow, _)| *flow).collect();
        self.free.retain(|flow| flow.volume != volume);
        gone.iter().filter_map(|flow| self.lines.remove(flow)).flat_map(|it| it.waiting).collect()
    }

    /// Returns the places of all that wait with a volume.
    pub(super) fn of_volume(&mut self, volume: u16) -> impl Iterator<Item = &mut Place> {
        self.lines.range_mut(flows_of(volume)).flat_map(|(_, line)| &mut line.waiting)
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

/// Returns the first and the last flow of a volume.
fn flows_of(volume: u16) -> RangeInclusive<Flow> {
    Flow { volume, client: 0 }..=Flow { volume, client: u16::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_name::ClientName;
    use crate::rate::Rates;

    impl WeightedLines {
        /// Returns the flows of lines and the connections that wait there.
        pub(in crate::session::throttle) fn check(&self) -> Vec<(Flow, u32)> {
            let mut all = Vec::new();
            for (flow, line) in &self.lines {
                assert!(!line.waiting.is_empty(), "an empty line is kept");
                assert!(line.granted.is_none(), "what is granted starts");
                let waits = self.rate.is_some() || self.free.contains(flow);
                assert!(waits, "nothing ends the wait");
                all.extend(line.waiting.iter().map(|place| (*flow, place.connection)));
            }
            assert!(self.free.iter().all(|flow| self.lines.contains_key(flow)));
            all
        }
    }

    fn place(connection: u32) -> Place {
        let client = ClientName::Unknown;
        Place { connection, bytes: 0, client, of_client: None, of_volume: None }
    }

    #[test]
    fn lines_that_are_dissolved_leave_the_rate_to_other_threads() {
        let (begun, flow) = (Instant::now(), |volume| Flow { volume, client: 0 });
        let rates = Rates { requests: Some(1), bytes: None, burst_ns: 1_000_000 };
        let rate = Arc::new(SharedRate::since(rates, begun));
        let mut threads = [WeightedLines::default(), WeightedLines::default()];
        for (thread, lines) in threads.iter_mut().enumerate() {
            lines.set_rate(&rate, thread);
        }
        let [first, second] = &mut threads;
        assert!(first.take_or_enter(flow(1), 0, || place(0), begun).is_some());
        (1..4)
            .for_each(|it| assert!(first.take_or_enter(flow(1), 0, || place(it), begun).is_none()));
        assert!(second.take_or_enter(flow(2), 0, || place(9), begun).is_none());
        let left: Vec<u32> = first.dissolve(begun).map(|place| place.connection).collect();
        assert_eq!(left, [1, 2, 3]);
        assert!(!first.has_rate() && first.next_due(|| begun).is_none());
        let second_later = begun + std::time::Duration::from_secs(1);
        assert_eq!(second.next_due(|| begun), Some(second_later));
        assert_eq!(second.first_due(second_later), Some((flow(2), 9)));
        assert!(second.leave(9, flow(2), true, second_later).1.is_some());
        assert!(second.check().is_empty() && second.next_due(|| second_later).is_none());
    }
}
