//! A worker: one of the threads that serve, with its clients, its part of the cache, its devices,
//! and the one ring for all of them.
//!
//! Each turn of the loop processes what has arrived (bytes, completions, messages of other parts,
//! commands) and advances the cache. Then it hands answers to the sessions and sends their replies.
//! After that the thread waits in its ring until a completion or a wake-up. State machines decide
//! (`Session`, [`Driver`]); this file and `clients` move their results.

mod calculators;
mod clients;
pub(crate) mod handle;
mod sessions;
pub(crate) mod shedding;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use floe_block::{
    BlockCache, CacheShare, Driver, Exchange, Sectors, Tier, VolumeError, VolumeId, grow_device,
    resize_tier,
};
use floe_device::{Device, Ring, Seed, SocketCompletion, Sockets};
use floe_nbd::export::Exports;

use crate::acceptor::eviction::Findings;
use crate::messages::{
    CacheEvent, Done, Event, Mailbox, Message, Problem, StackAwaited, StackCommand, Ticket,
    WorkerCommand,
};
use crate::offer::Offered;
use crate::protocol::Request as ClientRequest;
use crate::rate::SharedRate;
use crate::sampler::Sampler;
use crate::session::{Budget, Common, Session, Throttle};
use crate::setup::{ServeError, ServerSetup};
use crate::status::{Snapshot, ThreadCounters, TierKey};
use crate::tier::{CachePart, StackChange};
use crate::worker::clients::{Locals, LookedFor, Origin, Origins};
use crate::worker::handle::WorkerOutbox;
use crate::worker::sessions::{ClientToken, Sessions};
use crate::worker::shedding::{ShedController, Shedding};

/// Size of a ring's submission queue.
pub(crate) const RING_ENTRIES: u32 = 512;

/// Everything that a worker needs before its thread starts.
pub(crate) struct Beginning {
    pub(crate) number: usize,
    pub(crate) config: Arc<ServerSetup>,
    /// The worker's parts of the tiers, from the top.
    pub(crate) tiers: Vec<CachePart>,
    pub(crate) seed: Seed,
    pub(crate) volumes: Vec<Offered>,
    pub(crate) exports: Arc<Exports>,
    pub(crate) mailbox: Arc<Mailbox<Message>>,
    pub(crate) outbox: WorkerOutbox,
    pub(crate) connections: Arc<AtomicUsize>,
    /// The rate of all volumes together.
    pub(crate) total: Arc<SharedRate>,
    /// The shed controller, if load shedding is configured.
    pub(crate) shed_controller: Option<Arc<ShedController>>,
}

/// A worker's incoming and outgoing messages.
pub(crate) struct Post {
    pub(crate) mailbox: Arc<Mailbox<Message>>,
    pub(crate) outbox: WorkerOutbox,
    wake_up: Rc<OwnedFd>,
}

/// State of the requests of a worker's clients.
#[derive(Default)]
pub(crate) struct Requests {
    pub(crate) origins: Origins,
    /// Reads of one client to look for in memory; empty between clients.
    pub(crate) looked_for: LookedFor<ClientRequest>,
    /// Recorder of sampled accesses, for the live page's miss-ratio curve.
    pub(crate) sampler: Sampler,
}

/// State of a worker thread.
pub(crate) struct Worker {
    pub(crate) config: Arc<ServerSetup>,
    pub(crate) ring: Ring,
    pub(crate) sockets: Sockets,
    pub(crate) driver: Driver,
    /// Resources that all sessions share.
    pub(crate) common: Common,
    pub(crate) sessions: Sessions,
    pub(crate) locals: Locals,
    pub(crate) requests: Requests,
    pub(crate) counters: ThreadCounters,
    pub(crate) post: Post,
    pub(crate) commands: Commands,
    pub(crate) watches: CacheWatches,
    shedding: Shedding,
    clean_at: Instant,
    stopped: bool,
}

/// Sets the shares of a volume in the tiers, from the top. A tier without a share keeps its own.
fn set_shares(driver: &mut Driver, volume: VolumeId, shares: &[CacheShare]) {
    for (number, (id, share)) in driver.volume_ids(volume).into_iter().zip(shares).enumerate() {
        driver.tier_mut(number).expect("it has numbered the volume").set_share(id, *share);
    }
}

