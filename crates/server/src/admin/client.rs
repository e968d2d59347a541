//! A blocking client of the admin interface, for `floe status`, `floe volume` and similar commands.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use floe_nbd::uri;
use serde::Deserialize;

use super::{
    AdminAddress, AnaState, LimitChange, NewSize, NewTier, NewVolume, REPLACING, Resize, SetAccess,
    ShareChange, Token, TotalLimitChange, VolumePart,
};
use crate::pair::StandbyStatus;
use crate::status::{Status, TierStatus, VolumeStatus};
use crate::total_limit::TotalLimit;

/// Time that a new program may take before it serves, and the interval at which the client asks for
/// it.
const BEGINNING: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Time limit for each part of an answer to a `GET`. A server says after 30 s that one of its
/// threads hangs.
const ANSWER_TIME: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 40 });

/// A server's admin interface, as its clients reach it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Address of the admin interface.
    pub address: AdminAddress,
    /// Token that a TCP client needs to change something.
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

/// An error of a request to a server's admin interface.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// No server answers at the address.
    #[error(
        "no floe server answers on {address}: {source}; is it running, and is --admin the same?"
    )]
    Unreachable {
        /// Address of the admin interface.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// This user may not open the socket.
    #[error(
        "this user may not use {address}: {source}; run as the server's user, as root or as a \
         member of its admin-group"
    )]
    Denied {
        /// Address of the admin interface.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The server took a question and did not answer it.
    #[error(
        "the server on {address} does not answer within {} s: it is still starting, is \
         stopped or hangs",
        ANSWER_TIME.as_secs()
    )]
    Mute {
        /// Address of the admin interface.
        address: String,
    },
    /// The answer is not that of a Floe server.
    #[error("{address} does not answer as a floe server does")]
    Strange {
        /// Address of the admin interface.
        address: String,
    },
    /// The server refused the request, because it is invalid or conflicts with the present volumes
    /// and tiers.
    #[error("the server on {address} refuses: {problem}")]
    Refused {
        /// Address of the admin interface.
        address: String,
        /// The reason that the server gave.
        problem: String,
    },
    /// The server failed to carry out the request.
    #[error("the server on {address} answers: {problem}")]
    Failed {
        /// Address of the admin interface.
        address: String,
        /// The reason that the server gave.
        problem: String,
    },
}

/// Returns the status of a server.
///
/// # Errors
/// When no server answers, or the answer is not a status.
pub fn status(server: &Endpoint) -> Result<Status, AdminError> {
    understood(server, &ask(server, "GET", "/status", "")?)
}

/// The status of a server that serves or stands by.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyStatus {
    /// Status of a server that serves volumes.
    Serving(Box<Status>),
    /// Status of the standby server of a pair.
    Standby(StandbyStatus),
}

/// Returns the status of a server that serves or stands by.
///
/// # Errors
/// When no server answers, or the answer is not a status.
pub fn any_status(server: &Endpoint) -> Result<AnyStatus, AdminError> {
    let answer = ask(server, "GET", "/status", "")?;
    match understood(server, &answer) {
        Ok(status) => Ok(AnyStatus::Serving(Box::new(status))),
        Err(error) => {
            understood(server, &answer).map(AnyStatus::Standby).map_err(|_: AdminError| error)
        }
    }
}

/// Tells the active server of a pair to end, so that the other takes over, and waits until it has
/// flushed.
///
/// # Errors
/// When no server answers, or the server does not belong to a pair.
pub fn hand_over(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/handover", "").map(drop)
}

/// Tells a standby server to take over, though the active one may be healthy.
///
/// # Errors
/// When no server answers, or the server does not stand by.
pub fn take_over(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/takeover", "").map(drop)
}

/// Returns a server's metrics in Prometheus' text format.
///
/// # Errors
/// When no server answers, or the server refuses.
pub fn metrics(server: &Endpoint) -> Result<String, AdminError> {
    ask(server, "GET", "/metrics", "")
}

/// Returns `ok`, or `degraded` while a failed cache device is bypassed or a mirror lacks a half.
///
/// # Errors
/// When no server answers, requests hang or are refused, or the server is ending.
pub fn health(server: &Endpoint) -> Result<String, AdminError> {
    ask(server, "GET", "/healthz", "").map(|word| word.trim().to_owned())
}

