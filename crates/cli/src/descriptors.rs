//! File descriptors: each client takes one, and the server keeps a reserve, so that operators
//! always get through to the admin interface.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::CliError;

/// Kept for what is there once: standard streams, listeners, admin connections, volumes added
/// later.
const KEPT: usize = 128;

/// Kept for each thread, beside its handles of the devices: its ring and what wakes it.
const KEPT_A_THREAD: usize = 4;

/// Raises the limit of descriptors for this many clients, as far as the system allows. Returns the
/// number of clients there is room for.
///
/// # Errors
/// When there is no room for a single client.
pub(crate) fn make_room(clients: usize, threads: usize, devices: usize) -> Result<usize, CliError> {
    let kept = KEPT + threads * (KEPT_A_THREAD + devices);
    let limit = getrlimit(Resource::Nofile);
    let wanted = (kept + clients) as u64;
    let most = limit.maximum.unwrap_or(u64::MAX).min(wanted);
    if limit.current.is_some_and(|current| current < most) {
        // Where this is not allowed, there is less room.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    }
    let open = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    match usize::try_from(open).unwrap_or(usize::MAX).saturating_sub(kept).min(clients) {
        0 => Err(CliError::usage(format!(
            "{open} open files are too few: {kept} are kept and each client takes one; raise the \
             limit with ulimit -n"
        ))),
        room => Ok(room),
    }
}
