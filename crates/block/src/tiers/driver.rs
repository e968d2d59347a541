//! The driver: executes the orders of the tiers' caches on real devices and buffers.
//!
//! One thread owns a driver with its devices and its part of each cache. [`Driver::submit`] takes
//! requests, [`Driver::advance`] does everything that needs no waiting, [`Driver::take_answers`]
//! returns the finished requests. Between calls the thread waits on the ring that its devices
//! share, until [`Driver::next_due`] at the latest. With other parts it may wait only if its
//! [`Bell`](crate::Bell) permits it.
//!
//! A driver is a [`Tier`] on top of backing devices, one a volume, or of another driver
//! ([`Driver::on`]), which is then the tier below: see `below`. The tier executes what it can; the
//! driver begins the rest below, where the tier's I/O gate permits it.

mod backings;
mod below;
mod stack;
mod volumes;

use std::time::{Duration, Instant};

use floe_device::{Buffer, Slice};

use crate::engine::request::{Kind, Request, RequestId};
use crate::exchange::{Exchange, Traffic};
use crate::geometry::SECTOR_BYTES;
use crate::tiers::tier::{Answer, Downward, Tier};
use backings::Backings;
use below::Below;

/// A stack of tiers, or one part of it, with its devices.
pub struct Driver {
    tier: Tier,
    /// Empty where there is a tier below.
    backings: Backings,
    /// The tier below, if there is one.
    below: Option<Box<Below>>,
}

impl Driver {
    /// Returns a driver of one tier, before it has volumes.
    pub fn new(tier: Tier) -> Self {
        Self { tier, backings: Backings::default(), below: None }
    }

    /// Returns a driver of a tier on top of another driver, before either has volumes. The backing
    /// devices of volumes go to the lowest tier.
    pub fn on(tier: Tier, lower: Driver) -> Self {
        Self { tier, backings: Backings::default(), below: Some(Box::new(Below::new(lower, &[]))) }
    }

    /// Returns a buffer for a request, as [`Driver::submit`] needs it: whole sectors, and zero
    /// outside a write; for a map all zero.
    pub fn buffer(&self, request: &Request) -> Buffer {
        self.tier.buffers.for_request(request)
    }

    /// Returns the part of a request's buffer that belongs to the request itself.
    pub fn payload(request: &Request, buffer: &Buffer) -> Slice {
        let skew = (request.offset % SECTOR_BYTES) as usize;
        buffer.slice(skew..skew + request.len as usize)
    }

    /// Starts a request. One with [`Request::buffer_bytes`] needs a buffer from [`Driver::buffer`].
    /// The caller must not write to it again, even after the answer: the cache may still be storing
    /// data from it.
    ///
    /// # Panics
    /// When a request that needs a buffer comes without.
    pub fn submit(&mut self, request: Request, buffer: Option<Buffer>) -> RequestId {
        assert!(request.buffer_bytes() == 0 || buffer.is_some(), "{request:?} needs a buffer");
        self.tier.submit(request, buffer)
    }

    /// Begins to clean: each tier writes its dirty data to the tier or device below it.
    pub fn clean(&mut self) {
        self.each_tier(|tier| tier.cache.clean(&mut tier.orders));
    }

    /// Notes the checksums of dirty data, in all tiers, so that the next session can verify it. To
    /// be called when nothing is under way in any tier, just before the end.
    pub fn note_rest(&mut self) {
        self.each_tier(|tier| tier.cache.note_rest(&mut tier.orders));
    }

    /// Executes orders and handles completions until nothing is left to do without waiting.
    pub fn advance(&mut self) {
        for work in self.tier.io_gate.take_held() {
            self.begin_below(work);
        }
        loop {
            self.carry_out();
            self.tier.poll();
            self.advance_below();
            self.backings.poll(|op, result| self.tier.ended_below(op, result));
            self.tier.hear_journal();
            if self.tier.orders.is_empty() {
                break;
            }
        }
        self.tier.end_round();
    }

