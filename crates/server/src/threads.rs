//! The server: worker threads that serve clients (`worker`, `clients`, `worker_tiers`), an acceptor
//! to which clients come first (`acceptor`), and a control thread that runs admin operations
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
//! locked. Volumes and tiers that come and go, and the end, are operations of the control thread.

mod acceptor;
mod acceptor_admin;
mod acceptor_jobs;
mod acceptor_live;
mod admin_listener;
mod admin_session;
mod admin_tls;
mod attach;
mod awaited;
mod away;
mod board;
mod bound;
mod calculators;
mod clients;
mod closing;
mod control;
mod desk;
mod dirty;
mod entrance;
mod known_tier;
mod live_feed;
mod local;
mod locals;
mod mailbox;
mod messages;
mod mirrors;
mod offer;
mod origin;
mod questions;
mod replies;
mod reporting;
mod sessions;
mod setup;
mod slots;
mod team;
mod tier;
mod tier_part;
mod tier_watch;
mod tiers;
mod token;
mod valve;
mod warnings;
mod worker;
mod worker_commands;
mod worker_handle;
mod worker_outbox;
mod worker_tiers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Builder;

use floe_nbd::uri::Uri;

use crate::address::{ListenAddress, NvmeAddress};
use crate::admin::AdminAddress;
use acceptor::Acceptor;
pub use attach::Attached;
pub use away::Away;
pub use bound::Bound;
use control::Control;
pub use desk::Desk;
use messages::{Event, Notice};
pub use setup::{AdminSetup, NvmeSetup, ServeError, ServerSetup};
use team::Team;
pub use tier::Tier;
pub use tiers::{CacheDevices, NamedDevices, PreparedTiers, TierError};

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
            let ended = catch_unwind(AssertUnwindSafe(|| control::run(control)));
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
}
