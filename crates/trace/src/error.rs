//! Errors of traces, each in one line: the input, the place, and the expected value.

use std::io;

use crate::generate::SpecError;

/// The error of opening or reading a trace. One pointer wide, because readers return it beside
/// every request.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

impl Error {
    /// Returns the kind of error, for matching.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

/// The kinds of errors of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file could not be opened.
    #[error("{path}: cannot open: {source}")]
    Open {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Reading or decompressing failed.
    #[error("{path}: cannot read past byte {offset_bytes}: {source}")]
    Read {
        /// Path of the file.
        path: String,
        /// Bytes of the decompressed stream read before the error.
        offset_bytes: u64,
        /// Error of the operating system or the decompressor.
        source: io::Error,
    },
    /// A record violates its format.
    #[error("{path}: {unit} {record} at byte {offset_bytes}: expected {expected}, found {found}")]
    Malformed {
        /// Path of the file.
        path: String,
        /// The word for this format's records: `line` or `record`.
        unit: &'static str,
        /// Number of the record, from 1.
        record: u64,
        /// Offset of the record in the decompressed stream.
        offset_bytes: u64,
        /// The expected value.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// The stream is empty, so its format cannot be recognised.
    #[error("{path}: is empty")]
    Empty {
        /// Path of the file.
        path: String,
    },
    /// The content fits no format.
    #[error(
        "{path}: not recognised as a trace{nearest}; say what it is with --format, one of {formats}"
    )]
    Unknown {
        /// Path of the file.
        path: String,
        /// Nearest formats and the records that break them, each after a semicolon.
        nearest: String,
        /// All formats, separated by commas.
        formats: String,
    },
    /// The file is known to be something other than a trace.
    #[error("{path}: {advice}")]
    NotTrace {
        /// Path of the file.
        path: String,
        /// Sentence that says what the file is, and how to make a trace of it.
        advice: &'static str,
    },
    /// The content fits several formats equally well.
    #[error("{path}: could be {candidates}; say which with --format, one of {formats}")]
    Ambiguous {
        /// Path of the file.
        path: String,
        /// Formats that fit equally well.
        candidates: String,
        /// All formats, separated by commas.
        formats: String,
    },
    /// `as_blocks` was requested for a format without lengths on a disk.
    #[error("{path}: format {format} cannot be read as block I/O")]
    NotBlocks {
        /// Path of the file.
        path: String,
        /// Format of the file.
        format: &'static str,
    },
    /// Column names were given for a format whose columns have none.
    #[error("{path}: format {format} has no columns to name; csv has")]
    NoColumns {
        /// Path of the file.
        path: String,
        /// Format that was given.
        format: &'static str,
    },
    /// A filter uses volumes or offsets, but the trace has keys.
    #[error("{path}: has no disk addresses, which a filter by volume or range needs")]
    FilterOfKeys {
        /// Path or name of the trace.
        path: String,
    },
    /// The trace has too many distinct keys for dense numbers, or too many touches for next
    /// accesses.
    #[error("{path}: has more than 4294967294 distinct keys, or too many requests to look ahead")]
    TooManyKeys {
        /// Path or name of the trace.
        path: String,
    },
    /// A trace could not be written.
    #[error("{path}: cannot write: {source}")]
    Write {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is not a trace in the compact form, or has no dense keys.
    #[error("{path}: {problem}")]
    NotCompact {
        /// Path of the file.
        path: String,
        /// Description of the problem.
        problem: &'static str,
    },
    /// A text is neither a file nor a valid generator.
    #[error("{text}: {source}")]
    Spec {
        /// Text that was given.
        text: String,
        /// Error in the text.
        source: SpecError,
    },
    /// Disk I/O was requested from a generator of keys.
    #[error("{text}: makes keys; add block=4KiB to make disk I/O of them")]
    KeysNotBlocks {
        /// Generator that was given.
        text: String,
    },
}

/// The error of a format name that is not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no trace format is called {name:?}; there are {formats}")]
pub struct UnknownFormat {
    /// Name that was given.
    pub name: String,
    /// All formats, separated by commas.
    pub formats: String,
}
