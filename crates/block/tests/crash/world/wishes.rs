//! What clients ask for, and how the cache is divided among their volumes.

use floe_block::{CacheShare, Request, RequestKind, VolumeId};
use rand::Rng;
use rand::rngs::SmallRng;

use super::clients::Pending;
use super::{UNITS_A_SECTOR, World, request, units_of};

/// What clients tend to do in one life: shares of requests.
pub struct Temper {
    writes: f64,
    durable: f64,
    flushes: f64,
    pub cleans: f64,
    pub shares: f64,
    pub resizes: f64,
    /// How near to each other requests are.
    hot_units: u32,
}

impl Temper {
    pub fn draw(rng: &mut SmallRng) -> Temper {
        Temper {
            writes: [0.2, 0.5, 0.9][rng.random_range(0..3)],
            durable: [0.0, 0.1, 0.3][rng.random_range(0..3)],
            flushes: [0.01, 0.05, 0.2][rng.random_range(0..3)],
            cleans: [0.0, 0.03, 0.1][rng.random_range(0..3)],
            shares: [0.0, 0.0, 0.1][rng.random_range(0..3)],
            resizes: [0.0, 0.0, 0.1][rng.random_range(0..3)],
            hot_units: [32, 128, 1024][rng.random_range(0..3)],
        }
    }
}

impl World {
    /// Gives some volume a share of the cache, or lifts the one that it has.
    pub(super) fn change_share(&mut self) {
        let (volumes, bytes) = (self.sizes.len(), self.format.cache_bytes());
        let (volume, share) = self.draw(|rng| {
            let guaranteed_bytes = rng.random_bool(0.5).then(|| rng.random_range(0..=bytes));
            let most_bytes = rng.random_bool(0.5).then(|| rng.random_range(0..=bytes));
            let guaranteed_bytes = guaranteed_bytes.unwrap_or(0);
            (rng.random_range(0..volumes), CacheShare { guaranteed_bytes, most_bytes })
        });
        self.driver().top_mut().set_share(VolumeId(volume as u16), share);
    }

    /// A read of something that may be one thing or another.
    pub(super) fn doubtful(&self) -> Option<Request> {
        self.draw(|rng| {
            let volume = rng.random_range(0..self.sizes.len());
            let unit = self.oracle.open_unit(volume, rng.random_range(0..usize::MAX))?;
            let first = unit.saturating_sub(rng.random_range(0..8));
            let end = (unit + rng.random_range(1..24)).min(self.sizes[volume]);
            Some(request(volume, RequestKind::Read, first..end))
        })
    }

    /// What clients ask for; `None` when it would come upon another change under way.
    pub(super) fn any_request(&self, temper: &Temper) -> Option<Request> {
        let (asked, may_meet) = self.draw(|rng| {
            let volume = rng.random_range(0..self.sizes.len());
            let kind = if rng.random_bool(temper.flushes) {
                if rng.random_ratio(1, 12) { RequestKind::Drain } else { RequestKind::Flush }
            } else if rng.random_bool(temper.writes) {
                match rng.random_range(0..20) {
                    0 => RequestKind::Trim,
                    1 | 2 => RequestKind::Zero {
                        durable: rng.random_bool(temper.durable),
                        may_unmap: rng.random(),
                        fast: rng.random_bool(0.3),
                    },
                    _ => RequestKind::Write { durable: rng.random_bool(temper.durable) },
                }
            } else if rng.random_bool(0.1) {
                if rng.random_bool(0.3) { RequestKind::Evict } else { RequestKind::Prefetch }
            } else {
                RequestKind::Read
            };
            let size = self.sizes[volume];
            let (mut first, mut len) = match rng.random_range(0..10) {
                0 => (rng.random_range(0..size), rng.random_range(1..100)),
                1..4 => (rng.random_range(0..size), rng.random_range(1..=16)),
                4..7 => (rng.random_range(0..size.min(temper.hot_units)), rng.random_range(1..=8)),
                _ => {
                    let sector = rng.random_range(0..size.min(temper.hot_units)) / UNITS_A_SECTOR;
                    (sector * UNITS_A_SECTOR, UNITS_A_SECTOR * rng.random_range(1..=4))
                }
            };
            if matches!(kind, RequestKind::Flush | RequestKind::Drain) {
                (first, len) = (0, 0);
            }
            let units = first..(first + len).min(size);
            (request(volume, kind, units), rng.random_bool(0.2))
        });
        let is_change = matches!(
            asked.kind,
            RequestKind::Write { .. } | RequestKind::Zero { .. } | RequestKind::Trim
        );
        let meets = |pending: &Pending| {
            let (own, other) = (units_of(&asked), units_of(&pending.request));
            pending.request.volume == asked.volume && own.start < other.end && other.start < own.end
        };
        (!is_change || may_meet || !self.pending.iter().any(meets)).then_some(asked)
    }
}
