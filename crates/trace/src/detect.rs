//! Which format is this? Content decides; the name breaks ties.
//!
//! Every format of the registry looks at the first [`SAMPLE_BYTES`] of the decompressed stream and says how well they fit, from
//! 0 to 100. The best fit wins. When two fit equally well, the one that recognises the file's name wins, and
//! else the user is asked.

use crate::error::{Error, ErrorKind};
use crate::format::Format;

/// Decompressed bytes looked at.
pub(crate) const SAMPLE_BYTES: usize = 64 << 10;
/// Lines looked at: enough to be sure, few enough to be instant.
const SAMPLE_LINES: usize = 256;

/// What formats judge by.
pub(crate) struct Sample<'a> {
    /// The start of the decompressed stream.
    pub(crate) bytes: &'a [u8],
    /// Whether that is all of it.
    pub(crate) whole: bool,
}

impl<'a> Sample<'a> {
    /// Whether this is text: no control characters but blanks and line ends.
    pub(crate) fn is_text(&self) -> bool {
        self.bytes.iter().all(|&b| b >= b' ' && b != 0x7f || (b'\t'..=b'\r').contains(&b))
    }

    /// The whole lines of the sample that are neither blank nor comments, without blanks around them.
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

/// The format of a stream called `name` that starts with `bytes`.
pub(crate) fn detect(name: &str, bytes: &[u8], whole: bool) -> Result<Format, Error> {
    if bytes.is_empty() {
        return Err(ErrorKind::Empty { path: name.to_owned() }.into());
    }
    if let Some(format) = Format::by_magic(bytes) {
        return Ok(format);
    }
    let bytes = &bytes[..bytes.len().min(SAMPLE_BYTES)];
    let sample = Sample { bytes, whole: whole && bytes.len() < SAMPLE_BYTES };
    let file = name.rsplit(['/', '\\']).next().unwrap_or(name).to_ascii_lowercase();
    let rank = |format: Format| (format.fit(&sample), format.knows_name(&file));
    let ranked: Vec<_> = Format::all().map(|format| (rank(format), format)).collect();
    let best = ranked.iter().map(|&(rank, _)| rank).max().filter(|&(fit, _)| fit > 0);
    let Some(best) = best else {
        return Err(ErrorKind::Unknown { path: name.to_owned(), formats: Format::names() }.into());
    };
    let winners: Vec<_> = ranked.iter().filter(|&&(rank, _)| rank == best).map(|&(_, f)| f).collect();
    match winners[..] {
        [only] => Ok(only),
        _ => {
            let candidates = winners.iter().map(|f| f.name()).collect::<Vec<_>>().join(" or ");
            Err(ErrorKind::Ambiguous { path: name.to_owned(), candidates, formats: Format::names() }.into())
        }
    }
}
