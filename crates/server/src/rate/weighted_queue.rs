//! The order in which requests of several volumes, clients and threads use one rate: start-time
//! fair queueing by weights, at two levels. Volumes share the rate, and the clients of a volume
//! share its part. If a rate belongs to one volume, all of its clients are those of volume 0.
//!
//! Each thread has at most one entry for each client of a volume: the first request of its line
//! there. A request costs time of the rate. An entry has the virtual time at which its client has
//! had its part of the volume, and moves the client on by the cost over the weight when it comes.
//! A volume with entries has the virtual time at which it has had its part of the rate, and moves
//! on when one of them starts. The volume with the smallest time goes first, and of it the entry
//! with the smallest time. These become the virtual times of both levels. A volume or client that
//! comes back starts at the virtual time, so it has saved nothing up. Times of one volume or client
//! only grow, so no other one waits for ever.
//!
//! A thread starts its own entries only, and takes a while to wake up. So a volume may go ahead of
//! the first one by [`AHEAD_NS`], and a client ahead of others of its volume, and waits for it
//! later. Once the thread of the first entry is late, they may go ahead by [`GRACE_NS`], if half a
//! burst and the share of the first entry stay in the bucket: so the late thread can catch up, and
//! no rate is lost. Beyond that, all wait while the thread is at most [`GRACE_NS`] late. Then the
//! first entry takes its share from the bucket: it is prepaid, and starts when its thread looks.
//! Until then, the entries of that thread are passed over. So a thread that is always late gets a
//! request each time that it looks.
//!
//! A thread that starts a request keeps the place of the client's next one until it looks again.
//! Otherwise requests of a light client or volume on another thread would slip in between those of
//! a heavy one.

use std::collections::BTreeMap;

use crate::rate::{Bucket, Rates, WEIGHT};

/// Time of the rate by which a volume or client may go ahead of another whose thread has not looked
/// yet, in nanoseconds. A thread needs less time to wake up.
const AHEAD_NS: u64 = 1_000_000;

/// Longest time for which a thread that is due holds up the others, and time of the rate by which a
/// volume or client may go ahead of it. In nanoseconds.
const GRACE_NS: u64 = 10_000_000;

/// Interval at which a thread looks again while another one is to go first, in nanoseconds.
const LOOK_NS: u64 = 100_000;

/// Longest time after which a thread with entries behind those of others looks again while the
/// bucket suffices for its own request: that may have become the first. Less than [`AHEAD_NS`], so
/// the thread is not late. In nanoseconds.
const LOOK_ALONE_NS: u64 = AHEAD_NS / 2;

/// Longest time after which a thread with entries behind those of others looks again: requests may
/// have given back their shares. In nanoseconds.
const LOOK_MOST_NS: u64 = 50_000_000;

/// Most entries from whose shares the time of a thread's next look is foreseen.
const FORESEEN: usize = 16;

/// Factor of costs in virtual time, so that division by a weight keeps its digits.
const SCALE: u32 = 20;

/// The requests that share a rate with others: those of one volume, or of one client of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow {
    /// Number of the volume; 0 in a rate that belongs to one volume.
    pub(crate) volume: u16,
    /// Number of the client among those that the volume names; 0 for all others together.
    pub(crate) client: u16,
}

/// A thread and a flow.
type Line = (usize, Flow);

/// A virtual time, and a number by which equal ones differ.
type Tag = (u128, u64);

/// A request that waits, or the place that a thread keeps for the next one.
#[derive(Debug)]
struct Entry {
    line: Line,
    /// Bytes of the request; `None` for a place without one.
    bytes: Option<u64>,
    /// Virtual time by which the request has moved its client on.
    cost: u128,
    /// Time of its arrival.
    since: u64,
}

/// The first entry, which another thread has to start.
#[derive(Debug)]
struct First {
    /// Virtual time of its volume.
    start: u128,
    bytes: u64,
    /// Time for which it could have started.
    late_ns: u64,
}

/// A request that may start, and what it has used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) flow: Flow,
    bytes: u64,
    /// Virtual time by which the request has moved its client on.
    cost: u128,
    /// Number of the changes before.
    changes: u64,
}