    /// Executes the orders of this tier's cache.
    fn carry_out(&mut self) {
        let is_shared = self.below.is_some();
        let mut orders = std::mem::take(&mut self.tier.orders);
        for order in orders.drain(..) {
            if let Some(work) = self.tier.carry_out(order, is_shared) {
                self.begin_below(work);
            }
        }
        if self.tier.orders.is_empty() {
            self.tier.orders = orders; // keep its memory
        }
    }

    /// Begins work below this tier, or holds it back.
    fn begin_below(&mut self, work: Downward) {
        match (self.tier.io_gate.pass(work), &mut self.below) {
            (None, _) => {}
            (Some(Downward::Relay(id)), _) => self.relay(id),
            (Some(Downward::Operation { volume, op, offset, action }), below) => {
                self.tier.io_gate.begun();
                match below {
                    Some(below) => below.begin(volume, op, offset, action),
                    None => self.backings.begin(volume, op, offset, action),
                }
            }
        }
    }

    /// Relays a request to the tier below, if there is one that needs it.
    fn relay(&mut self, id: RequestId) {
        let is_kept_below = self.tiers().skip(1).any(Tier::is_kept);
        let (request, buffer) = self.tier.relays.take(id);
        match &mut self.below {
            Some(below) if request.kind != Kind::Flush || is_kept_below => {
                self.tier.io_gate.begun();
                below.relay(id, request, buffer);
            }
            _ => self.tier.end_relay(id, Ok(())),
        }
    }

    /// Returns the latest time of the next call of [`Driver::advance`], whatever the ring says.
    pub fn next_due(&self) -> Option<Instant> {
        let due = |tier: &Tier| {
            let late = tier.exchange().and_then(Exchange::next_due);
            tier.device.next_due().into_iter().chain(late).min()
        };
        self.tiers().filter_map(due).chain(self.lowest().backings.next_due()).min()
    }

    /// Moves the answers given since the last call into `out`.
    pub fn take_answers(&mut self, out: &mut Vec<Answer>) {
        out.append(&mut self.tier.answers);
    }

    /// Returns whether [`Driver::clean`] has something to do: some tier holds data that the tier or
    /// device below it lacks, or would lose cached data at a restart now (see
    /// [`Condition::has_unlogged`](crate::Condition::has_unlogged)).
    pub fn is_unclean(&self) -> bool {
        let mut conditions = self.tiers().map(|tier| tier.cache().condition());
        conditions.any(|it| it.has_dirty_data() || it.has_unlogged())
    }

    /// Returns whether work waits for [`Driver::advance`] that no completion will announce.
    pub fn has_orders(&self) -> bool {
        self.tiers().any(Tier::has_orders)
    }

    /// Returns whether nothing is under way in any tier.
    pub fn is_idle(&self) -> bool {
        self.tiers().all(Tier::is_at_rest)
    }

    /// Returns whether a message of another part waits to be received, in any tier.
    pub fn has_mail(&self) -> bool {
        self.tiers().filter_map(Tier::exchange).any(|exchange| !exchange.is_empty())
    }

    /// Returns the counts of messages sent to other parts, in all tiers.
    pub fn traffic(&self) -> Traffic {
        self.tiers().filter_map(Tier::exchange).map(Exchange::traffic).sum()
    }

    /// Returns the failed operations of all backing devices.
    pub fn backing_errors(&self) -> u64 {
        self.lowest().backings.errors()
    }

    /// Bounds the time that the devices of all tiers and volumes wait for other machines: see
    /// [`Device::set_timeout`](floe_device::Device::set_timeout).
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.tier.device.set_timeout(timeout);
        self.backings.set_timeout(timeout);
        if let Some(below) = &mut self.below {
            below.driver_mut().set_timeout(timeout);
        }
    }

    /// Returns the processor time spent busy-waiting by devices that imitate a fast medium, in all
    /// tiers.
    pub fn spun(&self) -> Duration {
        let tiers: Duration = self.tiers().map(|tier| tier.device.spun()).sum();
        tiers + self.lowest().backings.spun()
    }
}
