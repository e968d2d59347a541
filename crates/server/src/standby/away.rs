//! The NVMe interface of a standby server.
//!
//! A host connects to both servers of a pair. They have the same subsystem and volumes, so that the
//! host sees one disk with two paths. The standby reports its volumes as inaccessible (ANA), and
//! the host uses the other path. When the standby takes over, it hands the connections off to the
//! server that it becomes. That server notifies the hosts of the changed access by an asynchronous
//! event. They find the volumes optimized, and go on over the same connections.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use floe_device::{Completion, Device, OpenError, Operation, Pool, Ring};
use floe_nvme::target::access::AccessState;
use floe_nvme::target::io::BlockSize;
use floe_nvme::target::subsystem::Subsystem;

use crate::limits::Limits;
use crate::listener::{ListenAddress, Listener};
use crate::server::{Bound, Server};
use crate::setup::{AdminSetup, NvmeSetup, ServeError, ServerSetup};
use crate::tier::Tier;
use crate::total_limit::TotalLimit;
use crate::volume::{DeviceSource, Reach, Volume};
use crate::volume_clients::VolumeClients;
use crate::volume_limit::RequestLimit;
use crate::volume_share::VolumeShare;

/// Time limit for hosts to read their last replies. It is short, because clients wait for the
/// takeover.
const FAREWELL: Duration = Duration::from_millis(200);

/// The NVMe addresses of a standby server, and its configuration.
#[derive(Debug, Clone)]
pub struct Away {
    config: ServerSetup,
    sockets: Vec<(Arc<OwnedFd>, ListenAddress)>,
    subsystem: Arc<Subsystem>,
    clients: VolumeClients,
}

impl Away {
    /// Copies the NVMe listeners of a server; `None` if it has none.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn of(bound: &Bound) -> Result<Option<Self>, ServeError> {
        let nvme = bound.listeners.iter().filter(|it| it.nvme_address().is_some());
        let copy = |it: &Listener| {
            let socket = it.socket.try_clone().map_err(ServeError::Standby)?;
            Ok((Arc::new(socket), it.address.clone()))
        };
        let sockets = nvme.map(copy).collect::<Result<Vec<_>, ServeError>>()?;
        let (config, subsystem) = (bound.config.clone(), Arc::clone(&bound.subsystem));
        let clients = bound.clients.clone();
        Ok((!sockets.is_empty()).then_some(Self { config, sockets, subsystem, clients }))
    }

    /// Marks these volumes as accessible on this server. Hosts are notified once it serves.
    pub fn end<'a>(&self, volumes: impl Iterator<Item = &'a str>) {
        volumes.for_each(|name| self.config.nvme.paths.set_access(name, AccessState::Optimized));
    }

    /// Opens a server that reports these volumes, given by names, sizes in bytes, sizes of logical
    /// blocks and limits, as inaccessible and serves none. Their limits of connections hold.
    ///
    /// # Errors
    /// When a system resource is exhausted.
    ///
    /// # Panics
    /// When there is no tier.
    pub fn serve(
        &self,
        tiers: Vec<Tier>,
        volumes: Vec<(String, u64, BlockSize, RequestLimit)>,
        signal: OwnedFd,
    ) -> Result<Server, ServeError> {
        let listener = |(socket, address): &(Arc<OwnedFd>, ListenAddress)| {
            let socket = Rc::new(socket.try_clone().map_err(ServeError::Standby)?);
            Ok(Listener::copy(socket, address.clone(), &self.subsystem))
        };
        let listeners = self.sockets.iter().map(listener).collect::<Result<_, ServeError>>()?;
        let limits = Limits { farewell_time: FAREWELL, ..self.config.limits };
        let nvme = NvmeSetup { hands_off: true, ..self.config.nvme.clone() };
        let admin = AdminSetup::default();
        let total_limit = TotalLimit::NONE; // what it refuses does not wait
        let config =
            ServerSetup { limits, total_limit, admin, nvme, turn: None, ..self.config.clone() };
        for (name, ..) in &volumes {
            config.nvme.paths.set_access(name, AccessState::Inaccessible);
        }
        let volume = |(name, bytes, block_size, limit): (_, _, _, RequestLimit)| Volume {
            name,
            description: String::new(),
            backing: Arc::new(Elsewhere(bytes)),
            read_only: false,
            block_size,
            limit: RequestLimit { connections: limit.connections, ..RequestLimit::NONE },
            share: VolumeShare::default(),
            reach: Reach::Clients,
        };
        let volumes = volumes.into_iter().map(volume).collect();
        let clients = self.clients.clone();
        Bound::of(config, listeners, &self.subsystem, clients).serve(tiers, volumes, signal)
    }
}

/// The backing device of a volume that the other server serves, with its size in bytes. No request
/// reaches it.
#[derive(Debug)]
struct Elsewhere(u64);

impl DeviceSource for Elsewhere {
    fn size_bytes(&self) -> u64 {
        self.0
    }

    fn refresh(&self) -> io::Result<u64> {
        Ok(self.0)
    }

    fn open(&self, _: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
        Ok(Box::new(Refusing { bytes: self.0, refused: Vec::new() }))
    }
}

/// A device that fails all requests.
struct Refusing {
    bytes: u64,
    refused: Vec<u64>,
}

impl Device for Refusing {
    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn submit(&mut self, operation: Operation) {
        self.refused.push(operation.token);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let refused = |token| {
            let error = io::Error::other("the other server of the pair has the volume");
            Completion { token, result: Err(error) }
        };
        done.extend(self.refused.drain(..).map(refused));
    }
}
