//! The start of a trace that fills a cache and does not count.

use std::str::FromStr;

/// The part of a trace that does not count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Warmup {
    /// So many requests.
    Requests(u64),
    /// A share of all requests.
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
    /// Returns how many of a trace's requests do not count.
    ///
    /// # Errors
    /// When none would be left that counts.
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

/// The length of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval(Warmup);

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse()? {
            Warmup::Requests(0) | Warmup::Share(0.0) => {
                Err("an interval of no requests has no figures; write 1000 or 5%".to_owned())
            }
            length => Ok(Self(length)),
        }
    }
}

impl Interval {
    /// Returns how many of so many requests an interval has.
    ///
    /// # Errors
    /// When it would have all of them.
    pub(crate) fn of(self, requests: u64) -> Result<u64, String> {
        match self.0 {
            Warmup::Requests(length) if length >= requests => Err(format!(
                "{requests} of its requests count, which is less than two intervals of {length}"
            )),
            Warmup::Requests(length) => Ok(length),
            Warmup::Share(share) => Ok(((requests as f64 * share).round() as u64).max(1)),
        }
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
        assert_eq!("5%".parse::<Interval>().unwrap().of(1000), Ok(50));
        assert!("0".parse::<Interval>().is_err() && "0%".parse::<Interval>().is_err());
        assert!("1000".parse::<Interval>().unwrap().of(1000).is_err());
        for wrong in ["", "%", "100%", "-1", "1.5", "nan%", "-5%"] {
            assert!(wrong.parse::<Warmup>().is_err(), "{wrong}");
        }
    }
}
