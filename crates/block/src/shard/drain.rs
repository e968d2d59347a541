//! Rounds of cleaning ([`super::rounds`]) as a shard carries them out, for drains
//! and for the router.

use super::Shard;
use super::clean::Cleaning;
use super::rounds::{Drain, Next};
use super::write::Writing;
use crate::engine::{Because, Event, Work};
use crate::geometry::VolumeId;
use crate::order::Order;

impl Shard {
    /// Writes all data of a volume that is dirty now to its backing device. [`Event::Drained`]
    /// reports the end and the result.
    ///
    /// Without `to_backing` only unflushed data is written, and only to the cache device.
    pub(crate) fn drain(
        &mut self,
        number: u32,
        volume: VolumeId,
        to_backing: bool,
        orders: &mut Vec<Order>,
    ) {
        let parts = &mut self.parts;
        // The loss in a persistent cache concerns data that had been flushed: a later flush need
        // not fail for it.
        let has_to_go = to_backing || !parts.logging.is_kept();
        let lost = has_to_go && parts.map.lost.has_any_of(volume);
        let drain = Drain { number, lost, to_backing };
        if !to_backing && parts.map.held.count(volume) == 0 {
            let result = drain.result(None);
            return parts.events.push(Event::Drained { drain: number, result });
        }
        if !parts.rounds.wait(volume, drain) {
            parts.begin_round(volume, vec![drain], !to_backing);
        }
        self.emit(orders, Self::run_ready);
    }

    /// Starts rounds for all dirty data that no round covers.
    pub(crate) fn clean_all(&mut self, orders: &mut Vec<Order>) {
        self.parts.begin_rounds();
        self.emit(orders, Self::run_ready);
    }

    /// Returns whether there is dirty data to be cleaned and no round that does it.
    #[inline]
    pub(super) fn wants_rounds(&self) -> bool {
        let bypass = &self.parts.logging.bypass;
        bypass.is_bypassed()
            && self.parts.map.directory.blocks.dirty_sectors() > 0
            && self.parts.rounds.is_idle()
            && !bypass.is_blocked()
    }

    /// Starts as many operations of a volume's round as may be under way; ends the round, and
    /// begins the next if one is wanted.
    pub(super) fn run_round(&mut self, volume: VolumeId) {
        let parts = &mut self.parts;
        loop {
            let dirty = parts.map.directory.blocks.dirty_sectors();
            let yielding = parts.dirt.cleaned_at_once(dirty, parts.tasks.await_backing());
            match parts.rounds.next(volume, yielding) {
                Next::Sink(run) => {
                    let id = parts.tasks.begin(Work::Sink, volume, run);
                    Writing::of(parts, id).start_sink();
                }
                Next::Clean(start) => Cleaning::begin(parts, volume, start, Because::Round),
                Next::Blocks => {
                    let blocks = parts.map.directory.blocks.dirty_blocks(volume);
                    let sectors =
                        blocks.map(|block| parts.map.directory.blocks.sectors(block)).collect();
                    parts.rounds.clean(volume, sectors);
                }
                Next::Ended { fault, has_cleaned, serving, waiting } => {
                    parts.note_round(volume, fault.is_some(), has_cleaned);
                    parts.events.extend(serving.iter().map(|drain| Event::Drained {
                        drain: drain.number,
                        result: drain.result(fault),
                    }));
                    if !waiting.is_empty() {
                        let only_sinks = !waiting.iter().any(|drain| drain.to_backing);
                        parts.begin_round(volume, waiting, only_sinks);
                    } else if fault.is_none()
                        && parts.logging.bypass.is_bypassed()
                        && parts.map.directory.blocks.dirty_blocks(volume).next().is_some()
                    {
                        parts.begin_round(volume, Vec::new(), false); // all has to be cleaned
                    }
                }
                Next::Wait => return,
            }
        }
    }
}
