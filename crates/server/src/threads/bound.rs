//! The beginning of a server: first addresses, then devices, then threads.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::Instant;

use floe_block::{Bell, Exchange};
use floe_device::{Pool, RbdName, Ring};
use floe_nvme::target::paths::Port;
use floe_nvme::target::subsystem::Subsystem;

use super::Server;
use super::acceptor::{Acceptor, Io, Phase};
use super::admin_listener::AdminListener;
use super::board::Board;
use super::control::{Control, End, Inbox};
use super::desk::{Desk, Sockets};
use super::entrance::Entrance;
use super::known_tier::{in_threads, link};
use super::mailbox::Mailbox;
use super::offer::Offer;
use super::questions::Questions;
use super::reporting::Reporting;
use super::setup::{ServeError, ServerSetup};
use super::slots::Slots;
use super::team::Team;
use super::tier::{Tier, TierKey};
use super::tier_part::TierPart;
use super::valve::Valve;
use super::worker::{Beginning, RING_ENTRIES};
use super::worker_handle::{WorkerHandle, Workers};
use super::worker_outbox::WorkerOutbox;
use crate::address::ListenAddress;
use crate::kept::{guarded, random_stack};
use crate::listener::Listener;
use crate::pair::{OwnNote, Turn, Waited, stand_by};
use crate::protocol::subsystem_name;
use crate::ublk::LocalDevices;
use crate::volume::Volume;

/// Memory for requests under way, registered with the kernel, of all threads together and of each
/// at least. More is taken as needed.
const ARENA_BYTES: usize = 64 << 20;
const ARENA_BYTES_LEAST: usize = 16 << 20;

/// That of each thread of a server with local block devices, so that no more is taken: the kernel
/// may free memory only by writing to them.
const LOCAL_ARENA_BYTES: usize = 64 << 20;

/// Addresses that are bound, before there are devices to serve: a server that cannot listen shall
/// not create files.
pub struct Bound {
    pub(super) config: ServerSetup,
    pub(super) listeners: Vec<Listener>,
    admin_listeners: Vec<AdminListener>,
    pub(super) subsystem: Arc<Subsystem>,
    /// The reason for which it does without the default admin socket.
    lacks_socket: Option<String>,
}

impl Bound {
    /// Binds all addresses of `config`.
    ///
    /// # Errors
    /// When an address cannot be bound or may not be.
    pub fn bind(config: ServerSetup) -> Result<Self, ServeError> {
        let nqn = config.nvme.nqn.clone().unwrap_or_else(|| {
            let addresses =
                config.listen.iter().filter(|it| matches!(it, ListenAddress::NvmeTcp(_)));
            subsystem_name(&addresses.map(ToString::to_string).collect::<Vec<_>>())
        });
        let subsystem = Subsystem::new(&nqn, env!("CARGO_PKG_VERSION"))?;
        let subsystem = match config.turn {
            Some(_) => subsystem.numbering_after(random_stack().map_err(ServeError::Link)? as u16),
            None => subsystem,
        };
        let subsystem = subsystem.with_access(Arc::clone(config.nvme.access.rules()));
        let subsystem = Arc::new(subsystem.with_paths(Arc::clone(&config.nvme.paths)));
        let listeners = config.listen.iter().map(|address| {
            Listener::bind(address, config.tls.as_ref(), config.insecure, &subsystem)
        });
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners.iter().filter_map(Listener::nvme_address);
        let ports = (1..).zip(addresses).map(|(id, address)| Port { id, address });
        config.nvme.paths.set_ports(ports.collect());
        let admin = &config.admin;
        let admin_listeners = admin.listen.iter().map(|address| {
            AdminListener::bind(address, admin, config.tls.as_ref(), config.insecure)
        });
        let mut admin_listeners = admin_listeners.collect::<Result<Vec<_>, _>>()?;
        let beside = AdminListener::beside(admin);
        let lacks_socket = beside.as_ref().err().cloned();
        admin_listeners.extend(beside.ok().flatten());
        Ok(Self { listeners, admin_listeners, lacks_socket, config, subsystem })
    }

