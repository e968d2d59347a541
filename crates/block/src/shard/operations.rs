//! The ids of a task's operations, and their orders to devices.

use super::Shard;
use super::task::{Part, Work};
use crate::directory::Block;
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};
use crate::locks::TaskId;
use crate::order::{DeviceId, OpId, Order, ScratchId, Span};

/// Bits of an [`OpId`] for the part of a task, and for the task; the shard's number is above.
const PART_BITS: u32 = 24;
const TASK_BITS: u32 = 32;

/// Returns the shard whose operation it is.
pub(super) fn shard_of(op: OpId) -> u8 {
    (op.0 >> (PART_BITS + TASK_BITS)) as u8
}

/// Returns the task and the number of the part that an operation belongs to.
pub(super) fn part_of(op: OpId) -> (TaskId, usize) {
    ((op.0 >> PART_BITS) as TaskId, (op.0 & ((1 << PART_BITS) - 1)) as usize)
}

impl Shard {
    pub(super) fn new_scratch(
        &mut self,
        id: TaskId,
        sectors: u64,
        orders: &mut Vec<Order>,
    ) -> ScratchId {
        self.scratch_made += 1;
        let scratch = ScratchId(u64::from(self.config.number) << 56 | self.scratch_made);
        orders.push(Order::Allocate { scratch, len: sectors * SECTOR_BYTES });
        self.tasks[id as usize].scratch = Some(scratch);
        scratch
    }

    /// Registers a part of a task and returns the id of its operation.
    pub(super) fn new_op(&mut self, id: TaskId, part: Part, run: &Sectors) -> OpId {
        self.note_awaited(id, part, true);
        let task = &mut self.tasks[id as usize];
        let number = task.parts.len() as u64;
        task.parts.push((part, run.clone()));
        task.outstanding += 1;
        OpId(
            u64::from(self.config.number) << (PART_BITS + TASK_BITS)
                | u64::from(id) << PART_BITS
                | number,
        )
    }

    /// Notes that a client begins to wait for a backing device, or no longer does.
    pub(super) fn note_awaited(&mut self, id: TaskId, part: Part, begins: bool) {
        let on_backing =
            matches!(part, Part::Uncached | Part::Shed | Part::Fetch | Part::Around | Part::Whole);
        if on_backing && matches!(self.tasks[id as usize].work, Work::Piece(_)) {
            if begins { self.dirt.wait_began() } else { self.dirt.wait_ended() }
        }
    }

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
        let op = self.new_op(id, part, run);
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
        let op = self.new_op(id, Part::Store(block), run);
        self.note_inserted(run);
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
        let op = self.new_op(id, part, run);
        self.counters.backing_read_bytes += to.len;
        let device = DeviceId::Backing(self.tasks[id as usize].volume);
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
        let op = self.new_op(id, part, run);
        self.counters.backing_write_bytes += from.len;
        let device = DeviceId::Backing(self.tasks[id as usize].volume);
        orders.push(Order::Write { op, device, offset: run.start * SECTOR_BYTES, from, durable });
    }

    /// Returns the offset on the cache device of a run of a block, in bytes.
    pub(super) fn cache_offset(&self, block: Block, run: &Sectors) -> u64 {
        (self.config.cache.start + self.directory.cache_sectors(block, run).start) * SECTOR_BYTES
    }

    /// Returns a run without the sectors beyond the volume's end.
    pub(super) fn within_volume(&self, volume: VolumeId, run: &Sectors) -> Sectors {
        run.start..run.end.min(self.volumes[volume.0 as usize].sectors)
    }
}
