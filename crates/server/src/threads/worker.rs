//! One of the threads that serve: its clients, its part of the cache, its devices, and the ring
//! they all share.
//!
//! Each turn of the loop takes in what has arrived (bytes, completions, messages of other parts,
//! commands), lets the cache advance, hands answers to sessions, and sends what they have to say.
//! Then the thread waits in its one ring, until a completion or a wake-up. State machines decide
//! (`Session`, [`Driver`]); this file, `clients`, `worker_commands` and `worker_tiers` move their
//! results.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use floe_block::Driver;
use floe_device::{Ring, Seed, SocketCompletion, Sockets};
use floe_nbd::export::Exports;

use super::awaited::Commands;
use super::locals::Locals;
use super::mailbox::Mailbox;
use super::messages::Message;
use super::offer::Offered;
use super::origin::{LookedFor, Origins};
use super::sessions::Sessions;
use super::setup::{ServeError, ServerSetup};
use super::tier_part::TierPart;
use super::tier_watch::TierWatches;
use super::token::ClientToken;
use super::valve::{Shedding, Valve};
use super::worker_outbox::WorkerOutbox;
use crate::sampler::Sampler;
use crate::session::{Budget, Common};
use crate::status::{Snapshot, Tally};

/// Submissions a ring takes at a time.
pub(super) const RING_ENTRIES: u32 = 512;

/// The makings of a worker, before it has a thread.
pub(super) struct Beginning {
    pub(super) number: usize,
    pub(super) config: Arc<ServerSetup>,
    /// The parts of the tiers, from the top.
    pub(super) tiers: Vec<TierPart>,
    pub(super) seed: Seed,
    pub(super) volumes: Vec<Offered>,
    pub(super) exports: Arc<Exports>,
    pub(super) mailbox: Arc<Mailbox<Message>>,
    pub(super) outbox: WorkerOutbox,
    pub(super) connections: Arc<AtomicUsize>,
    /// The shed controller, if anything may be shed.
    pub(super) valve: Option<Arc<Valve>>,
}

/// Messages to and from a worker.
pub(super) struct Post {
    pub(super) mailbox: Arc<Mailbox<Message>>,
    pub(super) outbox: WorkerOutbox,
    wake_up: Rc<OwnedFd>,
}

/// The requests of a worker's clients.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) origins: Origins,
    /// Empty between clients.
    pub(super) looked_for: LookedFor,
    /// For the live page's miss-ratio curve.
    pub(super) sampler: Sampler,
}

/// A thread that serves.
pub(super) struct Worker {
    pub(super) config: Arc<ServerSetup>,
    pub(super) ring: Ring,
    pub(super) sockets: Sockets,
    pub(super) driver: Driver,
    /// Shared by all sessions.
    pub(super) common: Common,
    pub(super) sessions: Sessions,
    pub(super) locals: Locals,
    pub(super) requests: Requests,
    pub(super) tally: Tally,
    pub(super) post: Post,
    pub(super) commands: Commands,
    pub(super) watches: TierWatches,
    shedding: Shedding,
    clean_at: Instant,
    stopped: bool,
}

impl Worker {
    /// Opens all devices on this thread's ring.
    ///
    /// # Errors
    /// When a device cannot be opened.
    pub(super) fn begin(beginning: Beginning) -> Result<Self, ServeError> {
        let Beginning { number, config, tiers, seed, volumes, .. } = beginning;
        let Beginning { exports, mailbox, outbox, connections, valve, .. } = beginning;
        if volumes.iter().any(|it| it.volume.reach.is_local())
            && let Err(error) = floe_ublk::ready_thread()
        {
            tracing::warn!(
                %error, thread = number,
                "the thread is no real-time thread: it is less safe when memory is short"
            );
        }
        let ring = Ring::new(RING_ENTRIES)?;
        let pool = seed.pool();
        if let Err(error) = ring.register_pool(&pool) {
            tracing::info!(
                %error,
                "buffers are not registered with the kernel; I/O costs a little more"
            );
        }
        let watches = TierWatches::new(tiers.iter().map(|tier| tier.key));
        let mut below: Option<Driver> = None;
        for (at, tier) in tiers.into_iter().enumerate().rev() {
            let memory = if at == 0 { config.memory.clone() } else { None };
            let tier = tier.open(&ring, &pool)?.with_memory(memory);
            below = Some(match below {
                Some(below) => Driver::on(tier, below),
                None => Driver::new(tier),
            });
        }
        let mut driver = below.expect("there is a tier");
        let exchange = driver.top().exchange().expect("a worker has an end of the queues");
        let wake_up = exchange.bell().descriptor().map_err(ServeError::Wake)?;
        for Offered { ids, volume, .. } in &volumes {
            driver.add_volume_in(ids, &volume.name, volume.backing.open(&ring, &pool)?);
        }
        let budget = Rc::new(Budget::new(config.limits.budget_bytes, config.limits.connections));
        let common = Common { pool, budget, tls: config.tls.clone(), limits: config.limits };
        Ok(Self {
            clean_at: Instant::now() + config.flush_interval,
            config,
            sockets: Sockets::new(&ring),
            ring,
            driver,
            common,
            sessions: Sessions::new(exports, connections),
            locals: Locals::default(),
            requests: Requests::default(),
            tally: Tally::default(),
            post: Post { mailbox, outbox, wake_up },
            commands: Commands::default(),
            watches,
            shedding: Shedding::new(valve),
            stopped: false,
        })
    }

