//! A server from its addresses to its end: worker threads that serve clients (`worker`), an
//! acceptor to which clients come first (`acceptor`), and a control thread that runs admin
//! operations (`control`).
//!
//! ```text
//!             accept, admin, signals         questions, replies        its clients, its shards,
//! clients ──> acceptor (mostly asleep) <────────────────────> worker   its devices, one ring
//!                  │ jobs    ^ state                          │ ^  │ ^
//!                  v         │          commands, replies     │ │  v │
//!             control thread (idle)  <────────────────────────┘ │ worker …
//!                                         events of tiers       bounded queues of sub-requests
//! ```
//!
//! Each client is assigned to one worker. A sub-request for a shard owned by another worker is
//! forwarded to it, and the reply is sent back ([`floe_block::Exchange`]). Nothing on this path is
//! locked. Volumes and tiers that come and go, and the end, are operations of the control thread.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread;
use std::thread::Builder;
use std::time::{Duration, Instant};

use floe_block::{Bell, Exchange};
use floe_device::{Pool, RbdName, Ring};
use floe_nbd::uri::Uri;
use floe_nvme::target::access::Port;
use floe_nvme::target::subsystem::Subsystem;
use floe_ublk::UblkError;

use crate::acceptor::admin::AdminListener;
use crate::acceptor::entrance::Entrance;
use crate::acceptor::questions::Questions;
use crate::acceptor::reporting::Reporting;
use crate::acceptor::{Acceptor, Io, Phase};
use crate::admin::AdminAddress;
use crate::control::board::Board;
use crate::control::{Control, End, Inbox};
use crate::listener::{ListenAddress, Listener, NvmeAddress};
use crate::messages::{Event, Mailbox, Message, Notice};
use crate::offer::{Offer, Offered};
use crate::pair::{OwnNote, Turn, Waited, stand_by};
use crate::persistent::{guarded, random_stack};
use crate::protocol::subsystem_name;
use crate::setup::{ServeError, ServerSetup};
use crate::slots::Slots;
use crate::standby::{Desk, Sockets};
use crate::tier::{Tier, TierKey, TierPart, in_threads, link};
use crate::ublk::{Ending, LocalDevice, LocalDevices, LocalVolume, QueueOrder};
use crate::volume::Volume;
use crate::worker::handle::{Team, WorkerHandle, WorkerOutbox, Workers};
use crate::worker::shedding::ShedController;
use crate::worker::{Beginning, RING_ENTRIES};

/// The end of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was told to end.
    ForGood,
    /// Its program is to be replaced: local devices wait for the next one.
    Replaced,
}

/// A server whose devices are open and whose threads wait for clients.
pub struct Server {
    // Dropped in this order: threads that send to workers end before them.
    acceptor: Acceptor,
    control: Control,
    team: Team,
    nqn: String,
}

