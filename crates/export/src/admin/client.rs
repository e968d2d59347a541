//! Asks a running server, blocking: what `floe status`, `floe volume` and their like do.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde::Deserialize;

use super::{NewTier, NewVolume, Resize};
use crate::status::{Status, TierStatus, VolumeStatus};
use crate::uri;

/// Why a server could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Nobody answers.
    #[error("no floe server answers on {address}: {source}; is it running, and is --admin the same?")]
    Unreachable {
        /// The address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The answer is not of a floe server.
    #[error("{address} does not answer as a floe server does")]
    Strange {
        /// The address.
        address: String,
    },
    /// What was asked for makes no sense, or does not fit what is there.
    #[error("the server on {address} refuses: {problem}")]
    Refused {
        /// The address.
        address: String,
        /// What it said.
        problem: String,
    },
    /// The server could not do it.
    #[error("the server on {address} answers: {problem}")]
    Failed {
        /// The address.
        address: String,
        /// What it said.
        problem: String,
    },
}

/// The server's status.
///
/// # Errors
/// When no server answers, or not as expected.
pub fn status(address: &str) -> Result<Status, AdminError> {
    understood(address, &ask(address, "GET", "/status", "")?)
}

/// The server's metrics, in Prometheus' text format.
///
/// # Errors
/// When no server answers, or not as expected.
pub fn metrics(address: &str) -> Result<String, AdminError> {
    ask(address, "GET", "/metrics", "")
}

/// `ok`, or `degraded` when clients are served past a cache device that failed.
///
/// # Errors
/// When no server answers, or it is about to end.
pub fn health(address: &str) -> Result<String, AdminError> {
    ask(address, "GET", "/healthz", "").map(|word| word.trim().to_owned())
}

/// Waits until everything written so far is on the backing devices.
///
/// # Errors
/// When no server answers, or it could not.
pub fn flush(address: &str) -> Result<(), AdminError> {
    ask(address, "POST", "/flush", "").map(drop)
}

/// Tells the server to flush and end, and waits until it has flushed.
///
/// # Errors
/// When no server answers, or it leaves dirty data behind.
pub fn stop(address: &str) -> Result<(), AdminError> {
    ask(address, "POST", "/stop", "").map(drop)
}

/// Tells the server to use a cache device again that it has given up.
///
/// # Errors
/// When no server answers, or the device still fails.
pub fn restore(address: &str) -> Result<(), AdminError> {
    ask(address, "POST", "/cache/restore", "").map(drop)
}

/// The volumes served, the default one first.
///
/// # Errors
/// When no server answers, or not as expected.
pub fn volumes(address: &str) -> Result<Vec<VolumeStatus>, AdminError> {
    understood(address, &ask(address, "GET", "/volumes", "")?)
}

/// Adds a volume; gives it as it is served.
///
/// # Errors
/// When no server answers, or the volume cannot be added.
pub fn add_volume(address: &str, volume: &NewVolume) -> Result<VolumeStatus, AdminError> {
    let body = serde_json::to_string(volume).expect("a volume is plain data");
    ask(address, "POST", "/volumes", &body)?;
    served(address, &volume.name)
}

/// Takes a volume away; what was written to it is on its backing device then. With `force` clients that use it are hung up on.
///
/// # Errors
/// When no server answers, or the volume cannot be removed: without `force` also when a client uses it.
pub fn remove_volume(address: &str, name: &str, force: bool) -> Result<(), AdminError> {
    let query = if force { "?force" } else { "" };
    ask(address, "DELETE", &format!("{}{query}", path_of(name)), "").map(drop)
}

/// Gives a volume another size, or with an empty [`Resize`] the one its backing device has by now; tells the volume as it
/// is served.
///
/// # Errors
/// When no server answers, or the volume cannot have that size.
pub fn resize_volume(address: &str, name: &str, resize: &Resize) -> Result<VolumeStatus, AdminError> {
    let body = serde_json::to_string(resize).expect("a size is plain data");
    ask(address, "POST", &format!("{}/resize", path_of(name)), &body)?;
    served(address, name)
}

/// The tiers of the cache, from the top.
///
/// # Errors
/// When no server answers, or not as expected.
pub fn tiers(address: &str) -> Result<Vec<TierStatus>, AdminError> {
    understood(address, &ask(address, "GET", "/tiers", "")?)
}

/// Adds a tier, while clients go on; tells its number from the top, and how it is.
///
/// # Errors
/// When no server answers, or the tier cannot be added.
pub fn add_tier(address: &str, tier: &NewTier) -> Result<(usize, TierStatus), AdminError> {
    let body = serde_json::to_string(tier).expect("a tier is plain data");
    ask(address, "POST", "/tiers", &body)?;
    let mut tiers = tiers(address)?;
    let number = tier.at.unwrap_or(tiers.len().saturating_sub(1));
    match number < tiers.len() {
        true => Ok((number, tiers.swap_remove(number))),
        false => Err(AdminError::Strange { address: address.to_owned() }),
    }
}

/// Takes the tier with this number from the top out, while clients go on; what only it had is below it then.
///
/// # Errors
/// When no server answers, or the tier cannot be taken out.
pub fn remove_tier(address: &str, number: usize) -> Result<(), AdminError> {
    ask(address, "DELETE", &format!("/tiers/{number}"), "").map(drop)
}

/// A volume as it is served.
fn served(address: &str, name: &str) -> Result<VolumeStatus, AdminError> {
    let volume = volumes(address)?.into_iter().find(|volume| volume.name == name);
    volume.ok_or_else(|| AdminError::Strange { address: address.to_owned() })
}

fn path_of(name: &str) -> String {
    format!("/volumes/{}", uri::encode(name.as_bytes()).replace('/', "%2F"))
}

fn understood<T: for<'a> Deserialize<'a>>(address: &str, body: &str) -> Result<T, AdminError> {
    serde_json::from_str(body).map_err(|_| AdminError::Strange { address: address.to_owned() })
}

fn ask(address: &str, method: &str, path: &str, body: &str) -> Result<String, AdminError> {
    let unreachable = |source| AdminError::Unreachable { address: address.to_owned(), source };
    let strange = || AdminError::Strange { address: address.to_owned() };
    let mut stream = TcpStream::connect(address).map_err(unreachable)?;
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}");
    let mut answer = Vec::new();
    let talked = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_end(&mut answer));
    talked.map_err(unreachable)?;
    let answer = String::from_utf8(answer).map_err(|_| strange())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(strange)?;
    let problem = || body.trim().to_owned();
    let address = address.to_owned();
    match head.split(' ').nth(1).and_then(|code| code.bytes().next()) {
        Some(b'2') => Ok(body.to_owned()),
        Some(b'4') => Err(AdminError::Refused { address, problem: problem() }),
        Some(_) => Err(AdminError::Failed { address, problem: problem() }),
        None => Err(strange()),
    }
}
