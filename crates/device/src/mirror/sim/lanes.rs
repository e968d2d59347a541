//! The lanes' jobs in a world.

use rand::Rng;

use super::super::plant::Plant;
use super::super::state::{Job, Raised};
use super::disk::{DiskOp, ROT, Way};
use super::life::{Copy, Ends, Life, Owner, Pending, REGION_SECTORS};
use super::world::World;
use crate::device::Halves;

fn sectors_of(region: usize) -> std::ops::Range<usize> {
    region * REGION_SECTORS..(region + 1) * REGION_SECTORS
}

impl World {
    /// Lanes do something, each perhaps.
    pub(super) fn step_lanes(&mut self, life: &mut Life) {
        let lanes: [fn(&mut World, &mut Life); 3] =
            [World::begin_header, World::step_witness, World::begin_copy];
        for lane in lanes {
            if self.random.random() {
                lane(self, life);
            }
        }
    }

    fn begin_header(&mut self, life: &mut Life) {
        let Some(Job::Header(header, halves)) = life.state.next_header() else { return };
        life.lanes.header = Some(Ends { left: halves.len(), missed: Halves::NONE });
        for half in halves.iter() {
            let op = DiskOp::Header(header.clone());
            life.pending.push(Pending { half, op, owner: Owner::Header });
        }
    }

    fn step_witness(&mut self, life: &mut Life) {
        let Some(Job::Raise { from, to, anew }) = life.lanes.witness.take() else {
            life.lanes.witness = life.state.next_witness();
            return;
        };
        life.state.witness_done(match self.raise(from, to, anew) {
            Some(true) => Raised::Done,
            Some(false) => Raised::Refused,
            None => Raised::Unknown,
        });
    }

    fn begin_copy(&mut self, life: &mut Life) {
        let job = match life.state.next_copy() {
            Some(Job::Copy { region, from, to }) => {
                let op = DiskOp::Read(sectors_of(region).collect());
                life.pending.push(Pending { half: from, op, owner: Owner::Copy });
                (Copy::Read { region, from, to }, Ends { left: 1, missed: Halves::NONE })
            }
            Some(Job::Flush(halves)) => {
                for half in halves.iter() {
                    let op = DiskOp::Flush(self.disks[half].written);
                    life.pending.push(Pending { half, op, owner: Owner::Copy });
                }
                if halves.is_empty() {
                    life.state.flush_done(Halves::NONE);
                    return;
                }
                (Copy::Flush, Ends { left: halves.len(), missed: Halves::NONE })
            }
            _ => return,
        };
        life.lanes.copy = Some(job);
    }

    /// Returns what an intact half has in the place of a flipped bit. A half that is being brought
    /// up to date counts only where it has exactly what was stored.
    fn intact(
        &self,
        sector: usize,
        rotten: u64,
        members: Halves,
        from: usize,
        to: Halves,
    ) -> Option<u64> {
        let others = members.without(Halves::one(from));
        let of_member = others.iter().filter_map(|half| self.disks[half].try_read(sector));
        let of_target = to.without(members).iter();
        let of_target = of_target.filter_map(|half| self.disks[half].try_read(sector));
        let exact = of_target.filter(|content| *content == rotten & !ROT);
        of_member.chain(exact).find(|content| content & ROT == 0)
    }

    /// An operation of a lane has ended; `None` if it failed.
    pub(super) fn lane_ended(
        &mut self,
        life: &mut Life,
        half: usize,
        owner: Owner,
        result: Option<Vec<u64>>,
    ) {
        let failed = if result.is_none() { Halves::one(half) } else { Halves::NONE };
        if owner == Owner::Header {
            let ends = life.lanes.header.as_mut().expect("a header is being written");
            ends.left -= 1;
            ends.missed = ends.missed.with(failed);
            if ends.left == 0 {
                let missed = ends.missed;
                life.lanes.header = None;
                life.state.header_done(missed);
            }
            return;
        }
        let (copy, mut ends) = life.lanes.copy.take().expect("something is being copied");
        ends.left -= 1;
        ends.missed = ends.missed.with(failed);
        match (copy, result) {
            (Copy::Read { from, .. }, None) => life.state.copy_done(Some(from), Halves::NONE),
            (Copy::Read { region, from, to }, Some(contents)) => {
                let mut sectors: Vec<_> = sectors_of(region).zip(contents).collect();
                let members = life.state.members();
                let (mut mended, mut unread) = (Vec::new(), Halves::NONE);
                for (sector, content) in sectors.iter_mut().filter(|(_, it)| it & ROT != 0) {
                    if self.plant == Some(Plant::CopyRot) {
                        continue;
                    }
                    let others = members.with(to).without(Halves::one(from));
                    let is_unread = |half: &usize| self.disks[*half].try_read(*sector).is_none();
                    let of_sector = others.iter().filter(is_unread).map(Halves::one);
                    if let Some(intact) = self.intact(*sector, *content, members, from, to) {
                        *content = intact;
                        mended.push((*sector, intact));
                    } else {
                        unread = of_sector.fold(unread, Halves::with);
                    }
                }
                self.seldom.mended_copies += mended.len() as u64;
                let mends = !mended.is_empty();
                if mends {
                    let op = self.mend(mended);
                    life.pending.push(Pending { half: from, op, owner: Owner::Copy });
                }
                let to = to.without(unread);
                let left = to.len() + usize::from(mends);
                if left == 0 {
                    life.state.copy_done(None, unread);
                    return;
                }
                for half in to.iter() {
                    let op = DiskOp::Write(sectors.clone(), Way::Unread);
                    life.pending.push(Pending { half, op, owner: Owner::Copy });
                }
                life.lanes.copy = Some((Copy::Write, Ends { left, missed: unread }));
            }
            (copy, _) if ends.left > 0 => life.lanes.copy = Some((copy, ends)),
            (Copy::Write, _) => life.state.copy_done(None, ends.missed),
            (Copy::Flush, _) => life.state.flush_done(ends.missed),
        }
    }
}

/// All faults that can be planted.
pub(super) const PLANTS: [Plant; 11] = [
    Plant::AcknowledgeEarly,
    Plant::RaiseNothing,
    Plant::WriteUnmarked,
    Plant::ClearUnflushed,
    Plant::CopyUnguarded,
    Plant::RecoverNothing,
    Plant::JoinUnflushed,
    Plant::TrustHeaders,
    Plant::SkipReturning,
    Plant::CopyRot,
    Plant::MendUnflushed,
];