/// Flushes: waits until all data written so far is on the backing devices.
///
/// # Errors
/// When no server answers, or data could not be written back.
pub fn flush(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/flush", "").map(drop)
}

/// Tells a server to flush and end, and waits until it has flushed and closed its caches.
///
/// # Errors
/// When no server answers, or dirty data remains in the cache.
pub fn stop(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/stop", "").map(drop)
}

/// Tells a server to replace its program by the present version of the program file, and waits
/// until the new one serves.
///
/// # Errors
/// When no server answers, or the old program's last flush leaves dirty data in the cache. Also
/// when the new program refuses the server's settings, does not start, or ends before it serves.
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
            // It reads a large cache.
            Err(AdminError::Mute { .. }) if is_kept => {}
            Err(error) if until <= Instant::now() => return Err(error),
            Err(_) => {}
        }
    }
}

/// Tells a server to use a failed cache device again.
///
/// # Errors
/// When no server answers, or the device still fails.
pub fn restore(server: &Endpoint) -> Result<(), AdminError> {
    ask(server, "POST", "/cache/restore", "").map(drop)
}

/// Returns the status of the served volumes, the default volume first.
///
/// # Errors
/// When no server answers, or the answer is not a list of volumes.
pub fn volumes(server: &Endpoint) -> Result<Vec<VolumeStatus>, AdminError> {
    understood(server, &ask(server, "GET", "/volumes", "")?)
}

/// Adds a volume, and returns its status.
///
/// # Errors
/// When no server answers, or the volume cannot be added.
pub fn add_volume(server: &Endpoint, volume: &NewVolume) -> Result<VolumeStatus, AdminError> {
    let body = serde_json::to_string(volume).expect("a volume is plain data");
    ask(server, "POST", "/volumes", &body)?;
    served(server, &volume.name)
}

/// Removes a volume after its dirty data is written back. With `force`, clients that use the volume
/// are disconnected from it.
///
/// # Errors
/// When no server answers, or the volume cannot be removed: without `force` also when a client uses
/// the volume.
pub fn remove_volume(server: &Endpoint, name: &str, force: bool) -> Result<(), AdminError> {
    let query = if force { "?force" } else { "" };
    ask(server, "DELETE", &format!("{}{query}", path_of(name)), "").map(drop)
}

/// Resizes a volume, and returns its status. An empty [`Resize`] adopts the present size of the
/// backing device.
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

/// Changes the limits of all volumes together, and returns them.
///
/// # Errors
/// When no server answers, or a limit is out of range.
pub fn limit_total(server: &Endpoint, change: &TotalLimitChange) -> Result<TotalLimit, AdminError> {
    let body = serde_json::to_string(change).expect("limits are plain data");
    ask(server, "POST", "/limit", &body)?;
    Ok(status(server)?.total_limit)
}

/// Changes the limits of a volume's requests, and returns its status.
///
/// # Errors
/// When no server answers, the volume does not exist, or a limit is out of range.
pub fn limit_volume(
    server: &Endpoint,
    name: &str,
    change: &LimitChange,
) -> Result<VolumeStatus, AdminError> {
    let body = serde_json::to_string(change).expect("limits are plain data");
    ask(server, "POST", &format!("{}/limit", path_of(name)), &body)?;
    served(server, name)
}

/// Changes the share of a volume in each tier, and returns its status.
///
/// # Errors
/// When no server answers, the volume does not exist, or a tier cannot guarantee so much.
pub fn share_volume(
    server: &Endpoint,
    name: &str,
    change: &ShareChange,
) -> Result<VolumeStatus, AdminError> {
    let body = serde_json::to_string(change).expect("shares are plain data");
    ask(server, "POST", &format!("{}/share", path_of(name)), &body)?;
    served(server, name)
}

/// Sets the access that NVMe hosts have to a volume on this server. Requests that hosts sent before
/// may still be in flight afterwards.
///
/// # Errors
/// When no server answers, or the volume does not exist.
pub fn set_access(server: &Endpoint, name: &str, state: AnaState) -> Result<(), AdminError> {
    let body = serde_json::to_string(&SetAccess { state }).expect("a state is plain data");
    ask(server, "POST", &format!("{}/ana", path_of(name)), &body).map(drop)
}

