//! The beginning of a server: first addresses, then devices, then the server.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use floe_block::Driver;
use floe_device::{Pool, Ring, Sockets};

use super::{Phase, ServeError, Server, ServerConfig, Slots};
use crate::listener::Listener;
use crate::nbd::export::{Export, Exports};
use crate::session::{Budget, Common};
use crate::status::Tally;

/// Addresses that are bound, before there are devices to serve: a server that cannot listen shall not create files.
pub struct Bound {
    config: ServerConfig,
    listeners: Vec<Listener>,
    admin_listener: Rc<OwnedFd>,
    admin_address: String,
}

impl Bound {
    /// Binds all addresses of `config`.
    ///
    /// # Errors
    /// When an address cannot be bound or may not be.
    pub fn bind(config: ServerConfig) -> Result<Self, ServeError> {
        let listeners =
            config.listen.iter().map(|uri| Listener::bind(uri, config.tls.as_ref(), config.insecure));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let refused = |source| ServeError::Admin { address: config.admin.clone(), source };
        let admin_listener = std::net::TcpListener::bind(&config.admin).map_err(refused)?;
        let admin_address = admin_listener.local_addr().map_err(refused)?;
        if !config.insecure && !admin_address.ip().is_loopback() {
            return Err(ServeError::AdminExposed { address: config.admin });
        }
        let admin_listener = Rc::new(OwnedFd::from(admin_listener));
        Ok(Self { listeners, admin_listener, admin_address: admin_address.to_string(), config })
    }

    /// A server of the driver's only volume. `signal` becomes readable when the server is to end.
    ///
    /// # Errors
    /// When the volume's name is unusable.
    pub fn serve(
        self,
        ring: Ring,
        pool: Pool,
        driver: Driver,
        volume_bytes: u64,
        signal: OwnedFd,
    ) -> Result<Server, ServeError> {
        let Self { config, listeners, admin_listener, admin_address } = self;
        let exports = Arc::new(Exports::new(vec![Export::new(config.volume.clone(), volume_bytes)])?);
        let now = Instant::now();
        Ok(Server {
            sockets: Sockets::new(&ring),
            ring,
            common: Common {
                pool,
                budget: Rc::new(Budget::new(config.limits.budget_bytes)),
                tls: config.tls.clone(),
                limits: config.limits,
            },
            driver,
            exports,
            listeners,
            admin_listener,
            admin_address,
            signal: Rc::new(signal),
            sessions: Slots::default(),
            admin_sessions: Slots::default(),
            origins: Vec::new(),
            touched: Vec::new(),
            phase: Phase::Serving,
            accept_again: None,
            refusing: false,
            crowded: false,
            watch_at: None,
            clean_at: now + config.flush_interval,
            begun: now,
            started: SystemTime::now(),
            tally: Tally::default(),
            last_flush: Ok(()),
            config,
        })
    }
}