impl Server {
    /// The addresses that NBD clients connect to, one for each volume and address.
    pub fn uris(&self) -> impl Iterator<Item = Uri> + '_ {
        self.control.offer.exports().iter().flat_map(|export| {
            let listeners = self.acceptor.listeners.iter();
            listeners.filter_map(|it| match &it.address {
                ListenAddress::Nbd(uri) => Some(Uri { export: export.name.clone(), ..uri.clone() }),
                ListenAddress::NvmeTcp(_) => None,
            })
        })
    }

    /// The addresses that hosts connect to over NVMe over TCP.
    pub fn nvme_addresses(&self) -> impl Iterator<Item = &NvmeAddress> {
        self.acceptor.listeners.iter().filter_map(|it| match &it.address {
            ListenAddress::Nbd(_) => None,
            ListenAddress::NvmeTcp(address) => Some(address),
        })
    }

    /// The name of the NVMe subsystem, which hosts give when they connect.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// Returns the addresses of the admin interface.
    pub fn admin_addresses(&self) -> impl Iterator<Item = &AdminAddress> {
        self.acceptor.admin_listeners.iter().map(|listener| &listener.address)
    }

    /// Returns the bytes that each tier, from the top, uses of its device.
    pub fn cache_bytes(&self) -> Vec<u64> {
        self.control.tiers.iter().map(|tier| tier.cache_bytes).collect()
    }

    /// Serves until it is told to end, then flushes, and records the clean shutdown on the cache
    /// devices.
    ///
    /// # Errors
    /// When a ring or a thread fails, the last flush leaves dirty data behind, or dirty data was
    /// lost.
    pub fn run(self) -> Result<Ended, ServeError> {
        let Self { acceptor, control, team, nqn: _ } = self;
        let (events, notices) = (control.inbox.sender.clone(), Arc::clone(&control.acceptor));
        let local = control.local.clone();
        let run = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| crate::control::run(control)));
            ended.unwrap_or_else(|_| {
                notices.post(Notice::Died(ServeError::ControlPanicked));
                Err(ServeError::ControlPanicked)
            })
        };
        let control = Builder::new().name("floe-control".to_owned()).spawn(run);
        let control = control.map_err(ServeError::Thread)?;
        let accepted = acceptor.run();
        if accepted.is_err() {
            let _ = events.send(Event::Abandon); // it may have ended
        }
        let ended = control.join().expect("a panic of it is caught");
        let stopped = team.end();
        if stopped.is_ok() {
            local.delete(); // a worker that hangs has it open
        }
        let replaced = accepted?;
        let closing = ended?;
        stopped?; // or the caches would say that all is in order
        let lost = closing.lost();
        closing.finish().map_err(ServeError::Close)?;
        match lost {
            Some(lost) => Err(ServeError::DataLost(lost)),
            None => Ok(if replaced { Ended::Replaced } else { Ended::ForGood }),
        }
    }

    /// Makes block devices of the volumes that are to be attached, or takes over those of an
    /// earlier server. They are served from now on. When the server is to end meanwhile, the rest
    /// is left, and [`Server::run`] ends in good order at once.
    ///
    /// # Errors
    /// When the kernel's driver is missing or refuses.
    pub fn attach(&mut self) -> Result<Vec<Attached>, ServeError> {
        let volumes: Vec<LocalVolume> = self.control.offer.all().iter().filter_map(local).collect();
        let ending = Ending::new(&self.acceptor.io.signal);
        let attached = volumes.iter().map_while(|it| self.attach_volume(it, &ending).transpose());
        attached.collect()
    }

    /// Attaches a volume. Returns `None` when the server is to end first.
    fn attach_volume(
        &mut self,
        volume: &LocalVolume,
        ending: &Ending,
    ) -> Result<Option<Attached>, ServeError> {
        let workers = self.control.workers.len();
        let device = LocalDevice::prepare(volume, workers as u16, ending);
        let Some(mut device) = device.map_err(ServeError::Attach)? else { return Ok(None) };
        let served = self.serve_queues(&device, volume);
        let started = served.and_then(|()| self.start(&mut device, volume, ending));
        let is_started = match started {
            Ok(is_started) => is_started,
            Err(error) => {
                device.give_up();
                return Err(ServeError::Attach(error.to_string()));
            }
        };
        let attached = Attached { volume: volume.name.clone(), device: device.path() };
        let path = attached.device.display().to_string();
        self.control.local.push(device);
        if !is_started {
            return Ok(None);
        }
        tracing::info!(volume = volume.name, device = path, "attached");
        Ok(Some(attached))
    }

    /// Starts a device on an extra thread, for the kernel reads its partition table meanwhile, and
    /// a backing device may hang. When the server is to end, requests to the device fail, so that
    /// the kernel comes to an end with it. Returns whether the device is there.
    fn start(
        &self,
        device: &mut LocalDevice,
        volume: &LocalVolume,
        ending: &Ending,
    ) -> Result<bool, UblkError> {
        let (done, ended) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || done.send(device.start()));
            let mut is_failing = false;
            loop {
                match ended.recv_timeout(LOOK_AGAIN) {
                    Ok(started) => return started.map(|()| !is_failing),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => unreachable!("it sends a result first"),
                }
                if !is_failing && ending.comes_within(Duration::ZERO) {
                    is_failing = true;
                    self.control.workers.tell_all(|| Message::FailQueues(volume.id));
                }
            }
        })
    }

    /// Has the workers serve the queues of a device, in turn.
    fn serve_queues(&self, device: &LocalDevice, volume: &LocalVolume) -> Result<(), UblkError> {
        let character = device.open()?;
        let (begun, told) = mpsc::channel();
        let workers = &self.control.workers;
        for number in 0..device.queues {
            let order = QueueOrder {
                character: character.clone(),
                number,
                depth: device.depth,
                volume: volume.id,
                read_only: volume.read_only,
                begun: begun.clone(),
            };
            workers.post(usize::from(number) % workers.len(), Message::ServeQueue(order));
        }
        drop(begun);
        told.into_iter().collect()
    }
}

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
    pub(crate) config: ServerSetup,
    pub(crate) listeners: Vec<Listener>,
    admin_listeners: Vec<AdminListener>,
    pub(crate) subsystem: Arc<Subsystem>,
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
    pub(crate) fn of(
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
        let shed_controller = config
            .shed_most
            .map(|most| Arc::new(ShedController::new(most, threads, Instant::now())));
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
            shed_controller: shed_controller.clone(),
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
            reporting: Reporting::new(&config, threads, shed_controller),
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

/// Between looks at the order to end while a device is started.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A volume that is a local block device now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The volume's name.
    pub volume: String,
    /// The block device.
    pub device: PathBuf,
}

fn local(offered: &Offered) -> Option<LocalVolume> {
    let volume = &offered.volume;
    volume.reach.is_local().then(|| LocalVolume {
        id: offered.id,
        name: volume.name.clone(),
        backing: volume.backing.name(),
        bytes: offered.bytes,
        read_only: volume.read_only,
        rotational: volume.backing.rotates(),
    })
}
