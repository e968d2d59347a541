//! Chooses the number of lookups before the next reading of the clock.
//!
//! A look costs as much as several hits, so there cannot be one after each; and what a parked
//! client waits longer than its disk takes is what the measurement gets wrong. So the time until
//! the next client is due is divided by what a lookup was seen to take: a thread looks once about
//! when it should, and again a few lookups later while it was too early.

/// Fewest lookups between two looks: what the clock costs is shared by so many.
const FEWEST: u32 = 4;

/// Most lookups between two looks, so that a thread is heard of now and then.
const MOST: u32 = 1024;

/// A lookup is taken for this long before any was timed.
const FIRST_GUESS_NS: f64 = 50.0;

/// The share of the estimate that each observation replaces.
const WEIGHT: f64 = 1.0 / 16.0;

/// An observation counts for at most this many times the estimate: a thread that was stopped for a
/// while has not become slow.
const SURPRISE: f64 = 4.0;

/// Chooses when to look.
#[derive(Debug, Clone)]
pub struct Looks {
    lookup_ns: f64,
}

impl Default for Looks {
    fn default() -> Self {
        Self { lookup_ns: FIRST_GUESS_NS }
    }
}

impl Looks {
    /// Returns the number of lookups before the next look at the clock, when a client is due at a
    /// moment.
    pub fn lookups(&self, now_ns: u64, due_ns: Option<u64>) -> u32 {
        due_ns.map_or(MOST, |due| {
            ((due.saturating_sub(now_ns)) as f64 / self.lookup_ns)
                .clamp(f64::from(FEWEST), f64::from(MOST)) as u32
        })
    }

    /// So many lookups took so long.
    pub fn observe(&mut self, lookups: u32, took_ns: u64) {
        if lookups > 0 {
            let each = (took_ns as f64 / f64::from(lookups)).min(SURPRISE * self.lookup_ns);
            self.lookup_ns = (self.lookup_ns + WEIGHT * (each - self.lookup_ns)).max(1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The looks it takes until something due is seen, and how late that is, when lookups take so
    /// long.
    fn until_seen(looks: &mut Looks, due_ns: u64, lookup_ns: u64) -> (u32, u64) {
        let (mut now, mut count) = (0, 0);
        while now < due_ns {
            let lookups = looks.lookups(now, Some(due_ns));
            let took = u64::from(lookups) * lookup_ns;
            looks.observe(lookups, took);
            now += took;
            count += 1;
        }
        (count, now - due_ns)
    }

    #[test]
    fn what_is_due_is_seen_within_a_few_lookups_and_a_few_looks() {
        for lookup_ns in [5, 20, 50, 300] {
            let mut looks = Looks::default();
            for round in 0..200 {
                let (count, late) = until_seen(&mut looks, 5_000, lookup_ns);
                if round > 100 {
                    assert!(
                        late <= u64::from(FEWEST) * lookup_ns,
                        "{lookup_ns} ns: {late} ns late"
                    );
                    assert!(
                        count <= 3 + 5_000 / (lookup_ns as u32 * MOST),
                        "{lookup_ns} ns: {count} looks"
                    );
                }
            }
        }
    }

    #[test]
    fn a_thread_that_was_stopped_is_not_taken_for_slow() {
        let mut looks = Looks::default();
        (0..100).for_each(|_| looks.observe(100, 2_000));
        looks.observe(4, 50_000_000);
        (0..20).for_each(|_| looks.observe(100, 2_000));
        let lookups = looks.lookups(0, Some(5_000));
        assert!((200..=250).contains(&lookups), "{lookups}");
    }

    #[test]
    fn a_thread_is_heard_of_even_when_nobody_waits() {
        assert_eq!(Looks::default().lookups(0, None), MOST);
        assert_eq!(Looks::default().lookups(0, Some(u64::MAX)), MOST);
        assert_eq!(Looks::default().lookups(10, Some(5)), FEWEST);
    }
}
