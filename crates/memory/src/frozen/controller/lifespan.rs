//! The lifetime of a frozen index: from what its construction costs and what its age does.

use std::time::Duration;

use crate::frozen::options::{Freezing, Lifetime};

/// Of the lifetime, its renewal may take one part in so many.
const DETOURS_PER_LIFETIME: u32 = 8;

/// The bounds of a lifetime, and the time that a renewal takes.
#[derive(Debug, Clone)]
pub(super) struct Lifespan {
    options: Freezing,
    /// When everything thawed for a refresh, and how long the next index took to come last time.
    detour_since: Duration,
    detour: Duration,
}

impl Lifespan {
    pub(super) fn new(options: Freezing) -> Self {
        Self { options, detour_since: Duration::ZERO, detour: Duration::ZERO }
    }

    /// Everything thaws for a refresh.
    pub(super) fn leave(&mut self, now: Duration) {
        self.detour_since = now;
    }

    /// The cache is ready for the next index.
    pub(super) fn come_back(&mut self, now: Duration) {
        self.detour = now.saturating_sub(self.detour_since);
    }

    /// The time from the begin of a refresh to the next index.
    pub(super) fn detour(&self) -> Duration {
        self.detour
    }

    /// The first lifetime of a ratio, whose index took so long to construct.
    pub(super) fn first(&self, construction: Duration) -> Duration {
        let constructions = |factor: f64| {
            let lifetime = Duration::try_from_secs_f64(construction.as_secs_f64() * factor);
            lifetime.unwrap_or(Duration::MAX)
        };
        let Freezing { lifetime_min, lifetime_max, .. } = self.options;
        match self.options.lifetime {
            Lifetime::Fixed(lifetime) => lifetime,
            Lifetime::Factor(factor) => constructions(factor).clamp(lifetime_min, lifetime_max),
            Lifetime::Drift => self.bounded(constructions(Freezing::FACTOR)),
        }
    }

    /// Keeps a lifetime within its bounds.
    pub(super) fn bounded(&self, lifetime: Duration) -> Duration {
        let (min, max) = (self.options.lifetime_min, self.options.lifetime_max);
        lifetime.clamp(min.max(self.detour * DETOURS_PER_LIFETIME).min(max), max)
    }

    /// The shortest lifetime.
    pub(super) fn least(&self) -> Duration {
        self.bounded(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_renewal_makes_lifetimes_longer_up_to_the_longest() {
        let options = Freezing::adaptive();
        let mut lifespan = Lifespan::new(options);
        assert_eq!(lifespan.least(), options.lifetime_min);
        lifespan.leave(Duration::from_secs(10));
        lifespan.come_back(Duration::from_secs(11));
        assert_eq!(lifespan.detour(), Duration::from_secs(1));
        assert_eq!(lifespan.least(), Duration::from_secs(8));
        assert_eq!(lifespan.first(Duration::from_millis(1)), Duration::from_secs(8));
        assert_eq!(lifespan.first(Duration::MAX), options.lifetime_max);
        lifespan.come_back(Duration::from_secs(1_000_000));
        assert_eq!(lifespan.least(), options.lifetime_max);
    }
}
