//! The endurance that a replay asks of its cache device.

use serde::Serialize;

const SECONDS_PER_DAY: f64 = 86_400.0;
const DAYS_PER_YEAR: f64 = 365.25;

/// Writes to the first tier's device, at the pace of the trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Endurance {
    /// The clock that tells the pace: `trace` for the times recorded in the trace, `replay` where
    /// it has none.
    pub clock: &'static str,
    /// Bytes written in a day.
    pub bytes_per_day: f64,
    /// Times the device is written whole in a day, as data sheets give endurance.
    pub drive_writes_per_day: f64,
    /// Terabytes (10¹²) written in a year.
    pub terabytes_per_year: f64,
}

impl Endurance {
    /// Of so many bytes written to a device of this size while a trace was replayed; `None` where
    /// no time passed.
    pub(super) fn of(
        written_bytes: u64,
        device_bytes: u64,
        recorded: &Recorded,
        replayed_seconds: f64,
    ) -> Option<Self> {
        let (clock, seconds) = match recorded.seconds() {
            Some(seconds) => ("trace", seconds),
            None => ("replay", replayed_seconds),
        };
        let bytes_per_day = written_bytes as f64 / seconds * SECONDS_PER_DAY;
        (seconds > 0.0).then(|| Self {
            clock,
            bytes_per_day,
            drive_writes_per_day: bytes_per_day / device_bytes.max(1) as f64,
            terabytes_per_year: bytes_per_day * DAYS_PER_YEAR / 1e12,
        })
    }
}

/// The first and the last of the recorded times of the requests that count.
#[derive(Debug, Default)]
pub(super) struct Recorded(Option<(u64, u64)>);

impl Recorded {
    pub(super) fn note(&mut self, time_ns: u64) {
        let (first, last) = self.0.unwrap_or((time_ns, time_ns));
        self.0 = Some((first.min(time_ns), last.max(time_ns)));
    }

    /// `None` in a trace without times.
    fn seconds(&self) -> Option<f64> {
        let span_ns = self.0.map_or(0, |(first, last)| last - first);
        (span_ns > 0).then_some(span_ns as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_written_twice_in_half_a_day_takes_four_drive_writes_a_day() {
        let mut recorded = Recorded::default();
        let written = |recorded: &Recorded| Endurance::of(2 << 30, 1 << 30, recorded, 3600.0);
        assert_eq!(written(&recorded).unwrap().drive_writes_per_day, 48.0, "no times");
        assert_eq!(Endurance::of(1, 1, &recorded, 0.0), None);
        [43_200, 0, 10_000]
            .into_iter()
            .for_each(|second| recorded.note((second + 7) * 1_000_000_000));
        let endurance = written(&recorded).unwrap();
        assert_eq!((endurance.clock, endurance.drive_writes_per_day), ("trace", 4.0));
        assert_eq!(endurance.bytes_per_day, (4u64 << 30) as f64);
        assert!((endurance.terabytes_per_year - 1.5687).abs() < 1e-3, "{endurance:?}");
    }
}