impl Worker {
    /// Opens all devices on this thread's ring.
    ///
    /// # Errors
    /// When a device cannot be opened.
    pub(crate) fn begin(beginning: Beginning) -> Result<Self, ServeError> {
        let Beginning { number, config, tiers, seed, volumes, .. } = beginning;
        let Beginning { exports, mailbox, outbox, connections, shed_controller, .. } = beginning;
        if volumes.iter().any(|it| it.volume.reach.is_local())
            && let Err(error) = floe_ublk::ready_thread()
        {
            tracing::warn!(
                %error, thread = number,
                "the thread has no real-time priority: it is less safe when memory is short"
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
        let watches = CacheWatches::new(tiers.iter().map(|tier| tier.key));
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
        for Offered { id, ids, volume, shares, .. } in &volumes {
            driver.add_volume_in(ids, &volume.name, volume.backing.open(&ring, &pool)?);
            set_shares(&mut driver, *id, shares);
        }
        let budget = Rc::new(Budget::new(config.limits.budget_bytes, config.limits.connections));
        let limits = volumes.iter().map(|it| (it.id, Arc::clone(&it.limit)));
        let throttle = Rc::new(Throttle::new(limits, &beginning.total, number));
        let tls = config.tls.clone();
        let common = Common { pool, budget, throttle, tls, limits: config.limits };
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
            counters: ThreadCounters::default(),
            post: Post { mailbox, outbox, wake_up },
            commands: Commands::default(),
            watches,
            shedding: Shedding::new(shed_controller),
            stopped: false,
        })
    }

