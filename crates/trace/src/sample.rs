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
    pub(crate) fn lines(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let end = match self.bytes.iter().rposition(|&b| b == b'\n') {
            Some(last) if !self.whole => last,
            _ => self.bytes.len(),
        };
        self.bytes[..end]
            .split(|&b| b == b'\n')
            .map(<[u8]>::trim_ascii)
            .filter(|line| !line.is_empty() && line[0] != b'#')
            .take(SAMPLE_LINES)
    }
}
