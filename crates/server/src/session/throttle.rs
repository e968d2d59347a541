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
//!
//! With a rate of the server ([`TotalRate`]) a connection then stands in a third line of its
//! volume. It has taken its shares of its client's and its volume's limits. The first in that line
//! has an entry in the queue of all threads, which decides by the weights of the volumes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use floe_block::VolumeId;

use crate::total_limit::{Grant, TotalRate};
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
    places: BTreeMap<(u32, u16), Standing>,
    /// All lines for limits of volumes and clients that are not empty, ordered by the start of the
    /// first connection in each.
    dues: BTreeSet<(Instant, LineName)>,
    /// The rate of the server, and the number of this thread; `None` without such a rate.
    total: Option<(Arc<TotalRate>, usize)>,
    /// Volumes whose line for the rate of the server does not wait any more.
    free: BTreeSet<u16>,
}

/// The line in which a connection stands for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    /// The line of the volume, or of a client.
    Limit(Option<ClientName>),
    /// The line for the rate of the server.
    Total,
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
    /// Connections that wait for the rate of the server.
    total: VecDeque<Place>,
    /// The share of the first of them, between its turn and its start.
    granted: Option<Grant>,
    /// True if the volume is being removed: its requests do not wait for the rate of the server.
    is_exempt: bool,
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
    /// The share of its client's limit that a connection behind the line of its client has taken.
    of_client: Option<(ClientName, Share)>,
    /// The share of its volume's limit that a connection in the last line has taken.
    of_volume: Option<Share>,
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
        self.places.insert((connection, name.0), Standing::Limit(name.1));
    }

    /// Returns the rate of the server, if requests of this volume wait for it.
    fn total_of(&self, volume: u16) -> Option<(&TotalRate, usize)> {
        let (total, thread) = self.total.as_ref()?;
        let lines = self.volumes.get(usize::from(volume))?.as_ref()?;
        (!lines.is_exempt).then_some((total, *thread))
    }

    /// Returns the lines of a volume. Without any it has none yet.
    fn lines_of(&mut self, volume: VolumeId) -> &mut VolumeLines {
        let at = usize::from(volume.0);
        if self.volumes.len() <= at {
            self.volumes.resize_with(at + 1, || None);
        }
        self.volumes[at].get_or_insert_default()
    }

    /// Puts a connection in the line for the rate of the server. `enters` says that the first in
    /// line has no entry in the queue of all threads yet.
    fn enter_total(&mut self, place: Place, volume: u16, enters: bool, now: Instant) {
        self.places.insert((place.connection, volume), Standing::Total);
        let lines = self.lines_of(VolumeId(volume));
        lines.total.push_back(place);
        if enters && lines.total.len() == 1 {
            self.line_up_first(volume, now);
        }
    }

    /// Has the first connection in the line for the rate of the server wait for its turn.
    fn line_up_first(&mut self, volume: u16, now: Instant) {
        let first = self.lines(VolumeId(volume)).and_then(|lines| lines.total.front());
        let Some(bytes) = first.map(|place| place.bytes) else {
            self.free.remove(&volume);
            return;
        };
        match self.total_of(volume) {
            _ if self.free.contains(&volume) => {} // all that wait there go
            Some((total, thread)) => total.enter(thread, volume, bytes, now),
            None => drop(self.free.insert(volume)),
        }
    }

    /// Lets all in a volume's line for the rate of the server go.
    fn free_total(&mut self, volume: u16, now: Instant) {
        let waits = self.lines(VolumeId(volume)).is_some_and(|lines| !lines.total.is_empty());
        if waits
            && self.free.insert(volume)
            && let Some((total, thread)) = &self.total
        {
            total.leave(*thread, volume, now);
        }
    }

    /// Lifts the rate of the server on this thread.
    fn lift_total(&mut self, now: Instant) {
        (0..self.volumes.len()).for_each(|volume| self.free_total(volume as u16, now));
        if let Some((total, thread)) = self.total.take() {
            total.give_up(thread, now);
        }
    }

    /// Moves the first connection of a line, whose start has come, into the line for the rate of
    /// the server.
    fn promote_to_total(&mut self, name: &LineName, now: Instant) {
        let (mut place, share) = self.change_line(name, |line, source| line.pop(source, now));
        match &name.1 {
            Some(client) => place.of_client = Some(client.clone()).zip(share),
            None => place.of_volume = share,
        }
        self.enter_total(place, name.0, true, now);
    }

    /// Returns the connection in a line for the rate of the server that may start now.
    fn first_of_total(&mut self, now: Instant) -> Option<(u32, VolumeId)> {
        let volume = match self.free.first() {
            Some(volume) => VolumeId(*volume),
            None => {
                let (total, thread) = self.total.as_ref()?;
                let grant = total.grant(*thread, now)?;
                let volume = VolumeId(grant.volume);
                self.lines_of(volume).granted = Some(grant);
                volume
            }
        };
        let first = self.lines(volume).and_then(|lines| lines.total.front());
        Some((first.expect("it waits for its turn").connection, volume))
    }

    /// Removes a connection from the line for the rate of the server. One that does not start gives
    /// back what it has taken.
    fn leave_total(&mut self, connection: u32, volume: u16, starts: bool, now: Instant) -> Place {
        let lines = self.lines_of(VolumeId(volume));
        let at = lines.total.iter().position(|place| place.connection == connection);
        let at = at.expect("it stands in this line");
        let place = lines.total.remove(at).expect("it was found there");
        if at == 0 {
            let grant = lines.granted.take();
            match (&self.total, grant) {
                (Some((total, _)), Some(grant)) if !starts => total.give_back(grant),
                (Some((total, thread)), None) if !self.free.contains(&volume) => {
                    total.leave(*thread, volume, now);
                }
                _ => {}
            }
            self.line_up_first(volume, now);
        }
        place
    }

    /// Sets or lifts the limit of a volume. The first in a line asks for its start again, unless
    /// the rates of that line are as before.
    fn set(&mut self, volume: VolumeId, limit: Option<Arc<VolumeLimit>>, now: Instant) {
        let Some(lines) = self.lines(volume) else { return };
        let is_another = lines.adopt(limit);
        if is_another {
            lines.volume.waiting.iter_mut().for_each(|place| place.of_client = None);
            for place in &mut lines.total {
                (place.of_client, place.of_volume) = (None, None);
            }
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
        let Some(standing) = self.places.remove(&(connection, volume)) else { return };
        let place = match standing {
            Standing::Total => self.leave_total(connection, volume, false, now),
            Standing::Limit(client) => self
                .change_line(&(volume, client), |line, source| line.leave(connection, source, now)),
        };
        let limit = self.lines(VolumeId(volume)).and_then(|lines| lines.limit.as_ref());
        let Some(limit) = limit else { return };
        if let Some((client, share)) = place.of_client {
            limit.give_back(Scope::Client(&client), place.bytes, share);
        }
        if let Some(share) = place.of_volume {
            limit.give_back(Scope::Volume, place.bytes, share);
        }
    }
}

