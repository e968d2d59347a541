//! Fetches larger than a read: the rest of the aligned run that is worth fetching, by the size that
//! the part has learned (`cache/fetch_size.rs`).
//!
//! Only sectors before and after the whole read are added, up to the first that is cached, and only
//! if no task uses any of them. So no fetch becomes two operations, or waits, because it was
//! extended.

use super::parts::Parts;
use crate::engine::locks::TaskId;
use crate::geometry::Sectors;

/// The extension of a read's fetches.
pub(super) struct Extension<'a> {
    parts: &'a Parts,
    id: TaskId,
}

impl<'a> Extension<'a> {
    pub(super) fn of(parts: &'a Parts, id: TaskId) -> Self {
        Self { parts, id }
    }

    /// Extends the first and the last of the fetches, where they are admitted.
    pub(super) fn extend(&self, offered: &mut [(Sectors, bool)]) {
        let task = &self.parts.tasks[self.id];
        let (size, range) = (self.parts.fetch_sectors, &task.range);
        if size == 0 || task.is_ahead() || task.waited {
            return;
        }
        if let Some((run, true)) = offered.first_mut()
            && run.start <= range.start
        {
            let start = self.first_uncached(range.start / size * size, run.start);
            if self.is_unused(&(start..run.end)) {
                run.start = start;
            }
        }
        if let Some((run, true)) = offered.last_mut()
            && run.end >= range.end
        {
            let most = range.end.next_multiple_of(size).min(self.volume_end());
            let end = self.first_cached(run.end, most);
            if self.is_unused(&(run.start..end)) {
                run.end = end;
            }
        }
    }

    fn is_unused(&self, run: &Sectors) -> bool {
        !self.parts.tasks.in_use(self.parts.tasks[self.id].volume, run)
    }

    /// Returns the end of the task's volume, in whole smallest blocks.
    fn volume_end(&self) -> u64 {
        let volume = self.parts.tasks[self.id].volume;
        let end = self.parts.map.within_volume(volume, &(0..u64::MAX)).end;
        end.next_multiple_of(self.parts.config.sizes.smallest())
    }

    /// Returns the start of the uncached sectors before one, but not below `least`.
    fn first_uncached(&self, least: u64, before: u64) -> u64 {
        let unit = self.parts.config.sizes.smallest();
        let mut start = before;
        // A run may begin within a block, after valid sectors: those end it.
        while start > least && self.is_uncached(start - 1) {
            debug_assert!(start.is_multiple_of(unit), "a block begins there, or none is");
            start -= unit;
        }
        start
    }

    /// Returns the end of the uncached sectors from one on, but not above `most`.
    fn first_cached(&self, from: u64, most: u64) -> u64 {
        let unit = self.parts.config.sizes.smallest();
        let mut end = from;
        while end < most && self.is_uncached(end) {
            end += unit;
        }
        end
    }

    fn is_uncached(&self, sector: u64) -> bool {
        let volume = self.parts.tasks[self.id].volume;
        self.parts.map.directory.blocks.find(volume, sector).is_none()
    }
}
