//! Parses numbers and words of a line without copying.
//!
//! A [`Fields`] walks the columns of one line from left to right. An error is a [`Flaw`]: the
//! column, the expected value and the value found. Every number is checked for overflow.

use crate::request::BLOCK_REQUEST_BYTES_MAX;

/// The error in a bad record. The reader adds the file and the position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flaw {
    /// The expected value.
    pub(crate) expected: &'static str,
    /// Column of the error, from 1; 0 in formats without columns.
    pub(crate) column: u32,
    /// Value that was found.
    pub(crate) found: Found,
}

/// A value found in place of the expected one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Text from the trace, cut to a length that can be shown.
    Text(Vec<u8>),
    /// A number from a binary record.
    Number(u64),
    /// The end of the input after this many bytes.
    Bytes(usize),
}

impl Flaw {
    /// Creates the flaw of a text column.
    #[cold]
    pub(crate) fn text(expected: &'static str, column: u32, found: &[u8]) -> Self {
        Self { expected, column, found: Found::Text(found[..found.len().min(40)].to_vec()) }
    }

    /// Creates the flaw of a number in a binary record.
    #[cold]
    pub(crate) fn number(expected: &'static str, found: u64) -> Self {
        Self { expected, column: 0, found: Found::Number(found) }
    }

    /// Returns a description of the expected value and its column.
    pub(crate) fn expected(&self) -> String {
        match self.column {
            0 => self.expected.to_owned(),
            column => format!("{} in column {column}", self.expected),
        }
    }

    /// Returns the value that was found, in printable form.
    pub(crate) fn found(&self) -> String {
        match &self.found {
            Found::Text(text) if text.is_empty() => "nothing".to_owned(),
            Found::Text(text) => format!("\"{}\"", text.escape_ascii()),
            Found::Number(number) => format!("{number:#x}"),
            Found::Bytes(bytes) => format!("{bytes} bytes"),
        }
    }
}

/// The columns of a line, from left to right.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    separator: u8,
    column: u32,
}

impl<'a> Fields<'a> {
    /// Splits a line at single commas.
    pub(crate) fn commas(line: &'a [u8]) -> Self {
        Self { rest: line, separator: b',', column: 0 }
    }

    /// Splits a line at runs of blanks and tabs.
    pub(crate) fn blanks(line: &'a [u8]) -> Self {
        Self { rest: line, separator: b' ', column: 0 }
    }

    /// Returns the next column's text; empty after the last column.
    pub(crate) fn text(&mut self) -> &'a [u8] {
        self.column += 1;
        if self.separator == b' ' {
            self.rest = self.rest.trim_ascii_start();
            let end =
                self.rest.iter().position(|&b| b == b' ' || b == b'\t').unwrap_or(self.rest.len());
            let (field, rest) = self.rest.split_at(end);
            self.rest = rest;
            field
        } else {
            let end = self.rest.iter().position(|&b| b == b',').unwrap_or(self.rest.len());
            let field = &self.rest[..end];
            self.rest = self.rest.get(end + 1..).unwrap_or_default();
            field.trim_ascii()
        }
    }

    /// Parses the next column as an unsigned integer.
    pub(crate) fn number(&mut self, expected: &'static str) -> Result<u64, Flaw> {
        let text = self.text();
        integer(text).ok_or_else(|| self.flaw(expected, text))
    }

    /// Parses the next column as an unsigned 32-bit integer.
    pub(crate) fn number_u32(&mut self, expected: &'static str) -> Result<u32, Flaw> {
        let text = self.text();
        integer(text).and_then(|n| n.try_into().ok()).ok_or_else(|| self.flaw(expected, text))
    }

    /// Parses the next column as a decimal number, and multiplies it by 10 to the power `scale`;
    /// further digits are dropped.
    pub(crate) fn decimal(&mut self, scale: u32, expected: &'static str) -> Result<u64, Flaw> {
        let text = self.text();
        decimal(text, scale).ok_or_else(|| self.flaw(expected, text))
    }

    /// Parses the next column as a disk offset in units of `unit_bytes`; returns it in bytes.
    pub(crate) fn offset(&mut self, unit_bytes: u64, expected: &'static str) -> Result<u64, Flaw> {
        let text = self.text();
        integer(text)
            .and_then(|units| offset_bytes(units, unit_bytes))
            .ok_or_else(|| self.flaw(expected, text))
    }

    /// Parses the next column as the length of a block request in units of `unit_bytes`; returns it
    /// in bytes.
    pub(crate) fn length(&mut self, unit_bytes: u64, expected: &'static str) -> Result<u64, Flaw> {
        let text = self.text();
        integer(text)
            .filter(|&units| units <= BLOCK_REQUEST_BYTES_MAX / unit_bytes)
            .map(|units| units * unit_bytes)
            .ok_or_else(|| self.flaw(expected, text))
    }

    /// Returns an error if the line has further columns.
    pub(crate) fn end(&mut self) -> Result<(), Flaw> {
        let rest = self.rest.trim_ascii();
        if rest.is_empty() {
            Ok(())
        } else {
            Err(Flaw::text("the end of the line", self.column + 1, rest))
        }
    }

    /// Creates a flaw of the column parsed last.
    #[cold]
    pub(crate) fn flaw(&self, expected: &'static str, found: &[u8]) -> Flaw {
        Flaw::text(expected, self.column, found)
    }
}