/// The parts that volumes have had of a rate, or clients of their volume's part. Each has a number.
#[derive(Debug, Default)]
struct Parts {
    /// Weights by number; those that are missing are [`WEIGHT`].
    weights: Vec<u64>,
    /// Virtual time until which each has had its part; 0 where it is missing.
    finished: Vec<u128>,
    virtual_time: u128,
}

impl Parts {
    /// Returns the virtual time that a time of the rate takes for a volume or client.
    fn cost(&self, number: u16, nanos: u64) -> u128 {
        let weight = self.weights.get(usize::from(number)).copied().unwrap_or(WEIGHT);
        (u128::from(nanos) << SCALE) / u128::from(weight)
    }

    /// Returns the virtual time at which the next request of a volume or client starts.
    fn start(&self, number: u16) -> u128 {
        let finished = self.finished.get(usize::from(number)).copied().unwrap_or(0);
        self.virtual_time.max(finished)
    }

    /// Moves a volume or client on by a request. Returns the virtual times of its start and its
    /// cost.
    fn advance(&mut self, number: u16, nanos: u64) -> (u128, u128) {
        let (start, cost) = (self.start(number), self.cost(number, nanos).max(1));
        *entry_of(&mut self.finished, number.into(), 0) = start + cost;
        (start, cost)
    }

    fn move_back(&mut self, number: u16, cost: u128) {
        let finished = entry_of(&mut self.finished, number.into(), 0);
        *finished = finished.saturating_sub(cost);
    }

    /// Sets the virtual time to that of a request that starts, unless it is later already.
    fn reach(&mut self, start: u128) {
        self.virtual_time = self.virtual_time.max(start);
    }

    /// Forgets the parts, and keeps the weights.
    fn forget(&mut self) {
        self.virtual_time = 0;
        self.finished.clear();
    }
}

/// The clients of a volume, and their requests that wait.
#[derive(Debug, Default)]
struct Volume {
    clients: Parts,
    entries: BTreeMap<Tag, Entry>,
    /// Place of the volume among all; `None` without entries.
    tag: Option<Tag>,
}

/// The bucket of a rate, and the requests that wait for it. Times are in nanoseconds from the same
/// origin.
#[derive(Debug)]
pub(super) struct WeightedQueue {
    rates: Rates,
    bucket: Bucket,
    /// The parts of the volumes.
    parts: Parts,
    /// Volumes by number.
    volumes: Vec<Volume>,
    /// Numbers of the volumes with entries.
    order: BTreeMap<Tag, u16>,
    /// Places of entries among those of their volumes.
    tags: BTreeMap<Line, Tag>,
    /// The flow whose next place each thread keeps.
    kept: Vec<Option<Flow>>,
    /// Threads that are passed over, because they did not look when it was their turn.
    late: Vec<bool>,
    /// The flow of each thread's entry that has taken its share from the bucket. The thread is
    /// late.
    prepaid: Vec<Option<Flow>>,
    /// Time since which the first entry is the first.
    moved_at: u64,
    arrivals: u64,
    changes: u64,
}

impl WeightedQueue {
    pub(super) fn new(rates: Rates) -> Self {
        Self {
            rates,
            bucket: Bucket::default(),
            parts: Parts::default(),
            volumes: Vec::new(),
            order: BTreeMap::new(),
            tags: BTreeMap::new(),
            kept: Vec::new(),
            late: Vec::new(),
            prepaid: Vec::new(),
            moved_at: 0,
            arrivals: 0,
            changes: 0,
        }
    }

    pub(super) fn rates(&self) -> Rates {
        self.rates
    }

    /// Changes the rates. A whole burst may start again, and requests that wait keep their order.
    pub(super) fn set_rates(&mut self, rates: Rates, now: u64) {
        if self.rates != rates {
            self.give_back_prepaid();
            self.rates = rates;
            self.bucket.forgive(now);
            self.tag_anew(now);
        }
    }

