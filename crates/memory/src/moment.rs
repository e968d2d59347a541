//! Times as entries store them: 31 bits, and a bit that gives their unit.
//!
//! Near times count ticks of 5 ms, as caches have them; far ones count 1,024 ticks, 5.12 s. Both
//! wrap around, and half of the circle is the future: 62 days of ticks, 174 years of the larger
//! unit. A time that has come is to be forgotten before it has been the past for so long: sweeps
//! see to that.

use crate::clock::Ticks;

/// A stored time; 0 is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) u32);

/// Set where the unit is the larger one.
const FAR: u32 = 1 << 31;
/// The bits that count units.
const COUNT: u32 = FAR - 1;
/// Half of the circle.
const HALF: u32 = 1 << 30;
/// The larger unit is so many ticks, as a power of two.
const FAR_SHIFT: u32 = 10;
/// A time this much later is a near one, by a clock that may be a second late.
const NEAR: u64 = HALF as u64 - 256;
/// The longest span that can be told. Longer ones are for ever.
pub(crate) const LONGEST: Ticks = Ticks((HALF as u64 - 4) << FAR_SHIFT);

impl Moment {
    pub(crate) const NEVER: Self = Self(0);

    /// The time so much later, or up to 6 s after that if the span is longer than 62 days. Never,
    /// after more than [`LONGEST`].
    pub(crate) fn after(now: Ticks, span: Ticks) -> Self {
        if span.0 > LONGEST.0 {
            return Self::NEVER;
        }
        let at = now.0.wrapping_add(span.0);
        if span.0 <= NEAR {
            Self((at as u32 & COUNT).max(1)) // 0 is never
        } else {
            Self(at.div_ceil(1 << FAR_SHIFT) as u32 & COUNT | FAR)
        }
    }

    /// Returns whether there is such a time at all.
    #[inline(always)]
    pub(crate) fn is_set(self) -> bool {
        self.0 != 0
    }

    fn shift(self) -> u32 {
        if self.0 & FAR == 0 { 0 } else { FAR_SHIFT }
    }

    /// Units until it comes; none if it has come.
    #[inline]
    fn units(self, now: Ticks) -> u32 {
        let units = self.0.wrapping_sub((now.0 >> self.shift()) as u32) & COUNT;
        if units < HALF { units } else { 0 }
    }

    /// Returns whether it has come.
    #[inline]
    pub(crate) fn has_come(self, now: Ticks) -> bool {
        self.is_set() && self.units(now) == 0
    }

    /// Ticks until it comes, `None` if it never does.
    pub(crate) fn left(self, now: Ticks) -> Option<u64> {
        let whole = u64::from(self.units(now)) << self.shift();
        let begun = now.0 & ((1 << self.shift()) - 1);
        self.is_set().then(|| whole.saturating_sub(begun))
    }

    /// The earlier of two times.
    pub(crate) fn or_earlier(self, other: Self, now: Ticks) -> Self {
        match (self.left(now), other.left(now)) {
            (Some(left), Some(others)) if left <= others => self,
            (_, None) => self,
            _ => other,
        }
    }
}

/// A span of time as entries store it: 30 bits, and a bit that gives the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(u32);

impl Span {
    /// No span.
    pub(crate) const NONE: Self = Self(0);
    /// Set where the unit is the larger one.
    const FAR: u32 = 1 << 30;

    /// Of so many ticks, or up to one of the larger units less if that is more than 62 days.
    pub(crate) fn at_most(ticks: Ticks) -> Self {
        match u32::try_from(ticks.0) {
            Ok(near) if near < Self::FAR => Self(near),
            _ => Self((ticks.0.min(LONGEST.0) >> FAR_SHIFT) as u32 | Self::FAR),
        }
    }

    /// Of so many ticks, or up to one of the larger units more if that is more than 62 days.
    pub(crate) fn at_least(ticks: Ticks) -> Self {
        let more = if ticks.0 < Self::FAR.into() { 0 } else { (1 << FAR_SHIFT) - 1 };
        Self::at_most(Ticks(ticks.0.saturating_add(more)))
    }

    /// Stored in 31 bits.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    pub(crate) fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) fn ticks(self) -> Ticks {
        if self.0 & Self::FAR == 0 {
            Ticks(self.0.into())
        } else {
            Ticks(u64::from(self.0 & !Self::FAR) << FAR_SHIFT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600 * 200;
    /// Times at which counts of both units wrap, and others.
    const NOWS: [u64; 9] =
        [0, 1, 12_345, DAY, 1 << 30, (1 << 31) - 1, 1 << 31, 1 << 41, (1 << 41) + 999_999];

    #[test]
    fn a_time_comes_when_it_is_due_and_not_before() {
        for now in NOWS {
            for span in [1, 2, 200, DAY, 61 * DAY, NEAR, NEAR + 1, 365 * DAY, LONGEST.0] {
                let moment = Moment::after(Ticks(now), Ticks(span));
                let late = if span <= NEAR { 1 } else { 1 << FAR_SHIFT };
                assert!(!moment.has_come(Ticks(now + span - 1)), "{now} {span}");
                assert!(!moment.has_come(Ticks(now.saturating_sub(5))), "by a clock that is late");
                assert!(moment.has_come(Ticks(now + span + late)), "{now} {span}");
                let past = if span <= NEAR { 60 * DAY } else { 170 * 365 * DAY };
                assert!(moment.has_come(Ticks(now + span + past)), "{now} {span}");
                let left = moment.left(Ticks(now)).expect("it comes");
                assert!((span..=span + late).contains(&left), "{now} {span}: {left}");
            }
            let never = Moment::after(Ticks(now), Ticks(LONGEST.0 + 1));
            assert_eq!((never, never.left(Ticks(now))), (Moment::NEVER, None));
            assert!(!never.has_come(Ticks(now)) && !never.has_come(Ticks(u64::MAX)));
        }
    }

    #[test]
    fn a_span_is_what_it_was_made_of_or_a_little_less_or_more() {
        for ticks in [0, 1, 200, DAY, 62 * DAY, 63 * DAY, 365 * DAY, LONGEST.0] {
            let [less, more] = [Span::at_most(Ticks(ticks)), Span::at_least(Ticks(ticks))];
            let (Ticks(from), Ticks(to)) = (less.ticks(), more.ticks());
            assert!(from <= ticks && ticks - from < 1 << FAR_SHIFT, "{ticks}: {from}");
            assert!(to >= ticks && to - ticks < 1 << FAR_SHIFT, "{ticks}: {to}");
            assert_eq!(Span::of_bits(less.bits()), less);
            assert!(less.bits() < 1 << 31 && more.bits() < 1 << 31);
        }
        assert_eq!(Span::at_least(Ticks(u64::MAX)).ticks(), LONGEST);
    }

    #[test]
    fn the_earlier_of_two_times_is_the_one_with_less_left() {
        let now = Ticks(7 * DAY);
        let [near, far] = [DAY, 365 * DAY].map(|span| Moment::after(now, Ticks(span)));
        assert_eq!((near.or_earlier(far, now), far.or_earlier(near, now)), (near, near));
        assert_eq!((near.or_earlier(Moment::NEVER, now)), near);
        assert_eq!((Moment::NEVER.or_earlier(far, now)), far);
    }
}
