//! Errors of traces, each in one line: the input, the place, and the expected value.

use std::io;

use crate::generate::SpecError;

/// Why a trace could not be opened or read. One pointer wide, because readers return it beside
/// every request.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

impl Error {
    /// Returns the kind of error, to match on.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

/// The ways in which a trace can fail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file could not be opened.
    #[error("{path}: cannot open: {source}")]
    Open {
        /// The file.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Reading or decompressing failed.
    #[error("{path}: cannot read past byte {offset_bytes}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The bytes of the decompressed stream read until then.
        offset_bytes: u64,
        /// The error of the system or the decompressor.
        source: io::Error,
    },
    /// A record is not what its format promises.
    #[error("{path}: {unit} {record} at byte {offset_bytes}: expected {expected}, found {found}")]
    Malformed {
        /// The file.
        path: String,
        /// The word for this format's records: `line` or `record`.
        unit: &'static str,
        /// Its number, counted from 1.
        record: u64,
        /// Where it starts in the decompressed stream.
        offset_bytes: u64,
        /// The expected value.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// There is nothing to tell the format from.
    #[error("{path}: is empty")]
    Empty {
        /// The file.
        path: String,
    },
    /// The content fits no format.
    #[error(
        "{path}: not recognised as a trace{nearest}; say what it is with --format, one of {formats}"
    )]
    Unknown {
        /// The file.
        path: String,
        /// The nearest formats and the records that break them, each behind a semicolon.
        nearest: String,
        /// All formats, separated by commas.
        formats: String,
    },
    /// The file is known to be something else.
    #[error("{path}: {advice}")]
    NotTrace {
        /// The file.
        path: String,
        /// A sentence that says the file's nature, and how it becomes a trace.
        advice: &'static str,
    },
    /// The content fits several formats equally well.
    #[error("{path}: could be {candidates}; say which with --format, one of {formats}")]
    Ambiguous {
        /// The file.
        path: String,
        /// The formats it could be.
        candidates: String,
        /// All formats, separated by commas.
        formats: String,
    },
    /// `as_blocks` was asked of a format that has no lengths on a disk.
    #[error("{path}: format {format} cannot be read as block I/O")]
    NotBlocks {
        /// The file.
        path: String,
        /// Its format.
        format: &'static str,
    },
    /// Columns were named for a format in which they have no names.
    #[error("{path}: format {format} has no columns to name; csv has")]
    NoColumns {
        /// The file.
        path: String,
        /// The format that was given.
        format: &'static str,
    },
    /// A filter looks at volumes or places, and the trace has keys.
    #[error("{path}: has no disk addresses, which a filter by volume or range needs")]
    FilterOfKeys {
        /// The trace.
        path: String,
    },
    /// More keys than can be made dense.
    #[error(
        "{path}: has more than 4294967294 distinct keys, or as many touches to look ahead over"
    )]
    TooManyKeys {
        /// The trace.
        path: String,
    },
    /// A trace could not be written.
    #[error("{path}: cannot write: {source}")]
    Write {
        /// The file.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A file is no trace in the compact form, or holds no dense keys.
    #[error("{path}: {problem}")]
    NotCompact {
        /// The file.
        path: String,
        /// Why not.
        problem: &'static str,
    },
    /// A text that is neither a file nor a generator.
    #[error("{text}: {source}")]
    Spec {
        /// The text.
        text: String,
        /// The error in it.
        source: SpecError,
    },
    /// Disk I/O was asked of a generator of keys.
    #[error("{text}: makes keys; add block=4KiB to make disk I/O of them")]
    KeysNotBlocks {
        /// The generator.
        text: String,
    },
}

/// No format has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no trace format is called {name:?}; there are {formats}")]
pub struct UnknownFormat {
    /// The name that was asked for.
    pub name: String,
    /// All formats, separated by commas.
    pub formats: String,
}
