//! The start of a trace that fills a cache and is excluded from the figures.

use std::str::FromStr;
use std::time::Duration;

use floe_lab::interval;

/// The length of the warm-up at the start of a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Warmup {
    /// A number of requests.
    Requests(u64),
    /// A share of the trace's requests.
    Share(f64),
}

impl FromStr for Warmup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = text.strip_suffix('%').map(str::parse::<f64>);
        match (share, text.parse()) {
            (Some(Ok(percent)), _) if (0.0..100.0).contains(&percent) => {
                Ok(Self::Share(percent / 100.0))
            }
            (None, Ok(requests)) => Ok(Self::Requests(requests)),
            _ => Err(format!(
                "`{text}` is neither a number of requests nor a share; write 1000 or 20%"
            )),
        }
    }
}

impl Warmup {
    /// Returns the number of warm-up requests in a trace of `requests` requests.
    ///
    /// # Errors
    /// When no request would remain after the warm-up.
    pub(crate) fn of(self, requests: u64) -> Result<u64, String> {
        let warmup = match self {
            Self::Requests(warmup) => warmup,
            Self::Share(share) => (requests as f64 * share) as u64,
        };
        if warmup >= requests {
            return Err(format!("it has {requests} requests, and the first {warmup} do not count"));
        }
        Ok(warmup)
    }
}

/// The length of an interval for which figures are printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Interval {
    /// A number of requests, or a share of those after the warm-up.
    Requests(Warmup),
    /// A duration by the clock of the trace or the replay.
    Time(Duration),
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let empty = || Err("an empty interval has no figures; write 1000, 5% or 1h".to_owned());
        match (text.parse(), text.parse::<humantime::Duration>()) {
            (Ok(Warmup::Requests(0) | Warmup::Share(0.0)), _) => empty(),
            (Ok(requests), _) => Ok(Self::Requests(requests)),
            (_, Ok(time)) if time.is_zero() => empty(),
            (_, Ok(time)) => Ok(Self::Time(*time)),
            _ => Err(format!(
                "`{text}` is neither a number of requests nor a share nor a time; write 1000, 5% \
                 or 1h"
            )),
        }
    }
}

impl Interval {
    /// Returns the length of an interval when `requests` requests remain after the warm-up.
    ///
    /// # Errors
    /// When the interval would cover all of them.
    pub(crate) fn of(self, requests: u64) -> Result<interval::Interval, String> {
        Ok(interval::Interval::Requests(match self {
            Self::Time(time) => return Ok(interval::Interval::Time(time)),
            Self::Requests(Warmup::Requests(length)) if length >= requests => {
                return Err(format!(
                    "{requests} of its requests count, which is less than two intervals of \
                     {length}"
                ));
            }
            Self::Requests(Warmup::Requests(length)) => length,
            Self::Requests(Warmup::Share(share)) => {
                // Up, so that no rest is an interval; less what a product of floats may add.
                ((requests as f64 * share - 1e-6).ceil() as u64).max(1)
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_is_a_number_or_a_share() {
        assert_eq!("20%".parse(), Ok(Warmup::Share(0.2)));
        assert_eq!("20".parse(), Ok(Warmup::Requests(20)));
        assert_eq!(Warmup::Share(0.25).of(1001), Ok(250));
        assert_eq!(Warmup::Requests(4).of(5), Ok(4));
        assert!(Warmup::Requests(5).of(5).is_err());
        for wrong in ["", "%", "100%", "-1", "1.5", "nan%", "-5%"] {
            assert!(wrong.parse::<Warmup>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_interval_is_a_number_a_share_or_a_time() {
        let of = |text: &str| text.parse::<Interval>().unwrap().of(1000);
        assert_eq!(of("5%"), Ok(interval::Interval::Requests(50)));
        assert_eq!(of("300"), Ok(interval::Interval::Requests(300)));
        assert_eq!(of("1h"), Ok(interval::Interval::Time(Duration::from_secs(3600))));
        assert!(of("1000").is_err(), "there would be one interval");
        let quarter = "25%".parse::<Interval>().unwrap().of(1001);
        assert_eq!(quarter, Ok(interval::Interval::Requests(251)), "not a fifth one of a request");
        for wrong in ["0", "0%", "0s", "", "-1", "5 parsecs"] {
            assert!(wrong.parse::<Interval>().is_err(), "{wrong}");
        }
    }
}
