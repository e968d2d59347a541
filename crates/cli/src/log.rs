//! The log of a server: events on standard error, one per line, as text or as JSON.
//!
//! Once the log has started, only its own thread writes to standard error. No other thread waits
//! for a stalled reader, and neither does a panic or the end of the program.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, poll};
use tracing_subscriber::EnvFilter;

use crate::error::{CliError, OrFail};

/// Queue of this process's log lines, set by [`begin`].
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Maximum wait for unwritten lines at the end of the program.
const END: Duration = Duration::from_secs(5);

/// Environment variable that selects the logged events.
const FILTER: &str = "FLOE_LOG";

/// All log levels, from the fewest events to the most.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The format of logged events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people, with colours on a terminal
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Starts logging to standard error.
pub(crate) fn begin(format: Format) -> Result<(), CliError> {
    let refuse = |problem: String| CliError::usage(format!("{FILTER}: {problem}"));
    let filter = match std::env::var(FILTER) {
        Ok(text) => {
            if let Some(word) = not_a_level(&text) {
                return Err(refuse(format!(
                    "`{word}` is not a level; levels are {}, and of a part of floe such as \
                     floe_server=debug",
                    LEVELS.join(", ")
                )));
            }
            EnvFilter::try_new(&text).map_err(|error| refuse(format!("`{text}`: {error}")))?
        }
        Err(std::env::VarError::NotPresent) => EnvFilter::new("info"),
        Err(error) => return Err(refuse(error.to_string())),
    };
    let queue = QUEUE.get_or_init(Queue::default);
    write_out(queue)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || queue.clone());
    // A closed terminal takes no more lines, and is no reason to panic.
    let log = log.log_internal_errors(false);
    match format {
        Format::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let line = format!("thread '{}' {panic}", thread.name().unwrap_or("?"));
        queue.push(format!("{}\n", line.replace('\n', " ")).as_bytes());
    }));
    Ok(())
}

/// Starts the thread that writes queued lines to standard error.
fn write_out(queue: &'static Queue) -> Result<(), CliError> {
    // A separate descriptor avoids the lock that `std::io::stderr` holds while a write waits.
    let mut stderr =
        StandardError(std::io::stderr().as_fd().try_clone_to_owned().or_failure()?.into());
    let tell =
        |lines| tracing::warn!(lines, "lines of the log were dropped: its reader was too slow");
    let thread = std::thread::Builder::new().name("floe-log".into());
    let started = thread.spawn(move || queue.write_out(&mut stderr, tell));
    started.map(drop).map_err(|error| CliError::failure(format!("cannot start a thread: {error}")))
}

/// Logs the program's last line and waits, for a bounded time, until all lines are written. Returns
/// false if the log was never started.
pub(crate) fn end_with(line: &str) -> bool {
    let Some(queue) = QUEUE.get() else { return false };
    queue.push_last(format!("{line}\n").as_bytes());
    end();
    true
}

/// Waits for logged lines to be written, for a bounded time.
pub(crate) fn end() {
    if let Some(queue) = QUEUE.get() {
        queue.drain(END);
    }
}

/// Returns the number of lines dropped so far because the reader was too slow.
pub(crate) fn dropped_lines() -> u64 {
    QUEUE.get().map_or(0, Queue::dropped)
}

/// Standard error, which another program at the same terminal or pipe may have made non-blocking.
struct StandardError(File);

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None)?;
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the first word of a filter that is neither a level nor a component of Floe. The logging
/// library would treat it as a component, and log nothing else.
fn not_a_level(filter: &str) -> Option<&str> {
    let is_meant = |word: &&str| {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
        word.is_empty() || is_level || word.contains(['=', '[']) || word.starts_with("floe")
    };
    filter.split(',').map(str::trim).find(|word| !is_meant(word))
}

/// Maximum bytes of queued lines: some thousand lines.
const MOST_BYTES: usize = 1 << 20;

thread_local! {
    /// This thread is the writer. Its notice of dropped lines is queued even if the queue is full.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// A handle to the queue of log lines. Clones share the queue.
#[derive(Debug, Clone, Default)]
struct Queue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when lines were added, or when all were written.
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Queued lines, concatenated.
    waiting: Vec<u8>,
    /// The writer has taken lines and is writing them.
    writing: bool,
    /// Number of dropped lines that the log has not reported yet.
    untold: u64,
}

