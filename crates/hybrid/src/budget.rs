//! [`WriteBudget`]: the bytes that may be written to flash in a time.
//!
//! [`Budget`] keeps it. Time earns bytes up to a burst of half an hour, and all writes spend them:
//! objects, reinsertions, removals, footers and the saved index. Each offered object belongs to a
//! class of [`value`], its expected hits a byte. The budget measures the bytes offered in each
//! class, and admits the most valuable classes whose bytes together fit its rate. In the last class
//! that fits in part, a share of the hashes is admitted, always of the same keys: a key that is
//! written once is offered no more.

use std::fmt;
use std::str::FromStr;

const SECOND_NS: f64 = 1e9;
const DAY_SECONDS: f64 = 86_400.0;
const YEAR_SECONDS: f64 = 365.0 * DAY_SECONDS;

/// Time whose earnings can be saved, in seconds: 2.1 % of a day's.
const BURST_SECONDS: f64 = 1800.0;
/// Time in which the balance returns to half a burst, in seconds.
const RETURN_SECONDS: f64 = BURST_SECONDS / 2.0;
/// Time after which a measurement has lost 63 % of its weight, in seconds.
const MEMORY_SECONDS: f64 = 300.0;
/// Number of updates of the measured rates in that time, at least.
const UPDATES: f64 = 128.0;
/// Number of classes of value.
const CLASSES: usize = 128;
/// Classes in a doubling of the value.
const CLASSES_PER_DOUBLING: f64 = 4.0;
/// Binary logarithm of the least value that is told from lower ones.
const LEAST_VALUE: f64 = -28.0;

/// A budget of bytes written to flash in a time.
///
/// ```
/// use floe_hybrid::WriteBudget;
///
/// let budget: WriteBudget = "50 TB/year".parse()?;
/// assert_eq!(budget, WriteBudget::bytes_per_year(50_000_000_000_000));
/// assert_eq!("1 DWPD".parse(), Ok(WriteBudget::drive_writes_per_day(1.0)));
/// assert_eq!("40 MB/s".parse(), Ok(WriteBudget::bytes_per_second(40_000_000)));
/// # Ok::<(), floe_hybrid::WriteBudgetError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriteBudget(Rate);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Rate {
    /// Bytes in a number of seconds.
    Bytes(f64, f64),
    /// Multiples of the flash's size in a day.
    Drives(f64),
}

/// The error of a text that is not a [`WriteBudget`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a write budget: expected a number above 0 and a rate, such as '1 DWPD', \
     '50 TB/year' or '40 MB/s'"
)]
pub struct WriteBudgetError(String);

impl WriteBudget {
    /// Returns a budget of multiples of the flash's size in a day. The size is that given to
    /// [`Builder::flash`](crate::Builder::flash), not that of the drive.
    ///
    /// # Panics
    /// When the number is not finite or not above 0.
    pub fn drive_writes_per_day(drives: f64) -> Self {
        assert!(drives.is_finite() && drives > 0.0, "a write budget is above 0, not {drives}");
        Self(Rate::Drives(drives))
    }

    /// Returns a budget of bytes a second.
    ///
    /// # Panics
    /// When `bytes` is 0.
    pub fn bytes_per_second(bytes: u64) -> Self {
        Self::bytes_in(bytes, 1.0)
    }

    /// Returns a budget of bytes a day.
    ///
    /// # Panics
    /// When `bytes` is 0.
    pub fn bytes_per_day(bytes: u64) -> Self {
        Self::bytes_in(bytes, DAY_SECONDS)
    }

    /// Returns a budget of bytes in a year of 365 days.
    ///
    /// # Panics
    /// When `bytes` is 0.
    pub fn bytes_per_year(bytes: u64) -> Self {
        Self::bytes_in(bytes, YEAR_SECONDS)
    }

    fn bytes_in(bytes: u64, seconds: f64) -> Self {
        assert!(bytes > 0, "a write budget is above 0");
        Self(Rate::Bytes(bytes as f64, seconds))
    }

    /// Returns the budget of a drive that has this part of the flash.
    pub(crate) fn part(self, part: f64) -> Self {
        Self(match self.0 {
            Rate::Bytes(bytes, seconds) => Rate::Bytes(bytes * part, seconds),
            drives @ Rate::Drives(_) => drives, // a multiple of the drive's own part
        })
    }

    /// Returns the bytes a second for a flash of this size.
    pub fn rate(&self, capacity_bytes: u64) -> f64 {
        match self.0 {
            Rate::Bytes(bytes, seconds) => bytes / seconds,
            Rate::Drives(drives) => drives * capacity_bytes as f64 / DAY_SECONDS,
        }
    }
}

