//! The start of a stream: what formats are recognised by.

/// Decompressed bytes looked at.
pub(crate) const SAMPLE_BYTES: usize = 64 << 10;

/// Lines looked at: enough to be sure, few enough to be instant.
const SAMPLE_LINES: usize = 256;

/// The start of a trace, from which formats are recognised.
pub(crate) struct Sample<'a> {
    /// The start of the decompressed stream.
    pub(crate) bytes: &'a [u8],
    /// True if that is all of it.
    pub(crate) whole: bool,
}

impl<'a> Sample<'a> {
    /// Returns whether this is text: no control characters but blanks and line ends.
    pub(crate) fn is_text(&self) -> bool {
        self.bytes.iter().all(|&b| b >= b' ' && b != 0x7f || (b'\t'..=b'\r').contains(&b))
    }

    /// The whole lines of the sample that are neither blank nor comments, without blanks around
    /// them.
    pub(crate) fn lines(&self) -> impl Iterator<Item = SampleLine<'a>> + use<'a> {
        let end = match self.bytes.iter().rposition(|&b| b == b'\n') {
            Some(last) if !self.whole => last,
            _ => self.bytes.len(),
        };
        let mut at = 0;
        self.bytes[..end]
            .split(|&b| b == b'\n')
            .zip(1..)
            .map(move |(text, number)| {
                let line = SampleLine { number, at, text: without_mark(text.trim_ascii()) };
                at += text.len() + 1;
                line
            })
            .filter(|line| !line.text.is_empty() && line.text[0] != b'#')
            .take(SAMPLE_LINES)
    }
}

/// A line of a sample.
pub(crate) struct SampleLine<'a> {
    /// Counted from 1.
    pub(crate) number: u64,
    /// Where it starts in the sample.
    pub(crate) at: usize,
    /// Its text, without blanks around it.
    pub(crate) text: &'a [u8],
}

/// A line without the byte-order mark that some programs put in front of a file.
#[inline]
pub(crate) fn without_mark(line: &[u8]) -> &[u8] {
    match line {
        [0xef, 0xbb, 0xbf, rest @ ..] => rest.trim_ascii_start(),
        _ => line,
    }
}