    /// Sets the weights of a volume and of its clients by number, also for requests that wait.
    pub(super) fn set_weights(&mut self, volume: u16, weight: u64, clients: Vec<u64>, now: u64) {
        let of_volume = entry_of(&mut self.parts.weights, volume.into(), WEIGHT);
        let of_volume = std::mem::replace(of_volume, weight);
        let of_clients = &mut self.volume(volume).clients.weights;
        if of_volume != weight || *of_clients != clients {
            *of_clients = clients;
            self.tag_anew(now);
        }
    }

    fn volume(&mut self, number: u16) -> &mut Volume {
        let at = usize::from(number);
        if self.volumes.len() <= at {
            self.volumes.resize_with(at + 1, Volume::default);
        }
        &mut self.volumes[at]
    }

    /// Returns the volumes with entries in their order, with their numbers and virtual times.
    fn in_order(&self) -> impl Iterator<Item = (u16, u128, &Volume)> {
        let volume = |number: &u16| &self.volumes[usize::from(*number)];
        self.order.iter().map(move |(tag, number)| (*number, tag.0, volume(number)))
    }

    /// Gives all entries new tags in their present order.
    fn tag_anew(&mut self, now: u64) {
        self.give_back_prepaid();
        self.changes += 1;
        self.moved_at = now;
        self.parts.forget();
        self.tags.clear();
        self.kept.clear();
        let numbers: Vec<u16> = std::mem::take(&mut self.order).into_values().collect();
        self.volumes.iter_mut().for_each(|volume| volume.clients.forget());
        for number in numbers {
            let volume = self.volume(number);
            volume.tag = None;
            for (_, Entry { line, bytes, since, .. }) in std::mem::take(&mut volume.entries) {
                if let Some(bytes) = bytes {
                    self.insert(line, bytes, since);
                }
            }
        }
    }

    /// Gives back the shares of entries that are prepaid: these wait for their turns again.
    fn give_back_prepaid(&mut self) {
        for thread in 0..self.prepaid.len() {
            self.take_prepaid(thread).into_iter().for_each(|(flow, bytes)| {
                self.give_back_turn(flow.volume, bytes);
            });
        }
    }

    /// Has an entry of this thread that is prepaid wait again. Returns its flow and bytes.
    fn take_prepaid(&mut self, thread: usize) -> Option<(Flow, u64)> {
        let flow = self.prepaid.get_mut(thread)?.take()?;
        let tag = self.tags.get(&(thread, flow))?;
        let entry = self.volumes[usize::from(flow.volume)].entries.get(tag)?;
        Some((flow, entry.bytes?))
    }

    /// Returns the time of the rate that a request takes.
    fn nanos(&self, bytes: u64) -> u64 {
        self.rates.costs_ns(bytes).into_iter().flatten().max().unwrap_or(0)
    }

    /// Takes the share of a request from the bucket, and moves its volume on.
    fn take_turn(&mut self, volume: u16, bytes: u64, now: u64) {
        self.bucket.take(&self.rates, bytes, now);
        self.parts.advance(volume, self.nanos(bytes));
        self.place(volume);
    }

    /// Gives back the share of a request and the part of its volume, also to others of its
    /// requests.
    fn give_back_turn(&mut self, volume: u16, bytes: u64) {
        self.bucket.give_back(&self.rates, bytes);
        let cost = self.parts.cost(volume, self.nanos(bytes)).max(1);
        self.parts.move_back(volume, cost);
        self.place(volume);
    }

    /// Gives a volume its place among all, behind those with the same virtual time.
    fn place(&mut self, number: u16) {
        let tag = (self.parts.start(number), self.arrivals);
        self.arrivals += 1;
        let volume = self.volume(number);
        let tag = (!volume.entries.is_empty()).then_some(tag);
        let before = std::mem::replace(&mut volume.tag, tag);
        before.into_iter().for_each(|before| {
            self.order.remove(&before);
        });
        tag.into_iter().for_each(|tag| {
            self.order.insert(tag, number);
        });
    }

    /// Returns the number that only the first entry has.
    fn first_number(&self) -> Option<u64> {
        let (_, _, volume) = self.in_order().next()?;
        volume.entries.first_key_value().map(|(tag, _)| tag.1)
    }

    /// Notes the time from which on another entry is the first than before.
    fn note_first(&mut self, before: Option<u64>, now: u64) {
        if before.is_some() && self.first_number() != before {
            self.moved_at = now;
        }
    }

