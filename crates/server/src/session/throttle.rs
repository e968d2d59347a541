//! The lines of connections whose requests wait for the limits of their volumes.
//!
//! A connection stands in one of a volume's lines, for the first of its requests that wait: first
//! in the line of its client, if each client has a limit, then in that of the volume. Connections
//! take turns, so the lines are never longer than there are connections, whatever clients send. The
//! first in a line has taken its share of the line's bucket already, and waits for its start. So
//! workers that share a bucket take turns, too. A thread that is late starts that request late, in
//! addition to what the bucket has gathered meanwhile. A connection that waits for the limit of its
//! client has taken nothing of the volume's.
//!
//! All lines are ordered by the start of their first connection. So a turn costs as much as the
//! lines that are due, however many wait.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use floe_block::VolumeId;

use crate::volume_limit::{ClientName, RequestLimit, Scope, Share, VolumeLimit};

/// The volumes' limits and lines on one thread.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    state: RefCell<Lines>,
}

/// The lines of all volumes.
#[derive(Debug, Default)]
struct Lines {
    /// Lines by number of the volume; `None` for volumes that never had a limit.
    volumes: Vec<Option<VolumeLines>>,
    /// The line in which a connection stands for a volume.
    places: BTreeMap<(u32, u16), Option<ClientName>>,
    /// All lines that are not empty, ordered by the start of the first connection in each.
    dues: BTreeSet<(Instant, LineName)>,
}

/// The number of a volume, and the client whose line it is; `None` for the line of the volume.
type LineName = (u16, Option<ClientName>);

/// The limit and the lines of one volume.
#[derive(Debug, Default)]
struct VolumeLines {
    /// `None` once the limit is lifted.
    limit: Option<Arc<VolumeLimit>>,
    /// True if the volume has a limit of its own.
    has_volume_rate: bool,
    /// True if each client has a limit.
    has_client_rate: bool,
    /// Connections that wait for the limit of the volume.
    volume: Line,
    /// Connections that wait for the limit of their client. No line is empty.
    clients: BTreeMap<ClientName, Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// Time at which the first in line may start; `None` if the line is empty.
    start: Option<Instant>,
    /// The share that the first in line has taken; `None` without a limit.
    share: Option<Share>,
    waiting: VecDeque<Place>,
}

#[derive(Debug)]
struct Place {
    connection: u32,
    bytes: u64,
    /// The share of its client's limit that a connection in the line of the volume has taken.
    of_client: Option<(ClientName, Share)>,
}

/// The bucket of a line; without a limit there is none.
#[derive(Debug, Clone, Copy)]
struct Source<'a> {
    limit: Option<&'a VolumeLimit>,
    scope: Scope<'a>,
}

impl Source<'_> {
    /// Returns whether a share was taken from this bucket, by the rates that it has now.
    fn has(&self, share: Option<Share>) -> bool {
        match (self.limit, share) {
            (Some(limit), Some(share)) => limit.is_current(self.scope, share),
            (limit, share) => limit.is_none() && share.is_none(),
        }
    }
}

impl Line {
    /// Takes the share of the connection that is first in line now.
    fn reserve(&mut self, source: Source<'_>, now: Instant) {
        let first = self.waiting.front();
        self.share = first
            .zip(source.limit)
            .map(|(place, limit)| limit.reserve(source.scope, place.bytes, now));
        self.start = first.map(|_| self.share.map_or(now, |share| share.start));
    }

    /// Puts a connection in line. `share` is what it has taken of the line's bucket; the first in
    /// line takes one otherwise.
    fn push(&mut self, place: Place, share: Option<Share>, source: Source<'_>, now: Instant) {
        self.waiting.push_back(place);
        if self.waiting.len() > 1 {
            debug_assert!(share.is_none(), "only the first in line has a share");
        } else if let Some(share) = share {
            (self.start, self.share) = (Some(share.start), Some(share));
        } else {
            self.reserve(source, now);
        }
    }

