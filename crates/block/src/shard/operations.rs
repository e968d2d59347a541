//! The operations of tasks: their orders to devices, and the waits for what the whole part does.

use super::parts::Parts;
use crate::engine::locks::TaskId;
use crate::engine::{Data, Event, Part, Work};
use crate::geometry::{SECTOR_BYTES, Sectors};
use crate::mapping::directory::Block;
use crate::order::{DeviceId, Order, Span};

impl Parts {
    #[inline(always)] // every read that hits comes here
    pub(super) fn read_cache(&mut self, id: TaskId, block: Block, run: &Sectors, to: Span) {
        let offset = self.map.cache_offset(block, run);
        let cleans = matches!(self.tasks[id].work, Work::Clean { .. });
        let part = if cleans { Part::Dirty(block) } else { Part::Cached(block) };
        let op = self.tasks.new_op(id, part, run);
        self.counters.cache_read_bytes += to.len;
        self.orders.push(Order::Read { op, device: DeviceId::Cache, offset, to });
    }

    /// Writes a run of a task's data to its place in a block.
    pub(super) fn write_cache(&mut self, id: TaskId, block: Block, run: &Sectors) {
        let offset = self.map.cache_offset(block, run);
        let from = self.tasks[id].store.data.span(run);
        let op = self.tasks.new_op(id, Part::Store(block), run);
        self.admission.inserted(run);
        self.counters.cache_write_bytes += from.len;
        let device = DeviceId::Cache;
        self.orders.push(Order::Write { op, device, offset, from, durable: false });
    }

    pub(super) fn read_backing(&mut self, id: TaskId, part: Part, run: &Sectors, to: Span) {
        let op = self.tasks.new_op(id, part, run);
        self.counters.backing_read_bytes += to.len;
        let device = DeviceId::Backing(self.tasks[id].volume);
        self.orders.push(Order::Read { op, device, offset: run.start * SECTOR_BYTES, to });
    }

    /// Writes a run of a task's data to the backing device.
    pub(super) fn write_backing(&mut self, id: TaskId, part: Part, run: &Sectors, durable: bool) {
        let op = self.tasks.new_op(id, part, run);
        let from = self.tasks[id].store.data.span(run);
        self.counters.backing_write_bytes += from.len;
        let device = DeviceId::Backing(self.tasks[id].volume);
        let offset = run.start * SECTOR_BYTES;
        self.orders.push(Order::Write { op, device, offset, from, durable });
    }

    pub(super) fn copy(&mut self, from: Data, to: Data, run: &Sectors) {
        if !run.is_empty() {
            self.orders.push(Order::Copy { from: from.span(run), to: to.span(run) });
        }
    }

    /// Makes a task wait until all noted changes are durable.
    pub(super) fn await_commit(&mut self, id: TaskId, part: Part, run: &Sectors) {
        let op = self.tasks.new_op(id, part, run);
        self.logging.log.wait(op);
        self.events.push(Event::WantsCommit);
    }

    /// Makes a task wait until all writes to its volume's backing device are durable.
    pub(super) fn await_settlement(&mut self, id: TaskId) {
        let (volume, range) = (self.tasks[id].volume, self.tasks[id].range.clone());
        let op = self.tasks.new_op(id, Part::Settled, &range);
        self.logging.settlements.wait(volume, op);
        self.events.push(Event::WantsSettlement(volume));
    }
}