    /// A server with these listeners, and without an admin interface.
    pub(super) fn of(
        config: ServerSetup,
        listeners: Vec<Listener>,
        subsystem: &Arc<Subsystem>,
    ) -> Self {
        let subsystem = Arc::clone(subsystem);
        let (admin_listeners, lacks_socket) = (Vec::new(), None);
        Self { config, listeners, admin_listeners, lacks_socket, subsystem }
    }

    /// Waits until no other server has these images, and answers what little is asked of a standby
    /// meanwhile. `signal` becomes readable when the server is to end; it stays so. `export` is
    /// called several times a second while another server has them.
    ///
    /// # Errors
    /// When an image cannot be looked at, or the system is short of something.
    ///
    /// # Panics
    /// Without an image.
    pub fn stand_by(
        &self,
        turn: &Arc<Turn>,
        images: &[RbdName],
        signal: &OwnedFd,
        export: &mut dyn FnMut(),
    ) -> Result<Waited, ServeError> {
        let desk = self.attend(turn, signal)?;
        Ok(stand_by(turn, images, self.own_note(images).as_ref(), desk.ended(), export)?)
    }

    /// Returns the note on this machine of a pair of these images; `None` without a state
    /// directory.
    pub fn own_note(&self, images: &[RbdName]) -> Option<OwnNote> {
        let state = self.config.state.as_ref()?;
        images.first().map(|image| OwnNote::new(state.path(), image))
    }

    /// Answers what little is asked of a server that does not serve yet. `signal` is as above.
    ///
    /// # Errors
    /// When the system is short of something.
    pub fn attend(&self, turn: &Arc<Turn>, signal: &OwnedFd) -> Result<Desk, ServeError> {
        let copy = |socket: &Rc<OwnedFd>| socket.try_clone();
        // Hosts of NVMe have paths, or wait.
        let data = self.listeners.iter().filter(|it| it.nvme_address().is_none());
        let data = data.map(|listener| copy(&listener.socket));
        let admin = self.admin_listeners.iter().map(|listener| {
            copy(&listener.socket).map(|socket| (socket, Arc::clone(&listener.access)))
        });
        let sockets = Sockets {
            data: data.collect::<Result<_, _>>().map_err(ServeError::Standby)?,
            admin: admin.collect::<Result<_, _>>().map_err(ServeError::Standby)?,
            signal: signal.try_clone().map_err(ServeError::Standby)?,
            tls: self.config.tls.clone(),
            patience: self.config.limits.admin_time,
        };
        Desk::open(sockets, turn).map_err(ServeError::Standby)
    }