impl FromStr for WriteBudget {
    type Err = WriteBudgetError;

    /// Parses a number with `DWPD`, or with a unit of bytes and `/s`, `/min`, `/h`, `/day` or
    /// `/year`. Units are powers of 1000 (`kB` to `PB`) or of 1024 (`KiB` to `PiB`).
    fn from_str(text: &str) -> Result<Self, WriteBudgetError> {
        Self::parse(text.trim()).ok_or_else(|| WriteBudgetError(text.to_owned()))
    }
}

impl WriteBudget {
    fn parse(text: &str) -> Option<Self> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = (text[..end].parse::<f64>().ok()?, text[end..].trim());
        if !number.is_finite() || number <= 0.0 {
            return None;
        }
        if unit.eq_ignore_ascii_case("dwpd") {
            return Some(Self::drive_writes_per_day(number));
        }
        let (bytes, time) = unit.split_once('/')?;
        let bytes = number * bytes_of(bytes.trim())?;
        let seconds = match time.trim().to_ascii_lowercase().as_str() {
            "s" | "sec" | "second" => 1.0,
            "min" | "minute" => 60.0,
            "h" | "hour" => 3600.0,
            "d" | "day" => DAY_SECONDS,
            "y" | "year" => YEAR_SECONDS,
            _ => return None,
        };
        Some(Self(Rate::Bytes(bytes, seconds)))
    }
}

/// Returns the bytes of a unit.
fn bytes_of(unit: &str) -> Option<f64> {
    let unit = unit.to_ascii_uppercase();
    let prefix = unit.strip_suffix('B')?;
    let (prefix, base) = match prefix.strip_suffix('I') {
        Some("") => return None,
        Some(prefix) => (prefix, 1024.0_f64),
        None => (prefix, 1000.0),
    };
    let power = ["", "K", "M", "G", "T", "P"].iter().position(|known| *known == prefix)?;
    Some(base.powi(power as i32))
}

impl fmt::Display for WriteBudget {
    /// Writes the text that [`FromStr`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Rate::Drives(drives) => write!(f, "{drives} DWPD"),
            Rate::Bytes(bytes, seconds) => {
                let time = match seconds {
                    1.0 => "s",
                    60.0 => "min",
                    3600.0 => "h",
                    DAY_SECONDS => "day",
                    _ => "year",
                };
                let units = ["B", "kB", "MB", "GB", "TB", "PB"];
                let whole = |at: &usize| bytes / 1000.0_f64.powi(*at as i32) >= 1.0;
                let at = (0..units.len()).rev().find(whole).unwrap_or(0);
                write!(f, "{} {}/{time}", bytes / 1000.0_f64.powi(at as i32), units[at])
            }
        }
    }
}

/// Returns the class of an object's value: its requests, for each byte that it takes.
pub(crate) fn value(requests: u8, bytes: u64) -> usize {
    let value = (f64::from(requests) + 0.5) / bytes.max(1) as f64;
    ((value.log2() - LEAST_VALUE) * CLASSES_PER_DOUBLING).clamp(0.0, (CLASSES - 1) as f64) as usize
}

/// Keeps the writes to a [`WriteBudget`]: a state machine without a clock.
///
/// Times are nanoseconds since any start, and may come late by a little. `spent` is the number of
/// bytes written so far, including those that are on their way.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Bytes earned in a second.
    rate: f64,
    /// Bytes that may be spent at once; below 0 after writes that could not be declined.
    balance: f64,
    now_ns: u64,
    spent: u64,
    /// Bytes offered in each class of value, of late.
    offered: [f64; CLASSES],
    /// Bytes admitted since the start.
    admitted: u64,
    /// Bytes written that nobody offered, of late: footers, removals, the saved index.
    other: f64,
    /// Seconds in which these were measured.
    measured: f64,
    updated_ns: u64,
    /// Bytes written and admitted at the last update.
    updated_spent: u64,
    updated_admitted: u64,
    /// Lowest class that is admitted, and the share of its hashes.
    class: usize,
    share: f64,
}

impl Budget {
    /// Creates the budget of a flash of this size. `spent` is the number of bytes written before.
    pub(crate) fn new(budget: WriteBudget, capacity_bytes: u64, now_ns: u64, spent: u64) -> Self {
        let rate = budget.rate(capacity_bytes);
        Self {
            rate,
            balance: rate * BURST_SECONDS / 2.0,
            now_ns,
            spent,
            offered: [0.0; CLASSES],
            admitted: 0,
            other: 0.0,
            measured: 0.0,
            updated_ns: now_ns,
            updated_spent: spent,
            updated_admitted: 0,
            class: 0,
            share: 1.0,
        }
    }

