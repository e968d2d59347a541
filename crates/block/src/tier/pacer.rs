//! Pacing of cleaning: how many blocks of a volume may be cleaned at once, and when.
//!
//! Clients feel a write of cleaning that stands before their own operation in the queue of a
//! backing device. So each volume has a [`Pacer`], which bounds the blocks that are cleaned at
//! once.
//!
//! - While no client has used the device for a while (*idle*), it has as many as the device works
//!   on at a time (its *depth*).
//! - Beside clients, cleaning has a share that grows with its urgency (`shard/clean.rs`): the
//!   nearer the dirty limit, or the fewer clean blocks. First it takes what clients leave of the
//!   depth, then places in the queue. Without a cache every request of a client would be in the
//!   device's queue. Those that the cache answers leave places there, and cleaning takes no more
//!   than these.
//! - A share of less than one block is one block at a time, with a rest after each.
//!
//! The pacer learns two figures. The *service time* of reads or writes is that of those that found
//! nothing under way. The depth rises while writes of cleaning take about the service time, and
//! falls when they queue.
//!
//! A pacer has no clock and orders nothing; times are nanoseconds since any beginning.

use std::time::{Duration, Instant};

use floe_device::Action;

use crate::cache::BlockCache;
use crate::cache::shards::Turns;
use crate::geometry::VolumeId;
use crate::join::{Request, RequestId, RequestKind};
use crate::order::{OpId, Order};

/// Service times without a client's operation after which a device is idle.
const IDLE_TIMES: f64 = 16.0;
/// Ratio to the service time beyond which a write has queued.
const QUEUED: f64 = 2.0;
/// Largest number of blocks cleaned at once, and the amount by which a write that has queued lowers
/// the depth.
const DEPTH_MAX: f64 = 32.0;
const DEPTH_DOWN: f64 = 0.5;
/// Urgency from which on cleaning has all that is left of the depth, and all places in the queue
/// that clients leave.
const IDLE_FROM: f64 = 0.5;
const FREE_FROM: f64 = 0.75;
/// Blocks at once that count as left where clients have the whole depth.
const LEAST: f64 = 0.5;

/// Longest rest after a block, in times of its write.
const REST_TIMES: f64 = 1000.0;
/// Weight of a new service time in the mean.
const WEIGHT: f64 = 0.125;

/// The cause of an operation of a backing device: a client's read or write, or cleaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Read,
    Write,
    Cleaning,
}

/// Decides how many blocks of a volume may be cleaned at once.
#[derive(Debug)]
struct Pacer {
    /// Requests of clients in flight, whatever serves them.
    requests: usize,
    /// Operations of the device under way that are not of cleaning, and those of cleaning.
    clients: usize,
    cleaning: usize,
    /// Time at which the last operation that was not of cleaning ended.
    client_ns: u64,
    /// Mean service times of reads and of writes; `None` until they are known.
    service_ns: [Option<f64>; 2],
    depth: f64,
    /// Time at which the last write of cleaning ended, and the time that it took.
    cleaned_ns: u64,
    took_ns: f64,
}

/// Blocks that may be cleaned at once now, and the time at which more may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Allowance {
    at_once: usize,
    /// `None` where only the end of an operation can change the pace.
    until_ns: Option<u64>,
}

impl Default for Pacer {
    fn default() -> Self {
        Self {
            requests: 0,
            clients: 0,
            cleaning: 0,
            client_ns: 0,
            service_ns: [None; 2],
            depth: 1.0,
            cleaned_ns: 0,
            took_ns: 0.0,
        }
    }
}

impl Pacer {
    /// Records the start of an operation of the device. Returns whether nothing else was under way.
    fn begin(&mut self, cause: Cause) -> bool {
        let alone = self.clients + self.cleaning == 0;
        *if cause == Cause::Cleaning { &mut self.cleaning } else { &mut self.clients } += 1;
        alone
    }

    /// Records the end of an operation that took `took_ns`; `alone` as it was at its start.
    /// `succeeded` is false for one whose time tells nothing about the device.
    fn end(&mut self, cause: Cause, alone: bool, took_ns: u64, now_ns: u64, succeeded: bool) {
        let took_ns = took_ns as f64;
        if alone && succeeded {
            let service_ns = &mut self.service_ns[usize::from(cause != Cause::Read)];
            let mean = service_ns.get_or_insert(took_ns);
            *mean += WEIGHT * (took_ns - *mean);
        }
        if cause != Cause::Cleaning {
            self.clients -= 1;
            self.client_ns = now_ns;
            return;
        }
        self.cleaning -= 1;
        self.cleaned_ns = now_ns;
        if !succeeded {
            return;
        }
        self.took_ns = took_ns;
        if let Some(service_ns) = self.service_ns[1].or(self.service_ns[0]) {
            let change = if took_ns > QUEUED * service_ns { -DEPTH_DOWN } else { 1.0 / self.depth };
            self.depth = (self.depth + change).clamp(1.0, DEPTH_MAX);
        }
    }

