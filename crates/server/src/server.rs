//! A server from binding its addresses to its end: worker threads that serve clients (`worker`), an
//! acceptor of connections (`acceptor`), and a control thread that runs admin operations
//! (`control`).
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
//! locked. The control thread attaches and detaches volumes and tiers, and runs the shutdown.

use std::collections::{BTreeMap, VecDeque};
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

use floe_block::{Exchange, WakeUp};
use floe_device::{Pool, RbdName, Ring};
use floe_nbd::uri::Uri;
use floe_nvme::target::access::Port;
use floe_nvme::target::reservation::Reservations;
use floe_nvme::target::subsystem::Subsystem;
use floe_ublk::UblkError;

use crate::acceptor::admin::{AdminClients, AdminListener, Io};
use crate::acceptor::entrance::Entrance;
use crate::acceptor::questions::Questions;
use crate::acceptor::reporting::Reporting;
use crate::acceptor::{Acceptor, Farewell, Phase};
use crate::admin::AdminAddress;
use crate::control::board::Board;
use crate::control::{Control, End, Inbox};
use crate::listener::{ListenAddress, Listener, NvmeAddress};
use crate::messages::{Event, Mailbox, Message, Notice};
use crate::offer::{Offer, Offered};
use crate::pair::{OwnNote, Turn, Waited, stand_by};
use crate::persistent::{guarded, random_stack};
use crate::protocol::subsystem_name;
use crate::rate::SharedRate;
use crate::reservations::{self, PairStore, ReservationsError};
use crate::setup::{ServeError, ServerSetup};
use crate::standby::{Desk, Sockets};
use crate::status::TierKey;
use crate::tier::{CachePart, Tier, link};
use crate::ublk::{Ending, LocalDevice, LocalDevices, LocalVolume, QueueOrder};
use crate::volume::{Reach, Volume};
use crate::volume_clients::VolumeClients;
use crate::volume_limit::RequestLimit;
use crate::worker::handle::{Team, WorkerHandle, WorkerOutbox, Workers};
use crate::worker::shedding::ShedController;
use crate::worker::{Beginning, RING_ENTRIES};

/// The reason why a server has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The server was told to end.
    ForGood,
    /// The program is to be replaced by a new version: local devices wait for the next server.
    Replaced,
}

/// A server with open devices and bound addresses, ready to run.
pub struct Server {
    // Dropped in this order: threads that send to workers end before them.
    acceptor: Acceptor,
    control: Control,
    team: Team,
    nqn: String,
    pair_store: Option<PairStore>,
}

impl Server {
    /// Returns the URIs that NBD clients connect to, one for each volume and address.
    pub fn uris(&self) -> impl Iterator<Item = Uri> + '_ {
        self.control.offer.exports().iter().flat_map(|export| {
            let listeners = self.acceptor.listeners.iter();
            listeners.filter_map(|it| match &it.address {
                ListenAddress::Nbd(uri) => Some(Uri { export: export.name.clone(), ..uri.clone() }),
                ListenAddress::NvmeTcp(_) => None,
            })
        })
    }

    /// Returns the addresses that NVMe over TCP hosts connect to.
    pub fn nvme_addresses(&self) -> impl Iterator<Item = &NvmeAddress> {
        self.acceptor.listeners.iter().filter_map(|it| match &it.address {
            ListenAddress::Nbd(_) => None,
            ListenAddress::NvmeTcp(address) => Some(address),
        })
    }

    /// Returns the NVMe qualified name of the subsystem, which hosts give when they connect.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// Returns the addresses of the admin interface.
    pub fn admin_addresses(&self) -> impl Iterator<Item = &AdminAddress> {
        self.acceptor.admin_listeners.iter().map(|listener| &listener.address)
    }

    /// Returns the capacity of each tier in bytes, from the top.
    pub fn cache_bytes(&self) -> Vec<u64> {
        self.control.tiers.iter().map(|tier| tier.facts.size_bytes).collect()
    }

    /// Serves clients until the server is told to end. Then flushes, and records the clean shutdown
    /// on the cache devices.
    ///
    /// # Errors
    /// When a ring or a thread fails, the last flush leaves dirty data behind, or dirty data was
    /// lost.
    pub fn run(self) -> Result<Ended, ServeError> {
        let Self { acceptor, control, team, nqn: _, pair_store } = self;
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
        pair_store.iter().for_each(PairStore::close);
        if stopped.is_ok() {
            local.delete(); // a worker that hangs has it open
        }
        let Farewell { replaced, told } = accepted?;
        let closing = ended?;
        stopped?; // or the caches would say that all is in order
        let lost = closing.lost();
        closing.finish().map_err(ServeError::Close)?;
        drop(told); // their clients find everything closed
        match lost {
            Some(lost) => Err(ServeError::DataLost(lost)),
            None => Ok(if replaced { Ended::Replaced } else { Ended::ForGood }),
        }
    }

    /// Creates the local block devices of the volumes that have one, or takes over those of an
    /// earlier server. Workers serve them from now on. If the server is told to end meanwhile, the
    /// remaining ones are left out, and [`Server::run`] shuts down normally at once.
    ///
    /// # Errors
    /// When the kernel's driver is missing or refuses.
    pub fn attach(&mut self) -> Result<Vec<Attached>, ServeError> {
        let volumes: Vec<LocalVolume> = self.control.offer.all().iter().filter_map(local).collect();
        let ending = Ending::new(&self.acceptor.admin.io.signal);
        let attached = volumes.iter().map_while(|it| self.attach_volume(it, &ending).transpose());
        attached.collect()
    }

    /// Creates the local block device of a volume. Returns `None` if the server is told to end
    /// first.
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

    /// Starts a local device on an extra thread, because the kernel reads the device's partition
    /// table before it returns, and a backing device may hang. If the server is told to end
    /// meanwhile, requests to the device fail, so that the kernel returns. Returns whether the
    /// device is ready.
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

    /// Distributes the queues of a local device among the workers, and waits until they serve them.
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