impl Throttle {
    /// Creates the lines of the thread with the number `thread`.
    pub(crate) fn new(
        limits: impl Iterator<Item = (VolumeId, Arc<VolumeLimit>)>,
        total: &Arc<TotalRate>,
        thread: usize,
    ) -> Self {
        let (throttle, now) = (Self::default(), Instant::now());
        throttle.set_total(total, thread, now);
        limits.for_each(|(volume, limit)| throttle.set(volume, Some(limit), now));
        throttle
    }

    /// Sets the limits of a volume. The first in line asks for its start again. `None` lifts them,
    /// and exempts the volume from the rate of the server.
    pub(crate) fn set(&self, volume: VolumeId, limit: Option<Arc<VolumeLimit>>, now: Instant) {
        let mut state = self.state.borrow_mut();
        let is_exempt = limit.is_none();
        let limit = limit.filter(|limit| limit.limit().has_rate());
        if limit.is_some() || state.total.is_some() {
            state.lines_of(volume);
        }
        state.set(volume, limit, now);
        if is_exempt {
            state.free_total(volume.0, now);
        }
        if let Some(lines) = state.lines(volume) {
            lines.is_exempt = is_exempt;
        }
    }

    /// Sets or lifts the rate of the server. `thread` is the number of this thread.
    pub(crate) fn set_total(&self, total: &Arc<TotalRate>, thread: usize, now: Instant) {
        let mut state = self.state.borrow_mut();
        if total.limit().is_any() {
            state.total = Some((Arc::clone(total), thread));
        } else {
            state.lift_total(now);
        }
    }

