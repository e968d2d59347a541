//! A cache, as the maintenance threads and manual clocks know it.

/// A cache that needs maintenance. Times are those of the system's clock, in microseconds.
pub(crate) trait Sweep: Send + Sync {
    /// Steps what decides. Says whether the cache was used since the last time. Runs no code of the
    /// user's.
    fn tick(&self) -> bool;

    /// Takes out what has expired. Says when there will be something again, as far as that is known
    /// now.
    fn sweep(&self) -> Option<u64>;
}
