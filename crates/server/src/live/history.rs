//! The points of the last hour, in bounded memory.

use std::collections::VecDeque;

use super::point::{Point, Sample};

/// Most points kept: an hour of intervals of 5 s.
const MOST_POINTS: usize = 720;

/// The points of the last hour, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
    last: Option<Sample>,
}

impl History {
    /// Takes a sample in. Returns the point of the interval since the one before, if there was one.
    pub(crate) fn add(&mut self, sample: Sample) -> Option<&Point> {
        let before = self.last.replace(sample);
        let point = self.last.as_ref()?.since(&before?)?;
        if self.points.len() == MOST_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        self.points.back()
    }

    /// The points, oldest first.
    pub(crate) fn points(&self) -> &VecDeque<Point> {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::live::point::{MOST_TIERS, MOST_VOLUMES};

    #[test]
    fn an_hour_stays_and_takes_less_than_a_mebibyte() {
        let mut history = History::default();
        for second in 0..(MOST_POINTS as u64 + 100) {
            let sample = Sample::crowded(Duration::from_secs(5 * second), second);
            history.add(sample);
        }
        assert_eq!(history.points().len(), MOST_POINTS);
        let bytes: usize = history.points().iter().map(Point::bytes).sum();
        assert!(bytes < 1 << 20, "{bytes} bytes with {MOST_TIERS} tiers, {MOST_VOLUMES} volumes");
    }
}
