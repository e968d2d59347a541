//! One of the threads that serve: its clients, its part of the cache, its devices, and the ring
//! they all share.
//!
//! Each turn of the loop takes in what has arrived (bytes, completions, messages of other parts,
//! letters from the front desk), lets the cache advance, hands answers to sessions, and sends what
//! they have to say. Then the thread waits in its one ring, from where the bell wakes it. The state
//! machines decide (`Session`, [`Driver`]); this file and `clients` move their results.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use floe_block::{Driver, Request, Sectors, VolumeError, VolumeId};
use floe_device::{Device, Ring, Seed, SocketCompletion, Sockets};

use super::clients::{LookedFor, Origin};
use super::config::{ServeError, ServerConfig};
use super::footing::{BeginningTier, Restacking, StandStill, Told};
use super::letter::{Deed, Instruction, News, Outcome, Problem};
use super::mailbox::Mailbox;
use super::offer::Offered;
use super::slots::Slots;
use super::token::ClientToken;
use super::valve::Valve;
use super::warnings::Warnings;
use crate::nbd::export::Exports;
use crate::session::{Budget, Common, Session};
use crate::status::{Snapshot, Tally};

/// Submissions a ring takes at a time.
pub(super) const RING_ENTRIES: u32 = 512;

/// What a worker is made from, before it has a thread.
pub(super) struct Beginning {
    pub(super) number: usize,
    pub(super) config: Arc<ServerConfig>,
    /// From the top.
    pub(super) tiers: Vec<BeginningTier>,
    pub(super) seed: Seed,
    pub(super) volumes: Vec<Offered>,
    pub(super) exports: Arc<Exports>,
    pub(super) instructions: Arc<Mailbox<Instruction>>,
    pub(super) news: Arc<Mailbox<News>>,
    pub(super) connections: Arc<AtomicUsize>,
    /// What decides how much is shed, if anything may be.
    pub(super) valve: Option<Arc<Valve>>,
}

/// A deed that takes its time.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    /// All clients have their answers. Who does not take them until then is broken off with; `None`
    /// when that is done.
    Quiet { until: Option<Instant> },
    /// No client uses the volume; as above.
    Unused { volume: VolumeId, until: Option<Instant> },
    /// Nothing is under way for the volume in a tier: it can be removed there.
    Idle { tier: usize, volume: VolumeId },
    /// The sector that a volume's old end cuts is not in use: it can grow.
    Grown { volume: VolumeId, bytes: u64 },
    /// Nothing is under way at all.
    Rest,
    /// The same; and the checksums of what is dirty are noted once they have been `begun` to be.
    Noted { begun: bool },
    /// A tier on its way in or out has come so far.
    Tier(StandStill),
}

impl Awaited {
    /// What is awaited after a look at this time: clients that were broken off with end by
    /// themselves.
    fn after(self, now: Instant) -> Self {
        let left = |until: Option<Instant>| until.filter(|until| *until > now);
        match self {
            Self::Quiet { until } => Self::Quiet { until: left(until) },
            Self::Unused { volume, until } => Self::Unused { volume, until: left(until) },
            _ => self,
        }
    }
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
    /// Who asked for each request under way, by its number.
    pub(super) origins: Vec<Option<Origin>>,
    /// Empty between clients.
    pub(super) looked_for: LookedFor,
    /// Sessions that may have something to do.
    pub(super) touched: Vec<u32>,
    /// When to look for clients that are late, if any can be.
    pub(super) watch_at: Option<Instant>,
    pub(super) tally: Tally,
    pub(super) warnings: Warnings,
    /// Clients of this worker, for the front desk, which counts them in.
    pub(super) connections: Arc<AtomicUsize>,
    /// The server ends: new clients are not served.
    pub(super) ending: bool,
    config: Arc<ServerConfig>,
    instructions: Arc<Mailbox<Instruction>>,
    news: Arc<Mailbox<News>>,
    bell: Rc<OwnedFd>,
    /// Devices of volumes to come.
    opened: HashMap<String, Box<dyn Device>>,
    awaited: Vec<(u32, Awaited)>,
    pub(super) restacking: Restacking,
    /// By tier, from the top: whether it is known that its cache device is given up, and that its
    /// journal is lost.
    pub(super) told: Vec<Told>,
    /// Empty but for its memory.
    newly_lost: Vec<(VolumeId, Sectors)>,
    valve: Option<Arc<Valve>>,
    /// What is being shed.
    shed: f64,
    clean_at: Instant,
    /// Nothing is begun any more that nobody asks for.
    resting: bool,
    stopped: bool,
}