    /// Returns whether an object may be written.
    pub(crate) fn admits(
        &mut self,
        now_ns: u64,
        spent: u64,
        (hash, class, bytes): (u64, usize, u64),
    ) -> bool {
        self.advance(now_ns, spent);
        self.offered[class] += bytes as f64;
        let share = (floe_policy::mix(hash) >> 11) as f64 / (1u64 << 53) as f64;
        let is_valuable = class > self.class || (class == self.class && share < self.share);
        // An object larger than the balance is written if it is valuable: the balance recovers.
        let admits = is_valuable && self.balance > 0.0;
        if admits {
            self.admitted += bytes;
            self.balance -= bytes as f64; // at once, so that a burst cannot slip in
            self.spent += bytes;
        }
        admits
    }

    /// Returns whether the balance allows a write whatever its value, and spends its bytes.
    pub(crate) fn affords(&mut self, now_ns: u64, spent: u64, bytes: u64) -> bool {
        self.advance(now_ns, spent);
        let affords = self.balance > 0.0;
        if affords {
            self.admitted += bytes;
            self.balance -= bytes as f64;
            self.spent += bytes;
        }
        affords
    }

    /// Earns the bytes of the time that has passed, and spends those written.
    fn advance(&mut self, now_ns: u64, spent: u64) {
        let burst = self.rate * BURST_SECONDS;
        let earned = now_ns.saturating_sub(self.now_ns) as f64 / SECOND_NS * self.rate;
        self.now_ns = self.now_ns.max(now_ns);
        // An admitted object may be appended a little later, or never.
        let written = spent as f64 - self.spent as f64;
        self.balance = (self.balance + earned - written).min(burst);
        self.spent = spent;
        let since = self.now_ns - self.updated_ns;
        let is_due = since as f64 > MEMORY_SECONDS / UPDATES * SECOND_NS;
        let is_much = (self.admitted - self.updated_admitted) as f64 > burst / UPDATES;
        if is_due || is_much {
            self.update(since as f64 / SECOND_NS);
        }
    }

