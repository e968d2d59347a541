//! The lines of clients whose requests wait for the limits of their volumes, one for each volume.
//!
//! A client stands in a volume's line once, for the first of its requests that wait. Clients take
//! turns, so a line is never longer than there are clients, whatever they send. The first in line
//! has taken its share of the volume's bucket already, and waits for its start. So workers that
//! share a bucket take turns, too. A thread that is late starts that request late, in addition to
//! what the bucket has gathered meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use floe_block::VolumeId;

use crate::volume_limit::VolumeLimit;

/// The volumes' limits and lines on one thread.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Lines by number of the volume; `None` for volumes that never had a limit.
    lines: RefCell<Vec<Option<Line>>>,
    /// Number of places taken in all lines.
    waiting: Cell<usize>,
}

#[derive(Debug)]
struct Line {
    /// `None` once the limit is lifted.
    limit: Option<Arc<VolumeLimit>>,
    /// Time at which the first in line may start.
    start: Instant,
    waiting: VecDeque<Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    client: u32,
    bytes: u64,
}

impl Line {
    /// Takes the share of the client that is first in line now.
    fn reserve(&mut self, now: Instant) {
        if let Some(first) = self.waiting.front() {
            self.start = self.limit.as_ref().map_or(now, |limit| limit.take(first.bytes, now));
        }
    }

    /// Removes a client. If it is the first, it gives back the share that it has taken.
    fn leave(&mut self, client: u32, now: Instant) {
        let first = self.waiting.front().filter(|place| place.client == client).copied();
        self.waiting.retain(|place| place.client != client);
        if let Some(first) = first {
            self.limit.iter().for_each(|limit| limit.give_back(first.bytes));
            self.reserve(now);
        }
    }
}

impl Throttle {
    /// Sets or lifts the limit of a volume. The first in line asks for its start again.
    pub(crate) fn set(&self, volume: VolumeId, limit: Option<Arc<VolumeLimit>>, now: Instant) {
        let limit = limit.filter(|limit| limit.limit().has_rate());
        let (mut lines, at) = (self.lines.borrow_mut(), usize::from(volume.0));
        if lines.len() <= at && limit.is_some() {
            lines.resize_with(at + 1, || None);
        }
        match lines.get_mut(at) {
            Some(Some(line)) => {
                line.limit = limit;
                line.reserve(now);
            }
            Some(line) if limit.is_some() => {
                *line = Some(Line { limit, start: now, waiting: VecDeque::new() });
            }
            _ => {}
        }
    }

    /// Lifts all limits of this thread, because the server ends.
    pub(crate) fn lift(&self, now: Instant) {
        for line in self.lines.borrow_mut().iter_mut().flatten() {
            line.limit = None;
            line.reserve(now);
        }
    }

    /// Returns whether a request of so many bytes may start now. If not, the client stands in line.
    pub(crate) fn take(&self, client: u32, volume: VolumeId, bytes: u64, now: Instant) -> bool {
        let mut lines = self.lines.borrow_mut();
        let Some(Some(line)) = lines.get_mut(usize::from(volume.0)) else { return true };
        if line.waiting.is_empty() {
            let Some(limit) = &line.limit else { return true };
            line.start = limit.take(bytes, now);
            if line.start <= now {
                return true;
            }
        }
        line.waiting.push_back(Place { client, bytes });
        self.waiting.set(self.waiting.get() + 1);
        false
    }

    /// Puts a client in line for its next request.
    pub(crate) fn wait(&self, client: u32, volume: VolumeId, bytes: u64, now: Instant) {
        let mut lines = self.lines.borrow_mut();
        let line = lines[usize::from(volume.0)].as_mut().expect("it has waited there before");
        line.waiting.push_back(Place { client, bytes });
        self.waiting.set(self.waiting.get() + 1);
        if line.waiting.len() == 1 {
            line.reserve(now);
        }
    }

    /// Returns the client that [`Throttle::next_in_turn`] removes next.
    pub(crate) fn first_due(&self, now: Instant) -> Option<(u32, VolumeId)> {
        if self.waiting.get() == 0 {
            return None;
        }
        let lines = self.lines.borrow();
        lines.iter().enumerate().find_map(|(volume, line)| {
            let line = line.as_ref().filter(|line| line.start <= now)?;
            Some((line.waiting.front()?.client, VolumeId(volume as u16)))
        })
    }