impl Queue {
    /// Appends a line. Drops it if the queue is full.
    fn push(&self, line: &[u8]) {
        let most = if WRITES.get() { 2 * MOST_BYTES } else { MOST_BYTES };
        let mut state = self.lock();
        if state.waiting.len() + line.len() > most {
            state.untold += 1;
            self.0.dropped.fetch_add(1, Ordering::Relaxed); // a count; nothing is ordered by it
            return;
        }
        state.waiting.extend_from_slice(line);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Appends the last line, even if the queue is full.
    fn push_last(&self, line: &[u8]) {
        self.lock().waiting.extend_from_slice(line);
        self.0.changed.notify_all();
    }

    /// Returns the number of lines dropped so far: for lack of room, or after a failed write.
    fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed) // a count; nothing is ordered by it
    }

    /// Waits for at most `within` until all lines are written. Returns whether they are.
    fn drain(&self, within: Duration) -> bool {
        let end = Instant::now() + within;
        let mut state = self.lock();
        while state.writing || !state.waiting.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Writes lines as they arrive, forever. Where lines were dropped, `tell` logs their number.
    fn write_out(&self, to: &mut impl Write, tell: impl Fn(u64)) -> ! {
        WRITES.set(true);
        let mut lines = Vec::new();
        loop {
            self.write_some(&mut lines, to, &tell);
        }
    }

    /// Waits for lines, then writes all that are queued.
    fn write_some(&self, lines: &mut Vec<u8>, to: &mut impl Write, tell: &impl Fn(u64)) {
        let mut state = self.lock();
        while state.waiting.is_empty() && state.untold == 0 {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = true;
        std::mem::swap(lines, &mut state.waiting);
        let untold = std::mem::take(&mut state.untold);
        drop(state);
        if untold > 0 {
            tell(untold); // to the queue, behind what has just left it
        }
        if to.write_all(lines).is_err() {
            // The reader is gone, or the disk is full. Lost lines are counted, but the notice has
            // no reader.
            let lost = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
            self.0.dropped.fetch_add(lost, Ordering::Relaxed); // a count; nothing is ordered by it
        }
        lines.clear();
        self.lock().writing = false;
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner) // whole at any time
    }
}

/// Queues one line for each `write`, because the formatter writes each event by one call.
impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints an error, and returns its exit code.
pub(crate) fn report(error: &CliError) -> ExitCode {
    let line = format!("floe: {}", error.line().replace('\n', " "));
    if !end_with(&line) {
        eprintln!("{line}");
    }
    ExitCode::from(error.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_neither_a_level_nor_a_part_is_found() {
        for good in [
            "info",
            "WARN",
            "floe_server=debug,warn",
            "floe_block",
            "",
            "off",
            "floe_server=debug, warn",
        ] {
            assert_eq!(not_a_level(good), None, "{good}");
        }
        assert_eq!(not_a_level("warning"), Some("warning"));
        assert_eq!(not_a_level("floe_server=debug,loud"), Some("loud"));
    }
}

#[cfg(test)]
mod queue_tests {
    use super::*;

    fn written(queue: &Queue, tell: impl Fn(u64)) -> String {
        let mut text = Vec::new();
        queue.write_some(&mut Vec::new(), &mut text, &tell);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn lines_leave_in_order_and_the_count_of_dropped_ones_stands_where_they_are_missing() {
        let queue = Queue::default();
        queue.push(b"first\n");
        queue.push(&[b'x'; MOST_BYTES - 6]);
        queue.push(b"lost\n");
        queue.push(b"lost\n");
        assert_eq!(queue.dropped(), 2);
        let tell = |count| queue.push(format!("{count} are missing\n").as_bytes());
        let text = written(&queue, tell);
        assert!(text.starts_with("first\nxxx") && text.len() == MOST_BYTES);
        queue.push(b"later\n");
        assert_eq!(written(&queue, tell), "2 are missing\nlater\n");
        assert!(queue.drain(Duration::ZERO));
        assert_eq!(queue.dropped(), 2);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let queue = Queue::default();
        queue.push(b"one\ntwo\n");
        queue.write_some(&mut Vec::new(), &mut Gone, &|_| {});
        assert_eq!(queue.dropped(), 2);
        assert!(queue.drain(Duration::ZERO), "nothing is waited for that cannot come");
    }

    #[test]
    fn an_end_does_not_wait_for_a_reader_that_takes_nothing() {
        let queue = Queue::default();
        queue.push(b"nobody reads this\n");
        assert!(!queue.drain(Duration::from_millis(1)));
        queue.push_last(&[b'x'; 2 * MOST_BYTES]);
        assert_eq!(queue.dropped(), 0, "the last line is not dropped");
    }
}