    /// Measures the rates anew and sets the lowest class that is admitted.
    fn update(&mut self, since_seconds: f64) {
        let kept = (-since_seconds / MEMORY_SECONDS).exp();
        let spent = self.spent.saturating_sub(self.updated_spent);
        let admitted = self.admitted - self.updated_admitted;
        self.other = self.other * kept + spent.saturating_sub(admitted) as f64;
        self.measured = self.measured * kept + MEMORY_SECONDS * (1.0 - kept);
        (self.updated_ns, self.updated_spent) = (self.now_ns, self.spent);
        self.updated_admitted = self.admitted;
        let aim = self.rate * BURST_SECONDS / 2.0;
        let mut left = self.rate + (self.balance - aim) / RETURN_SECONDS;
        let measured = self.measured.max(f64::MIN_POSITIVE);
        left -= self.other / measured;
        (self.class, self.share) = (0, 1.0);
        for class in (0..CLASSES).rev() {
            let rate = self.offered[class] / measured;
            if rate > left {
                (self.class, self.share) = (class, (left / rate).max(0.0));
                break;
            }
            left -= rate;
        }
        self.offered.iter_mut().for_each(|bytes| *bytes *= kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_parsed_and_printed() {
        for (text, rate) in [
            ("1 DWPD", 1000.0 / DAY_SECONDS),
            ("0.5dwpd", 500.0 / DAY_SECONDS),
            ("40 MB/s", 40e6),
            (" 1.5 GiB / min ", 1.5 * (1u64 << 30) as f64 / 60.0),
            ("50 TB/year", 50e12 / YEAR_SECONDS),
            ("2 kb/day", 2000.0 / DAY_SECONDS),
            ("7 B/h", 7.0 / 3600.0),
        ] {
            let budget: WriteBudget = text.parse().unwrap();
            assert!((budget.rate(1000) / rate - 1.0).abs() < 1e-9, "{text}");
            assert_eq!(budget.to_string().parse(), Ok(budget), "{text}: {budget}");
        }
        for text in
            ["", "40", "MB/s", "0 MB/s", "-1 DWPD", "40 MB", "40 XB/s", "4 iB/s", "1 GB/week"]
        {
            let error = text.parse::<WriteBudget>().unwrap_err().to_string();
            let start = format!("'{text}' is not a write budget: ");
            assert!(error.starts_with(&start) && !error.contains('\n'), "{error}");
        }
    }

    const SECOND: u64 = 1_000_000_000;

    /// A load of offers in virtual time.
    struct Load {
        budget: Budget,
        now_ns: u64,
        spent: u64,
        /// Bytes offered and admitted, by the number of requests.
        bytes: [(u64, u64); 4],
        offers: u64,
    }

    impl Load {
        fn new() -> Self {
            let budget = Budget::new(WriteBudget::bytes_per_second(1 << 20), 0, 0, 0);
            Self { budget, now_ns: 0, spent: 0, bytes: [(0, 0); 4], offers: 0 }
        }

        /// Offers objects of 16 KiB, `rate` of them a second. One in eight has three requests.
        fn run(&mut self, seconds: u64, rate: u64) {
            for _ in 0..seconds * rate {
                self.now_ns += SECOND / rate;
                self.offers += 1;
                let draw = floe_policy::mix(self.offers);
                let requests = [0, 0, 0, 1, 1, 1, 2, 3][(draw >> 60) as usize % 8];
                let bytes = 16 << 10;
                let item = (floe_policy::mix(draw), value(requests, bytes), bytes);
                let (offered, admitted) = &mut self.bytes[requests as usize];
                *offered += bytes;
                if self.budget.admits(self.now_ns, self.spent, item) {
                    *admitted += bytes;
                    self.spent += bytes + 100; // footers
                }
                if self.offers.is_multiple_of(500) {
                    self.spent += 64 << 10; // something that cannot be declined
                }
            }
        }

        /// Returns the bytes written over those of the budget for some hours.
        fn share(&self, hours: u64) -> f64 {
            self.spent as f64 / (hours * 3600 * (1 << 20)) as f64
        }
    }

    #[test]
    fn a_day_writes_the_budget_within_five_percent() {
        let mut load = Load::new();
        for hour in 0..24 {
            load.run(3600, if hour % 3 == 0 { 80 } else { 200 });
        }
        assert!((0.95..=1.05).contains(&load.share(24)), "{}", load.share(24));
        let admitted = load.bytes.map(|(offered, admitted)| admitted as f64 / offered as f64);
        // 1 MiB/s of 1.25 to 3.1 offered: the popular ones, a part of a class, and nothing below.
        assert!(admitted[3] > 0.99 && admitted[2] > 0.99, "{admitted:?}");
        assert!(admitted[1] > 0.25 && admitted[0] < 0.5 * admitted[1], "{admitted:?}");
    }

    #[test]
    fn idle_hours_are_saved_for_half_an_hour_only() {
        let mut load = Load::new();
        load.run(3600, 200);
        let before = load.spent;
        load.now_ns += 10 * 3600 * SECOND;
        load.run(3600, 400);
        let after = (load.spent - before) as f64 / (3600u64 << 20) as f64;
        assert!((1.0..1.55).contains(&after), "{after} hours of the budget in an hour");
        load.run(3600 * 12, 400);
        assert!(
            (0.95 * 14.0..1.05 * 14.5).contains(&(load.share(24) * 24.0)),
            "{}",
            load.share(24)
        );
    }

    #[test]
    fn a_burst_of_offers_stays_within_the_savings() {
        let mut load = Load::new();
        load.now_ns = 24 * 3600 * SECOND;
        load.run(10, 50_000); // 7.6 GiB in 10 seconds
        let savings = (BURST_SECONDS as u64 + 10) << 20;
        // Writes that cannot be declined add 64 MiB.
        assert!(load.spent < savings + (80 << 20), "{} of {savings}", load.spent);
        assert!(load.spent > savings / 2, "{} of {savings}", load.spent);
    }

    #[test]
    fn writes_below_the_budget_are_all_admitted() {
        let mut load = Load::new();
        load.run(24 * 3600, 50);
        assert!(load.bytes.iter().all(|(offered, admitted)| offered == admitted));
    }

    #[test]
    fn writes_that_cannot_be_declined_leave_less_to_the_others() {
        let mut budget = Budget::new(WriteBudget::bytes_per_second(1 << 20), 0, 0, 0);
        let (mut spent, mut admitted) = (0, 0u64);
        for second in 1..=24 * 3600u64 {
            spent += 768 << 10;
            for at in 0..64 {
                let hash = floe_policy::mix(second * 64 + at);
                let item = (hash, value(1, 16 << 10), 16 << 10);
                if budget.admits(second * SECOND, spent, item) {
                    spent += 16 << 10;
                    admitted += 16 << 10;
                }
            }
        }
        let day = 24.0 * 3600.0 * (1 << 20) as f64;
        assert!((0.95..=1.05).contains(&(spent as f64 / day)), "{}", spent as f64 / day);
        assert!((0.2..0.3).contains(&(admitted as f64 / day)), "{}", admitted as f64 / day);
    }
}
