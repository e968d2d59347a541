//! Warnings about clients, so many of a kind at a time: clients decide how often there is reason
//! for one, and the log is the operator's.

use std::time::{Duration, Instant};

/// Warnings of a kind that are logged in one [`INTERVAL`]; more are counted.
pub(super) const BURST: u64 = 10;

/// From the first warning of a kind until those that were only counted are told.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);

/// What a warning about a client is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Complaint {
    BrokeProtocol,
    HungUp,
    NotTrusted,
    TooSlow,
    TooMany,
    NotAccepted,
}

impl Complaint {
    const ALL: [Self; 6] = [
        Self::BrokeProtocol,
        Self::HungUp,
        Self::NotTrusted,
        Self::TooSlow,
        Self::TooMany,
        Self::NotAccepted,
    ];

    /// The text of the warning.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::BrokeProtocol => "client broke the protocol",
            Self::HungUp => "client hung up",
            Self::NotTrusted => "client cannot be trusted",
            Self::TooSlow => "client is too slow",
            Self::TooMany => "no more connections are taken until some end",
            Self::NotAccepted => "cannot accept connections",
        }
    }
}

/// What one thread has warned of lately.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    lately: [Option<Lately>; Complaint::ALL.len()],
}

#[derive(Debug, Clone, Copy)]
struct Lately {
    since: Instant,
    count: u64,
}

impl Warnings {
    /// Counts a warning; says whether it is to be logged.
    pub(super) fn count(&mut self, complaint: Complaint, now: Instant) -> bool {
        let lately = self.lately[complaint as usize].get_or_insert(Lately { since: now, count: 0 });
        lately.count += 1;
        lately.count <= BURST
    }

    /// When [`Warnings::tell`] has something to say.
    pub(super) fn due(&self) -> Option<Instant> {
        self.lately.iter().flatten().map(|lately| lately.since + INTERVAL).min()
    }

    /// Logs how many warnings of each kind were only counted, of kinds whose interval is over.
    pub(super) fn tell(&mut self, now: Instant) {
        for (complaint, more) in self.over(now) {
            tracing::warn!(more, "{}: {more} more like it", complaint.text());
        }
    }

    fn over(&mut self, now: Instant) -> Vec<(Complaint, u64)> {
        let mut found = Vec::new();
        for complaint in Complaint::ALL {
            let lately = &mut self.lately[complaint as usize];
            if let Some(Lately { count, .. }) =
                lately.take_if(|lately| lately.since + INTERVAL <= now)
                && count > BURST
            {
                found.push((complaint, count - BURST));
            }
        }
        found
    }
}

/// At the end what was counted is told, too.
impl Drop for Warnings {
    fn drop(&mut self) {
        if let Some(last) = self.lately.iter().flatten().map(|lately| lately.since + INTERVAL).max()
        {
            self.tell(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_of_a_kind_are_told_and_more_are_counted() {
        let (mut warnings, begun) = (Warnings::default(), Instant::now());
        let told = (0..BURST + 5).filter(|_| warnings.count(Complaint::TooSlow, begun)).count();
        assert_eq!(told as u64, BURST);
        assert!(warnings.count(Complaint::HungUp, begun + INTERVAL / 2), "another kind is told");
        assert_eq!(warnings.due(), Some(begun + INTERVAL));
        assert_eq!(warnings.over(begun + INTERVAL / 2), []);
        assert_eq!(warnings.over(begun + INTERVAL), [(Complaint::TooSlow, 5)]);
        assert_eq!(warnings.due(), Some(begun + INTERVAL / 2 + INTERVAL));
        assert!(warnings.count(Complaint::TooSlow, begun + INTERVAL), "and told again");
        assert_eq!(warnings.over(begun + 3 * INTERVAL), []);
        assert_eq!(warnings.due(), None);
    }
}
