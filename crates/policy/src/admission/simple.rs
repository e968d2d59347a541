//! Small admissions: always, never, until full, what is read, at random, on the second offer, no
//! long sequences, and TinyLFU's duel.

use super::{Admission, Needs, Orders, RegisteredAdmission, Room, Verdict, Victim};
use crate::ghosts::{Ghosts, Tag};
use crate::sketch::{Random, Sketch};
use crate::{Access, Direction, Parameter, Parameters, PolicyInfo, Tick};

/// Admits every offer (`always`), as most caches do.
///
/// Do not use it where writing to the cache slows its reads, or where most blocks are used once.
#[derive(Debug, Clone)]
pub struct Always;

impl RegisteredAdmission for Always {
    const INFO: PolicyInfo = PolicyInfo::new("always", "admits everything", "-");

    fn with(_: &Parameters) -> Self {
        Self
    }
}

impl Admission for Always {
    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        Verdict::Admit
    }
}

/// Admits no offer (`never`): a cache that stays empty, for comparison.
#[derive(Debug, Clone)]
pub struct Never;

impl RegisteredAdmission for Never {
    const INFO: PolicyInfo = PolicyInfo::new("never", "admits nothing", "-");

    fn with(_: &Parameters) -> Self {
        Self
    }
}

impl Admission for Never {
    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        Verdict::Bypass
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        orders.hold = true;
    }
}

/// Admits offers while there is room (`until-full`), and never causes an eviction.
///
/// It is the cache that writes least, for comparison ("Writes Hurt", figure 3). Do not use it where
/// popularity changes.
#[derive(Debug, Clone)]
pub struct UntilFull;

impl RegisteredAdmission for UntilFull {
    const INFO: PolicyInfo = PolicyInfo::new(
        "until-full",
        "admits what fits, and evicts nothing",
        "NVCache, \"Writes Hurt\"",
    );

    fn with(_: &Parameters) -> Self {
        Self
    }
}

impl Admission for UntilFull {
    fn judge(&mut self, _: &Access, victim: Option<&Victim>) -> Verdict {
        if victim.is_none() { Verdict::Admit } else { Verdict::Bypass }
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        orders.hold = true;
    }
}

/// Admits what is read, and nothing that is written (`reads`): no-write-allocate.
///
/// A write to a cached block is not offered, so it still updates the copy. With write-through that
/// is the write-around of caches such as Open CAS; Floe's own drops the copy. Do not use it where
/// blocks are read soon after they are written, or to keep writes away from a slow volume.
#[derive(Debug, Clone)]
pub struct Reads;

impl RegisteredAdmission for Reads {
    const INFO: PolicyInfo =
        PolicyInfo::new("reads", "admits what is read; a write only updates a cached copy", "-");

    fn with(_: &Parameters) -> Self {
        Self
    }
}

impl Admission for Reads {
    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        match offer.direction {
            Direction::Read => Verdict::Admit,
            Direction::Write => Verdict::Bypass,
        }
    }
}

const SEED: u64 = 0xad;

/// Multiplier that gives each shard its own seed. It is odd, so seeds differ, and has bits all
/// over, so that no shard repeats the draws of another a little later.
const PARTS_APART: u64 = 0xd6e8_feb8_6659_fd93;

/// Admits each offer with a fixed probability.
///
/// Blocks that are requested often are admitted sooner or later; most blocks requested once are
/// not. It remembers nothing, so it costs no memory. Do not use it where the cache has to warm up
/// fast.
#[derive(Debug, Clone)]
pub struct Probability {
    probability: f64,
    random: Random,
}

impl RegisteredAdmission for Probability {
    const INFO: PolicyInfo =
        PolicyInfo::new("probability", "admits each candidate with a fixed probability", "-")
            .with(&[Parameter::share("p", 0.1, "probability that a candidate is admitted")]);

    fn with(parameters: &Parameters) -> Self {
        Self { probability: parameters.get("p"), random: Random::new(SEED) }
    }
}

impl Admission for Probability {
    fn split(&mut self, part: usize, _: usize) {
        // Each its own coins, and the first those of one that has no others beside it.
        self.random = Random::new(SEED ^ (part as u64).wrapping_mul(PARTS_APART));
    }

    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        if self.random.share() < self.probability { Verdict::Admit } else { Verdict::Bypass }
    }
}