impl Worker {
    /// Opens all devices on this thread's ring.
    ///
    /// # Errors
    /// What could not be opened.
    pub(super) fn begin(beginning: Beginning) -> Result<Self, ServeError> {
        let Beginning { number, config, tiers, seed, volumes, .. } = beginning;
        let Beginning { exports, instructions, news, connections, valve, .. } = beginning;
        let ring = Ring::new(RING_ENTRIES)?;
        let pool = seed.pool();
        if let Err(error) = ring.register_pool(&pool) {
            tracing::info!(%error, "buffers are not registered with the kernel; I/O costs a little more");
        }
        let told = tiers.iter().map(|tier| Told::nothing(tier.key)).collect();
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
        let bell = exchange.bell().descriptor().map_err(ServeError::Wake)?;
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
            instructions,
            news,
            bell,
            opened: HashMap::new(),
            restacking: Restacking::default(),
            awaited: Vec::new(),
            told,
            newly_lost: Vec::new(),
            valve,
            shed: 0.0,
            resting: false,
            stopped: false,
        })
    }

    /// Serves until the front desk says that all is over.
    ///
    /// # Errors
    /// When the ring fails.
    pub(super) fn run(mut self) -> Result<(), ServeError> {
        self.sockets.readable(ClientToken::Bell.encode(), &Rc::clone(&self.bell));
        let (mut arrived, mut answers) = (Vec::new(), Vec::new());
        while !self.stopped {
            self.sockets.poll(&mut arrived);
            self.instructions.take().into_iter().for_each(|letter| self.obey(letter));
            arrived.drain(..).for_each(|completion| self.take_in(completion));
            self.pump_touched();
            self.driver.advance();
            self.driver.take_answers(&mut answers);
            answers.drain(..).for_each(|answer| self.hand_out(answer));
            self.pump_touched();
            self.watch_the_clock();
            // All that has arrived is dealt with. What clients were let do after the cache advanced
            // is not begun yet.
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
        let there_is_nothing = || !self.driver.has_mail() && self.instructions.is_empty();
        exchange.bell().wait(&self.ring, due, there_is_nothing).map(drop).map_err(ServeError::Wait)
    }

    /// Acts on the end of a socket operation.
    fn take_in(&mut self, completion: SocketCompletion) {
        match ClientToken::decode(completion.token) {
            ClientToken::Receive(index) => self.received(index, completion.result),
            ClientToken::Send(index) => self.sent(index, completion.result),
            ClientToken::Bell => {
                let exchange = self.driver.exchange().expect("a worker has an end of the queues");
                exchange.bell().heard();
                self.sockets.readable(ClientToken::Bell.encode(), &Rc::clone(&self.bell));
            }
        }
    }

    fn obey(&mut self, instruction: Instruction) {
        match instruction {
            Instruction::Welcome(socket) => self.welcome(socket),
            Instruction::Offer(exports) => self.offer(exports),
            Instruction::Do { errand, deed } => self.do_deed(errand, deed),
            Instruction::Open { errand, tier } => {
                let opened = self.open_newcomer(*tier);
                self.report(errand, opened.map(|()| Outcome::Nothing));
            }
            Instruction::Degrade { tier } => {
                if let Some(at) = self.told.iter().position(|told| told.key == tier) {
                    self.told[at].degraded = true; // the front desk knows
                    self.tier(tier).degrade();
                }
            }
            Instruction::Bypass { tier, stuck } => {
                if let Some(at) = self.told.iter().position(|told| told.key == tier) {
                    (self.told[at].degraded, self.told[at].journal_lost) = (true, true);
                    self.tier(tier).bypass(stuck);
                }
            }
            Instruction::Retire { tier } => {
                if self.told.iter().any(|told| told.key == tier) {
                    self.tier(tier).retire();
                }
            }
            Instruction::Stop => self.stopped = true,
        }
    }

    fn offer(&mut self, exports: Arc<Exports>) {
        for index in self.sessions.indices() {
            self.sessions[index].exports_changed(&exports);
            self.touched.push(index);
        }
        self.exports = exports;
    }

    fn do_deed(&mut self, errand: u32, deed: Deed) {
        let until = Some(Instant::now() + self.config.limits.farewell_time);
        let result = match deed {
            Deed::Snapshot => Ok(Outcome::Snapshot(Box::new(self.snapshot()))),
            Deed::Flush(volume, kind) => {
                let flush = Request { volume, kind, offset: 0, len: 0 };
                return self.submit_for(Origin::FrontDesk { errand }, flush, None);
            }
            Deed::Open { name, source } => match source.open(&self.ring, &self.common.pool) {
                Ok(device) => {
                    self.opened.insert(name, device);
                    Ok(Outcome::Nothing)
                }
                Err(error) => Err(Problem::Other(error.to_string())),
            },
            Deed::Add { name } => {
                let device =
                    self.opened.remove(&name).expect("a volume is added after its device is open");
                let volume = self.driver.add_volume(&name, device);
                self.tally.forget(volume);
                Ok(Outcome::Added(self.driver.volume_ids(volume)))
            }
            Deed::Close { name } => {
                self.opened.remove(&name); // where it could not be opened there is none
                Ok(Outcome::Nothing)
            }
            Deed::Resize(volume, bytes) => {
                return self.awaited.push((errand, Awaited::Grown { volume, bytes }));
            }
            Deed::Restore => {
                for (tier, told) in self.told.iter_mut().enumerate() {
                    told.degraded = false;
                    self.driver.tier_mut(tier).expect("workers have all tiers").restore();
                }
                Ok(Outcome::Nothing)
            }
            Deed::Retire(volume) => {
                return self.awaited.push((errand, Awaited::Unused { volume, until }));
            }
            Deed::Remove { tier, volume } => {
                return self.awaited.push((errand, Awaited::Idle { tier, volume }));
            }
            Deed::Tier(deed) => match self.restack(errand, deed) {
                Ok(()) => Ok(Outcome::Nothing),
                Err(awaited) => return self.awaited.push((errand, Awaited::Tier(awaited))),
            },
            Deed::Rest => {
                self.resting = true;
                return self.awaited.push((errand, Awaited::Rest));
            }
            Deed::NoteRest => {
                return self.awaited.push((errand, Awaited::Noted { begun: false }));
            }
            Deed::End => {
                self.ending = true;
                for index in self.sessions.indices() {
                    self.sessions[index].end();
                    self.touched.push(index);
                }
                return self.awaited.push((errand, Awaited::Quiet { until }));
            }
        };
        self.report(errand, result);
    }

    pub(super) fn report(&self, errand: u32, result: Result<Outcome, Problem>) {
        self.news.post(News::Done { worker: self.number, errand, result });
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
            snapshot.connected(self.sessions[index].export().map(|export| VolumeId(export.volume)));
        }
        snapshot
    }

    /// Does what is due by time, or because something has ended.
    fn watch_the_clock(&mut self) {
        for (tier, told) in self.told.iter_mut().enumerate() {
            let driver = self.driver.tier_mut(tier).expect("workers have all tiers");
            driver.take_newly_lost(&mut self.newly_lost);
            told.has_lost |= !self.newly_lost.is_empty();
            told.news(self.number, driver.cache())
                .into_iter()
                .for_each(|news| self.news.post(news));
            for (volume, run) in self.newly_lost.drain(..) {
                self.news.post(News::DataLost { tier: told.key, volume, run });
            }
        }
        if !self.awaited.is_empty() {
            self.look_after_deeds();
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

    /// Says what was served, and sheds as much as that was found to be good for.
    fn shed(&mut self, now: Instant) {
        let Some(valve) = &self.valve else { return };
        let share = valve.turn(self.number, self.tally.served(), now);
        if share != std::mem::replace(&mut self.shed, share) {
            self.driver.shed(share);
        }
    }

    /// Reports deeds that have come to their end, and breaks off with clients that keep them from
    /// it.
    fn look_after_deeds(&mut self) {
        let now = Instant::now();
        for (errand, awaited) in std::mem::take(&mut self.awaited) {
            let result = match awaited {
                Awaited::Quiet { until } => self
                    .clients_are_gone(now, until, |session| session.is_quiet())
                    .map(|()| Ok(Outcome::Nothing)),
                Awaited::Unused { volume, until } => {
                    let unused =
                        |session: &Session| session.export().is_none_or(|e| e.volume != volume.0);
                    self.clients_are_gone(now, until, unused).map(|()| Ok(Outcome::Nothing))
                }
                Awaited::Idle { tier, volume } => {
                    match self.driver.remove_volume(tier, volume, false) {
                        Ok(()) => Some(Ok(Outcome::Nothing)),
                        Err(VolumeError::Busy) => None,
                        Err(error) => Some(Err(Problem::Other(error.to_string()))),
                    }
                }
                Awaited::Grown { volume, bytes } => {
                    match self.driver.resize_volume(volume, bytes) {
                        Ok(()) => Some(Ok(Outcome::Nothing)),
                        Err(error) if is_busy(&error) => None,
                        Err(error) => Some(Err(Problem::Other(error.to_string()))),
                    }
                }
                Awaited::Rest | Awaited::Noted { begun: true } => {
                    self.driver.is_idle().then_some(Ok(Outcome::Nothing))
                }
                Awaited::Noted { begun: false } if self.driver.is_idle() => {
                    self.driver.note_rest();
                    if !self.driver.is_idle() {
                        self.awaited.push((errand, Awaited::Noted { begun: true }));
                        continue;
                    }
                    Some(Ok(Outcome::Nothing)) // there was nothing to note
                }
                Awaited::Noted { begun: false } => None,
                Awaited::Tier(awaited) => self.has_stood_still(errand, awaited),
            };
            match result {
                Some(result) => self.report(errand, result),
                None => self.awaited.push((errand, awaited.after(now))),
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

    /// Whether nothing is to be begun that nobody asks for: at the end, and while a tier comes or
    /// goes.
    fn is_resting(&self) -> bool {
        self.resting || self.restacking.is_shut()
    }

    /// When to look at the clock again; `None` when only I/O can bring news.
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

/// Whether a volume cannot be changed just now, but soon.
fn is_busy(error: &io::Error) -> bool {
    error.get_ref().and_then(|error| error.downcast_ref()) == Some(&VolumeError::Busy)
}

impl Drop for Worker {
    fn drop(&mut self) {
        // a count for choosing workers only
        self.connections.fetch_sub(self.sessions.len(), Ordering::Relaxed);
    }
}