    /// Forgets all that was learned about the device.
    fn forget(&mut self) {
        let Self { requests, clients, cleaning, client_ns, .. } = *self;
        *self = Self { requests, clients, cleaning, client_ns, ..Self::default() };
    }

    /// Returns the longer service time; `None` until one is known.
    fn service_ns(&self) -> Option<f64> {
        self.service_ns.into_iter().flatten().reduce(f64::max)
    }

    /// Returns the blocks that may be cleaned at once, where cleaning has this urgency: 0 up to
    /// half of the dirty limit, 1 at the limit.
    fn pace(&self, urgency: f64, now_ns: u64) -> Allowance {
        let Some(service_ns) = self.service_ns() else {
            return Allowance { at_once: 1, until_ns: None }; // to learn how long that takes
        };
        let idle_ns = self.client_ns + (IDLE_TIMES * service_ns) as u64;
        let idle_until_ns = (self.clients == 0 && now_ns < idle_ns).then_some(idle_ns);
        if self.clients == 0 && idle_until_ns.is_none() {
            return Allowance { at_once: self.depth as usize, until_ns: None };
        }
        let idle = (self.depth - self.clients as f64).max(LEAST);
        let free = (self.depth.max(self.requests as f64) - self.clients as f64).max(1.0);
        let beyond = (urgency - IDLE_FROM) / (FREE_FROM - IDLE_FROM);
        let share = (urgency / IDLE_FROM).min(1.0) * idle;
        let share = share.max(beyond.clamp(0.0, 1.0) * free).min(DEPTH_MAX);
        if share <= 0.0 {
            return Allowance { at_once: 0, until_ns: idle_until_ns };
        }
        let times = (1.0 / share - 1.0).clamp(0.0, REST_TIMES);
        let rest_ns = self.cleaned_ns + (self.took_ns * times) as u64;
        if now_ns < rest_ns {
            let until_ns = idle_until_ns.map_or(rest_ns, |idle_ns| idle_ns.min(rest_ns));
            return Allowance { at_once: 0, until_ns: Some(until_ns) };
        }
        Allowance { at_once: (share as usize).max(1), until_ns: idle_until_ns }
    }
}

/// An operation of a backing device that is under way.
#[derive(Debug, Clone, Copy)]
struct PacedOp {
    op: OpId,
    volume: VolumeId,
    cause: Cause,
    alone: bool,
    at_ns: u64,
}

/// The pacers of a tier's volumes, with their clock.
pub(crate) struct Pacers {
    clock: Box<dyn Fn() -> Instant>,
    epoch: Instant,
    /// Pacers by volume id.
    pacers: Vec<Pacer>,
    under_way: Vec<PacedOp>,
    /// Volumes of the clients' requests in flight, by the request's number.
    requests: Vec<Option<VolumeId>>,
    /// Set once cleaning is paced.
    paces: bool,
    /// Time from which more may be cleaned, if only time has to pass.
    due: Option<Instant>,
    /// Set when blocks may wait for a turn that no end of an operation will give.
    woken: bool,
    /// Volumes with blocks that wait for their turn; empty between uses.
    waiting: Turns,
}

impl Pacers {
    pub(super) fn new(clock: impl Fn() -> Instant + 'static) -> Self {
        Self {
            epoch: clock(),
            clock: Box::new(clock),
            pacers: Vec::new(),
            under_way: Vec::new(),
            requests: Vec::new(),
            paces: false,
            due: None,
            woken: false,
            waiting: Turns::default(),
        }
    }

    /// Returns the nanoseconds since the pacers were created.
    fn now_ns(&self) -> u64 {
        (self.clock)().saturating_duration_since(self.epoch).as_nanos() as u64
    }

    /// Returns the time by which the tier has to be advanced for cleaning to go on.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Has the next [`Pacers::clean`] called soon, though no operation ends.
    pub(crate) fn wake(&mut self) {
        self.woken = true;
    }

    /// Returns whether [`Pacers::clean`] has to be called.
    #[inline]
    pub(crate) fn is_woken(&self) -> bool {
        self.woken
    }

    /// Forgets the device of a volume, whose id may get another one.
    pub(super) fn forget(&mut self, volume: VolumeId) {
        self.of(volume).forget();
    }

