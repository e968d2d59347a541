//! A column of numbers: `base + scale × step`, each step in 0, 1, 2, 4 or 8 bytes.
//!
//! The base is the least number, the scale the greatest common divisor of the distances from it, so
//! that times in whole microseconds and offsets in whole sectors shrink, and a column that does not
//! vary takes no room.

use crate::fields::Flaw;

/// Width (1 byte), three zeros, scale (4), base (8).
pub(super) const COLUMN_BYTES: usize = 16;

/// Appends a column.
pub(super) fn write(values: &[u64], out: &mut Vec<u8>) {
    let base = values.iter().copied().min().unwrap_or(0);
    let span = values.iter().copied().max().unwrap_or(0) - base;
    let mut divisor = 0;
    if span > 0 {
        for value in values {
            divisor = common_divisor(value - base, divisor);
            if divisor == 1 {
                break;
            }
        }
    }
    let scale = u32::try_from(divisor).unwrap_or(1).max(1);
    let width = match span / u64::from(scale) {
        0 => 0u8,
        0x1..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    };
    out.extend([width, 0, 0, 0]);
    out.extend(scale.to_le_bytes());
    out.extend(base.to_le_bytes());
    let scale = u64::from(scale);
    let step = |value: &u64| if scale == 1 { value - base } else { (value - base) / scale };
    match width {
        0 => {}
        1 => out.extend(values.iter().map(|value| step(value) as u8)),
        2 => values.iter().for_each(|value| out.extend((step(value) as u16).to_le_bytes())),
        4 => values.iter().for_each(|value| out.extend((step(value) as u32).to_le_bytes())),
        _ => values.iter().for_each(|value| out.extend(step(value).to_le_bytes())),
    }
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A column as it stands in a payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column<'a> {
    pub(super) base: u64,
    pub(super) scale: u64,
    steps: Steps<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Steps<'a> {
    None,
    One(&'a [u8]),
    Two(&'a [[u8; 2]]),
    Four(&'a [[u8; 4]]),
    Eight(&'a [[u8; 8]]),
}

impl<'a> Column<'a> {
    /// Takes a column of `count` numbers off the front of a payload.
    pub(super) fn take(payload: &mut &'a [u8], count: usize) -> Result<Self, Flaw> {
        let short =
            |payload: &[u8]| Flaw::number("a payload as long as its columns", payload.len() as u64);
        let Some((head, rest)) = payload.split_first_chunk::<COLUMN_BYTES>() else {
            return Err(short(payload));
        };
        let width = usize::from(head[0]);
        let Some((bytes, rest)) = rest.split_at_checked(width * count) else {
            return Err(short(rest));
        };
        let steps = match width {
            0 => Steps::None,
            1 => Steps::One(bytes),
            2 => Steps::Two(bytes.as_chunks().0),
            4 => Steps::Four(bytes.as_chunks().0),
            8 => Steps::Eight(bytes.as_chunks().0),
            _ => return Err(Flaw::number("a column of 0, 1, 2, 4 or 8 bytes", width as u64)),
        };
        *payload = rest;
        let scale = u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
        Ok(Self { base: word(&head[8..]), scale, steps })
    }

    /// The number at `index`; the base past the end. Wraps where a damaged base or scale would
    /// overflow.
    #[inline]
    pub(super) fn get(&self, index: usize) -> u64 {
        let step = match self.steps {
            Steps::None => return self.base,
            Steps::One(steps) => steps.get(index).map_or(0, |step| u64::from(*step)),
            Steps::Two(steps) => {
                steps.get(index).map_or(0, |step| u64::from(u16::from_le_bytes(*step)))
            }
            Steps::Four(steps) => {
                steps.get(index).map_or(0, |step| u64::from(u32::from_le_bytes(*step)))
            }
            Steps::Eight(steps) => steps.get(index).map_or(0, |step| u64::from_le_bytes(*step)),
        };
        self.base.wrapping_add(step.wrapping_mul(self.scale))
    }

    /// Appends all `count` numbers, cut to 32 bits.
    pub(super) fn extend(&self, count: usize, out: &mut Vec<u32>) {
        let (base, scale) = (self.base as u32, self.scale as u32);
        let value = |step: u32| base.wrapping_add(step.wrapping_mul(scale));
        match self.steps {
            Steps::None => out.extend(std::iter::repeat_n(base, count)),
            Steps::One(steps) => out.extend(steps.iter().map(|step| value(u32::from(*step)))),
            Steps::Two(steps) => {
                out.extend(steps.iter().map(|step| value(u32::from(u16::from_le_bytes(*step)))))
            }
            Steps::Four(steps) => {
                out.extend(steps.iter().map(|step| value(u32::from_le_bytes(*step))))
            }
            Steps::Eight(steps) => {
                out.extend(steps.iter().map(|step| value(u64::from_le_bytes(*step) as u32)))
            }
        }
    }
}

/// Eight bytes as a number.
pub(super) fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