/// Brings a part of a volume into the cache, whatever the admission says.
///
/// # Errors
/// When no server answers, the volume does not exist or is shorter, the cache keeps nothing that is
/// read, or the volume cannot be read.
pub fn warm_volume(server: &Endpoint, name: &str, part: VolumePart) -> Result<(), AdminError> {
    let body = serde_json::to_string(&part).expect("a part is plain data");
    ask(server, "POST", &format!("{}/warm", path_of(name)), &body).map(drop)
}

/// Writes the dirty data of a volume back, and drops what the cache has of a part of it. Data that
/// is written meanwhile may stay.
///
/// # Errors
/// When no server answers, the volume does not exist or is shorter, or its dirty data cannot be
/// written back; then nothing is dropped.
pub fn evict_volume(server: &Endpoint, name: &str, part: VolumePart) -> Result<(), AdminError> {
    let body = serde_json::to_string(&part).expect("a part is plain data");
    ask(server, "POST", &format!("{}/evict", path_of(name)), &body).map(drop)
}

/// Returns the status of the tiers, from the top.
///
/// # Errors
/// When no server answers, or the answer is not a list of tiers.
pub fn tiers(server: &Endpoint) -> Result<Vec<TierStatus>, AdminError> {
    understood(server, &ask(server, "GET", "/tiers", "")?)
}

/// Attaches a tier while clients go on. Returns its number from the top, and its status.
///
/// # Errors
/// When no server answers, or the tier cannot be attached.
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

/// Detaches the tier with this number from the top while clients go on. Its dirty data moves to the
/// tier below.
///
/// # Errors
/// When no server answers, or the tier cannot be detached.
pub fn remove_tier(server: &Endpoint, number: usize) -> Result<(), AdminError> {
    ask(server, "DELETE", &format!("/tiers/{number}"), "").map(drop)
}

/// Changes the size of the volatile tier with this number from the top while clients go on. Returns
/// its status before and after. A smaller tier has given its space back then.
///
/// # Errors
/// When no server answers, or the tier cannot have that size.
pub fn resize_tier(
    server: &Endpoint,
    number: usize,
    size_bytes: u64,
) -> Result<(TierStatus, TierStatus), AdminError> {
    let nth = |tiers: Vec<TierStatus>| tiers.into_iter().nth(number);
    let before = nth(tiers(server)?);
    let body = serde_json::to_string(&NewSize { size_bytes }).expect("a size is plain data");
    ask(server, "POST", &format!("/tiers/{number}/resize"), &body)?;
    let both = before.zip(nth(tiers(server)?));
    both.ok_or_else(|| AdminError::Strange { address: server.to_string() })
}

/// Returns the status of a volume by its name.
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
    let connected = Stream::connect(server).and_then(|stream| {
        // Questions are answered at once; changes take as long as they need.
        if method == "GET" {
            stream.limit(ANSWER_TIME)?;
        }
        Ok(stream)
    });
    let answer = connected.and_then(|stream| talk(stream, &request));
    understand(server, answer.map_err(|error| unreachable(server, error))?)
}

fn unreachable(server: &Endpoint, source: io::Error) -> AdminError {
    let address = server.to_string();
    match source.kind() {
        io::ErrorKind::PermissionDenied => AdminError::Denied { address, source },
        io::ErrorKind::WouldBlock => AdminError::Mute { address },
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

/// Returns the body of a reply, or the error that its HTTP status and body state.
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

/// A connection to the admin interface.
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

    /// Sets the timeout of a read.
    fn limit(&self, time: Duration) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(Some(time)),
            Self::Tcp(stream) => stream.set_read_timeout(Some(time)),
        }
    }

    /// Appends received bytes to `bytes`. Returns whether the server has closed the connection.
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

/// Reads one reply: up to its `Content-Length`, or to the end of the connection.
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
    io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection before it answered")
}

/// Sends a request and returns all bytes of the reply. A failed send is ignored if a reply arrives,
/// because a server that refuses may not read the whole request.
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
    fn a_server_that_takes_a_question_and_does_not_answer_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let _listener = UnixListener::bind(&path).unwrap(); // the system connects clients to it
        let error = status(&AdminAddress::Unix(path.clone()).into()).unwrap_err();
        let name = path.display();
        let said = format!(
            "the server on unix:{name} does not answer within 1 s: it is still starting, is \
             stopped or hangs"
        );
        assert_eq!(error.to_string(), said);
    }

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