    /// Serves until the server ends.
    ///
    /// # Errors
    /// When the ring fails.
    pub(crate) fn run(mut self) -> Result<(), ServeError> {
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

    /// Waits until a completion or a message arrives, or work is due.
    fn wait(&mut self) -> Result<(), ServeError> {
        let due = self.next_due();
        let exchange = self.driver.top().exchange().expect("a worker has an end of the queues");
        let there_is_nothing = || !self.driver.has_mail() && self.post.mailbox.is_empty();
        exchange.bell().wait(&self.ring, due, there_is_nothing).map(drop).map_err(ServeError::Wait)
    }

    /// Handles the completion of a socket operation.
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
                self.counters.clients.connections_taken += 1;
            }
            Message::Reservations => self.sessions.reservations_changed(),
            Message::Touch(index) => self.sessions.touch(index),
            Message::End => {
                self.sessions.end(self.config.nvme.hands_off, &mut self.sockets, &self.common);
            }
            Message::Probe => {}
            Message::Stop => self.stopped = true,
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            counters: self.counters.clone(),
            client_uses: self.common.throttle.client_uses(),
            stats: self.driver.top().stats(),
            cache_errors: self.driver.top().device_errors(),
            backing: self.commands.tier_change.backing_bytes(&self.driver),
            backing_errors: self.driver.backing_errors(),
            below: self
                .driver
                .tiers()
                .skip(1)
                .map(|tier| (tier.stats(), tier.device_errors()))
                .collect(),
            spun: self.driver.spun(),
            traffic: self.driver.tiers().filter_map(Tier::exchange).map(Exchange::traffic).sum(),
            ..Snapshot::default()
        };
        self.sessions.count(&mut snapshot);
        snapshot
    }

    /// Does the work that is due by time, and replies to commands that have ended.
    fn watch_the_clock(&mut self) {
        self.watches.report(&mut self.driver, &self.post.outbox);
        if !self.commands.awaited.is_empty() {
            self.look_after_commands();
        }
        let now = Instant::now();
        let served = || self.counters.served();
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

    /// Returns the time at which work is due next; `None` if only I/O can cause any.
    fn next_due(&self) -> Option<Instant> {
        let clean =
            (self.driver.is_unclean() && !self.commands.is_resting()).then_some(self.clean_at);
        let dues = [
            clean,
            self.sessions.due(),
            self.commands.due(),
            self.driver.next_due(),
            self.sockets.next_due(),
            self.common.throttle.next_due(),
        ];
        dues.into_iter().flatten().min()
    }

    /// Carries out a command, or begins one whose end is awaited.
    pub(crate) fn begin_command(&mut self, ticket: Ticket, command: WorkerCommand) {
        let until = Some(Instant::now() + self.config.limits.farewell_time);
        let awaited = match command {
            WorkerCommand::Run(request) => {
                return self.submit_for(Origin::Command(ticket, request.volume), request, None);
            }
            WorkerCommand::ResizeVolume(volume, bytes) => Awaited::Grown { volume, bytes },
            WorkerCommand::RetireVolume(volume) => {
                // The last requests of clients that stay do not wait for it.
                self.common.throttle.set(volume, None, Instant::now());
                Awaited::Unused { volume, until }
            }
            WorkerCommand::RemoveVolume { tier, volume } => Awaited::Idle { tier, volume },
            WorkerCommand::Tier(command) => match self.step_with_tier(ticket.number, command) {
                Ok(()) => return self.post.outbox.reply(ticket, Ok(Done::Nothing)),
                Err(awaited) => Awaited::Tier(awaited),
            },
            WorkerCommand::Rest => {
                self.commands.resting = true;
                self.driver.rest();
                Awaited::Rest
            }
            WorkerCommand::NoteRest => Awaited::Noted { begun: false },
            WorkerCommand::End => {
                self.driver.set_timeout(self.config.limits.stop_timeout);
                self.sessions.end(self.config.nvme.hands_off, &mut self.sockets, &self.common);
                self.locals.end();
                Awaited::Quiet { until }
            }
            command => {
                let result = self.carry_out(command);
                return self.post.outbox.reply(ticket, result);
            }
        };
        self.commands.wait_for(ticket, awaited);
    }

    /// Carries out a command that ends at once. The control thread has every change of the tiers
    /// before the reply.
    fn carry_out(&mut self, command: WorkerCommand) -> Result<Done, Problem> {
        self.watches.report(&mut self.driver, &self.post.outbox);
        match command {
            WorkerCommand::Sample(sampling) => {
                let touches = self.requests.sampler.take(sampling);
                let snapshot = Snapshot { touches, ..self.snapshot() };
                return Ok(Done::Snapshot(Box::new(snapshot)));
            }
            WorkerCommand::Search { part, from } => {
                return Ok(Done::Found(Findings::of(&self.driver, &part, from)));
            }
            WorkerCommand::Snapshot => return Ok(Done::Snapshot(Box::new(self.snapshot()))),
            WorkerCommand::OpenVolume { name, source } => {
                let device = source.open(&self.ring, &self.common.pool);
                let device = device.map_err(|error| Problem::Other(error.to_string()))?;
                self.commands.opened.insert(name, device);
            }
            WorkerCommand::CloseVolume { name } => {
                self.commands.opened.remove(&name); // where it could not be opened there is none
            }
            WorkerCommand::AddVolume { name, limit, shares } => {
                let device = self.commands.opened.remove(&name);
                let device = device.expect("a volume is added after its device is open");
                let volume = self.driver.add_volume(&name, device);
                set_shares(&mut self.driver, volume, &shares);
                self.counters.forget(volume);
                self.common.throttle.set(volume, Some(limit), Instant::now());
                return Ok(Done::Numbered(self.driver.volume_ids(volume)));
            }
            WorkerCommand::LimitVolume(volume, limit) => {
                self.common.throttle.set(volume, Some(limit), Instant::now());
            }
            WorkerCommand::LimitTotal(total) => {
                self.common.throttle.set_total(&total, self.post.outbox.worker, Instant::now());
            }
            WorkerCommand::ShareVolume(volume, shares) => {
                set_shares(&mut self.driver, volume, &shares);
            }
            WorkerCommand::Restore => self.watches.restored(&mut self.driver),
            WorkerCommand::OpenTier(tier) => self.open_tier(*tier)?,
            WorkerCommand::GrowDevice { tier, bytes } => {
                let grown = grow_device(self.tier(tier), bytes);
                grown.map_err(|error| Problem::Other(error.to_string()))?;
            }
            WorkerCommand::ResizeTier { tier, cache_bytes, most_dirty_bytes, shares } => {
                let tier = self.tier(tier);
                let resized = resize_tier(tier, cache_bytes);
                resized.map_err(|error| Problem::Other(error.to_string()))?;
                most_dirty_bytes.into_iter().for_each(|bytes| tier.limit_dirty(bytes));
                shares.iter().for_each(|&(volume, share)| tier.set_share(volume, share));
            }
            _ => unreachable!("the end of other commands is awaited"),
        }
        Ok(Done::Nothing)
    }

    /// Replies to commands that have ended, and disconnects clients that delay others too long.
    pub(crate) fn look_after_commands(&mut self) {
        let now = Instant::now();
        for (ticket, awaited) in std::mem::take(&mut self.commands.awaited) {
            let result = match awaited {
                Awaited::Quiet { until } => self
                    .clients_are_gone(now, until, |it| it.is_quiet() && !it.is_leaving())
                    .filter(|()| self.locals.is_quiet())
                    .map(|()| Ok(Done::Nothing)),
                Awaited::Unused { volume, until } => {
                    let unused = |session: &Session| !session.uses(volume);
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
                        self.commands.wait_for(ticket, Awaited::Noted { begun: true });
                        continue;
                    }
                    Some(Ok(Done::Nothing)) // there was nothing to note
                }
                Awaited::Noted { begun: false } => None,
                Awaited::Tier(awaited) => self.tier_step_ended(ticket.number, awaited),
            };
            match result {
                Some(result) => self.post.outbox.reply(ticket, result),
                None => self.commands.wait_for(ticket, awaited.after(now)),
            }
        }
    }

    /// Returns `Some` when `is_gone` holds for all sessions. At the time `until`, the remaining
    /// ones are disconnected.
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

    /// Opens the device of a tier that will be attached.
    pub(crate) fn open_tier(&mut self, tier: CachePart) -> Result<(), Problem> {
        let key = tier.key;
        let opened = tier.open(&self.ring, &self.common.pool);
        let tier = opened.map_err(|error| Problem::Other(error.to_string()))?;
        self.commands.tier_change.attaching = Some((key, tier));
        Ok(())
    }

    /// Takes a step of attaching, detaching or resizing a tier. If the step takes time, returns the
    /// condition for its end.
    ///
    /// While the I/O gate is shut, the worker begins no work but clients' requests, so that no
    /// operation starts below the gate.
    pub(crate) fn step_with_tier(
        &mut self,
        number: u32,
        command: StackCommand,
    ) -> Result<(), StackAwaited> {
        match command {
            StackCommand::LimitDirty { tier, bytes } => self.tier(tier).limit_dirty(bytes),
            StackCommand::Empty { above, volume } => {
                let at = self.place(above);
                self.driver.drain_below(at, volume, number);
                return Err(StackAwaited::Emptied { above });
            }
            StackCommand::Quiesce { above } => {
                self.commands.tier_change.is_shut = true;
                self.tier(above).io_gate_mut().shut();
                return Err(StackAwaited::Quiet { above });
            }
            StackCommand::Rest { above } => return Err(StackAwaited::Rest { above }),
            StackCommand::PutIn { above, ids } => {
                let attaching = self.commands.tier_change.attaching.take();
                let (key, attaching) =
                    attaching.expect("a tier is put in after its device is open");
                let at = self.place(above);
                let put = |it: &mut Driver| it.put_below(at, attaching, &ids);
                self.commands.tier_change.restack(&mut self.driver, put);
                self.watches.insert(at + 1, key);
                self.open_gate(above);
            }
            StackCommand::TakeOut { above } => {
                let at = self.place(above);
                let take = |it: &mut Driver| drop(it.take_below(at));
                self.commands.tier_change.restack(&mut self.driver, take);
                self.watches.remove(at + 1);
                self.open_gate(above);
            }
            StackCommand::Dismiss { above } => {
                // where its device could not be opened there is none
                self.commands.tier_change.attaching = None;
                self.open_gate(above);
            }
            StackCommand::Keep { above, bytes } => {
                self.tier_below(above).limit_dirty(bytes);
                self.open_gate(above);
            }
            StackCommand::GiveBack { tier } => return Err(StackAwaited::GivenBack { tier }),
        }
        Ok(())
    }

    /// Returns the result of a step of attaching or detaching a tier; `None` before it has ended.
    pub(crate) fn tier_step_ended(
        &mut self,
        number: u32,
        awaited: StackAwaited,
    ) -> Option<Result<Done, Problem>> {
        match awaited {
            StackAwaited::Quiet { above } => {
                self.tier(above).io_gate().is_quiet().then_some(Ok(Done::Nothing))
            }
            StackAwaited::Emptied { above } => {
                let mut emptied = std::mem::take(&mut self.commands.tier_change.emptied);
                self.tier(above).io_gate_mut().take_drained(&mut emptied);
                let at = emptied.iter().position(|(of, _)| *of == number);
                let ended = at.map(|at| emptied.swap_remove(at).1);
                self.commands.tier_change.emptied = emptied;
                ended.map(|result| result.map(|()| Done::Nothing).map_err(Problem::Fault))
            }
            StackAwaited::Rest { above } => {
                let below = self.tier_below(above);
                match (below.is_at_rest(), below.cache().condition().has_dirty_data()) {
                    (false, _) => None,
                    (true, false) => Some(Ok(Done::Nothing)),
                    (true, true) => Some(Err(Problem::Other("some of it is dirty again".into()))),
                }
            }
            StackAwaited::GivenBack { tier } => {
                let condition = self.tier(tier).cache().condition();
                if condition.bytes_over() == 0 {
                    return Some(Ok(Done::Nothing));
                }
                let problem = match condition.is_unreadable() || condition.is_refusing() {
                    // lost data stays dirty until it is written
                    true => "dirty data could not be read from its own device",
                    false if condition.blocks_in_the_way() == 0 => return None,
                    false => "dirty data could not be written to the devices below",
                };
                Some(Err(Problem::Other(problem.into())))
            }
        }
    }

    /// Returns the index of an attached tier, from the top.
    fn place(&self, key: TierKey) -> usize {
        self.watches.position(key).expect("the tier is there")
    }

    /// Returns this worker's part of an attached tier.
    pub(crate) fn tier(&mut self, key: TierKey) -> &mut Tier {
        let at = self.place(key);
        self.driver.tier_mut(at).expect("workers have all tiers")
    }

    /// Returns the tier below an attached one.
    fn tier_below(&mut self, above: TierKey) -> &mut Tier {
        let at = self.place(above) + 1;
        self.driver.tier_mut(at).expect("it stays until it is taken out")
    }

    /// Opens the I/O gate after a tier was attached or detached, or after the change was cancelled.
    /// The end of a step that was given up is no longer awaited.
    fn open_gate(&mut self, above: TierKey) {
        self.commands.tier_change.is_shut = false;
        self.commands.tier_change.emptied.clear();
        self.commands.awaited.retain(|(_, awaited)| !matches!(awaited, Awaited::Tier(_)));
        self.tier(above).io_gate_mut().open();
    }
}