    /// Removes the first in line, whose request starts. Returns it and the share that it has taken.
    fn pop(&mut self, source: Source<'_>, now: Instant) -> (Place, Option<Share>) {
        let first = self.waiting.pop_front().expect("only lines with a connection are due");
        let share = self.share;
        self.reserve(source, now);
        (first, share)
    }

    /// Removes a connection. If it is the first, it gives back the share that it has taken.
    fn leave(&mut self, connection: u32, source: Source<'_>, now: Instant) -> Place {
        let at = self.waiting.iter().position(|place| place.connection == connection);
        let place = at.and_then(|at| self.waiting.remove(at)).expect("it stands in this line");
        if at == Some(0) {
            if let Some((limit, share)) = source.limit.zip(self.share) {
                limit.give_back(source.scope, place.bytes, share);
            }
            self.reserve(source, now);
        }
        place
    }
}

impl VolumeLines {
    /// Sets or lifts the limit. Returns whether it is another one, not only changed.
    fn adopt(&mut self, limit: Option<Arc<VolumeLimit>>) -> bool {
        let has =
            |rate: fn(&RequestLimit) -> bool| limit.as_ref().is_some_and(|it| rate(&it.limit()));
        self.has_volume_rate = has(RequestLimit::has_volume_rate);
        self.has_client_rate = has(RequestLimit::has_client_rate);
        let is_same = match (&self.limit, &limit) {
            (Some(before), Some(limit)) => Arc::ptr_eq(before, limit),
            (before, limit) => before.is_none() && limit.is_none(),
        };
        self.limit = limit;
        !is_same
    }

    /// Returns the line of a client or of the volume, and its bucket.
    fn line<'a>(&'a mut self, client: Option<&'a ClientName>) -> (&'a mut Line, Source<'a>) {
        let limit = self.limit.as_deref();
        match client {
            None => {
                let limit = limit.filter(|_| self.has_volume_rate);
                (&mut self.volume, Source { limit, scope: Scope::Volume })
            }
            Some(client) => {
                let limit = limit.filter(|_| self.has_client_rate);
                let line = self.clients.entry(Arc::clone(client)).or_default();
                (line, Source { limit, scope: Scope::Client(client) })
            }
        }
    }
}

impl Lines {
    fn lines(&mut self, volume: VolumeId) -> Option<&mut VolumeLines> {
        self.volumes.get_mut(usize::from(volume.0))?.as_mut()
    }

