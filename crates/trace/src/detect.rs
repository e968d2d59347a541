//! Detects the format of a trace. Content decides; the name breaks ties.
//!
//! Every format of the registry looks at the first [`SAMPLE_BYTES`] of the decompressed stream and
//! says how well they fit, from 0 to 100. The best fit wins. When two fit equally well, the one
//! that recognises the file's name wins, and else the user is asked.

use crate::error::{Error, ErrorKind};
use crate::format::Format;
use crate::sample::{SAMPLE_BYTES, Sample};

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
    let winners: Vec<_> =
        ranked.iter().filter(|&&(rank, _)| rank == best).map(|&(_, f)| f).collect();
    match winners[..] {
        [only] => Ok(only),
        _ => {
            let candidates = winners.iter().map(|f| f.name()).collect::<Vec<_>>().join(" or ");
            Err(ErrorKind::Ambiguous {
                path: name.to_owned(),
                candidates,
                formats: Format::names(),
            }
            .into())
        }
    }
}
