//! The log of a server: events on standard error, a line each, for people or as JSON.
//!
//! Once it has begun, only its own thread writes to standard error: no other thread, and neither a
//! panic nor the end of the program, waits for a stalled reader.

mod queue;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, poll};
use tracing_subscriber::EnvFilter;

use crate::OrFail;
use crate::error::CliError;
use queue::Queue;

/// The queue of this process, from [`begin`] on.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Longest wait at the end of the program for lines still to be written.
const END: Duration = Duration::from_secs(5);

/// The environment variable that selects the logged events.
const FILTER: &str = "FLOE_LOG";

/// All levels, from nothing to everything.
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

/// Logs to standard error from now on.
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

/// Starts the thread that writes to standard error.
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

/// Logs the program's last line and waits for the log's end, for a bounded time; `false` where no
/// log has begun.
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

/// Returns the first word of a filter that is neither a level nor a part of Floe. It would be taken
/// for the name of a part, and no other part would be logged.
fn not_a_level(filter: &str) -> Option<&str> {
    let is_meant = |word: &&str| {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
        word.is_empty() || is_level || word.contains(['=', '[']) || word.starts_with("floe")
    };
    filter.split(',').map(str::trim).find(|word| !is_meant(word))
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