    /// Changes a line, which may be empty before and after.
    fn change_line<R>(
        &mut self,
        name: &LineName,
        change: impl FnOnce(&mut Line, Source<'_>) -> R,
    ) -> R {
        let (volume, client) = name;
        let lines = self.volumes[usize::from(*volume)].as_mut().expect("it has lines");
        let (line, source) = lines.line(client.as_ref());
        let before = line.start;
        let result = change(line, source);
        let after = line.start;
        debug_assert_eq!(after.is_none(), line.waiting.is_empty());
        if before != after {
            before.into_iter().for_each(|before| {
                self.dues.remove(&(before, name.clone()));
            });
            after.into_iter().for_each(|after| {
                self.dues.insert((after, name.clone()));
            });
        }
        if let Some(client) = client.as_ref().filter(|_| after.is_none()) {
            lines.clients.remove(client);
        }
        result
    }

    /// Puts a connection in a line. `share` is what it has taken of that line's bucket.
    fn enter(&mut self, name: LineName, place: Place, share: Option<Share>, now: Instant) {
        let connection = place.connection;
        self.change_line(&name, |line, source| line.push(place, share, source, now));
        self.places.insert((connection, name.0), name.1);
    }

    /// Sets or lifts the limit of a volume. The first in a line asks for its start again, unless
    /// the rates of that line are as before.
    fn set(&mut self, volume: VolumeId, limit: Option<Arc<VolumeLimit>>, now: Instant) {
        let Some(lines) = self.lines(volume) else { return };
        let is_another = lines.adopt(limit);
        if is_another {
            lines.volume.waiting.iter_mut().for_each(|place| place.of_client = None);
        }
        let clients: Vec<ClientName> = lines.clients.keys().cloned().collect();
        for client in [None].into_iter().chain(clients.into_iter().map(Some)) {
            self.change_line(&(volume.0, client), |line, source| {
                if is_another || !source.has(line.share) {
                    line.reserve(source, now);
                }
            });
        }
    }

    /// Moves a connection for which the limit of its client has come into the volume's line.
    fn promote(&mut self, name: &LineName, now: Instant) {
        let (mut place, share) = self.change_line(name, |line, source| line.pop(source, now));
        place.of_client = name.1.clone().zip(share);
        self.enter((name.0, None), place, None, now);
    }

    fn leave(&mut self, connection: u32, volume: u16, now: Instant) {
        let Some(client) = self.places.remove(&(connection, volume)) else { return };
        let place =
            self.change_line(&(volume, client), |line, source| line.leave(connection, source, now));
        let limit = self.lines(VolumeId(volume)).and_then(|lines| lines.limit.as_ref());
        if let Some((limit, (client, share))) = limit.zip(place.of_client) {
            limit.give_back(Scope::Client(&client), place.bytes, share);
        }
    }
}

impl Throttle {
    /// Sets or lifts the limit of a volume. The first in line asks for its start again.
    pub(crate) fn set(&self, volume: VolumeId, limit: Option<Arc<VolumeLimit>>, now: Instant) {
        let limit = limit.filter(|limit| limit.limit().has_rate());
        let (mut state, at) = (self.state.borrow_mut(), usize::from(volume.0));
        if limit.is_some() {
            if state.volumes.len() <= at {
                state.volumes.resize_with(at + 1, || None);
            }
            state.volumes[at].get_or_insert_default();
        }
        state.set(volume, limit, now);
    }

    /// Lifts all limits of this thread, because the server ends.
    pub(crate) fn lift(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        (0..state.volumes.len()).for_each(|volume| state.set(VolumeId(volume as u16), None, now));
    }

