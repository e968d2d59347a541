//! Running a trace through the block cache that serves, on devices that answer when they do.
//!
//! [`Survey`] looks at a trace, [`Layout`] gives its addresses a place on the volumes, [`Stage`]
//! has the cache and its devices, real ones or simulated ones in virtual time, and [`run`] replays.
//! Whatever the stage, the code between trace and devices is the one of the server:
//! [`floe_block::Driver`] over [`floe_block::BlockCache`]. In virtual time a replay takes as long
//! as that code takes, and the same trace on the same plan gives the same outcome to the last
//! digit, except for `processing_us` and `wall_seconds`, which are measured.

mod engine;
mod outcome;
mod source;
mod stage;
mod verify;

pub use self::engine::Pace;
pub use self::outcome::{
    CostOutcome, Endurance, IntervalResult, Latencies, ShedDecision, ShedOutcome, TierOutcome,
};
pub use self::source::{Fit, LONGEST_REQUEST_BYTES, Layout, LayoutError};
pub use self::stage::{Clock, SimulatedDevice, VirtualClock};
pub use engine::{ReplayError, Setup, run};
pub use outcome::{LatencyStep, ReplayResult};
pub use source::{Feed, Survey};
#[cfg(feature = "full")]
pub(crate) use stage::simulated;
pub use stage::{OpenTier, Plan, Stage, StageError, Tier, Volume};
pub use verify::{Content, Mismatch};