    /// Serves until the server ends.
    ///
    /// # Errors
    /// When the ring fails.
    pub(super) fn run(mut self) -> Result<(), ServeError> {
        self.sockets.readable(ClientToken::WakeUp.encode(), &Rc::clone(&self.post.wake_up));
        let (mut arrived, mut answers) = (Vec::new(), Vec::new());
        while !self.stopped {
            self.sockets.poll(&mut arrived);
            self.post.mailbox.take().into_iter().for_each(|message| self.take_message(message));
            arrived.drain(..).for_each(|completion| self.take_in(completion));
            self.take_local();
            self.pump_touched();
            self.driver.advance();
            self.driver.take_answers(&mut answers);
            if let Some(turn) = &self.config.turn {
                turn.check();
            }
            answers.drain(..).for_each(|answer| self.hand_out(answer));
            self.pump_touched();
            self.watch_the_clock();
            // All arrivals are processed. Requests admitted after the cache advanced have not begun
            // yet, nor those for which there was no memory before.
            if !self.stopped && !self.driver.has_orders() && !self.locals.has_ready() {
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Waits until something arrives or is due.
    fn wait(&mut self) -> Result<(), ServeError> {
        let due = self.next_due();
        let exchange = self.driver.top().exchange().expect("a worker has an end of the queues");
        let there_is_nothing = || !self.driver.has_mail() && self.post.mailbox.is_empty();
        exchange.bell().wait(&self.ring, due, there_is_nothing).map(drop).map_err(ServeError::Wait)
    }

    /// Acts on the end of a socket operation.
    fn take_in(&mut self, completion: SocketCompletion) {
        match ClientToken::decode(completion.token) {
            ClientToken::Receive(index) => self.received(index, completion.result),
            ClientToken::Send(index) => self.sent(index, completion.result),
            ClientToken::WakeUp => {
                let exchange =
                    self.driver.top().exchange().expect("a worker has an end of the queues");
                exchange.bell().heard();
                self.sockets.readable(ClientToken::WakeUp.encode(), &Rc::clone(&self.post.wake_up));
            }
        }
    }

    fn take_message(&mut self, message: Message) {
        match message {
            Message::Serve(socket, protocol) => self.welcome(socket, &*protocol),
            Message::ServeQueue(order) => self.serve_queue(order),
            Message::FailQueues(volume) => self.locals.fail(volume),
            Message::Offer(exports) => self.sessions.offer(exports),
            Message::Ask { ticket, command } => self.begin_command(ticket, command),
            Message::Degrade { tier } => {
                if let Some(watch) = self.watches.of(tier) {
                    watch.degraded = true; // the control thread knows
                    self.tier(tier).degrade();
                }
            }
            Message::Bypass { tier, stuck } => {
                if let Some(watch) = self.watches.of(tier) {
                    (watch.degraded, watch.journal_lost) = (true, true);
                    self.tier(tier).bypass(stuck);
                }
            }
            Message::Retire { tier } => {
                if self.watches.of(tier).is_some() {
                    self.tier(tier).retire();
                }
            }
            Message::Adopt(passed) => {
                self.sessions.adopt(passed, &self.common);
                self.tally.clients.connections_taken += 1;
            }
            Message::Touch(index) => self.sessions.touch(index),
            Message::End => self.sessions.end(self.config.nvme.hands_off, &mut self.sockets),
            Message::Probe => {}
            Message::Stop => self.stopped = true,
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            tally: self.tally.clone(),
            stats: self.driver.top().stats(),
            cache_errors: self.driver.top().device_errors(),
            backing_errors: self.driver.backing_errors(),
            below: self
                .driver
                .tiers()
                .skip(1)
                .map(|tier| (tier.stats(), tier.device_errors()))
                .collect(),
            spun: self.driver.spun(),
            traffic: self.driver.traffic(),
            ..Snapshot::default()
        };
        self.sessions.count(&mut snapshot);
        snapshot
    }

    /// Does what is due by time, or because something has ended.
    fn watch_the_clock(&mut self) {
        self.watches.report(self.post.outbox.worker, &mut self.driver, &self.post.outbox);
        if !self.commands.awaited.is_empty() {
            self.look_after_commands();
        }
        let now = Instant::now();
        let served = || self.tally.served();
        if let Some(share) = self.shedding.turn(self.post.outbox.worker, served, now) {
            self.driver.top_mut().shed(share);
        }
        if now >= self.clean_at && !self.commands.is_resting() {
            self.clean_at = now + self.config.flush_interval;
            self.driver.clean();
        }
        if self.sessions.is_watch_due(now) {
            self.look_for_late_clients(now);
        }
        self.sessions.tell_warnings(now);
    }

    /// Returns the time of the next look at the clock; `None` when only I/O can bring news.
    fn next_due(&self) -> Option<Instant> {
        let clean =
            (self.driver.is_unclean() && !self.commands.is_resting()).then_some(self.clean_at);
        let dues = [
            clean,
            self.sessions.due(),
            self.commands.due(),
            self.driver.next_due(),
            self.sockets.next_due(),
        ];
        dues.into_iter().flatten().min()
    }
}