    /// Lifts all limits of this thread, because the server ends.
    pub(crate) fn lift(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        (0..state.volumes.len()).for_each(|volume| state.set(VolumeId(volume as u16), None, now));
        state.lift_total(now);
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
        if state.lines(volume).is_none() {
            if state.total.is_none() {
                return true;
            }
            state.lines_of(volume);
        }
        let lines = state.lines(volume).expect("it has lines");
        let place = |of_client| Place { connection, bytes, of_client, of_volume: None };
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
                let is_first = lines.total.is_empty();
                let Some((total, thread)) = state.total_of(volume.0) else { return true };
                if is_first && total.take_or_enter(thread, volume.0, bytes, now) {
                    return true;
                }
                let of_client = of_client.map(|(client, share)| (Arc::clone(client), share));
                let place = Place { of_volume: share, ..place(of_client) };
                state.enter_total(place, volume.0, false, now);
                return false;
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
        let lines = state.lines_of(volume);
        let may_wait_for_client = lines.has_client_rate || !lines.clients.is_empty();
        let client = may_wait_for_client.then(client);
        let client = client.filter(|it| lines.has_client_rate || lines.clients.contains_key(*it));
        let place = Place { connection, bytes, of_client: None, of_volume: None };
        state.enter((volume.0, client.cloned()), place, None, now);
    }

    /// Returns a connection that may start its request to this volume now. Must be called again
    /// after the start of that request.
    pub(crate) fn first_due(&self, now: Instant) -> Option<(u32, VolumeId)> {
        let mut state = self.state.borrow_mut();
        while let Some((_, name)) = state.dues.first().filter(|(start, _)| *start <= now) {
            let (name, volume) = (name.clone(), VolumeId(name.0));
            let waits_for_total = state.total_of(volume.0).is_some();
            let lines = state.lines(volume)?;
            let goes_on = lines.has_volume_rate || !lines.volume.waiting.is_empty();
            if name.1.is_some() && goes_on {
                state.promote(&name, now);
            } else if waits_for_total {
                state.promote_to_total(&name, now);
            } else {
                let (line, _) = lines.line(name.1.as_ref());
                return line.waiting.front().map(|first| (first.connection, volume));
            }
        }
        state.first_of_total(now)
    }

    /// Removes the connection that [`Throttle::first_due`] has returned: its request starts.
    pub(crate) fn start(&self, connection: u32, volume: VolumeId, now: Instant) {
        let mut state = self.state.borrow_mut();
        let standing = state.places.remove(&(connection, volume.0)).expect("it stands in line");
        let first = match standing {
            Standing::Total => state.leave_total(connection, volume.0, true, now),
            Standing::Limit(client) => {
                state.change_line(&(volume.0, client), |line, source| line.pop(source, now)).0
            }
        };
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
        self.next_due_since(Instant::now)
    }

    /// Returns the time at which [`Throttle::first_due`] is to be asked next. `now` is called only
    /// with a rate of the server.
    fn next_due_since(&self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        let state = self.state.borrow();
        let due = state.dues.first().map(|(start, _)| *start);
        let of_total = match &state.total {
            _ if !state.free.is_empty() => Some(now()),
            Some((total, thread)) if !state.places.is_empty() => total.next_due(*thread, now()),
            _ => None,
        };
        due.into_iter().chain(of_total).min()
    }
}

#[cfg(test)]
mod tests;
