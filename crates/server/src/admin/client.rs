//! A blocking client of the admin interface, for `floe status`, `floe volume` and similar commands.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use floe_nbd::uri;
use serde::Deserialize;

use super::{AdminAddress, AnaState, NewTier, NewVolume, REPLACING, Resize, SetAccess, Token};
use crate::pair::StandbyStatus;
use crate::status::{Status, TierStatus, VolumeStatus};

/// The time that a new program may take to serve, and between looks.
const BEGINNING: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A server to ask.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The address of its admin interface.
    pub address: AdminAddress,
    /// The token that lets this client change something over TCP.
    pub token: Option<Token>,
}

impl From<AdminAddress> for Endpoint {
    fn from(address: AdminAddress) -> Self {
        Self { address, token: None }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// An error while asking a server.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// No server answers.
    #[error(
        "no floe server answers on {address}: {source}; is it running, and is --admin the same?"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// The system's answer.
        source: io::Error,
    },
    /// This user may not open the socket.
    #[error(
        "{address} is not for this user: {source}; ask as the server's user, as root or as one of \
         its admin-group"
    )]
    Denied {
        /// The address.
        address: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The answer is not that of a Floe server.
    #[error("{address} does not answer as a floe server does")]
    Strange {
        /// The address.
        address: String,
    },
    /// The request is invalid, or does not fit the volumes and tiers there are.
    #[error("the server on {address} refuses: {problem}")]
    Refused {
        /// The address.
        address: String,
        /// The server's answer.
        problem: String,
    },
    /// The server failed to carry out the request.
    #[error("the server on {address} answers: {problem}")]
    Failed {
        /// The address.
        address: String,
        /// The server's answer.
        problem: String,
    },
}

/// Returns the server's status.
///
/// # Errors
/// When no server answers, or not as expected.
pub fn status(server: &Endpoint) -> Result<Status, AdminError> {
    understood(server, &ask(server, "GET", "/status", "")?)
}

/// The status of a server, whether it serves or stands by.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyStatus {
    /// It serves.
    Serving(Box<Status>),
    /// It stands by.
    Standby(StandbyStatus),
}

/// Returns the status of a server that serves or stands by.
///
/// # Errors
/// When no server answers, or not as expected.
pub fn any_status(server: &Endpoint) -> Result<AnyStatus, AdminError> {
    let answer = ask(server, "GET", "/status", "")?;
    match understood(server, &answer) {
        Ok(status) => Ok(AnyStatus::Serving(Box::new(status))),
        Err(error) => {
            understood(server, &answer).map(AnyStatus::Standby).map_err(|_: AdminError| error)
        }
    }
}

/// Tells a server of a pair to end, so that the other takes over, and waits until it has flushed.
///
/// # Errors
/// When no server answers, or it is none of a pair.
pub fn hand_over(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/handover", "").map(drop)
}

/// Tells a standby to take over, though the active server may be well.
///
/// # Errors
/// When no server answers, or it does not stand by.
pub fn take_over(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/takeover", "").map(drop)
}

/// Returns the server's metrics, in Prometheus' text format.
///
/// # Errors
/// When no server answers, or not as expected.
pub fn metrics(server: &Endpoint) -> Result<String, AdminError> {
    ask(server, "GET", "/metrics", "")
}

/// Returns `ok`, or `degraded` while a failed cache device is bypassed or a mirror lacks a half.
///
/// # Errors
/// When no server answers, or it is about to end.
pub fn health(server: &Endpoint) -> Result<String, AdminError> {
    ask(server, "GET", "/healthz", "").map(|word| word.trim().to_owned())
}

/// Waits until everything written so far is on the backing devices.
///
/// # Errors
/// When no server answers, or it could not.
pub fn flush(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/flush", "").map(drop)
}

/// Tells the server to flush and end, and waits until it has flushed.
///
/// # Errors
/// When no server answers, or it leaves dirty data behind.
pub fn stop(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/stop", "").map(drop)
}

