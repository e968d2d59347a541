//! One of the threads that serve: its clients, its part of the cache, its devices, and the ring
//! they all share.
//!
//! Each turn of the loop takes in what has arrived (bytes, completions, messages of other parts,
//! commands), lets the cache advance, hands answers to sessions, and sends what they have to say.
//! Then the thread waits in its one ring, until a completion or a wake-up. State machines decide
//! (`Session`, [`Driver`]); this file, `clients` and `worker_tiers` move their results.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use floe_block::{Driver, Request, Sectors, VolumeError, VolumeId};
use floe_device::{Device, Ring, Seed, SocketCompletion, Sockets};
use floe_nbd::export::Exports;

use super::awaited::{Awaited, TierChange};
use super::config::{ServeError, ServerConfig};
use super::mailbox::Mailbox;
use super::messages::{Command, Done, Event, Message, Problem, Ticket, TierEvent};
use super::offer::Offered;
use super::origin::{LookedFor, Origin};
use super::slots::Slots;
use super::tier_part::TierPart;
use super::tier_watch::TierWatch;
use super::token::ClientToken;
use super::valve::Valve;
use super::warnings::Warnings;
use super::worker_outbox::WorkerOutbox;
use crate::session::{Budget, Common, Session};
use crate::status::{Snapshot, Tally};

/// Submissions a ring takes at a time.
pub(super) const RING_ENTRIES: u32 = 512;