    fn of(&mut self, volume: VolumeId) -> &mut Pacer {
        let at = volume.0 as usize;
        if self.pacers.len() <= at {
            self.pacers.resize_with(at + 1, Pacer::default);
        }
        &mut self.pacers[at]
    }

    /// Counts a client's request that moves data.
    #[inline]
    pub(super) fn request_begun(&mut self, id: RequestId, request: &Request) {
        if !matches!(request.kind, RequestKind::Read | RequestKind::Write { .. }) {
            return;
        }
        let at = id.number();
        if self.requests.len() <= at {
            self.requests.resize(at + 1, None);
        }
        self.requests[at] = Some(request.volume);
        self.of(request.volume).requests += 1;
    }

    /// Counts the end of a request.
    #[inline]
    pub(super) fn request_ended(&mut self, id: RequestId) {
        if let Some(volume) = self.requests.get_mut(id.number()).and_then(Option::take) {
            self.of(volume).requests -= 1;
        }
    }

    /// Records the start of a read or write of a backing device; other operations do not count.
    pub(super) fn begin(&mut self, op: OpId, volume: VolumeId, action: &Action, cleans: bool) {
        let cause = match action {
            Action::Read(_) => Cause::Read,
            Action::Write { .. } if cleans => Cause::Cleaning,
            Action::Write { .. } => Cause::Write,
            _ => return,
        };
        let alone = self.of(volume).begin(cause);
        let at_ns = self.now_ns();
        self.under_way.push(PacedOp { op, volume, cause, alone, at_ns });
    }

    /// Records the end of an operation of a backing device. Returns whether cleaning is to be paced
    /// from now on: once a device is known to take time.
    pub(super) fn end(&mut self, op: OpId, succeeded: bool) -> bool {
        let at = self.under_way.iter().position(|begun| begun.op == op);
        let Some(at) = at else { return false };
        let PacedOp { volume, cause, alone, at_ns, .. } = self.under_way.swap_remove(at);
        let now_ns = self.now_ns();
        let pacer = self.of(volume);
        pacer.end(cause, alone, now_ns.saturating_sub(at_ns), now_ns, succeeded);
        let takes_time = pacer.service_ns().is_some_and(|ns| ns > 0.0);
        takes_time && !std::mem::replace(&mut self.paces, true)
    }

    /// Has as many dirty blocks cleaned as the pace allows now.
    #[inline]
    pub(crate) fn clean(&mut self, cache: &mut BlockCache, orders: &mut Vec<Order>) {
        (self.due, self.woken) = (None, false);
        let shards = &mut cache.shards;
        if !shards.may_clean() {
            return;
        }
        let now_ns = self.now_ns();
        let mut waiting = std::mem::take(&mut self.waiting);
        shards.waiting_for_turns(&mut waiting);
        let mut any = false;
        while let Some((volume, urgency)) = waiting.take() {
            loop {
                let runs = self.allows(volume, urgency, shards.cleaning(volume), now_ns);
                if runs == 0 || !shards.clean_one(volume, runs, orders) {
                    break;
                }
                any = true;
            }
        }
        self.waiting = waiting;
        if any {
            cache.handle_events(orders);
        }
    }

