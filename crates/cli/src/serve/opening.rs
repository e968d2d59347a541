//! The time in which a server opens its devices: it may be long, and a signal ends it.
//!
//! Nothing is served yet, and the caches stand as after a crash in that time, which they stand for
//! anyway. So the program ends where it is.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::{Builder, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};

use crate::error::CliError;
use crate::{OrFail, log};

/// Ends the program when a signal comes, until this is dropped.
pub(super) struct Opening {
    done: Option<UnixStream>,
    listener: Option<JoinHandle<()>>,
}

impl Opening {
    /// `signals` becomes readable when the server is to end.
    pub(super) fn begin(signals: &OwnedFd) -> Result<Self, CliError> {
        let (done, finished) = UnixStream::pair().or_failure()?;
        let signals = signals.try_clone().or_failure()?;
        let listen = move || {
            let mut both =
                [PollFd::new(&signals, PollFlags::IN), PollFd::new(&finished, PollFlags::IN)];
            while poll(&mut both, None).is_err() {} // interrupted
            if both[1].revents().is_empty() {
                tracing::info!("ended while devices were being opened: nothing was served");
                log::end();
                std::process::exit(0);
            }
        };
        let listener = Builder::new().name("floe-opening".to_owned()).spawn(listen).or_failure()?;
        Ok(Self { done: Some(done), listener: Some(listener) })
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(listener) = self.listener.take() {
            let _ = listener.join(); // a panic of it has been printed
        }
    }
}