    /// Returns whether a request of so many bytes may start now. If not, the connection stands in
    /// line. `client` returns the name of its client, and is called only if that has a limit.
    pub(crate) fn take<'a>(
        &self,
        connection: u32,
        client: impl FnOnce() -> &'a ClientName,
        volume: VolumeId,
        bytes: u64,
        now: Instant,
    ) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(lines) = state.lines(volume) else { return true };
        let place = |of_client| Place { connection, bytes, of_client };
        let mut of_client = None;
        if lines.has_client_rate || !lines.clients.is_empty() {
            let client = client();
            let waits = lines.clients.contains_key(client);
            let limit = lines.limit.as_ref().filter(|_| lines.has_client_rate && !waits);
            let share = limit.map(|limit| limit.reserve(Scope::Client(client), bytes, now));
            if waits || share.is_some_and(|share| share.start > now) {
                state.enter((volume.0, Some(Arc::clone(client))), place(None), share, now);
                return false;
            }
            of_client = share.map(|share| (client, share));
        }
        let mut share = None;
        if lines.volume.waiting.is_empty() {
            let limit = lines.limit.as_ref().filter(|_| lines.has_volume_rate);
            share = limit.map(|limit| limit.reserve(Scope::Volume, bytes, now));
            if share.is_none_or(|share| share.start <= now) {
                return true;
            }
        }
        let of_client = of_client.map(|(client, share)| (Arc::clone(client), share));
        state.enter((volume.0, None), place(of_client), share, now);
        false
    }

    /// Puts a connection in line for its next request.
    pub(crate) fn wait<'a>(
        &self,
        connection: u32,
        client: impl FnOnce() -> &'a ClientName,
        volume: VolumeId,
        bytes: u64,
        now: Instant,
    ) {
        let mut state = self.state.borrow_mut();
        let lines = state.lines(volume).expect("it has waited there before");
        let may_wait_for_client = lines.has_client_rate || !lines.clients.is_empty();
        let client = may_wait_for_client.then(client);
        let client = client.filter(|it| lines.has_client_rate || lines.clients.contains_key(*it));
        let place = Place { connection, bytes, of_client: None };
        state.enter((volume.0, client.cloned()), place, None, now);
    }

    /// Returns a connection that may start its request to this volume now.
    pub(crate) fn first_due(&self, now: Instant) -> Option<(u32, VolumeId)> {
        let mut state = self.state.borrow_mut();
        loop {
            let (_, name) = state.dues.first().filter(|(start, _)| *start <= now)?;
            let (name, volume) = (name.clone(), VolumeId(name.0));
            let lines = state.lines(volume)?;
            let goes_on = lines.has_volume_rate || !lines.volume.waiting.is_empty();
            if name.1.is_some() && goes_on {
                state.promote(&name, now);
                continue;
            }
            let (line, _) = lines.line(name.1.as_ref());
            return line.waiting.front().map(|first| (first.connection, volume));
        }
    }

    /// Removes the connection that [`Throttle::first_due`] has returned: its request starts.
    pub(crate) fn start(&self, connection: u32, volume: VolumeId, now: Instant) {
        let mut state = self.state.borrow_mut();
        let client = state.places.remove(&(connection, volume.0)).expect("it stands in line");
        let (first, _) =
            state.change_line(&(volume.0, client), |line, source| line.pop(source, now));
        debug_assert_eq!(first.connection, connection, "the first in line starts");
    }

    /// Removes and returns a connection that may start its request to this volume now.
    #[cfg(test)]
    pub(crate) fn next_in_turn(&self, now: Instant) -> Option<(u32, VolumeId)> {
        let (connection, volume) = self.first_due(now)?;
        self.start(connection, volume, now);
        Some((connection, volume))
    }

    /// Removes a connection from the lines of a volume.
    pub(crate) fn leave_line(&self, connection: u32, volume: VolumeId, now: Instant) {
        self.state.borrow_mut().leave(connection, volume.0, now);
    }

    /// Removes a connection from all lines.
    pub(crate) fn leave(&self, connection: u32, now: Instant) {
        let mut state = self.state.borrow_mut();
        while let Some((&(_, volume), _)) =
            state.places.range((connection, 0)..=(connection, u16::MAX)).next()
        {
            state.leave(connection, volume, now);
        }
    }

    /// Returns whether any connection stands in line.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.state.borrow().places.is_empty()
    }

    /// Returns the time at which [`Throttle::first_due`] is to be asked next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.state.borrow().dues.first().map(|(start, _)| *start)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use floe_testkit::Random;

    use super::*;

    fn limit(requests: u64) -> Arc<VolumeLimit> {
        let requests_per_second = Some(requests);
        let limit = RequestLimit { requests_per_second, limit_burst_ms: 1, ..RequestLimit::NONE };
        Arc::new(VolumeLimit::new(limit))
    }

    /// Limits a volume, and each of its clients.
    fn limits(requests: Option<u64>, of_client: Option<u64>) -> Arc<VolumeLimit> {
        Arc::new(VolumeLimit::new(RequestLimit {
            requests_per_second: requests,
            client_requests_per_second: of_client,
            limit_burst_ms: 1,
            ..RequestLimit::NONE
        }))
    }

    /// The client that a connection belongs to: connections 0, 2, 4 and so on are of one, the
    /// others of another.
    fn name(connection: u32) -> ClientName {
        ["even", "odd"][connection as usize % 2].into()
    }

    fn take(throttle: &Throttle, connection: u32, volume: VolumeId, now: Instant) -> bool {
        let client = name(connection);
        throttle.take(connection, || &client, volume, 0, now)
    }

    fn wait(throttle: &Throttle, connection: u32, volume: VolumeId, now: Instant) {
        let client = name(connection);
        throttle.wait(connection, || &client, volume, 0, now);
    }

    impl Throttle {
        /// Checks that all lines are ordered by their starts, and that places are known by line.
        fn check(&self) {
            let state = self.state.borrow();
            let mut dues = BTreeSet::new();
            let mut places = BTreeMap::new();
            for (volume, lines) in state.volumes.iter().enumerate() {
                let (volume, Some(lines)) = (volume as u16, lines) else { continue };
                let clients = lines.clients.iter().map(|(client, line)| (Some(client), line));
                for (client, line) in [(None, &lines.volume)].into_iter().chain(clients) {
                    assert_eq!(line.start.is_some(), !line.waiting.is_empty());
                    assert!(client.is_none() || line.start.is_some(), "an empty line is kept");
                    dues.extend(line.start.map(|start| (start, (volume, client.cloned()))));
                    for place in &line.waiting {
                        let before = places.insert((place.connection, volume), client.cloned());
                        assert!(before.is_none(), "a connection stands in two lines of a volume");
                    }
                }
            }
            assert_eq!((&state.dues, &state.places), (&dues, &places));
        }
    }

    #[test]
    fn a_client_is_asked_for_its_name_only_if_it_has_a_limit() {
        let (throttle, begun) = (Throttle::default(), Instant::now());
        let unasked = || -> &'static ClientName { panic!("the name is asked for") };
        assert!(throttle.take(0, unasked, VolumeId(0), 0, begun), "the volume has no limit");
        let connections = RequestLimit { connections: Some(5), ..RequestLimit::NONE };
        throttle.set(VolumeId(0), Some(Arc::new(VolumeLimit::new(connections))), begun);
        assert!(throttle.take(0, unasked, VolumeId(0), 0, begun));
        throttle.set(VolumeId(0), Some(limit(1)), begun);
        assert!(throttle.take(0, unasked, VolumeId(0), 0, begun));
        assert!(!throttle.take(0, unasked, VolumeId(0), 0, begun));
        throttle.wait(1, unasked, VolumeId(0), 0, begun);
    }

    #[test]
    fn a_connection_that_waits_for_its_client_has_nothing_of_the_volumes_limit() {
        let (throttle, shared) = (Throttle::default(), limits(Some(10), Some(1)));
        let (second, volume, begun) = (Duration::from_secs(1), VolumeId(0), Instant::now());
        throttle.set(volume, Some(shared), begun);
        assert!(take(&throttle, 0, volume, begun));
        (1..5).for_each(|at| assert!(!take(&throttle, 2 * at, volume, begun)));
        // The volume's next request is the other client's.
        assert!(take(&throttle, 1, volume, begun + second / 10));
        assert_eq!(throttle.next_due(), Some(begun + second));
    }

    #[test]
    fn a_connection_that_leaves_the_volumes_line_gives_its_clients_share_back() {
        let (second, volume) = (Duration::from_secs(1), VolumeId(0));
        for from_line in [false, true] {
            let (throttle, shared) = (Throttle::default(), limits(Some(1), Some(10)));
            let begun = Instant::now();
            throttle.set(volume, Some(Arc::clone(&shared)), begun);
            assert!(take(&throttle, 0, volume, begun));
            // The limit of its client lets it through at once, or after it has waited.
            let asked = if from_line { begun } else { begun + second / 10 };
            assert!(!take(&throttle, 2, volume, asked));
            let now = begun + second / 10;
            assert_eq!(throttle.next_in_turn(now), None);
            assert_eq!(throttle.next_due(), Some(begun + second), "it waits for the volume");
            throttle.leave(2, now);
            shared.change(RequestLimit { requests_per_second: None, ..shared.limit() }, now);
            throttle.set(volume, Some(shared), now);
            assert!(take(&throttle, 4, volume, now));
            assert!(!take(&throttle, 4, volume, now));
        }
    }

    #[test]
    fn a_change_of_other_limits_leaves_those_that_wait_where_they_are() {
        let (throttle, shared) = (Throttle::default(), limits(Some(10), Some(10)));
        let (tenth, volume, begun) = (Duration::from_millis(100), VolumeId(0), Instant::now());
        throttle.set(volume, Some(Arc::clone(&shared)), begun);
        assert!(take(&throttle, 0, volume, begun));
        // One waits for its client, and one for the volume.
        assert!(!take(&throttle, 2, volume, begun) && !take(&throttle, 1, volume, begun));
        let before = shared.limit();
        for connections in 1..50 {
            let limit = RequestLimit { connections: Some(connections), ..before };
            shared.change(limit, begun);
            throttle.set(volume, Some(Arc::clone(&shared)), begun);
        }
        assert_eq!(throttle.next_in_turn(begun + tenth), Some((1, volume)));
        assert_eq!(throttle.next_in_turn(begun + tenth), None);
        assert_eq!(throttle.next_due(), Some(begun + 2 * tenth), "none has two shares");
        // A change of the volume's own limit is no concern of the clients'.
        assert!(!take(&throttle, 1, volume, begun + tenth));
        shared.change(RequestLimit { requests_per_second: Some(1000), ..before }, begun + tenth);
        throttle.set(volume, Some(shared), begun + tenth);
        assert_eq!(throttle.next_in_turn(begun + tenth), Some((2, volume)));
        assert!(!take(&throttle, 4, volume, begun + tenth));
        let next = begun + tenth + Duration::from_millis(1);
        assert_eq!(throttle.next_in_turn(next), Some((1, volume)));
        assert_eq!(throttle.next_due(), Some(begun + 2 * tenth));
    }

    #[test]
    fn connections_of_a_client_share_its_limit_over_all_threads() {
        let (shared, begun) = (limits(None, Some(10)), Instant::now());
        let threads = [Throttle::default(), Throttle::default()];
        threads.iter().for_each(|it| it.set(VolumeId(0), Some(Arc::clone(&shared)), begun));
        let take = |at: usize, connection, now| take(&threads[at], connection, VolumeId(0), now);
        assert!(take(0, 0, begun), "the burst");
        assert!(!take(0, 2, begun) && !take(1, 4, begun) && !take(1, 6, begun));
        assert!(take(1, 1, begun), "another client");
        assert!(!take(1, 1, begun));
        let second = Duration::from_secs(1);
        let next = |at: usize, after| threads[at].next_in_turn(begun + after);
        let of = |connection| Some((connection, VolumeId(0)));
        assert_eq!((next(0, second / 11), next(1, second / 11)), (None, None));
        // The two clients go on side by side, and the threads of each take turns.
        assert_eq!((next(0, second / 10), next(0, second / 10)), (of(2), None));
        assert_eq!((next(1, second / 10), next(1, second / 10)), (of(1), None));
        assert_eq!((next(1, second / 5), next(1, second / 5)), (of(4), None));
        assert_eq!(threads[1].next_due(), Some(begun + second * 3 / 10));
        threads[1].leave(6, begun);
        assert!(!threads[1].is_waited_for());
    }

    #[test]
    fn a_flooding_client_leaves_the_rest_of_the_volumes_limit_to_others() {
        let (throttle, begun) = (Throttle::default(), Instant::now());
        throttle.set(VolumeId(0), Some(limits(Some(100), Some(50))), begun);
        let take = |connection, now| take(&throttle, connection, VolumeId(0), now);
        let (mut started, mut waiting) = ([0; 2], [false; 21]);
        // Ten connections of one client always ask; the other has one, which asks as often.
        for step in 0..2000 {
            let now = begun + step * Duration::from_millis(1);
            while let Some((connection, _)) = throttle.next_in_turn(now) {
                started[connection as usize % 2] += 1;
                waiting[connection as usize] = false;
            }
            for connection in (0..20).step_by(2).chain([1]) {
                if !waiting[connection as usize] {
                    let starts = take(connection, now);
                    started[connection as usize % 2] += u32::from(starts);
                    waiting[connection as usize] = !starts;
                }
            }
        }
        assert!(started.iter().all(|count| (95..=101).contains(count)), "{started:?}");
    }

    #[test]
    fn threads_and_clients_take_turns_and_other_volumes_go_on() {
        let (shared, begun) = (limit(10), Instant::now());
        let threads = [Throttle::default(), Throttle::default()];
        let volume = VolumeId(3);
        threads.iter().for_each(|it| it.set(volume, Some(Arc::clone(&shared)), begun));
        assert!(take(&threads[0], 7, volume, begun));
        for client in 0..3 {
            assert!(threads.iter().all(|it| !take(it, client, volume, begun)));
            assert!(take(&threads[0], client, VolumeId(0), begun), "no limit there");
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
                        wait(throttle, 0, volume, now);
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
        assert!(take(&throttle, 0, VolumeId(0), begun));
        let second = Duration::from_secs(1);
        for tries in 0..100 {
            let now = begun + tries * second / 100;
            assert!(!take(&throttle, 1, VolumeId(0), now));
            assert!(throttle.next_due() <= Some(begun + second), "{tries}");
            throttle.leave(1, now);
        }
        // Nor does one that has left when its turn came.
        assert!(!take(&throttle, 1, VolumeId(0), begun) && !take(&throttle, 2, VolumeId(0), begun));
        assert_eq!(throttle.first_due(begun + second), Some((1, VolumeId(0))));
        throttle.leave(1, begun + second);
        assert_eq!(throttle.next_in_turn(begun + second), Some((2, VolumeId(0))));
        assert!(!throttle.is_waited_for());
    }

    #[test]
    fn a_lifted_limit_lets_all_go() {
        let (throttle, begun) = (Throttle::default(), Instant::now());
        throttle.set(VolumeId(0), Some(limit(1)), begun);
        assert!(take(&throttle, 0, VolumeId(0), begun));
        (1..100).for_each(|client| assert!(!take(&throttle, client, VolumeId(0), begun)));
        assert!(throttle.next_in_turn(begun).is_none());
        throttle.set(VolumeId(0), None, begun);
        let gone: Vec<u32> =
            std::iter::from_fn(|| throttle.next_in_turn(begun)).map(|(client, _)| client).collect();
        assert_eq!(gone, (1..100).collect::<Vec<_>>());
        assert!(take(&throttle, 0, VolumeId(0), begun) && throttle.next_due().is_none());
    }

    /// Rates of a volume: of all clients, and of each.
    type Rates = [Option<u64>; 2];

    /// Requests that wait, by connection and volume.
    type Waiting = BTreeMap<(u32, u16), u64>;

    /// The connections and times of the starts of a volume since the last change of its rate, and
    /// since that of its clients' rate.
    #[derive(Default)]
    struct Starts([Vec<(u32, Instant)>; 2]);

    impl Starts {
        fn started(&mut self, connection: u32, now: Instant, rates: Rates) {
            self.0.iter_mut().for_each(|starts| starts.push((connection, now)));
            // The burst, and one of each thread that is late to look. A connection that its
            // client's limit has let through may wait for the volume's limit.
            for (of_client, (starts, more)) in self.0.iter().zip([3.0, 9.0]).enumerate() {
                let Some(rate) = rates[of_client] else { continue };
                let is_counted = |of: u32| of_client == 0 || of % 2 == connection % 2;
                let starts = starts.iter().rev().filter(|(of, _)| is_counted(*of));
                for (count, (_, first)) in starts.enumerate() {
                    let allowed = more + (now - *first).as_secs_f64() * rate as f64;
                    assert!(count as f64 <= allowed, "{count} in {:?}", now - *first);
                }
            }
        }
    }

    #[test]
    fn each_request_starts_once_within_the_limit_whatever_happens() {
        const VOLUMES: usize = 3;
        for seed in 0..200 {
            let (mut random, mut now) = (Random(seed), Instant::now());
            let throttles = [Throttle::default(), Throttle::default()];
            let mut rates: [Rates; VOLUMES] = [[None; 2]; VOLUMES];
            let mut shared = [(); VOLUMES].map(|()| limits(None, None));
            let mut models = [Waiting::new(), Waiting::new()];
            let mut starts: [Starts; VOLUMES] = Default::default();
            let go_on = |at: usize,
                         models: &mut [Waiting; 2],
                         starts: &mut [Starts; VOLUMES],
                         rates: &[Rates],
                         now| {
                while let Some((client, volume)) = throttles[at].next_in_turn(now) {
                    let left = models[at].get_mut(&(client, volume.0)).expect("it waits");
                    *left -= 1;
                    match *left {
                        0 => drop(models[at].remove(&(client, volume.0))),
                        _ => wait(&throttles[at], client, volume, now),
                    }
                    let volume = usize::from(volume.0);
                    starts[volume].started(client, now, rates[volume]);
                }
            };
            for _ in 0..400 {
                let (at, client) = (random.below(2), random.below(5) as u32);
                let volume = random.below(VOLUMES);
                let id = VolumeId(volume as u16);
                match random.below(14) {
                    0 => {
                        let mut rate = || [None, Some(1), Some(100)][random.below(3)];
                        rates[volume] = [rate(), rate()];
                        shared[volume] = limits(rates[volume][0], rates[volume][1]);
                        starts[volume] = Starts::default();
                        let limit = &shared[volume];
                        throttles.iter().for_each(|it| it.set(id, Some(Arc::clone(limit)), now));
                    }
                    1 => {
                        // A rate that stays keeps its debts.
                        let of_client = random.below(3);
                        if let Some(rate) = rates[volume].get_mut(of_client) {
                            let before = *rate;
                            *rate = [None, Some(1), Some(100)][random.below(3)];
                            if before != *rate {
                                starts[volume].0[of_client].clear();
                            }
                        }
                        let limit = limits(rates[volume][0], rates[volume][1]).limit();
                        let connections = Some(random.below(5) as u64);
                        shared[volume].change(RequestLimit { connections, ..limit }, now);
                        let limit = &shared[volume];
                        throttles.iter().for_each(|it| it.set(id, Some(Arc::clone(limit)), now));
                    }
                    2 => {
                        throttles[at].leave(client, now);
                        models[at].retain(|(of, _), _| *of != client);
                    }
                    3..6 => {
                        now += Duration::from_millis(random.below(40) as u64);
                        let due = throttles[at].next_due();
                        now = due.filter(|_| random.below(2) == 0).map_or(now, |due| due.max(now));
                        go_on(at, &mut models, &mut starts, &rates, now);
                    }
                    _ => match models[at].get_mut(&(client, id.0)) {
                        Some(waiting) => *waiting += 1,
                        None if take(&throttles[at], client, id, now) => {
                            starts[volume].started(client, now, rates[volume]);
                        }
                        None => drop(models[at].insert((client, id.0), 1)),
                    },
                }
                for (throttle, model) in throttles.iter().zip(&models) {
                    assert_eq!(throttle.is_waited_for(), !model.is_empty(), "seed {seed}");
                    assert_eq!(throttle.next_due().is_some(), !model.is_empty());
                    assert_eq!(throttle.state.borrow().places.len(), model.len());
                    throttle.check();
                }
            }
            // In the end, all start by themselves.
            for at in [0, 1] {
                while let Some(due) = throttles[at].next_due() {
                    now = due.max(now);
                    go_on(at, &mut models, &mut starts, &rates, now);
                }
                assert!(models[at].is_empty(), "seed {seed}");
            }
        }
    }
}
