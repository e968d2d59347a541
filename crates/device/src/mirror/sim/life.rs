//! The process of a mirror in a world: its state, its clients and what is under way.

use std::ops::Range;

use super::super::state::{Job, State};
use super::disk::DiskOp;
use crate::device::Halves;

pub(super) const REGION_SECTORS: usize = 3;

/// The process of a mirror, until it crashes.
pub(super) struct Life {
    pub(super) state: State,
    pub(super) clients: Vec<Client>,
    pub(super) pending: Vec<Pending>,
    pub(super) lanes: LaneJobs,
}

/// The owner of an operation on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Client(usize),
    Header,
    Copy,
    /// It was given up: nothing waits for it.
    Nothing,
}

#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) half: usize,
    pub(super) op: DiskOp,
    pub(super) owner: Owner,
}

#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) id: usize,
    pub(super) what: What,
    pub(super) stage: Stage,
    /// The step at which it began.
    pub(super) begun: u64,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    Read(usize),
    Write(Range<usize>, u64),
    /// A write of what another half has.
    Mend(usize, u64),
    Flush,
}

#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// It asks until more is refused than was then.
    Held {
        refusals: u64,
    },
    Running {
        left: usize,
        sent: Halves,
        missed: Halves,
        read: Option<u64>,
    },
    /// It has read a flipped bit, and looks for an intact copy.
    Search,
    /// It waits until these halves have left.
    Settling(Halves),
    Ended {
        acknowledged: bool,
    },
}

/// The jobs under way.
#[derive(Debug, Default)]
pub(super) struct LaneJobs {
    pub(super) header: Option<Ends>,
    pub(super) copy: Option<(Copy, Ends)>,
    /// A question to the witness that has no answer yet.
    pub(super) witness: Option<Job>,
}

/// Operations that end, and the halves on which some failed.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub(super) left: usize,
    pub(super) missed: Halves,
}

#[derive(Debug)]
pub(super) enum Copy {
    Read { region: usize, from: usize, to: Halves },
    Write,
    Flush,
}