/// Memory for requests under way of all threads together, in bytes, registered with the kernel.
/// More is allocated as needed.
const ARENA_BYTES: usize = 64 << 20;

/// Minimum memory for requests under way of each thread, in bytes.
const ARENA_BYTES_LEAST: usize = 16 << 20;

/// Memory for requests under way of each thread of a server with local block devices, in bytes. No
/// more is ever allocated, because the kernel might free memory only by writing to these devices.
const LOCAL_ARENA_BYTES: usize = 64 << 20;

/// The bound addresses of a server that has no devices yet. Addresses are bound first, so that a
/// server that cannot listen creates no files.
pub struct Bound {
    pub(crate) config: ServerSetup,
    pub(crate) listeners: Vec<Listener>,
    admin_listeners: Vec<AdminListener>,
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) clients: VolumeClients,
    /// The reason why the server goes without the default admin socket.
    lacks_socket: Option<String>,
    /// The reservations that a pair keeps for NVMe hosts.
    pair_store: Option<PairStore>,
}

impl Bound {
    /// Binds all addresses of `config`.
    ///
    /// # Errors
    /// When an address cannot be bound, or is not allowed because other machines could reach it.
    pub fn bind(mut config: ServerSetup) -> Result<Self, ServeError> {
        let nqn = config.nvme.nqn.clone().unwrap_or_else(|| {
            let addresses =
                config.listen.iter().filter(|it| matches!(it, ListenAddress::NvmeTcp(_)));
            subsystem_name(&addresses.map(ToString::to_string).collect::<Vec<_>>())
        });
        let subsystem = Subsystem::new(&nqn, env!("CARGO_PKG_VERSION"))?;
        let place = random_stack().map_err(ServeError::Link)? as u16;
        let subsystem = subsystem.numbering_from(place);
        let subsystem = subsystem.with_access(Arc::clone(config.nvme.access.rules()));
        let pair_store;
        (config.nvme.reservations, pair_store) = reservations_of(&config, &nqn)?;
        let clients = VolumeClients::default();
        let subsystem = subsystem.with_admission(Arc::new(clients.clone()));
        let subsystem = match &config.nvme.reservations {
            Some(reservations) => subsystem.with_reservations(Arc::clone(reservations)),
            None => subsystem,
        };
        let subsystem = Arc::new(subsystem.with_paths(Arc::clone(&config.nvme.paths)));
        let listeners = config.listen.iter().map(|address| {
            Listener::bind(address, config.tls.as_ref(), config.insecure, &subsystem, &clients)
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
        Ok(Self {
            listeners,
            admin_listeners,
            lacks_socket,
            config,
            subsystem,
            clients,
            pair_store,
        })
    }

    /// Creates a server with these listeners and without an admin interface.
    pub(crate) fn of(
        config: ServerSetup,
        listeners: Vec<Listener>,
        subsystem: &Arc<Subsystem>,
        clients: VolumeClients,
    ) -> Self {
        let subsystem = Arc::clone(subsystem);
        let (admin_listeners, lacks_socket, pair_store) = (Vec::new(), None, None);
        Self { config, listeners, admin_listeners, lacks_socket, subsystem, clients, pair_store }
    }

    /// Waits until no other server owns the images of the pair. Meanwhile answers the few admin
    /// commands that a standby accepts. `signal` becomes and stays readable when the server is to
    /// end. `export` is called several times a second while another server has the images.
    ///
    /// # Errors
    /// When an image cannot be opened, or a socket or thread cannot be created.
    ///
    /// # Panics
    /// When `images` is empty.
    pub fn stand_by(
        &self,
        turn: &Arc<Turn>,
        images: &[RbdName],
        signal: &OwnedFd,
        export: &mut dyn FnMut(),
    ) -> Result<Waited, ServeError> {
        let desk = self.attend(turn, signal)?;
        let mut export = || {
            turn.upper_half().into_iter().for_each(|upper| self.subsystem.use_half(upper));
            export();
        };
        Ok(stand_by(turn, images, self.own_note(images).as_ref(), desk.ended(), &mut export)?)
    }

    /// Returns the lock file on this machine for the pair with these images; `None` without a state
    /// directory.
    pub fn own_note(&self, images: &[RbdName]) -> Option<OwnNote> {
        let state = self.config.state.as_ref()?;
        images.first().map(|image| OwnNote::new(state.path(), image))
    }

    /// Answers the few admin commands that a server accepts before it serves, until the result is
    /// dropped. `signal` becomes and stays readable when the server is to end.
    ///
    /// # Errors
    /// When a socket or thread cannot be created.
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
        Desk::open(sockets, turn)
    }

    /// Opens a server of these volumes, the first of which is the default one. `tiers` are the
    /// tiers of the cache from the top; the server gets a thread for each of their parts. `signal`
    /// becomes readable when the server is to end.
    ///
    /// # Errors
    /// When a volume's name is unusable, a device cannot be opened, or a system resource is
    /// exhausted.
    ///
    /// # Panics
    /// When there is no tier, or the tiers differ in their number of parts.
    pub fn serve(
        self,
        mut tiers: Vec<Tier>,
        volumes: Vec<Volume>,
        signal: OwnedFd,
    ) -> Result<Server, ServeError> {
        let Self {
            config,
            listeners,
            admin_listeners,
            lacks_socket,
            subsystem,
            clients,
            pair_store,
        } = self;
        if let Some(store) = &pair_store {
            match &config.nvme.reservations {
                Some(reservations) => store.take_over(&volumes, reservations)?,
                None => store.warn_of_kept(&volumes, NBD_TOO)?,
            }
        }
        if let Some(problem) = lacks_socket {
            tracing::warn!(
                %problem,
                "no admin socket: floe status, flush, stop and the like need --admin; give this \
                 server a socket of its own with --admin unix:PATH, or --admin none"
            );
        }
        let half = config.turn.as_ref().and_then(|turn| turn.upper_half());
        half.into_iter().for_each(|upper| subsystem.use_half(upper));
        let nqn = subsystem.nqn().to_owned();
        let threads = tiers.first().expect("there is a tier").cache.threads();
        let config = Arc::new(config);
        let volumes = guarded(volumes, tiers.iter().map(|tier| &tier.cache));
        let ids = |at| tiers.iter().map(|tier| tier.cache.id(at)).collect();
        let tier_bytes: Vec<u64> = tiers.iter().map(|tier| tier.facts.size_bytes).collect();
        let offered = volumes.iter().enumerate().map(|(at, volume)| (ids(at), volume));
        let offer = Offer::new(offered, &tier_bytes, clients)?;
        let total = Arc::new(SharedRate::new(config.total_limit.rates()));
        for Offered { id, limit, .. } in offer.all() {
            let RequestLimit { weight, clients, .. } = limit.limit();
            total.set_weights(id.0, weight, clients.weights(), Instant::now());
        }
        let ring = Ring::new(RING_ENTRIES)?;
        let wake_up = Arc::new(WakeUp::new().map_err(ServeError::Wake)?);
        let inbox = Arc::new(Mailbox::new(wake_up));
        let (sender, events) = mpsc::channel();
        let wake_ups =
            (0..threads).map(|_| WakeUp::new().map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let wake_ups = wake_ups.map_err(ServeError::Wake)?;
        let handle = |wake_up: &Arc<WakeUp>| WorkerHandle {
            mailbox: Arc::new(Mailbox::new(Arc::clone(wake_up))),
            connections: Arc::new(AtomicUsize::new(0)),
        };
        let workers = Workers(wake_ups.iter().map(handle).collect());
        if let Some(reservations) = &config.nvme.reservations {
            let shared = volumes.iter().filter(|volume| volume.reach == Reach::Both);
            reservations.exclude(shared.map(|volume| volume.name.clone()));
            let workers = workers.clone();
            reservations.wake_by(move || workers.tell_all(|| Message::Reservations));
        }
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
        let mut parts: Vec<Vec<CachePart>> = (0..threads).map(|_| Vec::new()).collect();
        for (key, tier) in (0..).map(TierKey).zip(&mut tiers) {
            let of_threads = tier.take_parts(key, Exchange::between(&wake_ups));
            parts.iter_mut().zip(of_threads).for_each(|(of_thread, part)| of_thread.push(part));
        }
        let stack = random_stack().map_err(ServeError::Link)?;
        link(stack, tiers.iter_mut()).map_err(ServeError::Link)?;
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
            total: Arc::clone(&total),
            shed_controller: shed_controller.clone(),
        });
        let team = Team::begin(beginnings.collect(), workers.clone(), config.limits.reply_time)?;
        let board = Arc::new(Board::new(&offer, &tiers));
        let acceptor = Acceptor {
            admin: AdminClients::new(
                Io::new(ring, signal),
                config.tls.clone(),
                config.limits.admin_time,
            ),
            listeners,
            admin_listeners,
            inbox: Arc::clone(&inbox),
            workers: workers.clone(),
            control: sender.clone(),
            board: Arc::clone(&board),
            questions: Questions::default(),
            reporting: Reporting::new(&config, threads, shed_controller, Arc::clone(&total)),
            entrance: Entrance::default(),
            phase: Phase::Serving,
            replaced: false,
            change: None,
            config: Arc::clone(&config),
        };
        let names = offer.all().iter().map(|offered| offered.volume.name.clone()).collect();
        let control = Control {
            config,
            workers,
            offer,
            total,
            local: LocalDevices::default(),
            stack,
            begun: (names, tiers.len() as u32),
            keys_given: tiers.len() as u32,
            tiers,
            board,
            inbox: Inbox { events, sender },
            acceptor: inbox,
            jobs: VecDeque::new(),
            end: End::default(),
            last_number: 0,
            note_again: None,
        };
        Ok(Server { acceptor, control, team, nqn, pair_store })
    }
}

