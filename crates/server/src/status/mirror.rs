//! The halves of a mirror in the status.

use floe_device::MirrorStatus;
use serde::{Deserialize, Serialize};

/// A mirror that is the device of a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorTierStatus {
    /// A half is missing or is being brought up to date.
    pub degraded: bool,
    /// The number of its generation, which grows at each start and when a half leaves or is back.
    pub generation: u64,
    /// Bytes that are still to be copied between halves.
    pub resync_bytes: u64,
    /// Another server has the mirror: nothing of it is served.
    pub fenced: bool,
    /// The error of the witness, while changes of the halves wait for it.
    pub witness_error: Option<String>,
    /// Its halves, by their numbers.
    pub halves: Vec<MirrorHalfStatus>,
}

/// A half of a mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorHalfStatus {
    /// Its device.
    pub name: String,
    /// `in-sync`, `resync` or `out`.
    pub state: String,
    /// The reason why it is out.
    pub error: Option<String>,
    /// Bytes of it that were not what was stored, and were written anew from another half.
    #[serde(default)]
    pub mended_bytes: u64,
}

impl MirrorTierStatus {
    pub(super) fn of(status: MirrorStatus) -> Self {
        let degraded = status.is_degraded();
        let MirrorStatus { generation, halves, resync_bytes, fenced, witness_error, .. } = status;
        let halves = halves.into_iter().map(|half| MirrorHalfStatus {
            name: half.name,
            state: half.state.to_owned(),
            error: half.error,
            mended_bytes: half.mended_bytes,
        });
        let halves = halves.collect();
        Self { degraded, generation, resync_bytes, fenced, witness_error, halves }
    }
}
