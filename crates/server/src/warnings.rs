//! Rate-limits warnings about clients, by kind: clients can cause any number of them, and must not
//! flood the operator's log.

use std::time::{Duration, Instant};

/// Number of warnings of a kind that are logged in one [`INTERVAL`]; later ones are only counted.
pub(crate) const BURST: u64 = 10;

/// Time from the first warning of a kind until the unlogged ones are reported.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);

/// A kind of warning about clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complaint {
    BrokeProtocol,
    HungUp,
    NotTrusted,
    NoPlace,
    TooSlow,
    TooMany,
    NotAccepted,
}

impl Complaint {
    const ALL: [Self; 7] = [
        Self::BrokeProtocol,
        Self::HungUp,
        Self::NotTrusted,
        Self::NoPlace,
        Self::TooSlow,
        Self::TooMany,
        Self::NotAccepted,
    ];

    /// Returns the text of the warning.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::BrokeProtocol => "client broke the protocol",
            Self::HungUp => "client hung up",
            Self::NotTrusted => "client cannot be trusted",
            Self::NoPlace => "client refused because of a limit of connections",
            Self::TooSlow => "client is too slow",
            Self::TooMany => "no more connections are taken until some end",
            Self::NotAccepted => "cannot accept connections",
        }
    }
}

/// The recent warnings of one thread, by kind.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    lately: [Option<Lately>; Complaint::ALL.len()],
}

#[derive(Debug, Clone, Copy)]
struct Lately {
    since: Instant,
    count: u64,
}

impl Warnings {
    /// Counts a warning. Returns whether it is to be logged.
    pub(crate) fn count(&mut self, complaint: Complaint, now: Instant) -> bool {
        let lately = self.lately[complaint as usize].get_or_insert(Lately { since: now, count: 0 });
        lately.count += 1;
        lately.count <= BURST
    }

    /// Returns the time at which [`Warnings::tell`] has something to report.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.lately.iter().flatten().map(|lately| lately.since + INTERVAL).min()
    }

    /// Logs the number of unlogged warnings of each kind whose interval is over.
    pub(crate) fn tell(&mut self, now: Instant) {
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

/// Reports the remaining unlogged warnings when the thread ends.
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
