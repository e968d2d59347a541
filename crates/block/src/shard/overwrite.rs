//! Overwrites that the admission declines: clean copies are dropped instead of updated.
//!
//! Such a write goes as in [`WriteMode::Around`](crate::mode::WriteMode::Around): the removal of
//! the clean copies is durable before the backing device changes, so no crash brings stale data
//! back. A write to a range with dirty data is never declined: its clean neighbours are stored with
//! it.

use floe_policy::Direction;

use super::parts::Parts;
use crate::engine::locks::TaskId;
use crate::engine::units;

/// Returns whether a task's data goes to the cache after the backing device has it.
pub(super) fn puts_in(parts: &Parts, id: TaskId) -> bool {
    let task = &parts.tasks[id];
    task.writes() && parts.mode().caches_writes() && !task.store.around
}

/// Decides whether a write goes around the cache, because the admission declines newer data of some
/// of its clean blocks.
pub(super) fn decide(parts: &mut Parts, id: TaskId) {
    parts.tasks[id].store.around = false;
    let asks = parts.admission.asks_overwrites() && puts_in(parts, id);
    if !asks || parts.is_dirty_below(id) {
        return;
    }
    let survey = parts.survey(id);
    let (volume, range) = (parts.tasks[id].volume, parts.tasks[id].range.clone());
    let unit = parts.config.sizes.smallest();
    let mut taken = true;
    for (block, run) in &survey.blocks {
        for (start, part) in units(run, unit) {
            taken &= if parts.map.directory.blocks.has_valid(*block, &part) {
                parts.admission.overwrites(volume, start)
            } else {
                parts.ask(id, start, Direction::Write) // an earlier copy was dropped
            };
        }
    }
    if !taken {
        parts.admission.request();
        for (start, part) in units(&range, unit) {
            parts.admission.look_up(volume, start, &part, false, Direction::Write);
        }
        parts.tasks[id].store.around = true;
        parts.counters.declined_overwrites += 1;
    }
    parts.map.reuse(survey);
    parts.close_window_in_time();
}
