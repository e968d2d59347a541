//! Detects the format of a trace by its content. The file's name breaks ties, and decides where
//! content cannot.
//!
//! Every format of the registry rates the first [`SAMPLE_BYTES`] of the decompressed stream from 0
//! to 100, and the best fit wins. When two fit equally well, the one that recognises the file's
//! name wins; otherwise the user is asked. Binary content that fits no format may be integers,
//! which only a name shows. A refusal names the nearest formats, and for each the first record that
//! breaks it.

use crate::decode::{SAMPLE_BYTES, Sample};
use crate::error::{Error, ErrorKind};
use crate::format::{Fit, Format};

/// Maximum number of formats that a refusal names.
const NEAREST: usize = 3;

/// Returns the format of a stream called `name` that starts with `bytes`. `whole` is true if the
/// stream ends there.
pub(crate) fn detect(name: &str, bytes: &[u8], whole: bool) -> Result<Format, Error> {
    if bytes.is_empty() || bytes == b"\xef\xbb\xbf" {
        return Err(ErrorKind::Empty { path: name.to_owned() }.into());
    }
    if let Some(format) = Format::by_magic(bytes) {
        return Ok(format);
    }
    refuse(name, bytes)?;
    let bytes = &bytes[..bytes.len().min(SAMPLE_BYTES)];
    let sample = Sample { bytes, whole: whole && bytes.len() < SAMPLE_BYTES };
    let file = name.rsplit(['/', '\\']).next().unwrap_or(name).to_ascii_lowercase();
    let ranked: Vec<(Fit, bool, Format)> = Format::all()
        .map(|format| (format.fit(&sample), format.knows_name(&file), format))
        .collect();
    let rank = |(fit, is_named, _): &(Fit, bool, Format)| (fit.score, *is_named);
    let best = ranked.iter().map(rank).max().filter(|&(score, _)| score > 0);
    let winners: Vec<Format> = match best {
        Some(best) => ranked.iter().filter(|it| rank(it) == best).map(|it| it.2).collect(),
        None if sample.is_text() => Vec::new(),
        None => {
            ranked.iter().filter(|(_, named, it)| *named && it.is_binary()).map(|it| it.2).collect()
        }
    };
    let (path, formats) = (name.to_owned(), Format::names());
    match winners[..] {
        [only] => Ok(only),
        [] => Err(ErrorKind::Unknown { path, nearest: nearest(ranked, &sample), formats }.into()),
        _ => {
            let candidates = winners.iter().map(|f| f.name()).collect::<Vec<_>>().join(" or ");
            Err(ErrorKind::Ambiguous { path, candidates, formats }.into())
        }
    }
}

/// Describes the nearest formats, and for each the record that breaks it.
fn nearest(mut ranked: Vec<(Fit, bool, Format)>, sample: &Sample<'_>) -> String {
    let far = |fit: &Fit| fit.broken.as_ref().map_or(0, |broken| broken.flaw.column);
    ranked.retain(|(fit, ..)| fit.good > 0 || far(fit) > 1);
    ranked.sort_by_key(|(fit, ..)| std::cmp::Reverse((fit.good, far(fit))));
    let broken = |(fit, _, format): &(Fit, bool, Format)| {
        fit.broken.as_ref().map(|broken| format!("not {format} because of {broken}"))
    };
    let mut reasons: Vec<String> = ranked.iter().filter_map(broken).take(NEAREST).collect();
    if !sample.is_text() {
        reasons.push("be32, be64, le32 and le64 fit any bytes".to_owned());
    } else if sample.lines().any(|line| line.text.contains(&b',')) {
        reasons.push("--columns time=1,key=2,size=3 names columns by number".to_owned());
    }
    reasons.iter().map(|reason| format!("; {reason}")).collect()
}

/// Signatures of files that are not traces: offset, bytes, and advice for the user.
const OTHERS: [(usize, &[u8], &str); 17] = [
    (257, b"ustar", TAR),
    (0, b"\x07\x74\x61\x65", BLKTRACE),
    (0, b"\x65\x61\x74\x07", BLKTRACE),
    (0, b"\xff\xfe", UTF_16),
    (0, b"\xfe\xff", UTF_16),
    (0, b"PK\x03\x04", "is a zip archive; unzip it and name the trace in it"),
    (0, b"7z\xbc\xaf\x27\x1c", "is a 7z archive; unpack it and name the trace in it"),
    (0, b"Rar!\x1a\x07", "is a rar archive; unpack it and name the trace in it"),
    (0, b"\x04\x22\x4d\x18", "is compressed with lz4; unpack it with lz4 -d"),
    (0, b"\x1f\x9d", "is compressed with compress; unpack it with gzip -d"),
    (0, b"\xff\x06\x00\x00sNaPpY", "is compressed with snappy; unpack it"),
    (0, b"PAR1", "is a Parquet file; export it as CSV with a header"),
    (0, b"ARROW1", "is an Arrow file; export it as CSV with a header"),
    (0, b"SQLite format 3\0", "is an SQLite database; export its table as CSV with a header"),
    (0, b"\x89HDF\r\n\x1a\n", "is an HDF5 file; export its table as CSV with a header"),
    (0, b"PERFILE2", "is a recording of perf; perf script turns it into text"),
    (0, b"\x7fELF", "is a program"),
];
const TAR: &str = "is an archive (tar); unpack it with tar -x and name the trace in it";
const BLKTRACE: &str =
    "is a binary recording of blktrace; blkparse -i FILE -o TEXT turns it into text, which is read";
const UTF_16: &str = "is text in UTF-16; convert it with iconv -f UTF-16 -t UTF-8";

/// Refuses files that are known not to be traces.
pub(crate) fn refuse(name: &str, bytes: &[u8]) -> Result<(), Error> {
    let is = |&&(at, magic, _): &&(usize, &[u8], &str)| {
        bytes.get(at..).is_some_and(|rest| rest.starts_with(magic))
    };
    let advice = OTHERS.iter().find(is).map(|other| other.2);
    match advice.or_else(|| is_old_tar(bytes).then_some(TAR)) {
        Some(advice) => Err(ErrorKind::NotTrace { path: name.to_owned(), advice }.into()),
        None => Ok(()),
    }
}

/// Returns whether the bytes start with the header of a tar archive, by its checksum: the sum of
/// all header bytes in octal, with the checksum field counted as blanks.
fn is_old_tar(bytes: &[u8]) -> bool {
    const SUM: std::ops::Range<usize> = 148..156;
    let Some(header) = bytes.first_chunk::<512>() else { return false };
    let of_others =
        |(at, &byte): (usize, &u8)| u64::from(if SUM.contains(&at) { b' ' } else { byte });
    let sum: u64 = header.iter().enumerate().map(of_others).sum();
    let digits = header[SUM].iter().filter(|b| b.is_ascii_digit());
    let told = digits.fold(0, |value, &b| value * 8 + u64::from(b - b'0'));
    header[0] != 0 && told == sum
}
