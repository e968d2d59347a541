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
//! If the clients of a volume have weights, each that the volume names has a line of its own in
//! place of that of the volume, and all others together have one ([`WeightedLines`]).
//!
//! With a rate of the server, a connection then stands in a third line: that of its client, if
//! clients of its volume have weights, or that of its volume. It has taken its shares of its
//! client's and its volume's limits. The weights of the volumes, and of the clients of each, decide
//! which line is next ([`WeightedLines`]).

mod weighted_lines;

use std::cell::{LazyCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_block::VolumeId;

use self::weighted_lines::WeightedLines;
use crate::client_name::ClientName;
use crate::named_clients::{ClientUse, ClientUses, NamedClients};
use crate::rate::{Flow, Grant, SharedRate};
use crate::volume_limit::{RequestLimit, Scope, Share, VolumeLimit};

/// Shortest time until a thread looks again at lines of clients of which none is due.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

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
    /// Volumes whose clients share a limit by weight, ordered by the time at which this thread is
    /// to look whether it is the turn of one of them.
    looks: BTreeSet<(Instant, u16)>,
    /// Connections that wait for the rate of the server.
    total: WeightedLines,
    /// The number of this thread.
    thread: usize,
}

/// The line in which a connection stands for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    /// The line of the volume, or that for the limit of a client.
    Limit(Option<ClientName>),
    /// The line of the clients with this number for the limit of the volume, by their weight.
    Weighted(u16),
    /// The line of the clients with this number for the rate of the server.
    Total(u16),
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
    /// True if any client has a limit.
    has_client_rate: bool,
    /// True if each client without a name has a limit.
    limits_each: bool,
    /// Clients that have limits of their own.
    named: NamedClients,
    /// Counters of each client with a name.
    uses: BTreeMap<ClientName, ClientUse>,
    /// Connections that wait for the limit of the volume, if clients have no weights.
    volume: Line,
    /// Connections that wait for the limit of their client. No line is empty.
    clients: BTreeMap<ClientName, Line>,
    /// Connections that wait for the limit of the volume, if clients have weights.
    by_weight: WeightedLines,
    /// Numbers of the clients that have weights; that of those without one is 0.
    numbers: BTreeMap<ClientName, u16>,
    /// Time in `looks`.
    look_at: Option<Instant>,
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
    /// The name whose limits the client has.
    client: ClientName,
    /// The share of its client's limit that a connection behind the line of its client has taken.
    of_client: Option<Share>,
    /// The share of its volume's limit that a connection in the last line has taken.
    of_volume: Option<OfVolume>,
}