/// The makings of a worker, before it has a thread.
pub(super) struct Beginning {
    pub(super) number: usize,
    pub(super) config: Arc<ServerConfig>,
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

/// A thread that serves.
pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) ring: Ring,
    pub(super) common: Common,
    pub(super) sockets: Sockets,
    pub(super) driver: Driver,
    pub(super) exports: Arc<Exports>,
    pub(super) sessions: Slots<Session>,
    /// The asker of each request under way, by its number.
    pub(super) origins: Vec<Option<Origin>>,
    /// Empty between clients.
    pub(super) looked_for: LookedFor,
    /// Sessions that may have something to do.
    pub(super) touched: Vec<u32>,
    /// Time of the next check for late clients, if any can be late.
    pub(super) watch_at: Option<Instant>,
    pub(super) tally: Tally,
    pub(super) warnings: Warnings,
    /// Clients of this worker, for the acceptor, which counts them in.
    pub(super) connections: Arc<AtomicUsize>,
    /// The server ends: new clients are not served.
    pub(super) ending: bool,
    config: Arc<ServerConfig>,
    mailbox: Arc<Mailbox<Message>>,
    pub(super) outbox: WorkerOutbox,
    wake_up: Rc<OwnedFd>,
    /// Devices of volumes to come.
    opened: HashMap<String, Box<dyn Device>>,
    pub(super) awaited: Vec<(Ticket, Awaited)>,
    pub(super) tier_change: TierChange,
    /// The watch of each tier, from the top.
    pub(super) watches: Vec<TierWatch>,
    /// Empty but for its memory.
    newly_lost: Vec<(VolumeId, Sectors)>,
    valve: Option<Arc<Valve>>,
    /// The share that is being shed.
    shed: f64,
    clean_at: Instant,
    /// The worker begins no work of its own any more, such as cleaning.
    resting: bool,
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
        let ring = Ring::new(RING_ENTRIES)?;
        let pool = seed.pool();
        if let Err(error) = ring.register_pool(&pool) {
            tracing::info!(
                %error,
                "buffers are not registered with the kernel; I/O costs a little more"
            );
        }
        let watches = tiers.iter().map(|tier| TierWatch::new(tier.key)).collect();
        let mut below: Option<Driver> = None;
        for tier in tiers.into_iter().rev() {
            let tier = tier.open(&ring, &pool)?;
            below = Some(match below {
                Some(below) => tier.on(below),
                None => tier,
            });
        }
        let mut driver = below.expect("there is a tier").with_memory(config.memory.clone());
        let exchange = driver.exchange().expect("a worker has an end of the queues");
        let wake_up = exchange.bell().descriptor().map_err(ServeError::Wake)?;
        for Offered { ids, volume, .. } in &volumes {
            driver.add_volume_in(ids, &volume.name, volume.backing.open(&ring, &pool)?);
        }
        let budget = Rc::new(Budget::new(config.limits.budget_bytes, config.limits.connections));
        let common = Common { pool, budget, tls: config.tls.clone(), limits: config.limits };
        Ok(Self {
            number,
            sockets: Sockets::new(&ring),
            ring,
            common,
            driver,
            exports,
            sessions: Slots::default(),
            origins: Vec::new(),
            looked_for: LookedFor::default(),
            touched: Vec::new(),
            watch_at: None,
            tally: Tally::default(),
            warnings: Warnings::default(),
            connections,
            ending: false,
            clean_at: Instant::now() + config.flush_interval,
            config,
            mailbox,
            outbox,
            wake_up,
            opened: HashMap::new(),
            tier_change: TierChange::default(),
            awaited: Vec::new(),
            watches,
            newly_lost: Vec::new(),
            valve,
            shed: 0.0,
            resting: false,
            stopped: false,
        })
    }

    /// Serves until the server ends.
    ///
    /// # Errors
    /// When the ring fails.
    pub(super) fn run(mut self) -> Result<(), ServeError> {
        self.sockets.readable(ClientToken::WakeUp.encode(), &Rc::clone(&self.wake_up));
        let (mut arrived, mut answers) = (Vec::new(), Vec::new());
        while !self.stopped {
            self.sockets.poll(&mut arrived);
            self.mailbox.take().into_iter().for_each(|message| self.take_message(message));
            arrived.drain(..).for_each(|completion| self.take_in(completion));
            self.pump_touched();
            self.driver.advance();
            self.driver.take_answers(&mut answers);
            answers.drain(..).for_each(|answer| self.hand_out(answer));
            self.pump_touched();
            self.watch_the_clock();
            // All arrivals are processed. Requests admitted after the cache advanced have not begun
            // yet.
            if !self.stopped && !self.driver.has_orders() {
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Waits until something arrives or is due.
    fn wait(&mut self) -> Result<(), ServeError> {
        let due = self.next_due();
        let exchange = self.driver.exchange().expect("a worker has an end of the queues");
        let there_is_nothing = || !self.driver.has_mail() && self.mailbox.is_empty();
        exchange.bell().wait(&self.ring, due, there_is_nothing).map(drop).map_err(ServeError::Wait)
    }

    /// Acts on the end of a socket operation.
    fn take_in(&mut self, completion: SocketCompletion) {
        match ClientToken::decode(completion.token) {
            ClientToken::Receive(index) => self.received(index, completion.result),
            ClientToken::Send(index) => self.sent(index, completion.result),
            ClientToken::WakeUp => {
                let exchange = self.driver.exchange().expect("a worker has an end of the queues");
                exchange.bell().heard();
                self.sockets.readable(ClientToken::WakeUp.encode(), &Rc::clone(&self.wake_up));
            }
        }
    }

    fn take_message(&mut self, message: Message) {
        match message {
            Message::Serve(socket, protocol) => self.welcome(socket, &*protocol),
            Message::Offer(exports) => self.offer(exports),
            Message::Ask { ticket, command } => self.begin_command(ticket, command),
            Message::Degrade { tier } => {
                if let Some(at) = self.watches.iter().position(|watch| watch.key == tier) {
                    self.watches[at].degraded = true; // the control thread knows
                    self.tier(tier).degrade();
                }
            }
            Message::Bypass { tier, stuck } => {
                if let Some(at) = self.watches.iter().position(|watch| watch.key == tier) {
                    (self.watches[at].degraded, self.watches[at].journal_lost) = (true, true);
                    self.tier(tier).bypass(stuck);
                }
            }
            Message::Retire { tier } => {
                if self.watches.iter().any(|watch| watch.key == tier) {
                    self.tier(tier).retire();
                }
            }
            Message::End => self.end_sessions(),
            Message::Probe => {}
            Message::Stop => self.stopped = true,
        }
    }

    fn offer(&mut self, exports: Arc<Exports>) {
        for index in self.sessions.indices() {
            self.sessions[index].exports_changed(&exports);
            self.touched.push(index);
        }
        self.exports = exports;
    }

    fn end_sessions(&mut self) {
        self.ending = true;
        for index in self.sessions.indices() {
            self.sessions[index].end();
            self.touched.push(index);
        }
    }

    /// Carries out a command, or begins to.
    fn begin_command(&mut self, ticket: Ticket, command: Command) {
        let until = Some(Instant::now() + self.config.limits.farewell_time);
        let awaited = match command {
            Command::Flush(volume, kind) => {
                let flush = Request { volume, kind, offset: 0, len: 0 };
                return self.submit_for(Origin::Command(ticket), flush, None);
            }
            Command::ResizeVolume(volume, bytes) => Awaited::Grown { volume, bytes },
            Command::RetireVolume(volume) => Awaited::Unused { volume, until },
            Command::RemoveVolume { tier, volume } => Awaited::Idle { tier, volume },
            Command::Tier(command) => match self.step_with_tier(ticket.number, command) {
                Ok(()) => return self.outbox.reply(ticket, Ok(Done::Nothing)),
                Err(awaited) => Awaited::Tier(awaited),
            },
            Command::Rest => {
                self.resting = true;
                Awaited::Rest
            }
            Command::NoteRest => Awaited::Noted { begun: false },
            Command::End => {
                self.end_sessions();
                Awaited::Quiet { until }
            }
            command => {
                let result = self.carry_out(command);
                return self.outbox.reply(ticket, result);
            }
        };
        self.awaited.push((ticket, awaited));
    }

    /// Carries out a command that is done at once.
    fn carry_out(&mut self, command: Command) -> Result<Done, Problem> {
        match command {
            Command::Snapshot => return Ok(Done::Snapshot(Box::new(self.snapshot()))),
            Command::OpenVolume { name, source } => {
                let device = source.open(&self.ring, &self.common.pool);
                let device = device.map_err(|error| Problem::Other(error.to_string()))?;
                self.opened.insert(name, device);
            }
            Command::CloseVolume { name } => {
                self.opened.remove(&name); // where it could not be opened there is none
            }
            Command::AddVolume { name } => {
                let device =
                    self.opened.remove(&name).expect("a volume is added after its device is open");
                let volume = self.driver.add_volume(&name, device);
                self.tally.forget(volume);
                return Ok(Done::Numbered(self.driver.volume_ids(volume)));
            }
            Command::Restore => {
                for (tier, watch) in self.watches.iter_mut().enumerate() {
                    watch.degraded = false;
                    self.driver.tier_mut(tier).expect("workers have all tiers").restore();
                }
            }
            Command::OpenTier(tier) => self.open_newcomer(*tier)?,
            _ => unreachable!("the end of other commands is awaited"),
        }
        Ok(Done::Nothing)
    }

    fn snapshot(&self) -> Snapshot {
        let (cache_errors, backing_errors) = self.driver.device_errors();
        let mut snapshot = Snapshot {
            tally: self.tally.clone(),
            stats: self.driver.stats(),
            cache_errors,
            backing_errors,
            below: self
                .driver
                .tiers()
                .skip(1)
                .map(|tier| (tier.stats(), tier.device_errors().0))
                .collect(),
            spun: self.driver.spun(),
            traffic: self.driver.traffic(),
            ..Snapshot::default()
        };
        for index in self.sessions.indices() {
            snapshot.connected(self.sessions[index].volume());
        }
        snapshot
    }

    /// Does what is due by time, or because something has ended.
    fn watch_the_clock(&mut self) {
        for (tier, watch) in self.watches.iter_mut().enumerate() {
            let driver = self.driver.tier_mut(tier).expect("workers have all tiers");
            driver.take_newly_lost(&mut self.newly_lost);
            watch.has_lost |= !self.newly_lost.is_empty();
            for event in watch.events(self.number, driver.cache()) {
                self.outbox.send(Event::Tier(watch.key, event));
            }
            for (volume, run) in self.newly_lost.drain(..) {
                let lost = TierEvent::DataLost { volume, run };
                self.outbox.send(Event::Tier(watch.key, lost));
            }
        }
        if !self.awaited.is_empty() {
            self.look_after_commands();
        }
        let now = Instant::now();
        self.shed(now);
        if now >= self.clean_at && !self.is_resting() {
            self.clean_at = now + self.config.flush_interval;
            self.driver.clean();
        }
        if self.watch_at.is_some_and(|due| due <= now) {
            self.look_for_late_clients(now);
        }
        self.warnings.tell(now);
    }

    /// Reports the served requests, and sheds the share that the shed controller decides.
    fn shed(&mut self, now: Instant) {
        let Some(valve) = &self.valve else { return };
        let share = valve.turn(self.number, self.tally.served(), now);
        if share != std::mem::replace(&mut self.shed, share) {
            self.driver.shed(share);
        }
    }

    /// Replies to commands that have come to their end, and breaks off with clients that keep them
    /// from it.
    fn look_after_commands(&mut self) {
        let now = Instant::now();
        for (ticket, awaited) in std::mem::take(&mut self.awaited) {
            let result = match awaited {
                Awaited::Quiet { until } => self
                    .clients_are_gone(now, until, |session| session.is_quiet())
                    .map(|()| Ok(Done::Nothing)),
                Awaited::Unused { volume, until } => {
                    let unused = |session: &Session| session.volume() != Some(volume);
                    self.clients_are_gone(now, until, unused).map(|()| Ok(Done::Nothing))
                }
                Awaited::Idle { tier, volume } => {
                    match self.driver.remove_volume(tier, volume, false) {
                        Ok(()) => Some(Ok(Done::Nothing)),
                        Err(VolumeError::Busy) => None,
                        Err(error) => Some(Err(Problem::Other(error.to_string()))),
                    }
                }
                Awaited::Grown { volume, bytes } => {
                    match self.driver.resize_volume(volume, bytes) {
                        Ok(()) => Some(Ok(Done::Nothing)),
                        Err(error) if is_busy(&error) => None,
                        Err(error) => Some(Err(Problem::Other(error.to_string()))),
                    }
                }
                Awaited::Rest | Awaited::Noted { begun: true } => {
                    self.driver.is_idle().then_some(Ok(Done::Nothing))
                }
                Awaited::Noted { begun: false } if self.driver.is_idle() => {
                    self.driver.note_rest();
                    if !self.driver.is_idle() {
                        self.awaited.push((ticket, Awaited::Noted { begun: true }));
                        continue;
                    }
                    Some(Ok(Done::Nothing)) // there was nothing to note
                }
                Awaited::Noted { begun: false } => None,
                Awaited::Tier(awaited) => self.tier_step_ended(ticket.number, awaited),
            };
            match result {
                Some(result) => self.outbox.reply(ticket, result),
                None => self.awaited.push((ticket, awaited.after(now))),
            }
        }
    }

    /// `Some` when `is_gone` holds for all sessions. Those that take too long are broken off with.
    fn clients_are_gone(
        &mut self,
        now: Instant,
        until: Option<Instant>,
        is_gone: impl Fn(&Session) -> bool,
    ) -> Option<()> {
        let indices = self.sessions.indices();
        let left: Vec<u32> =
            indices.into_iter().filter(|&index| !is_gone(&self.sessions[index])).collect();
        if left.is_empty() {
            return Some(());
        }
        if until.is_some_and(|until| until <= now) {
            left.into_iter().for_each(|index| self.break_off(index));
            self.pump_touched();
        }
        None
    }

    /// Returns whether the worker begins no work of its own: at the end, and while the I/O gate is
    /// shut.
    fn is_resting(&self) -> bool {
        self.resting || self.tier_change.is_shut
    }

    /// Returns the time of the next look at the clock; `None` when only I/O can bring news.
    fn next_due(&self) -> Option<Instant> {
        let to_clean = self.driver.has_dirty_data() || self.driver.has_unlogged();
        let clean = (to_clean && !self.is_resting()).then_some(self.clean_at);
        let awaited = self.awaited.iter().filter_map(|(_, awaited)| match awaited {
            Awaited::Quiet { until } | Awaited::Unused { until, .. } => *until,
            _ => None,
        });
        let dues = [
            clean,
            self.watch_at,
            self.warnings.due(),
            self.driver.next_due(),
            self.sockets.next_due(),
        ];
        dues.into_iter().flatten().chain(awaited).min()
    }
}

/// Returns whether a volume cannot be changed just now, but soon.
fn is_busy(error: &io::Error) -> bool {
    error.get_ref().and_then(|error| error.downcast_ref()) == Some(&VolumeError::Busy)
}

impl Drop for Worker {
    fn drop(&mut self) {
        // a count for choosing workers only
        self.connections.fetch_sub(self.sessions.len(), Ordering::Relaxed);
    }
}
