//! Measurements of a tier from before its use, the defaults of admissions that were given none.

use super::registry::Choice;

/// The least cost of a write that is assumed.
const LEAST_COST: f64 = 1e-4;

/// The slowdown of a tier's reads by writes, and the settings of admissions that follow from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibrated {
    /// Bytes of reads lost for each byte written, those included that writes make slower: more than
    /// [`Times::write_cost`](super::Times::write_cost) can see, so it takes its place.
    pub write_cost: f64,
    /// The target of OBP, in blocks.
    pub target: f64,
    /// The target of OBP with `bytes=1`.
    pub target_bytes: f64,
}

impl Calibrated {
    /// An admission with what was measured in the place of what it was not told: OBP's target, and
    /// in bytes the cost of a write.
    pub fn tune(&self, choice: Choice) -> Choice {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        match (choice.name(), choice.parameters()) {
            ("obp", parameters) if parameters.count("bytes") == 1 => {
                // A cost of 0 would be one to be measured; what costs nothing may be written.
                let (cost, target) = match rounded(self.write_cost) {
                    0.0 => (LEAST_COST, 1.0),
                    cost => (cost, rounded(self.target_bytes)),
                };
                choice.unless_given("target", target).unless_given("write-cost", cost)
            }
            ("obp", _) => choice.unless_given("target", rounded(self.target)),
            _ => choice,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Admissions;

    const CALIBRATED: Calibrated =
        Calibrated { write_cost: 4.123_456, target: 0.123_456, target_bytes: 0.25 };

    #[test]
    fn what_was_not_told_is_tuned_and_nothing_else() {
        for (given, tuned) in [
            ("obp", "obp:target=0.1235"),
            ("obp:target=0.1", "obp:target=0.1"),
            ("obp:half-life=1000", "obp:half-life=1000:target=0.1235"),
            ("obp:bytes=1", "obp:bytes=1:target=0.25:write-cost=4.1235"),
            ("obp:bytes=1:write-cost=2", "obp:bytes=1:write-cost=2:target=0.25"),
            ("fussy", "fussy"),
            ("small-bypass + obp", "small-bypass + obp:target=0.1235"),
        ] {
            let admissions: Admissions = given.parse().expect("admissions");
            let found = admissions.calibrated(&CALIBRATED);
            assert_eq!(found.to_string(), tuned);
            // The printed text gives the same admissions.
            let printed: Admissions = tuned.parse().expect("admissions");
            assert_eq!(format!("{found:?}"), format!("{printed:?}"));
        }
    }

    #[test]
    fn writes_that_cost_nothing_are_not_kept_to_a_target() {
        let free = Calibrated { write_cost: 0.0, target: 1.0, target_bytes: 0.0 };
        let tuned = free.tune("obp:bytes=1".parse().expect("an admission"));
        assert_eq!(tuned.to_string(), "obp:bytes=1:target=1:write-cost=0.0001");
    }

    #[test]
    fn what_obp_cannot_be_told_is_brought_to_the_end_of_its_range() {
        let dear = Calibrated { write_cost: 5000.0, ..CALIBRATED };
        let tuned = dear.tune("obp:bytes=1".parse().expect("an admission"));
        assert_eq!(tuned.parameters().get("write-cost"), 1000.0);
    }
}