/// Tells the server to replace its program by that of its file, and waits until the new one
/// serves.
///
/// # Errors
/// When no server answers, the new program refuses the server's settings, does not begin or ends
/// before it serves, or the last flush of the old one leaves dirty data behind.
pub fn upgrade(server: &Endpoint) -> Result<(), AdminError> {
    let mut stream = Stream::connect(server).map_err(|error| unreachable(server, error))?;
    let request = request(server, "POST", "/upgrade", "");
    let answer = send(&mut stream, &request).and_then(|()| answer_of(&mut stream));
    let word = understand(server, answer.map_err(|error| unreachable(server, error))?)?;
    let is_kept = word.trim() == REPLACING;
    let until = Instant::now() + BEGINNING;
    stream.limit(LOOK_AGAIN).map_err(|error| unreachable(server, error))?;
    let mut reason = Vec::new();
    loop {
        // The new program says why it ends, and hangs up when it ends or serves.
        let has_hung_up = match is_kept {
            true => stream.read_more(&mut reason),
            false => {
                sleep(LOOK_AGAIN);
                false
            }
        };
        // Connections to the old program's socket end with it.
        match health(server) {
            Ok(_) => return Ok(()),
            Err(_) if has_hung_up => {
                let reason = String::from_utf8_lossy(&reason);
                let problem = match reason.trim() {
                    "" => "the new program has ended; its log says why".to_owned(),
                    reason => format!("the new program has ended: {reason}"),
                };
                return Err(AdminError::Failed { address: server.to_string(), problem });
            }
            Err(error) if until <= Instant::now() => return Err(error),
            Err(_) => {}
        }
    }
}

/// Tells the server to use a failed cache device again.
///
/// # Errors
/// When no server answers, or the device still fails.
pub fn restore(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/cache/restore", "").map(drop)
}

/// Returns the volumes served, the default one first.
///
/// # Errors
/// When no server answers, or not as expected.
pub fn volumes(server: &Endpoint) -> Result<Vec<VolumeStatus>, AdminError> {
    understood(server, &ask(server, "GET", "/volumes", "")?)
}

/// Adds a volume. Returns it as it is served.
///
/// # Errors
/// When no server answers, or the volume cannot be added.
pub fn add_volume(server: &Endpoint, volume: &NewVolume) -> Result<VolumeStatus, AdminError> {
    let body = serde_json::to_string(volume).expect("a volume is plain data");
    ask(server, "POST", "/volumes", &body)?;
    served(server, &volume.name)
}

/// Removes a volume, after its dirty data is written back. With `force` the server takes it from
/// clients that use it.
///
/// # Errors
/// When no server answers, or the volume cannot be removed: without `force` also when a client uses
/// it.
pub fn remove_volume(server: &Endpoint, name: &str, force: bool) -> Result<(), AdminError> {
    let query = if force { "?force" } else { "" };
    ask(server, "DELETE", &format!("{}{query}", path_of(name)), "").map(drop)
}

/// Resizes a volume, with an empty [`Resize`] to the present size of its backing device. Returns
/// the volume as it is served.
///
/// # Errors
/// When no server answers, or the volume cannot have that size.
pub fn resize_volume(
    server: &Endpoint,
    name: &str,
    resize: &Resize,
) -> Result<VolumeStatus, AdminError> {
    let body = serde_json::to_string(resize).expect("a size is plain data");
    ask(server, "POST", &format!("{}/resize", path_of(name)), &body)?;
    served(server, name)
}

/// Sets the access that NVMe hosts have to a volume on this server. Requests that hosts had begun
/// before may still be under way.
///
/// # Errors
/// When no server answers, or there is no such volume.
pub fn set_access(server: &Endpoint, name: &str, state: AnaState) -> Result<(), AdminError> {
    let body = serde_json::to_string(&SetAccess { state }).expect("a state is plain data");
    ask(server, "POST", &format!("{}/ana", path_of(name)), &body).map(drop)
}

/// Returns the tiers of the cache, from the top.
///
/// # Errors
/// When no server answers, or not as expected.
pub fn tiers(server: &Endpoint) -> Result<Vec<TierStatus>, AdminError> {
    understood(server, &ask(server, "GET", "/tiers", "")?)
}

/// Attaches a tier while clients go on. Returns its number from the top, and its status.
///
/// # Errors
/// When no server answers, or the tier cannot be added.
pub fn add_tier(server: &Endpoint, tier: &NewTier) -> Result<(usize, TierStatus), AdminError> {
    let body = serde_json::to_string(tier).expect("a tier is plain data");
    ask(server, "POST", "/tiers", &body)?;
    let mut tiers = tiers(server)?;
    let number = tier.at.unwrap_or(tiers.len().saturating_sub(1));
    match number < tiers.len() {
        true => Ok((number, tiers.swap_remove(number))),
        false => Err(AdminError::Strange { address: server.to_string() }),
    }
}

/// Detaches the tier with this number from the top while clients go on. Its dirty data is in the
/// tier below then.
///
/// # Errors
/// When no server answers, or the tier cannot be detached.
pub fn remove_tier(server: &Endpoint, number: usize) -> Result<(), AdminError> {
    ask(server, "DELETE", &format!("/tiers/{number}"), "").map(drop)
}

/// Returns a volume as it is served.
fn served(server: &Endpoint, name: &str) -> Result<VolumeStatus, AdminError> {
    let volume = volumes(server)?.into_iter().find(|volume| volume.name == name);
    volume.ok_or_else(|| AdminError::Strange { address: server.to_string() })
}

