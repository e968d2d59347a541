//! Learns how much a read miss should fetch.
//!
//! A fetch costs the backing device an operation, and time for its bytes. Larger fetches save later
//! operations where neighbours are read soon; otherwise they waste bytes and room. The best size
//! depends on the device and on the load. So one [`Ghost`] for each block size serves a sample of
//! the requests, and the size whose ghost would have cost least is used: its operations and
//! sectors, at the [price](Price) of the backing device's.
//!
//! The sample consists of whole regions, chosen by their hash, so that each ghost has all requests
//! of a region. It is as large as keeps a ghost at [`MOST_SECTORS`]. Costs fade, so that the size
//! follows the load.
//!
//! Limits: a ghost is one LRU list, whatever policy and admission the cache has. All volumes of a
//! part have one size and one price.

use floe_policy::mix;

use super::ghost::{Ghost, Touch};
use crate::engine::piece::{Piece, PieceKind};
use crate::geometry::{BlockSizes, SECTOR_BYTES};
use crate::mode::WriteMode;
use crate::price::Price;

/// Sectors of a ghost: 16 MiB of a sampled cache, in at most 200 KiB of memory.
const MOST_SECTORS: u64 = 4096;

/// Sampled requests between two decisions.
const WINDOW: u32 = 128;

/// Share of the costs that is kept after a window.
const LEFT: f64 = 0.9;

/// The present size is kept unless another costs less than this share of it.
const BETTER: f64 = 0.97;

/// The size before the first decision.
const FIRST_BYTES: u64 = 64 << 10;

/// Operations and sectors, faded.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    operations: f64,
    sectors: f64,
}

/// Learns the size of fetches from the requests of one part.
#[derive(Debug)]
pub(super) struct FetchSize {
    sizes: BlockSizes,
    mode: WriteMode,
    /// Regions with a smaller hash are sampled.
    below: u64,
    /// By class.
    ghosts: Vec<Ghost>,
    costs: Vec<Cost>,
    price: Price,
    /// Sampled requests since the last decision.
    seen: u32,
    /// The class whose size is used.
    chosen: usize,
}

impl FetchSize {
    /// Returns what has learned nothing yet, for a part of this many sectors.
    pub(super) fn new(sizes: &BlockSizes, mode: WriteMode, sectors: u64) -> Self {
        let share = (MOST_SECTORS as f64 / sectors.max(1) as f64).min(1.0);
        let capacity = sectors.min(MOST_SECTORS).max(sizes.largest());
        let ghosts: Vec<Ghost> =
            sizes.classes().map(|class| Ghost::new(sizes.sectors(class), capacity)).collect();
        let fits = |ghost: &&Ghost| ghost.unit() * SECTOR_BYTES <= FIRST_BYTES;
        Self {
            sizes: sizes.clone(),
            mode,
            below: (share * u64::MAX as f64) as u64,
            costs: vec![Cost::default(); ghosts.len()],
            chosen: ghosts.iter().take_while(fits).count().saturating_sub(1),
            ghosts,
            price: Price::default(),
            seen: 0,
        }
    }