/// Returns whether a volume cannot be changed now, but soon.
fn is_busy(error: &io::Error) -> bool {
    error.get_ref().and_then(|error| error.downcast_ref()) == Some(&VolumeError::Busy)
}

/// Commands that a worker has begun, and state that they leave for later ones.
#[derive(Default)]
pub(crate) struct Commands {
    pub(crate) awaited: Vec<(Ticket, Awaited)>,
    pub(crate) tier_change: StackChange,
    /// Open devices of volumes that will be added.
    pub(crate) opened: HashMap<String, Box<dyn Device>>,
    /// The worker begins no background work any more, such as cleaning.
    pub(crate) resting: bool,
}

impl Commands {
    /// Arranges that a command is replied to once the condition holds.
    pub(crate) fn wait_for(&mut self, ticket: Ticket, awaited: Awaited) {
        self.awaited.push((ticket, awaited));
    }

    /// Returns whether the worker begins no background work: at the end, and while the I/O gate is
    /// shut.
    pub(crate) fn is_resting(&self) -> bool {
        self.resting || self.tier_change.is_shut
    }

    /// Returns the time at which clients are to be disconnected because a command waits for them.
    pub(crate) fn due(&self) -> Option<Instant> {
        let due = |(_, awaited): &(Ticket, Awaited)| match awaited {
            Awaited::Quiet { until } | Awaited::Unused { until, .. } => *until,
            _ => None,
        };
        self.awaited.iter().filter_map(due).min()
    }
}

