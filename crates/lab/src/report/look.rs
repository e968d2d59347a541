//! Colours, markers and dashes: how series are told apart.
//!
//! Seven hues in the order of Okabe and Ito's palette, which people of all kinds of colour vision
//! tell apart, made somewhat darker for white paper and lighter for a dark screen. From the eighth
//! series on hues come again with another marker and dashes, so colour is never all there is.

use plotters::style::RGBColor;

/// A colour on light ground and the one that stands for it on dark ground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Colour {
    /// On light ground.
    pub(super) light: u32,
    /// On dark ground.
    pub(super) dark: u32,
}

/// Text.
pub(super) const TEXT: Colour = Colour { light: 0x1F2328, dark: 0xE6EDF3 };
/// Text beside ticks.
pub(super) const FAINT: Colour = Colour { light: 0x59636E, dark: 0x9DA7B1 };
/// Lines behind the data.
pub(super) const GRID: Colour = Colour { light: 0xE3E6EA, dark: 0x2C333B };
/// The axis itself.
pub(super) const AXIS: Colour = Colour { light: 0x8C959F, dark: 0x6E7781 };
/// The ground, also inside hollow markers.
pub(super) const GROUND: Colour = Colour { light: 0xFFFFFF, dark: 0x0D1117 };
/// A bound.
const BOUND: Colour = Colour { light: 0x6B7280, dark: 0xA1A9B2 };

const HUES: [Colour; 7] = [
    Colour { light: 0x0072B2, dark: 0x58A6FF },
    Colour { light: 0xD55E00, dark: 0xFF8B3D },
    Colour { light: 0x009E73, dark: 0x2FC99B },
    Colour { light: 0xB84D8F, dark: 0xEE8FC6 },
    Colour { light: 0xB07D00, dark: 0xE9B933 },
    Colour { light: 0x3B9BD9, dark: 0xA5DCFA },
    Colour { light: 0x4B3B8F, dark: 0xB3A5F5 },
];

/// All colours that a drawing may hold.
pub(super) fn colours() -> impl Iterator<Item = Colour> {
    [TEXT, FAINT, GRID, AXIS, GROUND, BOUND].into_iter().chain(HUES)
}

impl Colour {
    pub(super) fn rgb(self) -> RGBColor {
        let [_, red, green, blue] = self.light.to_be_bytes();
        RGBColor(red, green, blue)
    }
}

/// The shape at each point of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    Disc,
    Square,
    Triangle,
    Diamond,
    Ring,
}

/// The look of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Look {
    pub(super) colour: Colour,
    pub(super) marker: Marker,
    /// Length of a dash and of the gap after it; none for a line that is whole.
    pub(super) dash: Option<(f64, f64)>,
}

impl Look {
    /// Of the stretches with this number, whose key is a square.
    pub(super) fn of_band(number: Option<usize>) -> Self {
        Self { marker: Marker::Square, ..Self::of(number) }
    }

    /// Of the series with this number; of a bound without.
    pub(super) fn of(number: Option<usize>) -> Self {
        let Some(number) = number else {
            return Self { colour: BOUND, marker: Marker::Ring, dash: Some((5.0, 4.0)) };
        };
        let (marker, dash) = match number / HUES.len() % 4 {
            0 => (Marker::Disc, None),
            1 => (Marker::Square, Some((9.0, 4.0))),
            2 => (Marker::Triangle, Some((3.0, 3.0))),
            _ => (Marker::Diamond, Some((14.0, 4.0))),
        };
        Self { colour: HUES[number % HUES.len()], marker, dash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_twenty_eight_series_look_different() {
        let looks: Vec<Look> = (0..28).map(|number| Look::of(Some(number))).collect();
        for (at, look) in looks.iter().enumerate() {
            assert!(!looks[..at].contains(look));
            assert_ne!(*look, Look::of(None));
        }
    }

    #[test]
    fn no_two_inks_share_a_light_colour() {
        let mut lights: Vec<u32> = colours().map(|colour| colour.light).collect();
        lights.sort_unstable();
        assert!(lights.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