    fn insert(&mut self, line: Line, bytes: u64, since: u64) {
        let (nanos, Flow { volume, client }) = (self.nanos(bytes), line.1);
        let (start, cost) = self.volume(volume).clients.advance(client, nanos);
        self.put(start, Entry { line, bytes: Some(bytes), cost, since });
    }

    fn put(&mut self, start: u128, entry: Entry) {
        let (tag, line) = ((start, self.arrivals), entry.line);
        self.arrivals += 1;
        let before = self.tags.insert(line, tag);
        debug_assert!(before.is_none(), "a thread has one entry for each flow");
        let volume = self.volume(line.1.volume);
        volume.entries.insert(tag, entry);
        if volume.tag.is_none() {
            self.place(line.1.volume);
        }
    }

    fn remove(&mut self, line: Line) -> Option<Entry> {
        let tag = self.tags.remove(&line)?;
        let volume = self.volume(line.1.volume);
        let entry = volume.entries.remove(&tag);
        if volume.entries.is_empty() {
            self.place(line.1.volume);
        }
        entry
    }

    /// Gives up the place that a thread keeps.
    pub(super) fn give_up(&mut self, thread: usize, now: u64) {
        if let Some(flow) = self.kept.get_mut(thread).and_then(Option::take) {
            let first = self.first_number();
            self.remove((thread, flow));
            self.note_first(first, now);
        }
    }

    /// Takes the share of a request that may start at once, because none waits. Otherwise the
    /// request waits: it is the first of its thread's line. Returns the share if it may start.
    pub(super) fn take_or_enter(&mut self, line: Line, bytes: u64, now: u64) -> Option<Grant> {
        let keeps = self.kept.get(line.0).is_some_and(Option::is_some);
        let is_free = self.tags.len() == usize::from(keeps);
        if is_free && self.bucket.start(&self.rates, bytes, now) <= now {
            let (nanos, flow) = (self.nanos(bytes), line.1);
            self.parts.reach(self.parts.start(flow.volume));
            self.take_turn(flow.volume, bytes, now);
            let clients = &mut self.volume(flow.volume).clients;
            let (start, cost) = clients.advance(flow.client, nanos);
            clients.reach(start);
            return Some(Grant { flow, bytes, cost, changes: self.changes });
        }
        self.enter(line, bytes, now);
        None
    }

    /// Has a request wait that has become the first of its thread's line.
    pub(super) fn enter(&mut self, line: Line, bytes: u64, now: u64) {
        let keeps = self.kept.get(line.0) == Some(&Some(line.1));
        let first = self.first_number();
        if keeps {
            self.give_up(line.0, now);
        }
        self.insert(line, bytes, now);
        self.note_first(first, now);
    }

    /// Removes a request that waits, and gives back the part of its volume and what is prepaid.
    pub(super) fn leave(&mut self, line: Line, now: u64) {
        let first = self.first_number();
        let Flow { volume, client } = line.1;
        if self.prepaid.get(line.0) == Some(&Some(line.1))
            && let Some((_, bytes)) = self.take_prepaid(line.0)
        {
            self.give_back_turn(volume, bytes);
        }
        if let Some(Entry { cost, .. }) = self.remove(line) {
            self.volume(volume).clients.move_back(client, cost);
        }
        self.note_first(first, now);
    }

    /// Gives back the share of a request that was granted, and will not start.
    pub(super) fn give_back(&mut self, grant: Grant, now: u64) {
        if grant.changes == self.changes {
            let (first, Flow { volume, client }) = (self.first_number(), grant.flow);
            self.give_back_turn(volume, grant.bytes);
            self.volume(volume).clients.move_back(client, grant.cost);
            self.note_first(first, now);
        }
    }

