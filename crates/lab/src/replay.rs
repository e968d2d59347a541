//! Replays a trace through the server's block cache, on real or simulated devices.
//!
//! [`Survey`] checks a trace, [`Layout`] maps its addresses to the volumes, [`Stage`] has the cache
//! and its devices, and [`run`] replays. Devices are real ones, or simulated ones in virtual time.
//! On either stage, the code between trace and devices is that of the server:
//! [`floe_block::Driver`] over [`floe_block::BlockCache`]. In virtual time a replay takes as long
//! as that code takes. The same trace on the same plan gives the same result to the last digit,
//! except for `processing_us` and `wall_seconds`, which are measured.

mod bucket;
mod engine;
mod latencies;
mod outcome;
mod source;
mod stage;
mod verify;
mod virtual_clock;

pub use self::bucket::{BucketMeter, BucketRequests, SimulatedBucket};
pub use self::engine::Pace;
pub use self::latencies::{Latencies, VolumeOutcome};
pub use self::outcome::{
    BucketOutcome, CacheOutcome, CostOutcome, Endurance, IntervalResult, ShedDecision, ShedOutcome,
};
pub use self::source::{Fit, LONGEST_REQUEST_BYTES, Layout, LayoutError};
pub use self::stage::{Clock, SimulatedDevice};
pub use self::virtual_clock::VirtualClock;
pub use engine::{ReplayError, Setup, run};
pub use outcome::{LatencyStep, ReplayResult};
pub use source::{Feed, Survey};
#[cfg(feature = "full")]
pub(crate) use stage::simulated;
pub use stage::{Plan, Stage, StageError, Tier, Volume};
pub use verify::{Content, Mismatch};
