//! A trace of any format into a file in the compact form.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;

use super::{CompactOptions, CompactWriter, Header};
use crate::error::{Error, ErrorKind};
use crate::trace::Trace;

/// Requests between two calls of `watch`.
const WATCH_EVERY: u64 = 1 << 16;

/// Writes a trace to `path` in the compact form. The file appears when it is whole, so that it may
/// replace the one the trace is read from. `watch` is called now and then, for a progress bar.
///
/// # Errors
/// The first error of the trace, and when the file cannot be written.
pub fn convert(
    trace: &mut Trace,
    path: &Path,
    options: CompactOptions,
    mut watch: impl FnMut(),
) -> Result<Header, Error> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let failed = |source: io::Error| ErrorKind::Write { path: path.display().to_string(), source };
    let mut write = || -> Result<Header, Error> {
        let file = BufWriter::new(File::create(partial).map_err(failed)?);
        let mut writer = CompactWriter::new(file, trace.kind(), options).map_err(failed)?;
        for (request, count) in trace.by_ref().zip(1u64..) {
            writer.push(&request?).map_err(failed)?;
            if count.is_multiple_of(WATCH_EVERY) {
                watch();
            }
        }
        let (header, file) = writer.finish().map_err(failed)?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(partial, path).map_err(failed)?;
        Ok(header)
    };
    write().inspect_err(|_| {
        // What made it fail is told; that a leftover could not be removed would only hide it.
        let _ = fs::remove_file(partial);
    })
}