fn path_of(name: &str) -> String {
    format!("/volumes/{}", uri::encode(name.as_bytes()).replace('/', "%2F"))
}

fn understood<T: for<'a> Deserialize<'a>>(server: &Endpoint, body: &str) -> Result<T, AdminError> {
    serde_json::from_str(body).map_err(|_| AdminError::Strange { address: server.to_string() })
}

fn ask(server: &Endpoint, method: &str, path: &str, body: &str) -> Result<String, AdminError> {
    let request = request(server, method, path, body);
    let answer = Stream::connect(server).and_then(|stream| talk(stream, &request));
    understand(server, answer.map_err(|error| unreachable(server, error))?)
}

fn unreachable(server: &Endpoint, source: io::Error) -> AdminError {
    let address = server.to_string();
    match source.kind() {
        io::ErrorKind::PermissionDenied => AdminError::Denied { address, source },
        _ => AdminError::Unreachable { address, source },
    }
}

fn request(server: &Endpoint, method: &str, path: &str, body: &str) -> String {
    let token = server.token.as_ref();
    let token = token
        .map_or(String::new(), |token| format!("Authorization: Bearer {}\r\n", token.secret()));
    let host = match &server.address {
        AdminAddress::Unix(_) => "localhost",
        AdminAddress::Tcp(address) => address,
    };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{token}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Returns the body of an answer, or the problem that it tells.
fn understand(server: &Endpoint, answer: Vec<u8>) -> Result<String, AdminError> {
    let strange = || AdminError::Strange { address: server.to_string() };
    let answer = String::from_utf8(answer).map_err(|_| strange())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(strange)?;
    let (address, problem) = (server.to_string(), || body.trim().to_owned());
    match head.split(' ').nth(1).and_then(|code| code.bytes().next()) {
        Some(b'2') => Ok(body.to_owned()),
        Some(b'4') => Err(AdminError::Refused { address, problem: problem() }),
        Some(_) => Err(AdminError::Failed { address, problem: problem() }),
        None => Err(strange()),
    }
}

/// A connection to a server.
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn connect(server: &Endpoint) -> io::Result<Self> {
        match &server.address {
            AdminAddress::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            AdminAddress::Tcp(address) => TcpStream::connect(address).map(Self::Tcp),
        }
    }

    /// Bounds the time of a read.
    fn limit(&self, time: Duration) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(Some(time)),
            Self::Tcp(stream) => stream.set_read_timeout(Some(time)),
        }
    }

    /// Appends what has come. Returns whether the other side has hung up.
    fn read_more(&mut self, bytes: &mut Vec<u8>) -> bool {
        let mut some = [0; 4096];
        match self.read(&mut some) {
            Ok(read) => {
                bytes.extend_from_slice(&some[..read]);
                read == 0
            }
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
            ),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(bytes),
            Self::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn send(stream: &mut impl Write, request: &str) -> io::Result<()> {
    stream.write_all(request.as_bytes())
}

/// Returns one answer, up to the length that it states, or to the end.
fn answer_of(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let (mut answer, mut byte) = (Vec::new(), [0; 1]);
    let length = |answer: &[u8]| -> Option<usize> {
        let text = std::str::from_utf8(answer).ok()?;
        let (head, _) = text.split_once("\r\n\r\n")?;
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?;
        Some(head.len() + 4 + length.parse::<usize>().ok()?)
    };
    let mut all = None;
    while all.is_none_or(|all| answer.len() < all) && stream.read(&mut byte)? > 0 {
        answer.push(byte[0]);
        if all.is_none() && answer.ends_with(b"\r\n\r\n") {
            all = length(&answer);
        }
    }
    match answer.is_empty() {
        true => Err(hung_up()),
        false => Ok(answer),
    }
}

fn hung_up() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up before it answered")
}

/// Sends a request and returns all bytes of the answer. A server that refuses may not read all of
/// the request.
fn talk(mut stream: impl Read + Write, request: &str) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let sent = send(&mut stream, request);
    let read = stream.read_to_end(&mut answer);
    if answer.is_empty() {
        sent.and(read)?;
        return Err(hung_up());
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_server_that_ends_before_it_answers_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let ending = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let read = client.read(&mut [0; 4096]).unwrap();
            assert!(read > 0, "it asks");
        });
        let address: AdminAddress = format!("unix:{}", path.display()).parse().unwrap();
        let error = volumes(&Endpoint { address, token: None }).unwrap_err();
        assert!(matches!(error, AdminError::Unreachable { .. }), "{error}");
        ending.join().unwrap();
    }
}
