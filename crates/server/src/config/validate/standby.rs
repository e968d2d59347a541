//! The settings of a failover pair.

use std::time::Duration;

use floe_block::MemoryWrite;
use floe_device::Spec;

use crate::address::ListenAddress;
use crate::config::tree::{ServerConfig, ServingConfig, TierConfig};
use crate::config::value::Interval;
use crate::config::wrong::{Wrong, wrong};

/// The default of `lease`, and its least: a renewal takes a part of a second.
const LEASE: Interval = Interval(Duration::from_secs(5));
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

impl ServerConfig {
    /// A standby takes over what the other server has left in the images and on the mirror of both,
    /// and nothing else.
    pub(super) fn validate_standby(&self) -> Result<(), Wrong> {
        let lease = self.serving.lease.map(|Interval(lease)| lease);
        if lease.is_some_and(|lease| !self.serving.standby || lease < SHORTEST_LEASE) {
            return Err(wrong("lease", "lease is for standby, and 1s at least"));
        }
        self.validate_half()?;
        if !self.serving.standby {
            return Ok(());
        }
        let own = || self.tiers().filter(|tier| !is_shared(tier));
        let other = self.volume.iter().find(|it| !it.backing().is_image() || it.read_only);
        let problem = if let Some(volume) = other {
            let name = volume.name();
            format!("standby is for images of Ceph (rbd:) that are written; {name:?} is none")
        } else if self.volume.iter().any(|volume| volume.reach().is_local()) {
            "standby is for volumes that clients reach; this one is attached".to_owned()
        } else if let Some(tier) = own().find(|tier| tier.is_kept()) {
            let cache = tier.cache();
            format!(
                "cache {cache} outlives the server, and would be old when it takes over; give \
                 volatile, or a mirror of a disk here and one of the other server"
            )
        } else if own().any(|tier| tier.mode().keeps_writes())
            || self.memory.memory_write == Some(MemoryWrite::Back)
        {
            "write-back would leave writes behind that the other server cannot have; give write = \
             through (and memory-write = through), or a mirror of a disk here and one of the other \
             server as the cache"
                .to_owned()
        } else if self.tiers().any(is_shared) && self.serving.half_listen.is_none() {
            "the other server needs the half that is here while this one stands by; give \
             half-listen"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(wrong("standby", problem))
    }

    fn validate_half(&self) -> Result<(), Wrong> {
        let problem = match &self.serving.half_listen {
            None => return Ok(()),
            Some(ListenAddress::NvmeTcp(_)) => "half-listen: a half is exported over NBD",
            Some(_) if !self.serving.standby => "half-listen is for standby",
            Some(_) => match self.tiers().filter(|tier| is_shared(tier)).count() {
                1 => return Ok(()),
                0 => {
                    "half-listen is for a cache on a mirror of a disk here and one of the other \
                      server"
                }
                _ => "half-listen is for one mirror; here are several",
            },
        };
        Err(wrong("half-listen", problem))
    }

    /// Returns the half of the pair's mirror that is on this machine, and the address at which it
    /// is exported.
    pub fn exported_half(&self) -> Option<(&Spec, &ListenAddress)> {
        let half =
            self.tiers().filter(|tier| is_shared(tier)).find_map(|it| it.cache().local_half());
        half.zip(self.serving.half_listen.as_ref())
    }
}

/// Returns whether both servers of a pair have the tier: it is on a mirror of both, and is kept.
fn is_shared(tier: &TierConfig) -> bool {
    tier.is_kept() && tier.cache().local_half().is_some()
}

impl ServingConfig {
    /// Returns the lease of a server of a pair.
    pub fn lease(&self) -> Duration {
        self.lease.unwrap_or(LEASE).0
    }
}
