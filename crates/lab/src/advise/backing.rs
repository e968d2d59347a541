//! The volume of a search: a medium, or a bucket with the prices of its requests.

use floe_block::format_size;
use serde::Serialize;

use crate::replay::{BucketOutcome, BucketRequests};

/// The volume of a search.
#[derive(Debug, Clone, PartialEq)]
pub enum Backing {
    /// A medium, by its name.
    Medium(String),
    /// A volume in a bucket (S3).
    Bucket {
        /// Size of an object in bytes; `None` for the default.
        object_bytes: Option<u64>,
        /// Prices of requests and bytes.
        prices: BucketPrices,
    },
}

impl Backing {
    /// Returns the specification of a simulated volume.
    pub(super) fn simulated(&self, volume_bytes: u64) -> String {
        match self {
            Self::Medium(medium) => format!("memory:{volume_bytes},medium={medium}"),
            Self::Bucket { .. } => format!("{},size={volume_bytes}", self.recommended()),
        }
    }

    /// Returns the specification to recommend, with capitals in place of names.
    pub(super) fn recommended(&self) -> String {
        match self {
            Self::Medium(_) => "file:/dev/disk/by-id/VOLUME".to_owned(),
            Self::Bucket { object_bytes, .. } => {
                let object = object_bytes.map(|bytes| format!(",object={}", format_size(bytes)));
                format!("s3://BUCKET/VOLUME{}", object.unwrap_or_default())
            }
        }
    }

    /// Returns the cost of a replay's requests to its bucket; `None` for a medium.
    pub(super) fn cost(
        &self,
        requests: u64,
        outcome: Option<&BucketOutcome>,
    ) -> Option<BucketCost> {
        match (self, outcome) {
            (Self::Bucket { prices, .. }, Some(outcome)) => {
                let dollars = prices.dollars(&outcome.requests);
                // The pace of a replay says nothing about a month of the volume.
                let times = outcome.times_a_month.filter(|_| outcome.clock == "trace");
                Some(BucketCost {
                    dollars_per_million_requests: dollars / requests.max(1) as f64 * 1e6,
                    dollars_per_month: times.map(|times| dollars * times),
                })
            }
            _ => None,
        }
    }
}

/// Prices of a bucket in dollars. The default is that of Amazon S3 within a region.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BucketPrices {
    /// A million requests that put an object.
    pub put_million: f64,
    /// A million other requests. Deletions cost nothing.
    pub get_million: f64,
    /// A gigabyte (10⁹ bytes) that the bucket sends.
    pub sent_gigabyte: f64,
}

impl Default for BucketPrices {
    fn default() -> Self {
        Self { put_million: 5.0, get_million: 0.4, sent_gigabyte: 0.0 }
    }
}

impl BucketPrices {
    fn dollars(&self, requests: &BucketRequests) -> f64 {
        let BucketRequests { gets, puts, sent_bytes, .. } = *requests;
        (puts as f64 * self.put_million + gets as f64 * self.get_million) / 1e6
            + sent_bytes as f64 / 1e9 * self.sent_gigabyte
    }
}

/// Cost of a volume's requests to its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BucketCost {
    /// Dollars for a million requests of the trace.
    pub dollars_per_million_requests: f64,
    /// Dollars for 30 days at the pace of the trace; `None` where it has no times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars_per_month: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_bytes_have_their_prices() {
        let requests = BucketRequests {
            gets: 500_000,
            puts: 100_000,
            deletes: 1_000_000,
            sent_bytes: 20_000_000_000,
            put_bytes: 30_000_000_000,
        };
        let outcome = |clock| BucketOutcome { requests, clock, times_a_month: Some(10.0) };
        let cost = |prices, clock| {
            let backing = Backing::Bucket { object_bytes: None, prices };
            backing.cost(250_000, Some(&outcome(clock))).unwrap()
        };
        let usual = cost(BucketPrices::default(), "trace");
        assert!((usual.dollars_per_million_requests - 2.8).abs() < 1e-9, "{usual:?}");
        assert!((usual.dollars_per_month.unwrap() - 7.0).abs() < 1e-9, "{usual:?}");
        let dear = BucketPrices { sent_gigabyte: 0.09, ..BucketPrices::default() };
        assert!((cost(dear, "trace").dollars_per_month.unwrap() - 25.0).abs() < 1e-9);
        assert_eq!(cost(dear, "replay").dollars_per_month, None);
        assert_eq!(Backing::Medium("hdd".to_owned()).cost(1, Some(&outcome("trace"))), None);
    }
}
