//! The orders of a task's operations to devices.

use super::Shard;
use crate::engine::Part;
use crate::engine::locks::TaskId;
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::mapping::directory::Block;
use crate::order::{DeviceId, Order, Span};

impl Shard {
    #[inline(always)] // every read that hits comes here
    pub(super) fn order_cache_read(
        &mut self,
        id: TaskId,
        part: Part,
        block: Block,
        run: &Sectors,
        to: Span,
        orders: &mut Vec<Order>,
    ) {
        let offset = self.cache_offset(block, run);
        let op = self.tasks.new_op(id, part, run);
        self.counters.cache_read_bytes += to.len;
        orders.push(Order::Read { op, device: DeviceId::Cache, offset, to });
    }

    pub(super) fn order_cache_write(
        &mut self,
        id: TaskId,
        block: Block,
        run: &Sectors,
        from: Span,
        orders: &mut Vec<Order>,
    ) {
        let offset = self.cache_offset(block, run);
        let op = self.tasks.new_op(id, Part::Store(block), run);
        self.admission.inserted(run);
        self.counters.cache_write_bytes += from.len;
        orders.push(Order::Write { op, device: DeviceId::Cache, offset, from, durable: false });
    }

    pub(super) fn order_backing_read(
        &mut self,
        id: TaskId,
        part: Part,
        run: &Sectors,
        to: Span,
        orders: &mut Vec<Order>,
    ) {
        let op = self.tasks.new_op(id, part, run);
        self.counters.backing_read_bytes += to.len;
        let device = DeviceId::Backing(self.tasks[id].volume);
        orders.push(Order::Read { op, device, offset: run.start * SECTOR_BYTES, to });
    }

    pub(super) fn order_backing_write(
        &mut self,
        id: TaskId,
        part: Part,
        run: &Sectors,
        from: Span,
        durable: bool,
        orders: &mut Vec<Order>,
    ) {
        let op = self.tasks.new_op(id, part, run);
        self.counters.backing_write_bytes += from.len;
        let device = DeviceId::Backing(self.tasks[id].volume);
        orders.push(Order::Write { op, device, offset: run.start * SECTOR_BYTES, from, durable });
    }

    /// Returns the offset on the cache device of a run of a block, in bytes.
    #[inline]
    pub(super) fn cache_offset(&self, block: Block, run: &Sectors) -> u64 {
        (self.cache.start + self.directory.cache_sectors(block, run).start) * SECTOR_BYTES
    }

    /// Returns a run without the sectors beyond the volume's end.
    #[inline]
    pub(super) fn within_volume(&self, volume: VolumeId, run: &Sectors) -> Sectors {
        run.start..run.end.min(self.volumes[volume.0 as usize].sectors)
    }
}
