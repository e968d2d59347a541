//! The order in which requests of several volumes and threads use one rate: start-time fair
//! queueing by the weights of the volumes. The clients of a volume share its rate in the same way:
//! then each number of a volume here is that of a client.
//!
//! Each thread has at most one entry for each volume: the first request of its line there. A
//! request costs time of the rate. Its tag is the virtual time until which its volume has had its
//! part. It moves the volume on by the cost over the weight. The entry of the smallest tag goes
//! first, and its tag becomes the virtual time. A volume that comes back starts at the virtual
//! time, so it has saved nothing up. Tags of one volume only grow, so no other one waits for ever.
//!
//! A thread starts its own entries only, and takes a while to wake up. So a volume may go ahead of
//! the first entry by [`AHEAD_NS`], and waits for it later. Once the thread of that entry is late,
//! the volume may go ahead by [`GRACE_NS`], if half a burst and the share of the first entry stay
//! in the bucket: so the late thread can catch up, and no rate is lost. Beyond that, it waits while
//! the thread is at most [`GRACE_NS`] late. Then the first entry takes its share from the bucket:
//! it is prepaid, and starts when its thread looks. Until then, the entries of that thread are
//! passed over. So a thread that is always late gets a request each time that it looks.
//!
//! A thread that starts a request keeps the place of the volume's next one until it looks again.
//! Otherwise requests of a light volume on another thread would slip in between those of a heavy
//! one.

use std::collections::BTreeMap;

use crate::rate::{Bucket, Rates, WEIGHT};

/// Time of the rate by which a volume may go ahead of another whose thread has not looked yet, in
/// nanoseconds. A thread needs less time to wake up.
const AHEAD_NS: u64 = 1_000_000;

/// Longest time for which a thread that is due holds up the others, and time of the rate by which a
/// volume may go ahead of it. In nanoseconds.
const GRACE_NS: u64 = 10_000_000;

/// Interval at which a thread looks again while another one is to go first, in nanoseconds.
const LOOK_NS: u64 = 100_000;

/// Longest time after which a thread with entries behind those of others looks again: theirs may
/// have left. In nanoseconds.
const LOOK_MOST_NS: u64 = 50_000_000;

/// Factor of costs in virtual time, so that division by a weight keeps its digits.
const SCALE: u32 = 20;

/// A thread and a volume.
type Line = (usize, u16);

/// A virtual time, and a number by which equal ones differ.
type Tag = (u128, u64);

/// A request that waits, or the place that a thread keeps for the next one.
#[derive(Debug)]
struct Entry {
    line: Line,
    /// Bytes of the request; `None` for a place without one.
    bytes: Option<u64>,
    /// Virtual time by which the request has moved its volume on.
    cost: u128,
    /// Time of its arrival.
    since: u64,
}

/// The first entry, which another thread has to start.
#[derive(Debug)]
struct First {
    tag: Tag,
    bytes: u64,
    /// Time for which it could have started.
    late_ns: u64,
}

/// A request that may start, and what it has used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Number of the volume.
    pub(crate) volume: u16,
    bytes: u64,
    cost: u128,
    /// Number of the changes before.
    changes: u64,
}

/// The bucket of a rate, and the requests that wait for it. Times are in nanoseconds from the same
/// origin.
#[derive(Debug)]
pub(super) struct WeightedQueue {
    rates: Rates,
    bucket: Bucket,
    /// Weights by number of the volume; those that are missing are [`WEIGHT`].
    weights: Vec<u64>,
    /// Virtual time until which each volume has had its part; 0 where it is missing.
    finished: Vec<u128>,
    virtual_time: u128,
    entries: BTreeMap<Tag, Entry>,
    tags: BTreeMap<Line, Tag>,
    /// The volume whose next place each thread keeps.
    kept: Vec<Option<u16>>,
    /// Threads that are passed over, because they did not look when it was their turn.
    late: Vec<bool>,
    /// The volume of each thread's entry that has taken its share from the bucket. The thread is
    /// late.
    prepaid: Vec<Option<u16>>,
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
            weights: Vec::new(),
            finished: Vec::new(),
            virtual_time: 0,
            entries: BTreeMap::new(),
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

    /// Sets the weight of a volume, also for its requests that wait.
    pub(super) fn set_weight(&mut self, volume: u16, weight: u64, now: u64) {
        let of_volume = entry_of(&mut self.weights, volume.into(), WEIGHT);
        if std::mem::replace(of_volume, weight) != weight {
            self.tag_anew(now);
        }
    }