/// The reason why a server enforces no reservations.
const NBD_TOO: &str = "the server has NBD clients too";

/// Opens the reservations of NVMe hosts; `None` if hosts cannot have any, because others share the
/// volumes. Of a pair also returns where they are kept, as they are known once its images are open.
fn reservations_of(
    config: &ServerSetup,
    nqn: &str,
) -> Result<(Option<Arc<Reservations>>, Option<PairStore>), ReservationsError> {
    let is_nvme = |address: &ListenAddress| matches!(address, ListenAddress::NvmeTcp(_));
    if !config.listen.iter().any(is_nvme) {
        return Ok((None, None));
    }
    let (state, nvme_only) = (config.state.as_ref(), config.listen.iter().all(is_nvme));
    if config.turn.is_some() {
        let why = "a pair keeps its reservations beside its first image";
        reservations::warn_of_kept(state, nqn, why)?;
        let store = PairStore::new(nqn);
        let reservations = Reservations::new(BTreeMap::new(), Some(Box::new(store.clone())));
        return Ok((nvme_only.then(|| Arc::new(reservations)), Some(store)));
    }
    if nvme_only {
        return reservations::open(state, nqn).map(|it| (Some(it), None));
    }
    reservations::warn_of_kept(state, nqn, NBD_TOO)?;
    Ok((None, None))
}

/// Interval at which the server looks for the order to end while a local device is started.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A volume that is available as a local block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Name of the volume.
    pub volume: String,
    /// Path of the block device.
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
