//! Patience with a file or an address that is in use, perhaps by a program just killed.

use std::time::{Duration, Instant};

/// The longest wait. The kernel releases a killed process's files and sockets only when it has
/// closed its io_uring, which comes after the process has ended: a restart right after a kill must
/// not be refused for that.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time between two attempts meanwhile.
const AGAIN: Duration = Duration::from_millis(5);

/// Repeats an attempt to take a file or an address while it is in use, for up to two seconds.
///
/// # Errors
/// The last attempt's.
pub fn patiently<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_in_use(&error) && begun.elapsed() < PATIENCE => {
                std::thread::sleep(AGAIN)
            }
            result => return result,
        }
    }
}
