//! A server on a thread of its own, beside one that stands by.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::CliError;

/// The time after which a server that failed is begun again.
const AGAIN: Duration = Duration::from_secs(2);

/// Serves until the descriptor is readable.
type Serve = dyn Fn(OwnedFd) -> Result<(), CliError> + Send + Sync;

/// The server; it ends when this is dropped.
pub(crate) struct Beside {
    what: &'static str,
    serve: Arc<Serve>,
    running: Option<(UnixStream, JoinHandle<()>)>,
    begun: Option<Instant>,
}

impl Beside {
    /// Names it for the log, and begins nothing yet.
    pub(crate) fn new(
        what: &'static str,
        serve: impl Fn(OwnedFd) -> Result<(), CliError> + Send + Sync + 'static,
    ) -> Self {
        Self { what, serve: Arc::new(serve), running: None, begun: None }
    }

    /// Begins it unless it is there. One that failed is logged, and begun anew later.
    pub(crate) fn keep(&mut self) {
        let is_running = self.running.as_ref().is_some_and(|(_, thread)| !thread.is_finished());
        if is_running || self.begun.is_some_and(|begun| begun.elapsed() < AGAIN) {
            return;
        }
        self.begun = Some(Instant::now());
        let (what, serve) = (self.what, Arc::clone(&self.serve));
        let begin = || {
            let (end, signal) = UnixStream::pair()?;
            let run = move || {
                if let Err(error) = serve(signal.into()) {
                    tracing::error!(what, error = error.line(), "it failed; trying again");
                }
            };
            Ok::<_, std::io::Error>((end, Builder::new().name("floe-beside".into()).spawn(run)?))
        };
        match begin() {
            Ok(running) => self.running = Some(running),
            Err(error) => tracing::error!(what, %error, "it cannot be begun; trying again"),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let Some((end, thread)) = self.running.take() else { return };
        drop(end);
        let _ = thread.join(); // a panic of it has been printed
    }
}
