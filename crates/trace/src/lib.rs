//! Readers for public storage and cache traces, and generators of artificial ones.
//!
//! [`Trace::open`] recognises a file's format and compression from its content and then streams its
//! [`Request`]s in constant memory, millions a second. [`Trace::open_source`] also accepts
//! generators as text, such as `zipf:keys=1000000,theta=0.9`. [`Info`] sums a trace up.
//!
//! ```no_run
//! use floe_trace::{OpenOptions, Trace};
//!
//! let mut trace = Trace::open("msr_src1.csv.gz", &OpenOptions::default())?;
//! println!("{}", trace.format());
//! while let Some(request) = trace.next() {
//!     let request = request?;
//!     println!("{:?} {} bytes at {}", request.op, request.bytes, request.key);
//! }
//! # Ok::<(), floe_trace::Error>(())
//! ```
//!
//! Implementation: [`Trace`] owns a large buffer of decompressed bytes. A decoder of the trace's
//! format turns the front of the buffer into a batch of requests at a time, so that the choice of
//! format costs one indirect call per batch rather than one per request. Formats are in a registry,
//! which drives detection, error messages and [`formats_table`].

mod compact;
mod decode;
mod dense;
mod detect;
mod error;
mod fields;
mod filter;
mod format;
mod generate;
mod lru_curve;
mod oracle_general;
mod request;
mod reuse;
mod stats;
mod trace;
mod window;

pub use compact::{CompactOptions, CompactTrace, CompactWriter, Header, convert};
pub use dense::{DenseKeys, NEVER, Numbering, covered_blocks};
pub use error::{Error, ErrorKind, UnknownFormat};
pub use filter::{Filter, FilterError};
pub use format::{Columns, ColumnsError, Format, formats_table};
pub use generate::{
    GeneratorInfo, GeneratorSpec, ParameterInfo, SpecError, generators, generators_table,
};
pub use lru_curve::{LruCurve, LruPoint, hash as sample_hash};
pub use oracle_general::{OracleSummary, convert_to_oracle_general};
/// Former name of [`TraceKind`].
pub use request::TraceKind as Kind;
pub use request::{BLOCK_REQUEST_BYTES_MAX, Op, Request, TraceKind};
pub use reuse::{Reuse, ReuseStats};
pub use stats::{Info, Stats};
pub use trace::{OpenOptions, Progress, Trace};
