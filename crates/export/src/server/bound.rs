//! The beginning of a server: first addresses, then devices, then threads.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Instant, SystemTime};

use floe_block::{Bell, Exchange};
use floe_device::{Pool, Ring, Sockets};

use super::Server;
use super::admin_listener::AdminListener;
use super::config::{ServeError, ServerConfig};
use super::footing::BeginningTier;
use super::front::{Colleague, Dirty, Front, Phase};
use super::mailbox::Mailbox;
use super::offer::Offer;
use super::slots::Slots;
use super::team::Team;
use super::tier::{Tier, TierKey, in_threads, link};
use super::valve::Valve;
use super::volume::Volume;
use super::warnings::Warnings;
use super::worker::{Beginning, RING_ENTRIES};
use crate::kept::{guarded, random_stack};
use crate::listener::Listener;
use crate::status::{Lately, LostStatus, ServiceTimes, Tally};

/// Memory for requests under way, registered with the kernel, of all threads together and of each
/// at least. More is taken as needed.
const ARENA_BYTES: usize = 64 << 20;
const ARENA_BYTES_LEAST: usize = 16 << 20;

/// Addresses that are bound, before there are devices to serve: a server that cannot listen shall
/// not create files.
pub struct Bound {
    config: ServerConfig,
    listeners: Vec<Listener>,
    admin_listeners: Vec<AdminListener>,
}

impl Bound {
    /// Binds all addresses of `config`.
    ///
    /// # Errors
    /// When an address cannot be bound or may not be.
    pub fn bind(config: ServerConfig) -> Result<Self, ServeError> {
        let listeners = config
            .listen
            .iter()
            .map(|uri| Listener::bind(uri, config.tls.as_ref(), config.insecure));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let admin = &config.admin;
        let admin_listeners = admin.listen.iter().map(|address| {
            AdminListener::bind(address, admin, config.tls.as_ref(), config.insecure)
        });
        let admin_listeners = admin_listeners.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { listeners, admin_listeners, config })
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
        let Self { config, listeners, admin_listeners } = self;
        let threads = tiers.first().expect("there is a tier").cache.threads();
        let config = Arc::new(config);
        let volumes = guarded(volumes, tiers.iter().map(|tier| &tier.cache));
        let ids = |at| tiers.iter().map(|tier| tier.cache.id(at)).collect();
        let offer = Offer::new(volumes.iter().enumerate().map(|(at, volume)| (ids(at), volume)))?;
        let ring = Ring::new(RING_ENTRIES)?;
        let bell = Arc::new(Bell::new().map_err(ServeError::Wake)?);
        let news = Arc::new(Mailbox::new(Arc::clone(&bell)));
        let bells = (0..threads).map(|_| Bell::new().map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let bells = bells.map_err(ServeError::Wake)?;
        let colleague = |bell: &Arc<Bell>| Colleague {
            instructions: Arc::new(Mailbox::new(Arc::clone(bell))),
            connections: Arc::new(AtomicUsize::new(0)),
        };
        let workers: Vec<Colleague> = bells.iter().map(colleague).collect();
        let valve =
            config.shed_most.map(|most| Arc::new(Valve::new(most, threads, Instant::now())));
        let seeds = Pool::family(threads, (ARENA_BYTES / threads).max(ARENA_BYTES_LEAST));
        let mut parts: Vec<Vec<BeginningTier>> = workers.iter().map(|_| Vec::new()).collect();
        let mut known = Vec::new();
        for (key, tier) in (0..).map(TierKey).zip(tiers) {
            let (tier, of_threads) = in_threads(tier, key, Exchange::between(&bells));
            known.push(tier);
            parts.iter_mut().zip(of_threads).for_each(|(of_thread, tier)| of_thread.push(tier));
        }
        let stack = random_stack().map_err(ServeError::Link)?;
        link(stack, known.iter_mut()).map_err(ServeError::Link)?;
        let parts = parts.into_iter().zip(seeds).zip(&workers).enumerate();
        let beginnings = parts.map(|(number, ((tiers, seed), worker))| Beginning {
            number,
            config: Arc::clone(&config),
            tiers,
            seed,
            volumes: offer.all().to_vec(),
            exports: Arc::clone(offer.exports()),
            instructions: Arc::clone(&worker.instructions),
            news: Arc::clone(&news),
            connections: Arc::clone(&worker.connections),
            valve: valve.clone(),
        });
        let team = Team::begin(beginnings.collect(), &workers)?;
        let front = Front {
            sockets: Sockets::new(&ring),
            ring,
            pool: Pool::new(0),
            listeners,
            admin_listeners,
            admin_sessions: Slots::default(),
            signal: Rc::new(signal),
            bell: bell.descriptor().map_err(ServeError::Wake)?,
            news,
            workers,
            errands: Slots::default(),
            offer,
            stack,
            keys_given: known.len() as u32,
            tiers: known,
            restacking: None,
            end_due: false,
            phase: Phase::Serving,
            tally: Tally::default(),
            accept_again: None,
            refusing: false,
            crowded: false,
            warnings: Warnings::default(),
            begun: Instant::now(),
            service: ServiceTimes::of(config.service.as_ref()),
            lately: Lately::default(),
            valve: valve.clone(),
            started: SystemTime::now(),
            last_flush: Ok(()),
            left_dirty: Dirty::default(),
            left_lost: LostStatus::default(),
            left_refused_bytes: 0,
            note_again: None,
            died: None,
            config,
        };
        Ok(Server { front, team })
    }
}