/// The condition for the reply to a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Awaited {
    /// All clients have their replies. At the time `until` the worker disconnects those that do not
    /// read them; `None` once that is done.
    Quiet { until: Option<Instant> },
    /// No client uses the volume. At the time `until` the worker disconnects those that still do;
    /// `None` once that is done.
    Unused { volume: VolumeId, until: Option<Instant> },
    /// No operation on the volume is under way in a tier, so that it can be removed there.
    Idle { tier: usize, volume: VolumeId },
    /// The sector that contains the volume's old end is not in use, so that the volume can grow.
    Grown { volume: VolumeId, bytes: u64 },
    /// No operation is under way at all.
    Rest,
    /// No operation is under way at all, and the checksums of dirty data are recorded. Recording
    /// has `begun` once the first is true.
    Noted { begun: bool },
    /// A step of attaching or detaching a tier has ended.
    Tier(StackAwaited),
}

impl Awaited {
    /// Returns the condition that remains after a check at the time `now`. A deadline that has
    /// passed is removed: the clients were disconnected, and their sessions end by themselves.
    pub(crate) fn after(self, now: Instant) -> Self {
        let left = |until: Option<Instant>| until.filter(|until| *until > now);
        match self {
            Self::Quiet { until } => Self::Quiet { until: left(until) },
            Self::Unused { volume, until } => Self::Unused { volume, until: left(until) },
            _ => self,
        }
    }
}