/// The share of a volume's limit.
#[derive(Debug, Clone, Copy)]
enum OfVolume {
    /// A share of the volume's bucket.
    Bucket(Share),
    /// A share of the rate that clients share by weight.
    Weighted(Grant),
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

/// Returns the flow of a volume's client in the rate that belongs to the volume.
fn own_flow(client: u16) -> Flow {
    Flow { volume: 0, client }
}

/// Returns the counters of the name that stands for a client; `None` without any.
fn use_of<'a>(
    uses: &'a mut BTreeMap<ClientName, ClientUse>,
    client: &ClientName,
) -> Option<&'a mut ClientUse> {
    let name = if uses.contains_key(client) { client } else { &ClientName::Others };
    uses.get_mut(name)
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

    /// Removes and returns all connections. The first keeps the share that it has taken.
    fn dissolve(&mut self) -> VecDeque<Place> {
        (self.start, self.share) = (None, None);
        std::mem::take(&mut self.waiting)
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

/// The change of a volume's limit.
struct Adopted {
    /// True if the limit is another one, not only changed.
    is_another: bool,
    /// True if clients have other numbers than before.
    are_numbered_anew: bool,
    /// The rate that clients share by weight.
    by_weight: Option<Arc<SharedRate>>,
}

impl VolumeLines {
    /// Sets or lifts the limit.
    fn adopt(&mut self, limit: Option<Arc<VolumeLimit>>) -> Adopted {
        let shared = limit.as_ref().map(|limit| limit.shared());
        let (now, by_weight) = shared.unwrap_or((RequestLimit::NONE, None));
        self.has_volume_rate = now.has_volume_rate();
        self.has_client_rate = now.has_client_rate();
        self.limits_each = now.limits_each_client();
        let numbers = match now.clients.has_weight() {
            true => now.clients.numbered().map(|(at, name)| (name.clone(), at)).collect(),
            false => BTreeMap::new(),
        };
        let are_numbered_anew = self.numbers != numbers;
        let mut uses = std::mem::take(&mut self.uses);
        let names = now.clients.iter().map(|(name, _)| name);
        let kept = names.map(|name| (name.clone(), uses.remove(name).unwrap_or_default()));
        self.uses = kept.collect();
        (self.numbers, self.named) = (numbers, now.clients);
        let is_same = match (&self.limit, &limit) {
            (Some(before), Some(limit)) => Arc::ptr_eq(before, limit),
            (before, limit) => before.is_none() && limit.is_none(),
        };
        self.limit = limit;
        Adopted { is_another: !is_same, are_numbered_anew, by_weight }
    }

    /// Returns whether the client or the clients with this name have a limit. Clients of a network
    /// whose name is removed have none while they wait: they must not share that of one client.
    fn is_limited(&self, client: &ClientName) -> bool {
        match self.named.get(client) {
            Some(limit) => limit.has_rate(),
            None => self.limits_each && !client.is_of_many(),
        }
    }

    /// Returns the number of a client among those that share by weight. `client` is called only if
    /// any has a weight.
    fn number_of(&self, client: impl FnOnce() -> ClientName) -> u16 {
        if self.numbers.is_empty() {
            return 0;
        }
        let number = self.numbers.get(self.named.name_for(&client()));
        number.or_else(|| self.numbers.get(&ClientName::Others)).copied().unwrap_or(0)
    }

    /// Returns the line of a client or of the volume, and its bucket.
    fn line<'a>(&'a mut self, client: Option<&'a ClientName>) -> (&'a mut Line, Source<'a>) {
        let is_limited = match client {
            None => self.has_volume_rate,
            Some(client) => self.is_limited(client),
        };
        let limit = self.limit.as_deref().filter(|_| is_limited);
        match client {
            None => (&mut self.volume, Source { limit, scope: Scope::Volume }),
            Some(client) => {
                let line = self.clients.entry(client.clone()).or_default();
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

    /// Puts a connection in the volume's line for its limit, or in that of its client.
    fn enter_volume(&mut self, volume: u16, place: Place, now: Instant) {
        let lines = self.lines_of(VolumeId(volume));
        if !lines.by_weight.has_rate() {
            return self.enter((volume, None), place, None, now);
        }
        let number = lines.number_of(|| place.client.clone());
        let connection = place.connection;
        lines.by_weight.enter(own_flow(number), place, now);
        self.places.insert((connection, volume), Standing::Weighted(number));
        self.look_by(volume, now);
    }

    /// Has this thread look at the lines of a volume's clients at this time or earlier. A look that
    /// is due stays so, because a place that the thread keeps ends with it.
    fn look_by(&mut self, volume: u16, at: Instant) {
        let before = self.lines_of(VolumeId(volume)).look_at;
        self.look_at(volume, Some(before.map_or(at, |before| before.min(at))));
    }

    /// Sets the time at which this thread looks at the lines of a volume's clients.
    fn look_at(&mut self, volume: u16, at: Option<Instant>) {
        let lines = self.lines_of(VolumeId(volume));
        let before = std::mem::replace(&mut lines.look_at, at);
        before.into_iter().for_each(|before| {
            self.looks.remove(&(before, volume));
        });
        at.into_iter().for_each(|at| {
            self.looks.insert((at, volume));
        });
    }

    /// Returns whether requests of this volume wait for the rate of the server.
    fn waits_for_total(&self, volume: u16) -> bool {
        let lines = self.volumes.get(usize::from(volume)).and_then(Option::as_ref);
        self.total.has_rate() && lines.is_some_and(|lines| !lines.is_exempt)
    }

    /// Returns the lines of a volume. Without any it has none yet.
    fn lines_of(&mut self, volume: VolumeId) -> &mut VolumeLines {
        let at = usize::from(volume.0);
        if self.volumes.len() <= at {
            self.volumes.resize_with(at + 1, || None);
        }
        self.volumes[at].get_or_insert_default()
    }

    /// Puts a connection in the line for the rate of the server.
    fn enter_total(&mut self, volume: u16, place: Place, now: Instant) {
        let client = self.lines_of(VolumeId(volume)).number_of(|| place.client.clone());
        self.places.insert((place.connection, volume), Standing::Total(client));
        self.total.enter(Flow { volume, client }, place, now);
    }

    /// Moves the first connection of a line, whose start has come, into the line for the rate of
    /// the server.
    fn promote_to_total(&mut self, name: &LineName, now: Instant) {
        let (mut place, share) = self.change_line(name, |line, source| line.pop(source, now));
        match &name.1 {
            Some(_) => place.of_client = share,
            None => place.of_volume = share.map(OfVolume::Bucket),
        }
        self.enter_total(name.0, place, now);
    }

    /// Looks whether it is the turn of a connection that waits for the limit of this volume by
    /// weight. Returns one that may start; one that has to wait for the server is moved there.
    fn look(&mut self, volume: u16, now: Instant) -> Option<u32> {
        let waits_for_total = self.waits_for_total(volume);
        let by_weight = &mut self.lines_of(VolumeId(volume)).by_weight;
        let Some((flow, connection)) = by_weight.first_due(now) else {
            let next = by_weight.next_due(|| now);
            self.look_at(volume, next.map(|next| next.max(now + LOOK_INTERVAL)));
            return None;
        };
        if !waits_for_total {
            return Some(connection);
        }
        let (mut place, grant) = by_weight.leave(connection, flow, true, now);
        place.of_volume = grant.map(OfVolume::Weighted);
        self.enter_total(volume, place, now);
        None
    }

    /// Sets or lifts the limit of a volume. The first in a line asks for its start again, unless
    /// the rates of that line are as before.
    fn set(&mut self, volume: VolumeId, limit: Option<Arc<VolumeLimit>>, now: Instant) {
        let Some(lines) = self.lines(volume) else { return };
        let Adopted { is_another, are_numbered_anew, by_weight } = lines.adopt(limit);
        let clients: Vec<ClientName> = lines.clients.keys().cloned().collect();
        if is_another {
            lines.volume.waiting.iter_mut().for_each(|place| place.of_client = None);
            for place in self.total.of_volume(volume.0) {
                (place.of_client, place.of_volume) = (None, None);
            }
        }
        if are_numbered_anew {
            for place in self.total.dissolve_volume(volume.0, now) {
                self.enter_total(volume.0, place, now);
            }
        }
        for client in [None].into_iter().chain(clients.into_iter().map(Some)) {
            self.change_line(&(volume.0, client), |line, source| {
                if is_another || !source.has(line.share) {
                    line.reserve(source, now);
                }
            });
        }
        self.share_by_weight(volume.0, by_weight, is_another, now);
    }

    /// Sets or lifts the rate that a volume's clients share by weight. Those that wait for the
    /// limit of the volume move to their new lines.
    fn share_by_weight(
        &mut self,
        volume: u16,
        rate: Option<Arc<SharedRate>>,
        is_another: bool,
        now: Instant,
    ) {
        let (thread, lines) = (self.thread, self.lines_of(VolumeId(volume)));
        if lines.by_weight.waits_for(rate.as_ref()) {
            rate.iter().for_each(|_| self.look_by(volume, now));
            return;
        }
        let mut waiting: Vec<Place> = lines.by_weight.dissolve(now).collect();
        if let Some(rate) = &rate {
            lines.by_weight.set_rate(rate, thread);
            let plain = self.change_line(&(volume, None), |line, _| line.dissolve());
            waiting.extend(plain);
        }
        for place in self.total.of_volume(volume) {
            place.of_volume = None; // it was of the rate before
        }
        for mut place in waiting {
            place.of_client = place.of_client.filter(|_| !is_another);
            self.enter_volume(volume, place, now);
        }
        self.look_at(volume, rate.map(|_| now));
    }

    /// Moves a connection for which the limit of its client has come into the volume's line.
    fn promote(&mut self, name: &LineName, now: Instant) {
        let (mut place, share) = self.change_line(name, |line, source| line.pop(source, now));
        place.of_client = share;
        self.enter_volume(name.0, place, now);
    }

    fn leave(&mut self, connection: u32, volume: u16, now: Instant) {
        let Some(standing) = self.places.remove(&(connection, volume)) else { return };
        let place = self.leave_line(connection, volume, standing, false, now);
        if self.lines_of(VolumeId(volume)).look_at.is_some() {
            self.look_by(volume, now); // another one may start earlier
        }
        let lines = self.lines_of(VolumeId(volume));
        let Some(limit) = &lines.limit else { return };
        if let Some(share) = place.of_client {
            limit.give_back(Scope::Client(&place.client), place.bytes, share);
        }
        match place.of_volume {
            Some(OfVolume::Bucket(share)) => limit.give_back(Scope::Volume, place.bytes, share),
            Some(OfVolume::Weighted(grant)) => lines.by_weight.give_back(grant, now),
            None => {}
        }
    }

    /// Removes a connection from the line in which it stands. One that starts keeps what it has
    /// taken of that line's rate.
    fn leave_line(
        &mut self,
        connection: u32,
        volume: u16,
        standing: Standing,
        starts: bool,
        now: Instant,
    ) -> Place {
        match standing {
            Standing::Total(client) => {
                self.total.leave(connection, Flow { volume, client }, starts, now).0
            }
            Standing::Weighted(number) => {
                let lines = self.lines_of(VolumeId(volume));
                lines.by_weight.leave(connection, own_flow(number), starts, now).0
            }
            Standing::Limit(client) => {
                self.change_line(&(volume, client), |line, source| match starts {
                    true => line.pop(source, now).0,
                    false => line.leave(connection, source, now),
                })
            }
        }
    }
}

impl Throttle {
    /// Creates the lines of the thread with the number `thread`.
    pub(crate) fn new(
        limits: impl Iterator<Item = (VolumeId, Arc<VolumeLimit>)>,
        total: &Arc<SharedRate>,
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
        let limit = limit.filter(|limit| limit.limit().concerns_requests());
        if limit.is_some() || state.total.has_rate() {
            state.lines_of(volume);
        }
        state.set(volume, limit, now);
        if is_exempt {
            state.total.free(volume.0, now);
        }
        if let Some(lines) = state.lines(volume) {
            lines.is_exempt = is_exempt;
        }
    }

    /// Sets or lifts the rate of the server. `thread` is the number of this thread.
    pub(crate) fn set_total(&self, total: &Arc<SharedRate>, thread: usize, now: Instant) {
        let mut state = self.state.borrow_mut();
        state.thread = thread;
        if total.rates().is_any() {
            state.total.set_rate(total, thread);
        } else {
            state.total.lift(now);
        }
    }

    /// Lifts all limits of this thread, because the server ends.
    pub(crate) fn lift(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        (0..state.volumes.len()).for_each(|volume| state.set(VolumeId(volume as u16), None, now));
        state.total.lift(now);
    }

    /// Returns whether a request of so many bytes may start now. If not, the connection stands in
    /// line. `client` returns the name of its client, and is called only if the volume limits or
    /// names clients, or if the connection stands in line.
    pub(crate) fn take<'a>(
        &self,
        connection: u32,
        client: impl FnOnce() -> &'a ClientName,
        volume: VolumeId,
        bytes: u64,
        now: Instant,
    ) -> bool {
        let state = &mut *self.state.borrow_mut();
        if state.lines(volume).is_none() {
            if !state.total.has_rate() {
                return true;
            }
            state.lines_of(volume);
        }
        let lines = state.volumes[usize::from(volume.0)].as_mut().expect("it has lines");
        let client = LazyCell::new(|| lines.named.name_for(client()).clone());
        let place = |of_client, of_volume| {
            let client = ClientName::clone(&client);
            Place { connection, bytes, client, of_client, of_volume }
        };
        let mut of_client = None;
        if lines.has_client_rate || !lines.clients.is_empty() {
            let waits = lines.clients.contains_key(&*client);
            let limit = lines.limit.as_ref().filter(|_| !waits && lines.is_limited(&client));
            of_client = limit.map(|limit| limit.reserve(Scope::Client(&client), bytes, now));
            if waits || of_client.is_some_and(|share| share.start > now) {
                let place = place(None, None);
                let name = (volume.0, Some(place.client.clone()));
                state.enter(name, place, of_client, now);
                return false;
            }
        }
        let of_volume = if lines.by_weight.has_rate() {
            let number = lines.number_of(|| client.clone());
            let place = || place(of_client, None);
            let grant = lines.by_weight.take_or_enter(own_flow(number), bytes, place, now);
            if grant.is_none() {
                state.places.insert((connection, volume.0), Standing::Weighted(number));
                state.look_by(volume.0, now);
                return false;
            }
            grant.map(OfVolume::Weighted)
        } else {
            let waits = !lines.volume.waiting.is_empty();
            let limit = lines.limit.as_ref().filter(|_| lines.has_volume_rate && !waits);
            let share = limit.map(|limit| limit.reserve(Scope::Volume, bytes, now));
            if waits || share.is_some_and(|share| share.start > now) {
                let place = place(of_client, None);
                state.enter((volume.0, None), place, share, now);
                return false;
            }
            share.map(OfVolume::Bucket)
        };
        if !lines.is_exempt && state.total.has_rate() {
            let number = lines.number_of(|| client.clone());
            let flow = Flow { volume: volume.0, client: number };
            let place = || place(of_client, of_volume);
            if state.total.take_or_enter(flow, bytes, place, now).is_none() {
                state.places.insert((connection, volume.0), Standing::Total(number));
                return false;
            }
        }
        if !lines.uses.is_empty() {
            use_of(&mut lines.uses, &client).into_iter().for_each(|it| it.started(bytes));
        }
        true
    }

    /// Counts a request that starts after it has waited.
    pub(crate) fn waited(&self, client: &ClientName, volume: VolumeId, bytes: u64, time: Duration) {
        let mut state = self.state.borrow_mut();
        let Some(VolumeLines { named, uses, .. }) = state.lines(volume) else { return };
        let of_client = use_of(uses, named.name_for(client));
        of_client.into_iter().for_each(|it| it.waited(bytes, time));
    }

    /// Returns the counters of the clients that volumes name.
    pub(crate) fn client_uses(&self) -> ClientUses {
        let state = self.state.borrow();
        let volumes = (0..).zip(&state.volumes);
        let of_volume = |(volume, lines): (u16, &Option<VolumeLines>)| {
            let uses = lines.iter().flat_map(|lines| &lines.uses);
            uses.map(move |(name, it)| ((volume, name.clone()), *it)).collect::<Vec<_>>()
        };
        volumes.flat_map(of_volume).collect()
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
        let client = lines.named.name_for(client()).clone();
        let waits_for_client = lines.is_limited(&client) || lines.clients.contains_key(&client);
        let name = waits_for_client.then(|| client.clone());
        let place = Place { connection, bytes, client, of_client: None, of_volume: None };
        match name {
            Some(_) => state.enter((volume.0, name), place, None, now),
            None => state.enter_volume(volume.0, place, now),
        }
    }

    /// Returns a connection that may start its request to this volume now. Must be called again
    /// after the start of that request.
    pub(crate) fn first_due(&self, now: Instant) -> Option<(u32, VolumeId)> {
        let mut state = self.state.borrow_mut();
        loop {
            if let Some((_, name)) = state.dues.first().filter(|(start, _)| *start <= now) {
                let (name, volume) = (name.clone(), VolumeId(name.0));
                let waits_for_total = state.waits_for_total(volume.0);
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
            } else if let Some(&(_, volume)) = state.looks.first().filter(|(at, _)| *at <= now) {
                if let Some(connection) = state.look(volume, now) {
                    return Some((connection, VolumeId(volume)));
                }
            } else {
                break;
            }
        }
        let (flow, connection) = state.total.first_due(now)?;
        Some((connection, VolumeId(flow.volume)))
    }

    /// Removes the connection that [`Throttle::first_due`] has returned: its request starts.
    pub(crate) fn start(&self, connection: u32, volume: VolumeId, now: Instant) {
        let mut state = self.state.borrow_mut();
        let standing = state.places.remove(&(connection, volume.0)).expect("it stands in line");
        let first = state.leave_line(connection, volume.0, standing, true, now);
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
        // A look at lines that have become empty is due with the next one.
        let look = state.looks.first().filter(|_| !state.places.is_empty()).map(|(at, _)| *at);
        due.into_iter().chain(look).chain(state.total.next_due(now)).min()
    }
}

#[cfg(test)]
mod tests;
