//! The I/O gate between a tier and the one below: there a tier is attached or detached while those
//! above go on.
//!
//! An I/O gate that is *shut* holds back this tier's operations below; data of this tier is served
//! as always. A part whose gate is shut begins nothing below. Once nothing is under way there
//! either ([`Driver::is_quiet_below`]), the part stays quiet until the gate is opened. When all
//! parts are quiet, no request is below the gate. Then each part can exchange the tiers below by
//! itself, in its own time. The parts that have done so exchange messages in the new tiers; the
//! others are silent.
//!
//! An attached tier is empty, so it has no old data. It treats the backing devices as unflushed:
//! the tier above has written there, and its next flush ends at the new tier. A tier to be detached
//! must have no dirty data: its own drain, [`Driver::drain_below`], passes the shut gate.

use std::collections::VecDeque;

use floe_device::{Action, Operation};

use super::below::{Below, Waiting};
use super::{Driver, backing_of};
use crate::engine::request::{Fault, Kind, Request, RequestId};
use crate::geometry::VolumeId;
use crate::order::OpId;

/// The I/O gate below a tier.
#[derive(Default)]
pub(super) struct Seam {
    is_shut: bool,
    /// Operations and relays to begin below, in order, once the I/O gate is open.
    held: VecDeque<Held>,
    /// Operations of backing devices under way; a tier below counts its own.
    under_way: usize,
    /// Ended drains of the tier below, by the numbers that their callers gave them.
    drained: Vec<(u32, Result<(), Fault>)>,
}

enum Held {
    Operation { volume: VolumeId, op: OpId, offset: u64, action: Action },
    Relay(RequestId),
}

impl Seam {
    pub(super) fn is_shut(&self) -> bool {
        self.is_shut
    }

    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns whether the I/O gate is open and operations are held back.
    pub(super) fn can_go_on(&self) -> bool {
        !self.is_shut && self.has_held()
    }

    /// Notes the end of an operation of a backing device.
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }

    pub(super) fn hold_relay(&mut self, id: RequestId) {
        self.held.push_back(Held::Relay(id));
    }

    pub(super) fn note_drained(&mut self, number: u32, result: Result<(), Fault>) {
        self.drained.push((number, result));
    }
}

impl Driver {
    /// Begins an operation below this tier, or holds it back.
    pub(super) fn begin_below(&mut self, volume: VolumeId, op: OpId, offset: u64, action: Action) {
        if self.seam.is_shut {
            return self.seam.held.push_back(Held::Operation { volume, op, offset, action });
        }
        match &mut self.below {
            Some(below) => below.begin(volume, op, offset, action),
            None => {
                self.seam.under_way += 1;
                let device = &mut backing_of(&mut self.backings, volume).device;
                device.submit(Operation { token: op.0, offset, action });
            }
        }
    }

    /// Shuts the I/O gate: nothing begins below this tier until it is opened.
    pub fn shut_seam(&mut self) {
        self.seam.is_shut = true;
    }

    /// Opens the I/O gate: operations held back begin with the next [`Driver::advance`].
    pub fn open_seam(&mut self) {
        self.seam.is_shut = false;
    }

    /// Begins the operations held back, if the I/O gate is open.
    pub(super) fn begin_held(&mut self) {
        if self.seam.is_shut || self.seam.held.is_empty() {
            return;
        }
        for held in std::mem::take(&mut self.seam.held) {
            match held {
                Held::Operation { volume, op, offset, action } => {
                    self.begin_below(volume, op, offset, action)
                }
                Held::Relay(id) => self.relay(id),
            }
        }
    }

    /// Returns whether no operation of this part is under way below this tier.
    pub fn is_quiet_below(&self) -> bool {
        self.seam.under_way == 0 && self.below.as_ref().is_none_or(|below| !below.is_waited_for())
    }

    /// Drains one of this tier's volumes in the tier below only, durably, even through a shut I/O
    /// gate. [`Driver::take_drained`] reports the end by this number.
    ///
    /// # Panics
    /// When there is no tier below.
    pub fn drain_below(&mut self, volume: VolumeId, number: u32) {
        let below = self.below.as_mut().expect("there is a tier below");
        let drain = Request { volume, kind: Kind::Drain, offset: 0, len: 0 };
        below.submit_to_it_alone(drain, Waiting::Drain(number));
    }

    /// Moves the results of ended drains of the tier below into `out`, with their numbers.
    pub fn take_drained(&mut self, out: &mut Vec<(u32, Result<(), Fault>)>) {
        out.append(&mut self.seam.drained);
    }

    /// Attaches an empty tier below this one; `ids` has its id of each of this tier's volumes. To
    /// be done in all parts alike, when the I/O gate is shut in all and
    /// [quiet](Driver::is_quiet_below) in all.
    ///
    /// # Panics
    /// When the I/O gate is not shut and quiet here, an id is not free, or the new tier already has
    /// a tier below.
    pub fn put_below(&mut self, mut newcomer: Driver, ids: &[(VolumeId, VolumeId)]) {
        assert!(
            self.seam.is_shut && self.is_quiet_below(),
            "a tier is put where nothing is under way"
        );
        assert!(newcomer.below.is_none(), "one tier is put in at a time");
        for (id, new) in ids {
            let bytes = self.cache.volume_bytes(*id).expect("the volume is in this tier");
            newcomer.cache.add_volume_at(*new, bytes);
            // This tier has written there, and relies on the new tier to have it flushed.
            newcomer.cache.shards.note_unsettled(*new);
        }
        match self.below.take() {
            Some(lower) => {
                let ids: Vec<_> = ids.iter().map(|(id, new)| (*new, lower.id(*id))).collect();
                newcomer.below = Some(Box::new(Below::new(lower.into_driver(), &ids)));
            }
            None => {
                for (id, new) in ids {
                    newcomer.put_backing(*new, self.backings[id.0 as usize].take());
                }
            }
        }
        self.below = Some(Box::new(Below::new(newcomer, ids)));
    }

    /// Detaches the tier below: this tier then uses the tier or devices below that one. To be done
    /// in all parts alike, when the I/O gate is shut and quiet in all, and the tier below [at
    /// rest](Driver::is_at_rest) in all.
    ///
    /// # Panics
    /// When there is no tier below, something is under way, or the tier has dirty data.
    pub fn take_below(&mut self) -> Driver {
        assert!(
            self.seam.is_shut && self.is_quiet_below(),
            "a tier is taken from where nothing is under way"
        );
        let below = self.below.take().expect("there is a tier below");
        let ids: Vec<_> =
            below.ids().filter(|(id, _)| self.cache.volume_bytes(*id).is_some()).collect();
        let mut gone = below.into_driver();
        assert!(
            gone.is_at_rest() && !gone.cache.condition().has_dirty_data(),
            "a tier goes when it has brought all down"
        );
        match gone.below.take() {
            Some(lower) => {
                let ids: Vec<_> = ids.iter().map(|(id, gone)| (*id, lower.id(*gone))).collect();
                self.below = Some(Box::new(Below::new(lower.into_driver(), &ids)));
            }
            None => {
                for (id, gone_id) in ids {
                    self.put_backing(id, gone.backings[gone_id.0 as usize].take());
                }
            }
        }
        gone
    }
}
