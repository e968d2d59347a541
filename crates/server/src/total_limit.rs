//! The largest rates of all volumes together, which volumes share by weight.

use serde::{Deserialize, Deserializer, Serialize};

use crate::rate::{BURST_MS, Rates, burst_out_of_range, bytes_out_of_range, requests_out_of_range};

/// The problem of a burst without a rate that it applies to.
pub(crate) const TOTAL_BURST_NEEDS: &str =
    "total-burst needs total-requests-per-second or total-bytes-per-second";

/// The limits of the requests of all volumes of a server together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalLimit {
    /// Most requests per second; `None` for no limit.
    #[serde(default)]
    pub total_requests_per_second: Option<u64>,
    /// Most bytes per second that are read, written, zeroed or prefetched; `None` for no limit.
    #[serde(default)]
    pub total_bytes_per_second: Option<u64>,
    /// Milliseconds' worth of the limits that may start at once after a pause.
    #[serde(default = "default_burst")]
    pub total_burst_ms: u64,
}

fn default_burst() -> u64 {
    BURST_MS
}

impl Default for TotalLimit {
    fn default() -> Self {
        Self::NONE
    }
}

impl TotalLimit {
    /// No limit.
    pub const NONE: Self = Self {
        total_requests_per_second: None,
        total_bytes_per_second: None,
        total_burst_ms: BURST_MS,
    };

    /// Returns whether there is any limit.
    pub fn is_any(&self) -> bool {
        self.rates().is_any()
    }

    /// Returns the limits with these rates.
    pub(crate) fn of(rates: Rates) -> Self {
        Self {
            total_requests_per_second: rates.requests,
            total_bytes_per_second: rates.bytes,
            total_burst_ms: rates.burst_ns / 1_000_000,
        }
    }

    /// Returns the limits as rates.
    pub(crate) fn rates(&self) -> Rates {
        Rates {
            requests: self.total_requests_per_second,
            bytes: self.total_bytes_per_second,
            burst_ns: self.total_burst_ms * 1_000_000,
        }
    }

    /// Returns the first value that is out of its range: the setting's name, and the problem.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        requests_out_of_range("total-requests-per-second", self.total_requests_per_second)
            .or_else(|| bytes_out_of_range("total-bytes-per-second", self.total_bytes_per_second))
            .or_else(|| burst_out_of_range("total-burst", self.total_burst_ms))
    }
}

/// The request body that changes the limits of all volumes together. A field that is left out stays
/// as it is, and `null` lifts a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TotalLimitChange {
    /// Most requests per second.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub total_requests_per_second: Option<Option<u64>>,
    /// Most bytes per second.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub total_bytes_per_second: Option<Option<u64>>,
    /// Milliseconds' worth of the limits that may start at once after a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_burst_ms: Option<u64>,
}

/// Deserialises a field that is there, even if it is null.
pub(crate) fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl TotalLimitChange {
    /// Returns the first value that no server can have, as an error message.
    pub fn out_of_range(&self) -> Option<String> {
        self.of(TotalLimit::NONE).out_of_range().map(|(_, problem)| problem)
    }

    fn of(&self, before: TotalLimit) -> TotalLimit {
        TotalLimit {
            total_requests_per_second: self
                .total_requests_per_second
                .unwrap_or(before.total_requests_per_second),
            total_bytes_per_second: self
                .total_bytes_per_second
                .unwrap_or(before.total_bytes_per_second),
            total_burst_ms: self.total_burst_ms.unwrap_or(before.total_burst_ms),
        }
    }

    /// Returns the limits after the change.
    ///
    /// # Errors
    /// The value that cannot be used.
    pub(crate) fn applied(&self, before: TotalLimit) -> Result<TotalLimit, String> {
        if let Some(problem) = self.out_of_range() {
            return Err(problem);
        }
        let limit = self.of(before);
        if self.total_burst_ms.is_some() && !limit.is_any() {
            return Err(TOTAL_BURST_NEEDS.to_owned());
        }
        Ok(limit)
    }
}
