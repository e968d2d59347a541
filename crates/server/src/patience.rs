//! Patience with an address that is in use, perhaps by a program just killed.

use std::time::{Duration, Instant};

/// Time to wait for an address in use. The kernel releases a killed process's sockets only after it
/// has wound up its io_uring, which comes after the process's end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between the attempts.
const AGAIN: Duration = Duration::from_millis(5);

/// Repeats an attempt to take an address for a while, as long as the address is in use.
pub(crate) fn patiently<T, E>(
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
