//! The settings of a failover pair.

use std::time::Duration;

use crate::config::tree::{ServerConfig, ServingConfig};
use crate::config::value::Interval;
use crate::config::wrong::{Wrong, wrong};

/// The default of `lease`, and its least: a renewal takes a part of a second.
const LEASE: Interval = Interval(Duration::from_secs(5));
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

impl ServerConfig {
    /// A standby takes over what the other server has left in the images, and nothing else.
    pub(super) fn validate_standby(&self) -> Result<(), Wrong> {
        let lease = self.serving.lease.map(|Interval(lease)| lease);
        if lease.is_some_and(|lease| !self.serving.standby || lease < SHORTEST_LEASE) {
            return Err(wrong("lease", "lease is for standby, and 1s at least"));
        }
        if !self.serving.standby {
            return Ok(());
        }
        let other = self.volume.iter().find(|it| !it.backing().is_image() || it.read_only);
        let problem = if let Some(volume) = other {
            let name = volume.name();
            format!("standby is for images of Ceph (rbd:) that are written; {name:?} is none")
        } else if self.volume.iter().any(|volume| volume.reach().is_local()) {
            "standby is for volumes that clients reach; this one is attached".to_owned()
        } else if let Some(tier) = self.tiers().find(|tier| tier.is_kept()) {
            let cache = tier.cache();
            format!(
                "cache {cache} outlives the server, and would be old when it takes over; give \
                 volatile"
            )
        } else if self.keeps_writes() {
            "write-back would leave writes behind that the other server cannot have; give write = \
             through (and memory-write = through)"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(wrong("standby", problem))
    }
}

impl ServingConfig {
    /// Returns the lease of a server of a pair.
    pub fn lease(&self) -> Duration {
        self.lease.unwrap_or(LEASE).0
    }
}