/// Returns a disk offset in bytes; `None` if the longest request there would exceed the limits in
/// [`crate::request`].
pub(crate) fn offset_bytes(units: u64, unit_bytes: u64) -> Option<u64> {
    const OFFSET_BYTES_MAX: u64 = i64::MAX as u64 - BLOCK_REQUEST_BYTES_MAX;
    units.checked_mul(unit_bytes).filter(|&bytes| bytes <= OFFSET_BYTES_MAX)
}

/// Parses an unsigned decimal integer without any other characters.
pub(crate) fn integer(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value = 0u64;
    if text.len() <= 19 {
        // 19 digits cannot overflow 64 bits.
        for &byte in text {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            value = value * 10 + u64::from(digit);
        }
        return Some(value);
    }
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Parses an unsigned hexadecimal integer of at most `digits_max` digits, 16 or fewer.
pub(crate) fn hexadecimal(text: &[u8], digits_max: usize) -> Option<u64> {
    if text.is_empty() || text.len() > digits_max {
        return None;
    }
    let digit = |b: u8| (b as char).to_digit(16).map(u64::from);
    text.iter().try_fold(0, |value, &b| Some(value << 4 | digit(b)?))
}

/// Parses a decimal number and returns it times 10^`scale`, rounded down: `"1.25"` at scale 3 is
/// 1250.
pub(crate) fn decimal(text: &[u8], scale: u32) -> Option<u64> {
    let point = text.iter().position(|&b| b == b'.').unwrap_or(text.len());
    let (whole, fraction) = text.split_at(point);
    let fraction = fraction.get(1..).unwrap_or_default();
    let mut value = if whole.is_empty() && !fraction.is_empty() { 0 } else { integer(whole)? };
    value = value.checked_mul(10u64.checked_pow(scale)?)?;
    let mut weight = 10u64.pow(scale);
    for &byte in fraction {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        weight /= 10;
        value = value.checked_add(u64::from(digit) * weight)?;
    }
    Some(value)
}

/// Returns the key for a text: its value if it is a number, otherwise a 64-bit hash of its bytes
/// that never changes between versions.
pub(crate) fn key_of(text: &[u8]) -> u64 {
    let numeric = text == b"0" || text.first().is_some_and(|&first| first != b'0');
    match integer(text) {
        Some(number) if numeric => number,
        _ => hash(text),
    }
}

/// Hashes eight bytes at a time by multiplying and folding the 128-bit product, as wyhash does.
pub(crate) fn hash(text: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    const SEED: u64 = 0xa076_1d64_78bd_642f;
    let fold = |value: u64| {
        let product = u128::from(value) * u128::from(MULTIPLIER);
        (product as u64) ^ ((product >> 64) as u64)
    };
    let mut state = SEED ^ text.len() as u64;
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word)).wrapping_add(SEED);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(fold(state ^ u64::from_le_bytes(last)) ^ SEED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_checked_for_overflow_and_strays() {
        assert_eq!(integer(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(integer(b"18446744073709551616"), None);
        assert_eq!(integer(b"00000000000000000000000007"), Some(7));
        for bad in [&b""[..], b"-1", b"1 ", b"0x10", b"1.0"] {
            assert_eq!(integer(bad), None);
        }
    }

    #[test]
    fn decimals_keep_every_digit_up_to_the_scale() {
        assert_eq!(decimal(b"1455591804.310701000", 9), Some(1_455_591_804_310_701_000));
        assert_eq!(decimal(b"5265.313", 6), Some(5_265_313_000));
        assert_eq!(decimal(b"7", 3), Some(7000));
        assert_eq!(decimal(b".5", 3), Some(500));
        assert_eq!(decimal(b"5.", 3), Some(5000));
        assert_eq!(decimal(b"1.23456", 3), Some(1234));
        for bad in [&b""[..], b".", b"1.2.3", b"1e9", b"99999999999999999999"] {
            assert_eq!(decimal(bad, 9), None);
        }
    }

    #[test]
    fn a_numeric_key_is_its_number_and_a_textual_one_a_fixed_hash() {
        assert_eq!(key_of(b"42"), 42);
        assert_eq!(key_of(b"0"), 0);
        assert_ne!(key_of(b"042"), 42);
        assert_ne!(key_of(b"a"), key_of(b"a\0"));
        assert_eq!(key_of(b"82131353f9ddc8c6"), 8_157_107_895_310_623_028);
    }

    #[test]
    fn columns_are_walked_in_order_and_flaws_name_theirs() {
        let mut fields = Fields::commas(b"1, x ,,4");
        assert_eq!(fields.number("one"), Ok(1));
        assert_eq!(fields.text(), b"x");
        let flaw = fields.number("three").unwrap_err();
        assert_eq!((flaw.expected(), flaw.found()), ("three in column 3".into(), "nothing".into()));
        assert!(fields.end().is_err());
        let mut fields = Fields::blanks(b"  1\t 2  ");
        assert_eq!((fields.number("a"), fields.number("b"), fields.end()), (Ok(1), Ok(2), Ok(())));
    }
}
