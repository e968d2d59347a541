//! Faults that the simulator plants, to show that it finds them.

/// A fault in the state machine.
#[cfg_attr(not(test), expect(dead_code, reason = "only tests plant faults"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// Acknowledges a write that a half missed before the half has left.
    AcknowledgeEarly,
    /// Leaves out the witness.
    RaiseNothing,
    /// Writes regions that are not marked in the headers.
    WriteUnmarked,
    /// Removes marks without a flush.
    ClearUnflushed,
    /// Lets writes into a region that is copied.
    CopyUnguarded,
    /// Copies nothing after a crash.
    RecoverNothing,
    /// Takes a half back without a flush of what was copied.
    JoinUnflushed,
    /// Serves the half with the highest number, whatever the witness says.
    TrustHeaders,
    /// Does not write to halves that are being brought up to date.
    SkipReturning,
    /// Copies a flipped bit over an intact half.
    CopyRot,
    /// Mends a flipped bit without a flush.
    MendUnflushed,
}
