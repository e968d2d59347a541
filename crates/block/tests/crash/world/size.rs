//! A cache that becomes smaller and larger while it serves, and what its owner records of that.

use floe_block::resize_tier;
use rand::Rng;

use super::{Failure, World};
use crate::boot::NoBoot;
use crate::history::Event;

impl World {
    /// Gives the cache another size, as its owner does: the superblock of a kept one has a larger
    /// size before, and a smaller one once nothing is left above it.
    pub(super) fn change_size(&mut self) -> Result<(), Failure> {
        let cache = self.driver().top().cache();
        let (before, is_lost) = (cache.config().cache_bytes, cache.condition().has_lost_journal());
        if self.shrinks_from.is_some() || is_lost {
            return Ok(());
        }
        let groups = self.draw(|rng| rng.random_range(1..=self.format.groups));
        let bytes = self.format.bytes_of(groups);
        if bytes > before && !self.note_size(bytes)? {
            return Ok(());
        }
        self.set_size(bytes);
        self.shrinks_from = (bytes < before).then_some(before);
        Ok(())
    }

    /// Goes on with becoming smaller. A cache that cannot keeps its size.
    pub(super) fn see_to_size(&mut self) -> Result<(), Failure> {
        let Some(before) = self.shrinks_from else { return Ok(()) };
        let cache = self.driver().top().cache();
        let (condition, bytes) = (cache.condition(), cache.config().cache_bytes);
        let (is_over, is_lost) = (condition.bytes_over() > 0, condition.has_lost_journal());
        let is_stuck = is_lost
            || condition.blocks_in_the_way() > 0
            || condition.is_unreadable()
            || condition.is_refusing();
        if is_over && !is_stuck {
            return Ok(());
        }
        self.shrinks_from = None;
        let is_smaller = !is_over && !is_lost;
        if !is_smaller || !self.note_size(bytes)? {
            self.set_size(before);
        }
        self.survived.smaller += u64::from(is_smaller);
        Ok(())
    }

    fn set_size(&mut self, bytes: u64) {
        self.history.note(Event::Resized { bytes });
        resize_tier(self.driver().top_mut(), bytes).expect("there is a group for each shard");
    }

    /// Records the bytes of data of a kept cache. Returns whether that is certain.
    fn note_size(&mut self, bytes: u64) -> Result<bool, Failure> {
        if !self.format.kept {
            return Ok(true);
        }
        let mut superblock = self.kept.superblock.take().expect("a session is under way");
        let before = superblock.cache_bytes;
        superblock.set_cache_bytes(self.format.data_start() + bytes);
        self.kept.sizes.push(superblock.cache_bytes);
        let written = self.boot().write(&mut superblock);
        if written.is_err() {
            superblock.cache_bytes = before; // the device has one or the other
        }
        self.kept.superblock = Some(superblock);
        match written {
            Ok(()) => {
                self.kept.sizes.drain(..self.kept.sizes.len() - 1);
                Ok(true)
            }
            Err(NoBoot::Power | NoBoot::Device(_)) => Ok(false),
            Err(error) => {
                Err(self.failure(format!("the superblock is refused: {error:?}"), 0, 0..0))
            }
        }
    }
}
