//! Asks a running server, blocking: what `floe status`, `floe flush` and `floe stop` do.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use crate::status::Status;

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
    /// The server could not do it.
    #[error("the server on {address} answers: {problem}")]
    Refused {
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
    let body = ask(address, "GET", "/status")?;
    serde_json::from_str(&body).map_err(|_| AdminError::Strange { address: address.to_owned() })
}

/// Waits until everything written so far is on the backing device.
///
/// # Errors
/// When no server answers, or it could not.
pub fn flush(address: &str) -> Result<(), AdminError> {
    ask(address, "POST", "/flush").map(drop)
}

/// Tells the server to flush and end, and waits until it has flushed.
///
/// # Errors
/// When no server answers, or it leaves dirty data behind.
pub fn stop(address: &str) -> Result<(), AdminError> {
    ask(address, "POST", "/stop").map(drop)
}

fn ask(address: &str, method: &str, path: &str) -> Result<String, AdminError> {
    let unreachable = |source| AdminError::Unreachable { address: address.to_owned(), source };
    let strange = || AdminError::Strange { address: address.to_owned() };
    let mut stream = TcpStream::connect(address).map_err(unreachable)?;
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n");
    let mut answer = Vec::new();
    let talked = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_end(&mut answer));
    talked.map_err(unreachable)?;
    let answer = String::from_utf8(answer).map_err(|_| strange())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(strange)?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some(_) => Err(AdminError::Refused { address: address.to_owned(), problem: body.trim().to_owned() }),
        None => Err(strange()),
    }
}