    /// Lets an entry of this thread start, if it is its turn and the rate allows. The thread keeps
    /// the place of the client's next request until the next call.
    pub(super) fn grant(&mut self, thread: usize, now: u64) -> Option<Grant> {
        self.give_up(thread, now);
        *entry_of(&mut self.late, thread, false) = false;
        if let Some((flow, bytes)) = self.take_prepaid(thread) {
            return self.start((thread, flow), bytes, now);
        }
        let first = self.first_other(thread, now);
        let (line, start, tag) = self.first_own(thread)?;
        let Flow { volume, client } = line.1;
        let Volume { clients, entries, .. } = &self.volumes[usize::from(volume)];
        let bytes = entries[&tag].bytes?;
        let ahead = match &first {
            Some(first) if self.is_spare(first, bytes, now) => GRACE_NS,
            _ => AHEAD_NS,
        };
        // The first volume, and the first entry of this one.
        let first = first.map_or(start, |first| first.start);
        let mut others = entries.iter().take_while(|(other, _)| **other < tag);
        let other = others.find(|(_, entry)| !self.is_late(entry.line.0));
        let other = other.map_or(tag.0, |(other, _)| other.0);
        if start > first + self.parts.cost(volume, ahead)
            || tag.0 > other + clients.cost(client, ahead)
            || self.bucket.start(&self.rates, bytes, now) > now
        {
            return None;
        }
        let before = self.first_number();
        self.parts.reach(first);
        self.volume(volume).clients.reach(other);
        self.take_turn(volume, bytes, now);
        let grant = self.start(line, bytes, now);
        self.note_first(before, now);
        grant
    }

    /// Returns the first entry of a thread, the virtual time of its volume, and its own.
    fn first_own(&self, thread: usize) -> Option<(Line, u128, Tag)> {
        let own = self.own(thread).filter_map(|(line, tag)| {
            let of_volume = self.volumes[usize::from(line.1.volume)].tag?;
            Some((of_volume, tag, line))
        });
        own.min().map(|(of_volume, tag, line)| (line, of_volume.0, tag))
    }

    /// Returns the entries of a thread.
    fn own(&self, thread: usize) -> impl Iterator<Item = (Line, Tag)> {
        let line = |number| (thread, Flow { volume: number, client: number });
        self.tags.range(line(0)..=line(u16::MAX)).map(|(line, tag)| (*line, *tag))
    }

    /// Starts a request that has taken its share from the bucket.
    fn start(&mut self, line: Line, bytes: u64, now: u64) -> Option<Grant> {
        let (first, flow) = (self.first_number(), line.1);
        let Entry { cost, .. } = self.remove(line)?;
        let clients = &self.volume(flow.volume).clients;
        let next = clients.finished.get(usize::from(flow.client)).copied().unwrap_or(0);
        self.put(next, Entry { line, bytes: None, cost: 0, since: now });
        *entry_of(&mut self.kept, line.0, None) = Some(flow);
        self.note_first(first, now);
        Some(Grant { flow, bytes, cost, changes: self.changes })
    }

    fn is_late(&self, thread: usize) -> bool {
        self.late.get(thread).copied().unwrap_or(false)
    }

    /// Returns the first entry, if another thread has it that is not late. Passes over threads that
    /// are.
    fn first_other(&mut self, thread: usize, now: u64) -> Option<First> {
        loop {
            let all = self.in_order().flat_map(|(_, start, volume)| {
                volume.entries.iter().map(move |(tag, entry)| (start, tag.0, entry))
            });
            let (start, of_client, entry) =
                { all }.find(|(.., entry)| !self.is_late(entry.line.0))?;
            let Entry { line: (of_thread, flow), bytes: pays, since, .. } = *entry;
            if of_thread == thread {
                return None;
            }
            let bytes = pays.unwrap_or(0);
            let due = self.bucket.start(&self.rates, bytes, since).max(self.moved_at);
            let late_ns = now.saturating_sub(due);
            if late_ns <= self.grace() {
                return Some(First { start, bytes, late_ns });
            }
            *entry_of(&mut self.late, of_thread, false) = true;
            self.moved_at = now;
            // The place of a next request has nothing to pay for.
            if pays.is_some() {
                *entry_of(&mut self.prepaid, of_thread, None) = Some(flow);
                self.parts.reach(start);
                self.volume(flow.volume).clients.reach(of_client);
                self.take_turn(flow.volume, bytes, now);
            }
        }
    }

