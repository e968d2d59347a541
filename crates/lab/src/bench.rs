//! Measures caches in memory under a closed loop of clients.
//!
//! A number of clients (the MPL) share a few threads. Each client looks up the next key of the
//! load. A hit goes on at once, and a miss parks its client until an emulated disk answers, while
//! the thread runs its other clients. So 72 requests are in flight on two cores, as in the
//! experiments that ask what a hit ratio is worth. [`Load`] holds the requests, [`measure()`] warms
//! caches up and runs them in turn, and [`capacity_for`] finds the capacity for a hit ratio.
//! [`calibrate()`] measures the times of single operations, for the queueing model of all this.
//!
//! [`Cache`] is Floe's own cache as a [`Subject`]; any cache with lookups can take part. The
//! deciding parts are without clock and threads: the parked clients ([`Clients`]), the time of the
//! next reading of the clock ([`Looks`]), the end of the warm-up ([`WarmUp`]), the error of a
//! median ([`Estimate`]).

mod cache;
mod calibrate;
mod competitor;
mod disturbance;
mod load;
mod measure;
mod outcome;
mod subject;
mod warm_up;
mod worker;

pub use self::competitor::{Plan, Setup};
pub use self::load::PassOrder;
pub use self::measure::{Curve, Estimate, Found, Looped, PhaseTime, capacity_for, search};
pub use self::subject::{Freezes, Freezing, Frozen, Lifetime, Subject};
pub use self::warm_up::{Decision, Sample, Watch};
pub use self::worker::{Clients, Looks, Parked, WorkerCounts};
pub use cache::{Built, Cache};
pub use calibrate::{
    Calibrate, CalibrateError, Calibration, Figure, POLICIES as CALIBRATED_POLICIES, calibrate,
};
pub use competitor::{CacheCompetitor, Competitor, Warmed};
pub use disturbance::{TRIES, disturbance_is_known};
pub use load::{Feed, Load, LoadError, Operation, Place};
pub use measure::{MeasureStep, Measured, Repetition, measure, measure_from};
pub use outcome::{Admitted, BenchResult, Decided, Freeze, Identity, Park, Ratio, Write, decided};
pub use warm_up::{Span, WarmUp, Window};
pub use worker::{Disk, SAMPLED};