/// Admits a block when it is offered for the second time.
///
/// A ghost list remembers rejected blocks, and a block that returns while remembered is admitted.
/// Do not use it where blocks return after more other blocks than the list remembers: then nothing
/// is ever admitted.
#[derive(Debug, Clone)]
pub struct SecondAccess {
    stayed_out: Ghosts<1>,
    ghosts_share: f64,
}

impl RegisteredAdmission for SecondAccess {
    const INFO: PolicyInfo = PolicyInfo::new(
        "second-access",
        "admits a block when it is offered for the second time",
        "-",
    )
    .with(&[Parameter {
        name: "ghosts",
        default: 1.0,
        min: 0.001,
        max: 16.0,
        whole: false,
        names: &[],
        about: "keys remembered per entry of the cache",
    }]);

    fn with(parameters: &Parameters) -> Self {
        Self { stayed_out: Ghosts::named(["stayed out"]), ghosts_share: parameters.get("ghosts") }
    }
}

impl Admission for SecondAccess {
    fn reserve(&mut self, room: &Room) {
        self.stayed_out.reserve(((room.entries as f64 * self.ghosts_share) as usize).max(1));
    }

    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        match self.stayed_out.take(Tag::of(offer.hash)) {
            Some(_) => Verdict::Admit,
            None => Verdict::Bypass,
        }
    }

    fn settle(&mut self, offer: &Access, verdict: Verdict) {
        if !verdict.admits() {
            self.stayed_out.push(0, Tag::of(offer.hash), ());
        }
    }

    fn memory_bytes(&self) -> usize {
        self.stayed_out.memory_bytes()
    }
}

/// Declines blocks of long sequential streams: disks are fast at them, and they are seldom read
/// twice.
///
/// The owner follows the streams ([`streams`](crate::streams)); blocks of a stream are declined
/// once its length reaches the threshold. Do not use it above devices on which sequential reads are
/// no faster than others.
#[cfg(feature = "policies")]
#[derive(Debug, Clone)]
pub struct Sequential {
    threshold: u64,
}

#[cfg(feature = "policies")]
impl RegisteredAdmission for Sequential {
    const INFO: PolicyInfo =
        PolicyInfo::new("sequential", "admits everything but long sequential runs", "-")
            .with(&[Parameter::count(
                "threshold",
                32,
                2..=1 << 32,
                "positions in a row from which a run is rejected",
            )])
            .looking_at_streams();

    fn with(parameters: &Parameters) -> Self {
        Self { threshold: parameters.count("threshold") }
    }
}

#[cfg(feature = "policies")]
impl Admission for Sequential {
    fn needs(&self) -> Needs {
        Needs { streams: true, ..Needs::default() }
    }

    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        if offer.in_a_row < self.threshold { Verdict::Admit } else { Verdict::Bypass }
    }
}

/// Admits a candidate that was requested more often than the victim: TinyLFU's duel.
///
/// A sketch whose counts age counts offers and the hits that the owner reports (Einziger, Friedman,
/// Manes, "TinyLFU", TOS '17). The victim wins ties, which saves a write.
///
/// Do not use it in caches that report no hits: entries hit all the time then seem never used.
/// Where no victim is named, everything is admitted ([`Eviction::victim`](crate::Eviction::victim),
/// or [`PendingVictims`](crate::PendingVictims) over policies that name none).
#[derive(Debug, Clone)]
pub struct Duel {
    uses: Sketch,
}

impl RegisteredAdmission for Duel {
    const INFO: PolicyInfo = PolicyInfo::new(
        "duel",
        "a candidate enters if a sketch counts more requests for it than for the victim",
        "TinyLFU: Einziger et al., TOS '17",
    );

    fn with(_: &Parameters) -> Self {
        Self { uses: Sketch::default() }
    }
}

impl Admission for Duel {
    fn needs(&self) -> Needs {
        Needs { victims: true, ..Needs::default() }
    }

    fn reserve(&mut self, room: &Room) {
        self.uses.reserve(room.entries);
    }

    fn used(&mut self, access: &Access) {
        self.uses.add(Tag::of(access.hash).bits());
    }

    fn judge(&mut self, offer: &Access, victim: Option<&Victim>) -> Verdict {
        let key = Tag::of(offer.hash).bits();
        self.uses.add(key);
        match victim {
            None => Verdict::Admit,
            Some(victim)
                if self.uses.estimate(key) > self.uses.estimate(Tag::of(victim.hash).bits()) =>
            {
                Verdict::Replace(victim.slot)
            }
            Some(_) => Verdict::Bypass,
        }
    }

    fn memory_bytes(&self) -> usize {
        self.uses.memory_bytes()
    }
}
