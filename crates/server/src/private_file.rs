//! Files with secrets: other users must not be able to read them.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Reads a text of at most `most` bytes; one byte more is read of a longer one. An error is the
/// problem, without the file's name.
pub(crate) fn read(path: &Path, most: u64) -> Result<String, String> {
    let failed = |error: io::Error| error.to_string();
    // A pipe would be waited for.
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let data = file.metadata().map_err(failed)?;
    if !data.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let mode = data.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(format!("other users can use it (mode {mode:o}); chmod 600 it"));
    }
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}