    /// A server of these volumes, the first of which is the default one, through these tiers, from
    /// the top, with a thread for each part that they have. `signal` becomes readable when the
    /// server is to end.
    ///
    /// # Errors
    /// When a volume's name is unusable, a device cannot be opened, or the system is out of
    /// something.
    ///
    /// # Panics
    /// Without a tier, or when they do not have the same number of parts.
    pub fn serve(
        self,
        tiers: Vec<Tier>,
        volumes: Vec<Volume>,
        signal: OwnedFd,
    ) -> Result<Server, ServeError> {
        let Self { config, listeners, admin_listeners, lacks_socket, subsystem } = self;
        if let Some(problem) = lacks_socket {
            tracing::warn!(
                %problem,
                "no admin socket: floe status, flush, stop and the like need --admin; give this \
                 server a socket of its own with --admin unix:PATH, or --admin none"
            );
        }
        let nqn = subsystem.nqn().to_owned();
        let threads = tiers.first().expect("there is a tier").cache.threads();
        let config = Arc::new(config);
        let volumes = guarded(volumes, tiers.iter().map(|tier| &tier.cache));
        let ids = |at| tiers.iter().map(|tier| tier.cache.id(at)).collect();
        let offer = Offer::new(volumes.iter().enumerate().map(|(at, volume)| (ids(at), volume)))?;
        let ring = Ring::new(RING_ENTRIES)?;
        let wake_up = Arc::new(Bell::new().map_err(ServeError::Wake)?);
        let inbox = Arc::new(Mailbox::new(wake_up));
        let (sender, events) = mpsc::channel();
        let wake_ups =
            (0..threads).map(|_| Bell::new().map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let wake_ups = wake_ups.map_err(ServeError::Wake)?;
        let handle = |wake_up: &Arc<Bell>| WorkerHandle {
            mailbox: Arc::new(Mailbox::new(Arc::clone(wake_up))),
            connections: Arc::new(AtomicUsize::new(0)),
        };
        let workers = Workers(wake_ups.iter().map(handle).collect());
        let valve =
            config.shed_most.map(|most| Arc::new(Valve::new(most, threads, Instant::now())));
        let is_local = volumes.iter().any(|volume| volume.reach.is_local());
        let arena_bytes = match is_local {
            true => LOCAL_ARENA_BYTES,
            false => (ARENA_BYTES / threads).max(ARENA_BYTES_LEAST),
        };
        let seeds = Pool::try_family(threads, arena_bytes)
            .map_err(|source| ServeError::Memory { bytes: threads * arena_bytes, source })?;
        let mut parts: Vec<Vec<TierPart>> = (0..threads).map(|_| Vec::new()).collect();
        let mut known = Vec::new();
        for (key, tier) in (0..).map(TierKey).zip(tiers) {
            let (tier, of_threads) = in_threads(tier, key, Exchange::between(&wake_ups));
            known.push(tier);
            parts.iter_mut().zip(of_threads).for_each(|(of_thread, tier)| of_thread.push(tier));
        }
        let stack = random_stack().map_err(ServeError::Link)?;
        link(stack, known.iter_mut()).map_err(ServeError::Link)?;
        let parts = parts.into_iter().zip(seeds).zip(&workers.0).enumerate();
        let beginnings = parts.map(|(number, ((tiers, seed), worker))| Beginning {
            number,
            config: Arc::clone(&config),
            tiers,
            seed,
            volumes: offer.all().to_vec(),
            exports: Arc::clone(offer.exports()),
            mailbox: Arc::clone(&worker.mailbox),
            outbox: WorkerOutbox {
                worker: number,
                control: sender.clone(),
                acceptor: Arc::clone(&inbox),
            },
            connections: Arc::clone(&worker.connections),
            valve: valve.clone(),
        });
        let team = Team::begin(beginnings.collect(), workers.clone(), config.limits.reply_time)?;
        let board = Arc::new(Board::new(&offer, &known));
        let acceptor = Acceptor {
            io: Io {
                sockets: floe_device::Sockets::new(&ring),
                ring,
                pool: Pool::new(0),
                signal: Rc::new(signal),
            },
            listeners,
            admin_listeners,
            admin_sessions: Slots::default(),
            inbox: Arc::clone(&inbox),
            workers: workers.clone(),
            control: sender.clone(),
            board: Arc::clone(&board),
            questions: Questions::default(),
            reporting: Reporting::new(&config, threads, valve),
            entrance: Entrance::default(),
            phase: Phase::Serving,
            replaced: false,
            change: None,
            config: Arc::clone(&config),
        };
        let control = Control {
            config,
            workers,
            offer,
            local: LocalDevices::default(),
            stack,
            keys_given: known.len() as u32,
            tiers: known,
            board,
            inbox: Inbox { events, sender },
            acceptor: inbox,
            jobs: VecDeque::new(),
            end: End::default(),
            last_number: 0,
            note_again: None,
        };
        Ok(Server { acceptor, control, team, nqn })
    }
}