    /// Returns the present size, in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.ghosts[self.chosen].unit()
    }

    /// Sets the price of the backing devices' reads.
    pub(super) fn set_price(&mut self, price: Price) {
        self.price = price;
    }

    /// Learns from a sub-request. Returns whether the size has changed.
    #[inline]
    pub(super) fn learn(&mut self, piece: &Piece) -> bool {
        let region = self.sizes.region(piece.volume, piece.sectors.start);
        // Mixed once more: a region's hash has chosen its shard.
        mix(region.hash()) <= self.below && self.learn_sampled(piece)
    }

    #[inline(never)] // most requests are not sampled
    fn learn_sampled(&mut self, piece: &Piece) -> bool {
        let touch = match piece.kind {
            PieceKind::Read => Touch::Read,
            PieceKind::Write { .. } | PieceKind::ZeroPart { .. } if self.mode.caches_writes() => {
                Touch::Write
            }
            PieceKind::Prefetch | PieceKind::DirtyMap => return false,
            _ => Touch::Drop,
        };
        for (ghost, cost) in self.ghosts.iter_mut().zip(&mut self.costs) {
            let fetched = ghost.access(piece.volume, &piece.sectors, touch);
            cost.operations += fetched.operations as f64;
            cost.sectors += fetched.sectors as f64;
        }
        self.seen += 1;
        self.seen == WINDOW && self.decide()
    }

    /// Chooses a size; returns whether it is another one.
    fn decide(&mut self) -> bool {
        self.seen = 0;
        let price = self.price.sectors_an_operation();
        let of = |cost: &Cost| cost.operations * price + cost.sectors;
        let best = (0..self.costs.len())
            .min_by(|&a, &b| of(&self.costs[a]).total_cmp(&of(&self.costs[b])))
            .unwrap_or(self.chosen);
        let changes = of(&self.costs[best]) < BETTER * of(&self.costs[self.chosen]);
        if changes {
            self.chosen = best;
        }
        for cost in &mut self.costs {
            *cost = Cost { operations: cost.operations * LEFT, sectors: cost.sectors * LEFT };
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::RequestId;
    use crate::geometry::{Sectors, VolumeId};

    fn piece(kind: PieceKind, sectors: Sectors) -> Piece {
        let (request, volume) = (RequestId(0), VolumeId(0));
        Piece { request, volume, kind, sectors, buffer_offset: 0, stream: None }
    }

    /// From 4 KiB to 1 MiB.
    fn sizes() -> BlockSizes {
        let sizes: Vec<u64> = (12..=20).map(|power| 1 << power).collect();
        BlockSizes::new(&sizes).unwrap()
    }

    /// A cache of 16 MiB, with an operation that costs as much as so many sectors.
    fn fetch_size(price: f64) -> FetchSize {
        let sizes = sizes();
        let mut learned = FetchSize::new(&sizes, WriteMode::Through, 4096);
        learned.set_price(Price::of(price));
        learned
    }

    /// The size after reads of these sectors, in bytes.
    fn learned(price: f64, reads: impl Iterator<Item = u64>) -> u64 {
        let mut learned = fetch_size(price);
        for sector in reads {
            learned.learn(&piece(PieceKind::Read, sector..sector + 1));
        }
        learned.sectors() * SECTOR_BYTES
    }

    #[test]
    fn single_sectors_all_over_are_fetched_alone() {
        assert_eq!(learned(64.0, (0..2000).map(|at| mix(at) % (1 << 24))), 4096);
    }

    #[test]
    fn neighbours_that_are_read_soon_are_fetched_together() {
        assert_eq!(learned(64.0, 0..4000), 1 << 20);
    }

    #[test]
    fn the_dearer_an_operation_the_more_is_fetched() {
        // Groups of 16 sectors, of which every fourth is read.
        let reads = || (0..4000u64).map(|at| mix(at / 4) % (1 << 20) * 16 + at % 4 * 4);
        assert_eq!(learned(1.0, reads()), 4096);
        assert_eq!(learned(64.0, reads()), 64 << 10);
    }

    #[test]
    fn a_new_load_is_followed() {
        let mut size = fetch_size(64.0);
        for sector in 0..4000 {
            size.learn(&piece(PieceKind::Read, sector..sector + 1));
        }
        assert_eq!(size.sectors(), 256);
        for at in (0..8000).map(|at| mix(at) % (1 << 24)) {
            size.learn(&piece(PieceKind::Read, at..at + 1));
        }
        assert_eq!(size.sectors(), 1);
    }

    #[test]
    fn of_a_large_cache_a_sample_of_regions_is_learned_from() {
        let sizes = sizes();
        let mut size = FetchSize::new(&sizes, WriteMode::Through, 1 << 18);
        let regions = 4000;
        for region in 0..regions {
            size.learn(&piece(PieceKind::Read, region * 256..region * 256 + 1));
        }
        let sampled = size.costs[0].operations / LEFT.powi((regions / 64) as i32 / WINDOW as i32);
        assert!((30.0..=95.0).contains(&sampled), "{sampled} of {regions}, for 62 expected");
    }

    #[test]
    fn what_passes_the_cache_by_is_not_there() {
        let sizes = sizes();
        let mut around = FetchSize::new(&sizes, WriteMode::Around, 4096);
        let write = PieceKind::Write { durable: false, head: 0, tail: 0 };
        around.learn(&piece(PieceKind::Read, 0..1));
        around.learn(&piece(write, 0..1));
        around.learn(&piece(PieceKind::Read, 0..1));
        assert_eq!(around.costs[0].operations, 2.0);
        let mut through = fetch_size(64.0);
        through.learn(&piece(write, 0..1));
        through.learn(&piece(PieceKind::Read, 0..1));
        assert_eq!(through.costs[0].operations, 0.0);
    }
}