    /// Returns the number of writes that one more block of a volume may have under way at once,
    /// beside the blocks under way; 0 if none may be cleaned.
    fn allows(&mut self, volume: VolumeId, urgency: f64, blocks: usize, now_ns: u64) -> usize {
        let pacer = self.of(volume);
        let under_way = blocks.max(pacer.cleaning);
        let pace = pacer.pace(urgency, now_ns);
        let allows = pace.at_once.saturating_sub(under_way);
        if allows == 0
            && let Some(ns) = pace.until_ns
        {
            let until = self.epoch + Duration::from_nanos(ns);
            self.due = Some(self.due.map_or(until, |due| due.min(until)));
        }
        allows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Has operations of a device begin at once and end after these times. Returns the time of the
    /// last one's end.
    fn serve(pacer: &mut Pacer, now_ns: u64, cause: Cause, times: &[u64]) -> u64 {
        let alone: Vec<bool> = times.iter().map(|_| pacer.begin(cause)).collect();
        for (took_ns, alone) in times.iter().zip(alone) {
            pacer.end(cause, alone, *took_ns, now_ns + took_ns, true);
        }
        now_ns + times.last().copied().unwrap_or_default()
    }

    /// Returns a pacer that knows a device of 8 ms.
    fn known() -> (Pacer, u64) {
        let mut pacer = Pacer::default();
        let now_ns = serve(&mut pacer, 0, Cause::Read, &[8 * MS]);
        let now_ns = serve(&mut pacer, now_ns, Cause::Write, &[8 * MS]);
        (pacer, now_ns)
    }

    #[test]
    fn one_block_is_cleaned_before_the_device_is_known() {
        let pacer = Pacer::default();
        assert_eq!(pacer.pace(0.0, 0), Allowance { at_once: 1, until_ns: None });
    }

    #[test]
    fn nothing_is_cleaned_beside_clients_below_half_of_the_limit() {
        let (mut pacer, now_ns) = known();
        let idle_ns = now_ns + 16 * 8 * MS;
        assert_eq!(pacer.pace(0.0, now_ns), Allowance { at_once: 0, until_ns: Some(idle_ns) });
        assert_eq!(pacer.pace(0.0, idle_ns), Allowance { at_once: 1, until_ns: None });
        pacer.begin(Cause::Read);
        assert_eq!(pacer.pace(0.0, idle_ns + 1000 * MS), Allowance { at_once: 0, until_ns: None });
    }

    #[test]
    fn a_share_of_less_than_a_block_rests_and_a_rest_follows_the_urgency() {
        let (mut pacer, now_ns) = known();
        pacer.begin(Cause::Read); // a client is always there
        let now_ns = serve(&mut pacer, now_ns, Cause::Cleaning, &[8 * MS]);
        pacer.depth = 1.0;
        // A quarter of the half that is left is an eighth of the time: a rest seven times as long.
        let next_ns = now_ns + 7 * 8 * MS;
        assert_eq!(pacer.pace(0.125, now_ns), Allowance { at_once: 0, until_ns: Some(next_ns) });
        assert_eq!(pacer.pace(0.125, next_ns).at_once, 1);
        for urgency in [1e-6, f64::MIN_POSITIVE] {
            let until_ns = Some(now_ns + 1000 * 8 * MS);
            assert_eq!(pacer.pace(urgency, now_ns), Allowance { at_once: 0, until_ns });
        }
        assert_eq!(pacer.pace(1.0, now_ns).at_once, 1, "a long rest ends when it is urgent");
    }

    #[test]
    fn cleaning_takes_what_clients_leave_of_the_depth() {
        let (mut pacer, now_ns) = known();
        (pacer.depth, pacer.requests) = (20.0, 4);
        (0..4).for_each(|_| _ = pacer.begin(Cause::Read));
        let at_once = |urgency| pacer.pace(urgency, now_ns).at_once;
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(at_once), [0, 8, 16, 16]);
    }

    #[test]
    fn cleaning_takes_the_places_that_clients_leave() {
        let (mut pacer, now_ns) = known();
        pacer.requests = 16;
        (0..6).for_each(|_| _ = pacer.begin(Cause::Read));
        let at_once = |urgency| pacer.pace(urgency, now_ns).at_once;
        assert_eq!([0.5, 0.625, 0.75, 1.0].map(at_once), [1, 5, 10, 10]);
        (0..10).for_each(|_| _ = pacer.begin(Cause::Read));
        assert_eq!(pacer.pace(1.0, now_ns).at_once, 1, "they leave none, and all is dirty");
        pacer.requests = 1000;
        assert_eq!(pacer.pace(1.0, now_ns).at_once, 32);
    }

    #[test]
    fn a_failed_operation_teaches_nothing_and_another_device_is_learned_anew() {
        let (mut pacer, now_ns) = known();
        let known_ns = pacer.service_ns();
        let alone = pacer.begin(Cause::Cleaning);
        pacer.end(Cause::Cleaning, alone, 30_000 * MS, now_ns + 30_000 * MS, false);
        assert_eq!((pacer.service_ns(), pacer.took_ns, pacer.cleaning), (known_ns, 0.0, 0));
        pacer.depth = 32.0;
        pacer.begin(Cause::Read);
        pacer.forget();
        assert_eq!((pacer.service_ns(), pacer.depth, pacer.clients), (None, 1.0, 1));
    }

    #[test]
    fn the_depth_is_that_of_the_device() {
        let (mut disk, mut now_ns) = known();
        for _ in 0..200 {
            let at_once = disk.depth as u64;
            let times: Vec<u64> = (1..=at_once).map(|place| place * 8 * MS).collect();
            now_ns = serve(&mut disk, now_ns, Cause::Cleaning, &times);
        }
        assert!(disk.depth < 4.0, "{}", disk.depth);
        let (mut cloud, mut now_ns) = known();
        for _ in 0..200 {
            let times = vec![8 * MS; cloud.depth as usize];
            now_ns = serve(&mut cloud, now_ns, Cause::Cleaning, &times);
        }
        assert_eq!(cloud.depth, DEPTH_MAX);
    }
}
