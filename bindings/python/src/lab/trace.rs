//! Traces, which are opened by name and read on demand.

use std::sync::{Arc, Mutex, PoisonError};

use floe_lab::simulate::BLOCK_BYTES;
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_trace::{Columns, Filter, Kind, Op, OpenOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::invalid;

/// Number of requests between two checks for signals.
const LOOK_FOR_SIGNALS_EVERY: usize = 1 << 20;

/// A trace: a file, or a generator such as "zipf:keys=1000,requests=100000".
#[pyclass(frozen, module = "floe_cache.lab")]
#[derive(Debug)]
pub(crate) struct Trace {
    name: String,
    options: OpenOptions,
    /// The `columns` argument as given, for a copy in another process.
    columns: Option<String>,
    filter: Option<String>,
    kind: Kind,
    format: String,
    /// The stream that was read last, with its options.
    read: Mutex<Option<(Keep, Arc<Stream>)>>,
}

/// Returns the name of a kind of keys, as in `floe trace formats --json`.
fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Block => "block",
        Kind::Object => "object",
        Kind::Key => "key",
    }
}

#[pymethods]
impl Trace {
    #[new]
    #[pyo3(signature = (
        source, *, format=None, columns=None, skip_bad=false, as_blocks=false, filter=None
    ))]
    fn new(
        source: String,
        format: Option<&str>,
        columns: Option<String>,
        skip_bad: bool,
        as_blocks: bool,
        filter: Option<String>,
    ) -> PyResult<Self> {
        let format = format.map(|name| name.parse().map_err(invalid)).transpose()?;
        let of_table: Option<Columns> =
            columns.as_ref().map(|text| text.parse().map_err(invalid)).transpose()?;
        let kept: Option<Filter> =
            filter.as_ref().map(|text| text.parse().map_err(invalid)).transpose()?;
        let options = OpenOptions { format, skip_bad, as_blocks, columns: of_table, filter: kept };
        let opened = floe_trace::Trace::open_source(&source, &options).map_err(invalid)?;
        let (kind, format) = (opened.kind(), opened.format().to_string());
        let read = Mutex::new(None);
        Ok(Self { name: source, options, columns, filter, kind, format, read })
    }

    /// Returns the name by which the trace was opened.
    #[getter]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name of the trace's format.
    #[getter]
    fn format(&self) -> &str {
        &self.format
    }

    /// The meaning of keys: "block", "object" or "key".
    #[getter]
    fn kind(&self) -> &'static str {
        name_of(self.kind)
    }

    /// Reads all requests, or the first `limit`, as columns of bytes in native byte order: time in
    /// nanoseconds, key, bytes, volume (4 bytes each), and the operation (a byte each: 0 reads, 1
    /// writes, 2 deletes).
    #[pyo3(signature = (limit=None))]
    fn _columns<'py>(&self, py: Python<'py>, limit: Option<usize>) -> PyResult<Bound<'py, PyDict>> {
        let mut columns: [Vec<u8>; 5] = Default::default();
        let limit = limit.unwrap_or(usize::MAX);
        let mut trace =
            floe_trace::Trace::open_source(&self.name, &self.options).map_err(invalid)?.take(limit);
        loop {
            let ended = py.detach(|| -> Result<bool, floe_trace::Error> {
                let [times, keys, bytes, volumes, operations] = &mut columns;
                for _ in 0..LOOK_FOR_SIGNALS_EVERY {
                    let Some(request) = trace.next().transpose()? else { return Ok(true) };
                    times.extend(request.time_ns.to_ne_bytes());
                    keys.extend(request.key.to_ne_bytes());
                    bytes.extend(request.bytes.to_ne_bytes());
                    volumes.extend(request.volume.to_ne_bytes());
                    operations.push(match request.op {
                        Op::Read => 0,
                        Op::Write => 1,
                        Op::Delete => 2,
                    });
                }
                Ok(false)
            });
            if ended.map_err(invalid)? {
                break;
            }
            py.check_signals()?;
        }
        let dict = PyDict::new(py);
        for (name, column) in ["time_ns", "key", "bytes", "volume", "op"].into_iter().zip(&columns)
        {
            dict.set_item(name, PyBytes::new(py, column))?;
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!("Trace('{}', format='{}', kind='{}')", self.name, self.format, self.kind())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get();
        let format = own.options.format.as_ref().map(ToString::to_string);
        let (skip_bad, as_blocks) = (own.options.skip_bad, own.options.as_blocks);
        let arguments = (&own.name, format, &own.columns, skip_bad, as_blocks, &own.filter);
        let make = slf.py().import("floe_cache.lab")?.getattr("_trace")?;
        Ok((make, arguments).into_pyobject(slf.py())?.into_any())
    }
}

impl Trace {
    pub(crate) fn kind_of_keys(&self) -> Kind {
        self.kind
    }

    pub(crate) fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Reads the trace, unless the last reading had the same options.
    ///
    /// # Errors
    /// When the trace cannot be read, or no request is left of it.
    pub(crate) fn stream(&self, keep: Keep) -> Result<Arc<Stream>, String> {
        let alike = |other: &Keep| {
            (other.rate, other.sizes, other.next_use) == (keep.rate, keep.sizes, keep.next_use)
        };
        let last = || self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, stream)) = last().as_ref().filter(|(other, _)| alike(other)) {
            return Ok(Arc::clone(stream));
        }
        let in_trace = |error: &dyn std::fmt::Display| format!("{}: {error}", self.name);
        let trace = floe_trace::Trace::open_source(&self.name, &self.options)
            .map_err(|error| error.to_string())?;
        let mut builder = Builder::new(self.kind, keep, BLOCK_BYTES);
        for request in trace {
            let request = request.map_err(|error| error.to_string())?;
            builder.add(&request).map_err(|error| in_trace(&error))?;
        }
        let stream = Arc::new(builder.finish().map_err(|error| in_trace(&error))?);
        *last() = Some((keep, Arc::clone(&stream)));
        Ok(stream)
    }

    /// Releases the stream that was read last.
    pub(crate) fn forget(&self) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