    /// Gives all entries new tags in their present order.
    fn tag_anew(&mut self, now: u64) {
        self.give_back_prepaid();
        self.changes += 1;
        (self.virtual_time, self.moved_at) = (0, now);
        self.finished.clear();
        self.tags.clear();
        self.kept.clear();
        for (_, Entry { line, bytes, since, .. }) in std::mem::take(&mut self.entries) {
            if let Some(bytes) = bytes {
                self.insert(line, bytes, since);
            }
        }
    }

    /// Gives back the shares of entries that are prepaid: these wait for their turns again.
    fn give_back_prepaid(&mut self) {
        for thread in 0..self.prepaid.len() {
            self.take_prepaid(thread).into_iter().for_each(|(_, bytes)| {
                self.bucket.give_back(&self.rates, bytes);
            });
        }
    }

    /// Has an entry of this thread that is prepaid wait again. Returns its volume and bytes.
    fn take_prepaid(&mut self, thread: usize) -> Option<(u16, u64)> {
        let volume = self.prepaid.get_mut(thread)?.take()?;
        let entry = self.entries.get(self.tags.get(&(thread, volume))?)?;
        Some((volume, entry.bytes?))
    }

    fn weight(&self, volume: u16) -> u64 {
        self.weights.get(usize::from(volume)).copied().unwrap_or(WEIGHT)
    }

    /// Moves a volume on by a request. Returns the virtual times of its start and its cost.
    fn advance(&mut self, volume: u16, bytes: u64) -> (u128, u128) {
        let time = self.rates.costs_ns(bytes).into_iter().flatten().max().unwrap_or(0);
        let cost = virtual_time(time, self.weight(volume)).max(1);
        let finished = entry_of(&mut self.finished, volume.into(), 0);
        let start = self.virtual_time.max(*finished);
        *finished = start + cost;
        (start, cost)
    }

    fn insert(&mut self, line: Line, bytes: u64, since: u64) {
        let (start, cost) = self.advance(line.1, bytes);
        self.put(start, Entry { line, bytes: Some(bytes), cost, since });
    }

    fn put(&mut self, start: u128, entry: Entry) {
        let tag = (start, self.arrivals);
        self.arrivals += 1;
        let before = self.tags.insert(entry.line, tag);
        debug_assert!(before.is_none(), "a thread has one entry for each volume");
        self.entries.insert(tag, entry);
    }

    fn remove(&mut self, line: Line, now: u64) -> Option<Entry> {
        let tag = self.tags.remove(&line)?;
        if self.entries.first_key_value().is_some_and(|(first, _)| *first == tag) {
            self.moved_at = now;
        }
        self.entries.remove(&tag)
    }

    /// Gives up the place that a thread keeps.
    pub(super) fn give_up(&mut self, thread: usize, now: u64) {
        if let Some(volume) = self.kept.get_mut(thread).and_then(Option::take) {
            self.remove((thread, volume), now);
        }
    }

    /// Takes the share of a request that may start at once, because none waits. Otherwise the
    /// request waits: it is the first of its thread's line. Returns the share if it may start.
    pub(super) fn take_or_enter(&mut self, line: Line, bytes: u64, now: u64) -> Option<Grant> {
        let keeps = self.kept.get(line.0).is_some_and(Option::is_some);
        let is_free = self.entries.len() == usize::from(keeps);
        if is_free && self.bucket.start(&self.rates, bytes, now) <= now {
            self.bucket.take(&self.rates, bytes, now);
            let (start, cost) = self.advance(line.1, bytes);
            self.virtual_time = start;
            return Some(Grant { volume: line.1, bytes, cost, changes: self.changes });
        }
        self.enter(line, bytes, now);
        None
    }

    /// Has a request wait that has become the first of its thread's line.
    pub(super) fn enter(&mut self, line: Line, bytes: u64, now: u64) {
        if self.kept.get(line.0) == Some(&Some(line.1)) {
            self.give_up(line.0, now);
        }
        self.insert(line, bytes, now);
    }

    /// Removes a request that waits, and gives back the part of its volume and what is prepaid.
    pub(super) fn leave(&mut self, line: Line, now: u64) {
        if self.prepaid.get(line.0) == Some(&Some(line.1))
            && let Some((_, bytes)) = self.take_prepaid(line.0)
        {
            self.bucket.give_back(&self.rates, bytes);
        }
        if let Some(Entry { cost, .. }) = self.remove(line, now) {
            self.move_back(line.1, cost);
        }
    }

    fn move_back(&mut self, volume: u16, cost: u128) {
        let finished = entry_of(&mut self.finished, volume.into(), 0);
        *finished = finished.saturating_sub(cost);
    }