    /// Removes and returns a client that may start its request to this volume now.
    pub(crate) fn next_in_turn(&self, now: Instant) -> Option<(u32, VolumeId)> {
        let (client, volume) = self.first_due(now)?;
        let mut lines = self.lines.borrow_mut();
        let line = lines[usize::from(volume.0)].as_mut()?;
        line.waiting.pop_front();
        line.reserve(now);
        self.waiting.set(self.waiting.get() - 1);
        Some((client, volume))
    }

    /// Removes a client from the line of a volume.
    pub(crate) fn leave_line(&self, client: u32, volume: VolumeId, now: Instant) {
        let mut lines = self.lines.borrow_mut();
        let Some(Some(line)) = lines.get_mut(usize::from(volume.0)) else { return };
        let before = line.waiting.len();
        line.leave(client, now);
        self.waiting.set(self.waiting.get() + line.waiting.len() - before);
    }

    /// Removes a client from all lines.
    pub(crate) fn leave(&self, client: u32, now: Instant) {
        if self.waiting.get() == 0 {
            return;
        }
        let mut lines = self.lines.borrow_mut();
        let left = lines.iter_mut().flatten().map(|line| {
            line.leave(client, now);
            line.waiting.len()
        });
        self.waiting.set(left.sum());
    }

    /// Returns whether any client stands in line.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.get() > 0
    }

    /// Returns the time at which the next client may start.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if self.waiting.get() == 0 {
            return None;
        }
        let lines = self.lines.borrow();
        let waiting = lines.iter().flatten().filter(|line| !line.waiting.is_empty());
        waiting.map(|line| line.start).min()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use floe_testkit::Random;

    use super::*;
    use crate::volume_limit::RequestLimit;

    fn limit(requests: u64) -> Arc<VolumeLimit> {
        let requests_per_second = Some(requests);
        let limit = RequestLimit { requests_per_second, limit_burst_ms: 1, ..RequestLimit::NONE };
        Arc::new(VolumeLimit::new(limit))
    }

    #[test]
    fn threads_and_clients_take_turns_and_other_volumes_go_on() {
        let (shared, begun) = (limit(10), Instant::now());
        let threads = [Throttle::default(), Throttle::default()];
        let volume = VolumeId(3);
        threads.iter().for_each(|it| it.set(volume, Some(Arc::clone(&shared)), begun));
        assert!(threads[0].take(7, volume, 0, begun));
        for client in 0..3 {
            assert!(threads.iter().all(|it| !it.take(client, volume, 0, begun)));
            assert!(threads[0].take(client, VolumeId(0), 0, begun), "no limit there");
        }
        // Client 1 of the first thread goes, and client 0 waits again after each turn.
        threads[0].leave(1, begun);
        let (mut order, mut now) = ([Vec::new(), Vec::new()], begun);
        while let Some(due) = threads.iter().filter_map(Throttle::next_due).min() {
            now = due.max(now);
            for (throttle, order) in threads.iter().zip(&mut order) {
                while let Some((client, of)) = throttle.next_in_turn(now) {
                    assert_eq!(of, volume);
                    order.push(client);
                    if client == 0 && order.len() < 4 {
                        throttle.wait(0, volume, 0, now);
                    }
                }
            }
        }
        assert_eq!(order, [vec![0, 2, 0, 0], vec![0, 1, 2, 0]]);
        let time = now - begun;
        assert!(
            time >= Duration::from_millis(799) && time <= Duration::from_millis(801),
            "{time:?}"
        );
    }

    #[test]
    fn a_client_that_leaves_and_comes_back_delays_nobody() {
        let (throttle, limit, begun) = (Throttle::default(), limit(1), Instant::now());
        throttle.set(VolumeId(0), Some(limit), begun);
        assert!(throttle.take(0, VolumeId(0), 0, begun));
        let second = Duration::from_secs(1);
        for tries in 0..100 {
            let now = begun + tries * second / 100;
            assert!(!throttle.take(1, VolumeId(0), 0, now));
            assert!(throttle.next_due() <= Some(begun + second), "{tries}");
            throttle.leave(1, now);
        }
        // Nor does one that has left when its turn came.
        assert!(
            !throttle.take(1, VolumeId(0), 0, begun) && !throttle.take(2, VolumeId(0), 0, begun)
        );
        assert_eq!(throttle.first_due(begun + second), Some((1, VolumeId(0))));
        throttle.leave(1, begun + second);
        assert_eq!(throttle.next_in_turn(begun + second), Some((2, VolumeId(0))));
        assert!(!throttle.is_waited_for());
    }

    #[test]
    fn a_lifted_limit_lets_all_go() {
        let (throttle, begun) = (Throttle::default(), Instant::now());
        throttle.set(VolumeId(0), Some(limit(1)), begun);
        assert!(throttle.take(0, VolumeId(0), 0, begun));
        (1..100).for_each(|client| assert!(!throttle.take(client, VolumeId(0), 0, begun)));
        assert!(throttle.next_in_turn(begun).is_none());
        throttle.set(VolumeId(0), None, begun);
        let gone: Vec<u32> =
            std::iter::from_fn(|| throttle.next_in_turn(begun)).map(|(client, _)| client).collect();
        assert_eq!(gone, (1..100).collect::<Vec<_>>());
        assert!(throttle.take(0, VolumeId(0), 0, begun) && throttle.next_due().is_none());
    }

    /// Requests that wait, by client and volume, and the starts of a volume since its last change.
    #[derive(Default)]
    struct Model {
        waiting: BTreeMap<(u32, u16), u64>,
        starts: BTreeMap<u16, Vec<Instant>>,
    }

    impl Model {
        fn started(&mut self, volume: u16, now: Instant, rate: Option<u64>) {
            let starts = self.starts.entry(volume).or_default();
            starts.push(now);
            let Some(rate) = rate else { return };
            for (count, first) in starts.iter().rev().enumerate() {
                // The burst, and one of each thread that is late to look.
                let allowed = 3.0 + (now - *first).as_secs_f64() * rate as f64;
                assert!(count as f64 <= allowed, "{count} in {:?}", now - *first);
            }
        }
    }

    #[test]
    fn each_request_starts_once_within_the_limit_whatever_happens() {
        const VOLUMES: usize = 3;
        for seed in 0..200 {
            let (mut random, mut now) = (Random(seed), Instant::now());
            let throttles = [Throttle::default(), Throttle::default()];
            let mut rates = [None; VOLUMES];
            let mut models = [Model::default(), Model::default()];
            let mut starts = Model::default();
            let go_on =
                |at: usize, models: &mut [Model; 2], starts: &mut Model, rates: &[_], now| {
                    while let Some((client, volume)) = throttles[at].next_in_turn(now) {
                        let left =
                            models[at].waiting.get_mut(&(client, volume.0)).expect("it waits");
                        *left -= 1;
                        match *left {
                            0 => drop(models[at].waiting.remove(&(client, volume.0))),
                            _ => throttles[at].wait(client, volume, 0, now),
                        }
                        starts.started(volume.0, now, rates[usize::from(volume.0)]);
                    }
                };
            for _ in 0..400 {
                let (at, client) = (random.below(2), random.below(5) as u32);
                let volume = random.below(VOLUMES);
                let id = VolumeId(volume as u16);
                match random.below(12) {
                    0 => {
                        rates[volume] = [None, Some(1), Some(100)][random.below(3)];
                        let limit = rates[volume].map(limit);
                        throttles.iter().for_each(|it| it.set(id, limit.clone(), now));
                        starts.starts.remove(&id.0);
                    }
                    1 => {
                        throttles[at].leave(client, now);
                        models[at].waiting.retain(|(of, _), _| *of != client);
                    }
                    2..5 => {
                        now += Duration::from_millis(random.below(40) as u64);
                        let due = throttles[at].next_due();
                        now = due.filter(|_| random.below(2) == 0).map_or(now, |due| due.max(now));
                        go_on(at, &mut models, &mut starts, &rates, now);
                    }
                    _ => match models[at].waiting.get_mut(&(client, id.0)) {
                        Some(waiting) => *waiting += 1,
                        None if throttles[at].take(client, id, 0, now) => {
                            starts.started(id.0, now, rates[volume]);
                        }
                        None => drop(models[at].waiting.insert((client, id.0), 1)),
                    },
                }
                for (throttle, model) in throttles.iter().zip(&models) {
                    assert_eq!(throttle.is_waited_for(), !model.waiting.is_empty(), "seed {seed}");
                    assert_eq!(throttle.next_due().is_some(), !model.waiting.is_empty());
                    assert_eq!(throttle.waiting.get(), model.waiting.len());
                }
            }
            // In the end, all start by themselves.
            for at in [0, 1] {
                while let Some(due) = throttles[at].next_due() {
                    now = due.max(now);
                    go_on(at, &mut models, &mut starts, &rates, now);
                }
                assert!(models[at].waiting.is_empty(), "seed {seed}");
            }
        }
    }
}