/// The changes of a tier that this worker has reported to the control thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheWatch {
    key: TierKey,
    pub(crate) degraded: bool,
    pub(crate) journal_lost: bool,
    /// The worker has reported that a tier without a journal has no dirty data any more.
    emptied: bool,
    /// The worker has reported that dirty data of a tier without a journal cannot be written back.
    blocked: bool,
    /// The worker has reported that it refuses requests for dirty data.
    refusing: bool,
}

impl CacheWatch {
    pub(crate) fn new(key: TierKey) -> Self {
        let (degraded, journal_lost, emptied, blocked) = (false, false, false, false);
        Self { key, degraded, journal_lost, emptied, blocked, refusing: false }
    }

    /// Returns the changes of a tier's cache since the last call, and marks them as reported.
    pub(crate) fn events(&mut self, worker: usize, cache: &BlockCache) -> Vec<CacheEvent> {
        let condition = cache.condition();
        let mut events = Vec::new();
        let mut first = |is: bool, reported: &mut bool, event: CacheEvent| {
            if is && !std::mem::replace(reported, is) {
                events.push(event);
            }
        };
        first(condition.is_degraded(), &mut self.degraded, CacheEvent::Degraded);
        if condition.has_lost_journal() {
            first(true, &mut self.journal_lost, CacheEvent::JournalLost);
            let emptied = condition.is_bypassed() && !self.emptied && condition.is_emptied();
            first(emptied, &mut self.emptied, CacheEvent::Emptied { worker });
            let blocked = condition.is_blocked();
            first(blocked, &mut self.blocked, CacheEvent::Blocked);
            self.blocked = blocked;
        }
        // A device that fails now and then is never degraded, and refuses what cannot be read.
        let refusing = condition.is_refusing();
        if refusing != std::mem::replace(&mut self.refusing, refusing) {
            events.push(CacheEvent::Refusing { worker, refusing });
        }
        events
    }
}

/// The reported changes of all tiers of a worker, from the top.
pub(crate) struct CacheWatches {
    list: Vec<CacheWatch>,
    /// A reusable list; empty between calls.
    newly_lost: Vec<(VolumeId, Sectors)>,
}

impl CacheWatches {
    pub(crate) fn new(keys: impl Iterator<Item = TierKey>) -> Self {
        Self { list: keys.map(CacheWatch::new).collect(), newly_lost: Vec::new() }
    }

    /// Returns the index of a tier, from the top; `None` once it is detached.
    pub(crate) fn position(&self, key: TierKey) -> Option<usize> {
        self.list.iter().position(|watch| watch.key == key)
    }

    /// Returns the reported changes of a tier; `None` once it is detached.
    pub(crate) fn of(&mut self, key: TierKey) -> Option<&mut CacheWatch> {
        self.list.iter_mut().find(|watch| watch.key == key)
    }

    pub(crate) fn insert(&mut self, at: usize, key: TierKey) {
        self.list.insert(at, CacheWatch::new(key));
    }

    pub(crate) fn remove(&mut self, at: usize) {
        self.list.remove(at);
    }

    /// Makes all tiers use their cache devices again.
    pub(crate) fn restored(&mut self, driver: &mut Driver) {
        for (tier, watch) in self.list.iter_mut().enumerate() {
            watch.degraded = false;
            driver.tier_mut(tier).expect("workers have all tiers").restore();
        }
    }

    /// Sends new changes of the tiers to the control thread.
    pub(crate) fn report(&mut self, driver: &mut Driver, outbox: &WorkerOutbox) {
        for (tier, watch) in self.list.iter_mut().enumerate() {
            let tier = driver.tier_mut(tier).expect("workers have all tiers");
            tier.take_newly_lost(&mut self.newly_lost);
            for event in watch.events(outbox.worker, tier.cache()) {
                outbox.send(Event::Tier(watch.key, event));
            }
            for (volume, run) in self.newly_lost.drain(..) {
                outbox.send(Event::Tier(watch.key, CacheEvent::DataLost { volume, run }));
            }
        }
    }
}
