//! Writing of files that appear only when they are complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::error::{Error, ErrorKind};

/// Number of requests between two reports of a conversion's progress.
pub(crate) const WATCH_EVERY: u64 = 1 << 16;

/// Writes a file beside `path`, and gives it that name when it is complete and durable. So it may
/// replace a file that is read meanwhile. After an error nothing is left.
///
/// # Errors
/// The error of `write`, and when the file cannot be made, synced or renamed.
pub(crate) fn write_whole<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let failed = |source: io::Error| ErrorKind::Write { path: path.display().to_string(), source };
    let whole = || -> Result<T, Error> {
        let mut file = BufWriter::new(File::create(partial).map_err(failed)?);
        let written = write(&mut file)?;
        file.flush().map_err(failed)?;
        file.get_ref().sync_all().map_err(failed)?;
        fs::rename(partial, path).map_err(failed)?;
        Ok(written)
    };
    whole().inspect_err(|_| {
        // What made it fail is told; that a leftover could not be removed would only hide it.
        let _ = fs::remove_file(partial);
    })
}
