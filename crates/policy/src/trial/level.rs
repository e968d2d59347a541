//! Detects that the load has changed: compares a smoothed level with its value at the last
//! decision.

/// The weight of a new level against the ones before.
const WEIGHT: f64 = 0.3;

/// A level that is watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    shift: f64,
    smooth: Option<f64>,
    decided: Option<f64>,
}

impl Level {
    /// One that has shifted when it is off by more than this.
    pub(crate) fn new(shift: f64) -> Self {
        Self { shift, smooth: None, decided: None }
    }

    /// Takes in a level, and says whether it has shifted. Then what it is now is what it is
    /// measured by.
    pub(crate) fn shifts(&mut self, level: Option<f64>) -> bool {
        let Some(level) = level.filter(|level| level.is_finite()) else { return false };
        let smooth = self.smooth.map_or(level, |before| before + (level - before) * WEIGHT);
        self.smooth = Some(smooth);
        let decided = *self.decided.get_or_insert(smooth);
        let has_shifted = (smooth - decided).abs() > self.shift;
        if has_shifted {
            self.decided = Some(smooth);
        }
        has_shifted
    }

    /// Something was decided at what it is now.
    pub(crate) fn decide(&mut self) {
        self.decided = self.smooth;
    }
}
