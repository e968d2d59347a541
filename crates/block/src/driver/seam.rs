//! The seam between a tier and what it stands on: there a tier is put in or taken out while those
//! above go on.
//!
//! A seam that is *shut* holds back what this tier orders below; what this tier has is served as
//! always. A part whose seam is shut begins nothing below, so once nothing is under way there
//! either ([`Driver::is_quiet_below`]), that holds until the seam is opened, and when it holds in
//! all parts, nobody asks for anything below the seam. Then each part can exchange what is below by
//! itself, in its own time: the parts that have done so speak to each other in the new tiers, those
//! that have not are silent.
//!
//! A tier that is put in is empty, so it knows nothing that could be old. It takes what it stands on
//! to be unflushed: the tier above has written there, and its next flush ends at the newcomer. One
//! that is taken out has to be empty of what only it has: its own drain, [`Driver::drain_below`],
//! goes past the shut seam.

use std::collections::VecDeque;

use floe_device::{Action, Operation};

use super::below::{Below, Waiting};
use super::{Driver, backing_of};
use crate::geometry::VolumeId;
use crate::order::OpId;
use crate::request::{Fault, Kind, Request, RequestId};

/// What keeps a tier and what it stands on apart.
#[derive(Default)]
pub(super) struct Seam {
    is_shut: bool,
    /// What is to begin below, in order, once the seam is open.
    held: VecDeque<Held>,
    /// Operations of backing devices; a tier below knows by itself what is under way there.
    under_way: usize,
    /// Drains of the tier below that have ended, by the numbers that their askers gave them.
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

    /// Whether something can begin that was held back.
    pub(super) fn can_go_on(&self) -> bool {
        !self.is_shut && self.has_held()
    }

    /// An operation of a backing device has ended.
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
    /// Begins an operation of what this tier stands on.
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

    /// Begins nothing below this tier any more until the seam is opened.
    pub fn shut_seam(&mut self) {
        self.seam.is_shut = true;
    }

    /// Lets what was held back begin, with the next [`Driver::advance`].
    pub fn open_seam(&mut self) {
        self.seam.is_shut = false;
    }

    /// Begins what was held back, if the seam is open again.
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

    /// Whether nothing that this part has begun below this tier is under way.
    pub fn is_quiet_below(&self) -> bool {
        self.seam.under_way == 0 && self.below.as_ref().is_none_or(|below| !below.is_waited_for())
    }

    /// Has the tier below, and no other, bring all it has of one of this tier's volumes to what
    /// that stands on, durably, also past a shut seam. [`Driver::take_drained`] tells the end of it
    /// by this number.
    ///
    /// # Panics
    /// When there is no tier below.
    pub fn drain_below(&mut self, volume: VolumeId, number: u32) {
        let below = self.below.as_mut().expect("there is a tier below");
        let drain = Request { volume, kind: Kind::Drain, offset: 0, len: 0 };
        below.submit_to_it_alone(drain, Waiting::Drain(number));
    }

    /// Moves the ends of drains of the tier below into `out`, with their numbers.
    pub fn take_drained(&mut self, out: &mut Vec<(u32, Result<(), Fault>)>) {
        out.append(&mut self.seam.drained);
    }

    /// Puts an empty tier between this one and what it stands on; `ids` has what it is to call each
    /// of this tier's volumes. To be done in all parts alike, when the seam is shut in all and
    /// [quiet](Driver::is_quiet_below) in all.
    ///
    /// # Panics
    /// When it is not so here, an id is not free, or the newcomer has a tier below already.
    pub fn put_below(&mut self, mut newcomer: Driver, ids: &[(VolumeId, VolumeId)]) {
        assert!(
            self.seam.is_shut && self.is_quiet_below(),
            "a tier is put where nothing is under way"
        );
        assert!(newcomer.below.is_none(), "one tier is put in at a time");
        for (id, new) in ids {
            let bytes = self.cache.volume_bytes(*id).expect("the volume is in this tier");
            newcomer.cache.add_volume_at(*new, bytes);
            // This tier has written there, and counts on the newcomer to have it flushed.
            newcomer.cache.note_unsettled(*new);
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

    /// Takes the tier below out: this one stands on what that stood on. To be done in all parts
    /// alike, when the seam is shut and quiet in all, and the tier below [at
    /// rest](Driver::is_at_rest) in all.
    ///
    /// # Panics
    /// When there is no tier below, something is under way, or it has what nothing below it has.
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
            gone.is_at_rest() && !gone.cache.has_dirty_data(),
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