    /// Longest time for which a thread that is due holds up the others. The bucket must not be full
    /// meanwhile.
    fn grace(&self) -> u64 {
        GRACE_NS.min(self.rates.burst_ns / 2)
    }

    /// Returns whether a request may use what the bucket has beyond half a burst and the share of
    /// the first entry, because the thread of that is late.
    fn is_spare(&self, first: &First, bytes: u64, now: u64) -> bool {
        let mut after = self.bucket;
        let half = Rates { burst_ns: self.rates.burst_ns / 2, ..self.rates };
        first.late_ns > AHEAD_NS
            && after.start(&half, bytes, now) <= now
            && after.take(&self.rates, bytes, now) <= now
            && after.start(&self.rates, first.bytes, now) <= now
    }

    /// Returns the time at which this thread is to call [`WeightedQueue::grant`] again; `None` if
    /// nothing of it waits.
    pub(super) fn next_due(&self, thread: usize, now: u64) -> Option<u64> {
        // The volumes in which requests of this thread wait, in order, and their bytes.
        let own = self.own(thread).filter_map(|(line, tag)| {
            let volume = line.1.volume;
            Some((volume, self.volumes[usize::from(volume)].entries[&tag].bytes?))
        });
        let own: Vec<(u16, u64)> = own.collect();
        if own.is_empty() {
            return None;
        }
        if self.prepaid.get(thread).is_some_and(Option::is_some) {
            return Some(now);
        }
        // Entries before that of this thread are assumed to start as soon as they may: the first of
        // each volume before its own, and those before it in its own. While the first of a volume
        // waits for the bucket, a smaller one of another thread may start in front of it and move
        // the volume on. So the thread also looks once the bucket suffices for the least of its own
        // requests alone.
        let look = |at: u64, bytes: u64, is_behind| match is_behind {
            true => {
                let alone = self.bucket.start(&self.rates, bytes, now);
                let most = alone.max(now + LOOK_ALONE_NS).min(now + LOOK_MOST_NS);
                at.clamp(now + LOOK_NS, most)
            }
            false => at,
        };
        let has_others = self.tags.len() > self.own(thread).count();
        let (mut before, mut due, mut last) = ((self.bucket, now, false), u64::MAX, None);
        for (number, _, volume) in self.in_order().take(FORESEEN) {
            last = volume.tag;
            let (mut bucket, mut at, mut is_behind) = before;
            let of_own = own.partition_point(|(volume, _)| *volume < number);
            let of_own = own[of_own..].iter().take_while(|(volume, _)| *volume == number);
            let least = of_own.map(|(_, bytes)| *bytes).min();
            let most = if least.is_some() { FORESEEN } else { 1 };
            let mut start = None;
            // Entries of threads that are late are passed over.
            let counts = |entry: &&Entry| entry.line.0 == thread || !self.is_late(entry.line.0);
            for (count, entry) in volume.entries.values().filter(counts).take(most).enumerate() {
                let is_own = entry.line.0 == thread;
                is_behind |= !is_own;
                at = entry.bytes.map_or(at, |it| bucket.take(&self.rates, it, at).max(at));
                if count == 0 {
                    before = (bucket, at, has_others);
                }
                if is_own && let Some(bytes) = entry.bytes {
                    start = Some(look(at, bytes, is_behind));
                    break;
                }
            }
            if let Some(least) = least {
                due = due.min(start.unwrap_or_else(|| look(at, least, true)));
            }
            if due <= now + LOOK_NS {
                return Some(due);
            }
        }
        let is_beyond = |volume: u16| self.volumes[usize::from(volume)].tag > last;
        let beyond = own.iter().filter(|(volume, _)| is_beyond(*volume));
        let least = beyond.map(|(_, bytes)| *bytes).min();
        Some(least.map_or(due, |least| due.min(look(before.1, least, has_others))))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tags.len()
    }
}

/// Returns the element of a list, which grows if it is too short.
fn entry_of<T: Clone>(list: &mut Vec<T>, at: usize, default: T) -> &mut T {
    if list.len() <= at {
        list.resize(at + 1, default);
    }
    &mut list[at]
}

#[cfg(test)]
mod tests;
