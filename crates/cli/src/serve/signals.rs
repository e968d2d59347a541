//! Signals of a server: SIGTERM and SIGINT end it in good order; SIGHUP has it read its secrets
//! again.
//!
//! A server that was begun on a terminal ends in good order when that is closed, which sends
//! SIGHUP, too.

use std::io::{IsTerminal, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::Builder;

use floe_server::NvmeAccess;
use floe_server::admin::Token;
use floe_server::tls::TlsConfig;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::{pipe, raise};

use crate::OrFail;
use crate::error::CliError;

/// Files that SIGHUP has the server read again.
#[derive(Debug, Clone)]
pub(crate) struct Reloadable {
    pub(super) tls: Option<TlsConfig>,
    pub(super) token: Option<Token>,
    /// The secrets of NVMe hosts.
    pub(super) nvme: Option<NvmeAccess>,
}

/// Catches the signals from now on. The first of the results becomes readable when the server is to
/// end, the other when it is to reload.
pub(super) fn catch() -> Result<(OwnedFd, UnixStream), CliError> {
    let (end, ended) = UnixStream::pair().or_failure()?;
    let (reload, reloading) = UnixStream::pair().or_failure()?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, end.try_clone().or_failure()?).or_failure()?;
    }
    let hang_up = if std::io::stderr().is_terminal() { end } else { reload };
    pipe::register(SIGHUP, hang_up).or_failure()?;
    // A file that would grow beyond the process's limit is an error then, as on a full file system,
    // instead of the end.
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).or_failure()?;
    Ok((ended.into(), reloading))
}

/// Has the server of this program end, as if it were told to.
pub(super) fn end_in_good_order() -> std::io::Result<()> {
    raise(SIGTERM)
}

impl Reloadable {
    /// Reads again what can be, on a thread of its own, whenever something comes through the pipe.
    pub(super) fn whenever(self, mut reloading: UnixStream) -> Result<(), CliError> {
        let wait = move || {
            let mut signals = [0; 64]; // several that came at once are one
            while reloading.read(&mut signals).is_ok_and(|bytes| bytes > 0) {
                self.reload();
            }
        };
        Builder::new().name("floe-reload".to_owned()).spawn(wait).map(drop).or_failure()
    }

    fn reload(&self) {
        let tls = self.tls.as_ref().map(|tls| tls.reload().map_err(|error| error.to_string()));
        let token =
            self.token.as_ref().map(|token| token.reload().map_err(|error| error.to_string()));
        let nvme =
            self.nvme.as_ref().map(|access| access.reload().map_err(|error| error.to_string()));
        if tls.is_none() && token.is_none() && nvme.is_none() {
            tracing::info!(
                "SIGHUP: there is nothing to read again: no certificates, token or secrets"
            );
        }
        let files = [("TLS certificates", tls), ("admin token", token), ("NVMe secrets", nvme)];
        for (what, read) in files {
            match read {
                None => {}
                Some(Ok(())) => tracing::info!("SIGHUP: {what} read again"),
                Some(Err(error)) => {
                    tracing::error!(
                        %error,
                        "SIGHUP: {what} could not be read again and stay as they were"
                    )
                }
            }
        }
    }
}
