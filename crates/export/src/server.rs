//! The server: threads that serve (`worker`, `clients`, `footing`), and a front desk (`front`) to
//! which clients come first.
//!
//! ```text
//!             accept, admin, signals            letters             its clients, its shards,
//! clients ──> front desk (mostly asleep) <──────────────────> worker  its devices, one ring
//!                                                                │ ^
//!                                   pieces of requests, answers  v │   bounded queues
//!                                                              worker …
//! ```
//!
//! A client is given to one worker and stays there. Its requests are split there; pieces whose
//! shards another worker owns travel to it and back ([`floe_block::Exchange`]). Nothing on this
//! path is locked. What concerns everybody, volumes and tiers that come and go and the end, are
//! errands of the front desk (`errand`, `volumes`, `restack`).

mod admin_listener;
mod admin_side;
mod admin_tls;
mod aside;
mod bound;
mod bypass;
mod clients;
mod config;
mod errand;
mod footing;
mod front;
mod letter;
mod mailbox;
mod maker;
mod offer;
mod restack;
mod slots;
mod team;
mod tier;
mod token;
mod valve;
mod volume;
mod volumes;
mod warnings;
mod worker;

use crate::admin::AdminAddress;
use crate::uri::Uri;
pub use bound::Bound;
pub use config::{AdminConfig, ServeError, ServerConfig};
use front::Front;
pub use maker::{TierMaker, TierOrder, TierRefused};
use team::Team;
pub use tier::Tier;
pub use volume::{DeviceSource, Volume};

/// A server whose devices are open and whose threads wait for clients.
pub struct Server {
    // Dropped in this order: whoever speaks to workers ends before them.
    front: Front,
    team: Team,
}

impl Server {
    /// What clients connect to, one for each volume and address.
    pub fn uris(&self) -> impl Iterator<Item = Uri> + '_ {
        self.front.uris()
    }

    /// Where the admin interface listens.
    pub fn admin_addresses(&self) -> impl Iterator<Item = &AdminAddress> {
        self.front.admin_listeners.iter().map(|listener| &listener.address)
    }

    /// Serves until it is told to end, then flushes, and says on the cache device that all is in
    /// order.
    ///
    /// # Errors
    /// When a ring or a thread fails, the last flush leaves dirty data behind, or dirty data was
    /// lost.
    pub fn run(self) -> Result<(), ServeError> {
        let ended = self.front.run();
        drop(self.team);
        let closing = ended?;
        let lost = closing.lost();
        closing.finish().map_err(ServeError::Close)?;
        lost.map_or(Ok(()), |lost| Err(ServeError::DataLost(lost)))
    }
}