    /// Gives back the share of a request that was granted, and will not start.
    pub(super) fn give_back(&mut self, grant: Grant) {
        if grant.changes == self.changes {
            self.bucket.give_back(&self.rates, grant.bytes);
            self.move_back(grant.volume, grant.cost);
        }
    }

    /// Lets an entry of this thread start, if it is its turn and the rate allows. The thread keeps
    /// the place of the volume's next request until the next call.
    pub(super) fn grant(&mut self, thread: usize, now: u64) -> Option<Grant> {
        self.give_up(thread, now);
        *entry_of(&mut self.late, thread, false) = false;
        if let Some((volume, bytes)) = self.take_prepaid(thread) {
            return self.start((thread, volume), bytes, now);
        }
        let first = self.first_other(thread, now);
        let own = self.tags.range((thread, 0)..=(thread, u16::MAX));
        let (line, tag) = own.min_by_key(|(_, tag)| **tag)?;
        let (line, start, bytes) = (*line, tag.0, self.entries[tag].bytes?);
        let first = first.filter(|first| first.tag.0 <= start);
        let ahead = match &first {
            Some(first) if self.is_spare(first, bytes, now) => GRACE_NS,
            _ => AHEAD_NS,
        };
        let first = first.map_or(start, |first| first.tag.0);
        let ahead = virtual_time(ahead, self.weight(line.1));
        if start > first + ahead || self.bucket.start(&self.rates, bytes, now) > now {
            return None;
        }
        self.bucket.take(&self.rates, bytes, now);
        self.virtual_time = self.virtual_time.max(first);
        self.start(line, bytes, now)
    }

    /// Starts a request that has taken its share from the bucket.
    fn start(&mut self, line: Line, bytes: u64, now: u64) -> Option<Grant> {
        let Entry { cost, .. } = self.remove(line, now)?;
        let next = self.finished.get(usize::from(line.1)).copied().unwrap_or(0);
        self.put(next, Entry { line, bytes: None, cost: 0, since: now });
        *entry_of(&mut self.kept, line.0, None) = Some(line.1);
        Some(Grant { volume: line.1, bytes, cost, changes: self.changes })
    }

    /// Returns the first entry, if another thread has it that is not late. Passes over threads that
    /// are.
    fn first_other(&mut self, thread: usize, now: u64) -> Option<First> {
        let grace = self.grace();
        for (tag, entry) in &self.entries {
            let of_thread = entry.line.0;
            if of_thread == thread {
                return None;
            }
            let is_late = entry_of(&mut self.late, of_thread, false);
            if *is_late {
                continue;
            }
            let bytes = entry.bytes.unwrap_or(0);
            let due = self.bucket.start(&self.rates, bytes, entry.since).max(self.moved_at);
            let late_ns = now.saturating_sub(due);
            if late_ns <= grace {
                return Some(First { tag: *tag, bytes, late_ns });
            }
            (*is_late, self.moved_at) = (true, now);
            // The place of a next request has nothing to pay for.
            if entry.bytes.is_some() {
                self.bucket.take(&self.rates, bytes, now);
                *entry_of(&mut self.prepaid, of_thread, None) = Some(entry.line.1);
                self.virtual_time = self.virtual_time.max(tag.0);
            }
        }
        None
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
        let is_own = |entry: &Entry| entry.line.0 == thread && entry.bytes.is_some();
        let lines = self.tags.range((thread, 0)..=(thread, u16::MAX));
        if !lines.into_iter().any(|(_, tag)| is_own(&self.entries[tag])) {
            return None;
        }
        if self.prepaid.get(thread).is_some_and(Option::is_some) {
            return Some(now);
        }
        // The entries before that of this thread are assumed to start as soon as they may.
        let (mut bucket, mut at, mut is_behind) = (self.bucket, now, false);
        for entry in self.entries.values() {
            if is_own(entry) {
                at = bucket.take(&self.rates, entry.bytes.unwrap_or(0), at).max(at);
                let look = if is_behind { now + LOOK_NS } else { now };
                let most = if is_behind { now + LOOK_MOST_NS } else { u64::MAX };
                return Some(at.max(look).min(most));
            }
            let is_late = self.late.get(entry.line.0).copied().unwrap_or(false);
            if entry.line.0 != thread && !is_late {
                is_behind = true;
                let bytes = entry.bytes.into_iter();
                at = bytes.fold(at, |at, bytes| bucket.take(&self.rates, bytes, at).max(at));
                if at > now + LOOK_MOST_NS {
                    return Some(now + LOOK_MOST_NS);
                }
            }
        }
        None
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Returns the virtual time that a time of the rate takes for a volume of this weight.
fn virtual_time(nanos: u64, weight: u64) -> u128 {
    (u128::from(nanos) << SCALE) / u128::from(weight)
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
