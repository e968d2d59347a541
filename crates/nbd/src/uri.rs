//! NBD URIs: `nbd://HOST[:PORT]/[EXPORT]` and `nbd+unix:///[EXPORT]?socket=PATH`, with `nbds` where
//! TLS is required.
//!
//! Printing a parsed URI and parsing it again gives an equal value. All parts may be
//! percent-encoded; an IPv6 address stands in brackets; an abstract Unix socket begins with `%00`.
//! Source: `doc/uri.md` of <https://github.com/NetworkBlockDevice/nbd>, RFC 3986.
//!
//! Known but unsupported features are refused by name: a client's TLS parameters, user names.
//! Unknown parameters are errors, not ignored.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::Ipv6Addr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use crate::wire::STRING_MAX_BYTES;

/// The TCP port that IANA assigned to NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// The address of an export.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Uri {
    /// The server's address.
    pub address: Address,
    /// Name of the export; empty means the server's default.
    pub export: String,
    /// True if TLS is required.
    pub tls: bool,
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP address.
    Tcp {
        /// Host name, IPv4 address or IPv6 address (without brackets).
        host: String,
        /// TCP port.
        port: u16,
    },
    /// The path of a Unix socket; a path that begins with NUL names one in the abstract namespace.
    Unix(PathBuf),
}

/// An error in the text of an NBD URI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{uri:?} is not a usable NBD URI: {problem}")]
pub struct UriError {
    /// The whole text of the URI.
    pub uri: String,
    /// The reason why the text was refused.
    pub problem: Problem,
}

/// The reason why the text of a URI was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each message says it
pub enum Problem {
    #[error("it does not begin with nbd://, nbds://, nbd+unix:// or nbds+unix://")]
    Scheme,
    #[error("{0:?} is for clients that have certificates of their own")]
    TlsParameter(String),
    #[error("it names no host")]
    NoHost,
    #[error("{0:?} is not a host name or address")]
    Host(String),
    #[error("{0:?} is not a port number")]
    Port(String),
    #[error("user names are not supported")]
    User,
    #[error("a Unix socket has no host; write nbd+unix:///EXPORT?socket=PATH")]
    HostWithSocket,
    #[error("it lacks ?socket=PATH")]
    NoSocket,
    #[error("parameter {0:?} is not known or given twice")]
    Parameter(String),
    #[error("a # must be written %23")]
    Fragment,
    #[error("{0:?} is not percent-encoded properly")]
    Encoding(String),
    #[error("the export name is not UTF-8 without NUL of at most 4096 bytes")]
    Export,
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        parse(text).map_err(|problem| UriError { uri: text.to_owned(), problem })
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = encode(self.export.as_bytes());
        let scheme = if self.tls { "nbds" } else { "nbd" };
        match &self.address {
            Address::Tcp { host, port } => {
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]")?;
                } else {
                    write!(f, "{scheme}://{}", encode(host.as_bytes()))?;
                }
                if *port != DEFAULT_PORT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/{export}")
            }
            Address::Unix(path) => {
                write!(
                    f,
                    "{scheme}+unix:///{export}?socket={}",
                    encode(path.as_os_str().as_bytes())
                )
            }
        }
    }
}

fn parse(text: &str) -> Result<Uri, Problem> {
    let (scheme, rest) = text.split_once("://").ok_or(Problem::Scheme)?;
    let (unix, tls) = match scheme.to_ascii_lowercase().as_str() {
        "nbd" => (false, false),
        "nbds" => (false, true),
        "nbd+unix" => (true, false),
        "nbds+unix" => (true, true),
        _ => return Err(Problem::Scheme),
    };
    if rest.contains('#') {
        return Err(Problem::Fragment);
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let export = String::from_utf8(decode(path)?).map_err(|_| Problem::Export)?;
    if export.len() > STRING_MAX_BYTES || export.contains('\0') {
        return Err(Problem::Export);
    }
    let socket = socket_parameter(query, unix)?;
    let address = match socket {
        _ if !unix => tcp_address(authority)?,
        _ if !authority.is_empty() => return Err(Problem::HostWithSocket),
        Some(path) if !path.as_os_str().is_empty() => Address::Unix(path),
        _ => return Err(Problem::NoSocket),
    };
    Ok(Uri { address, export, tls })
}

/// Returns the `socket` parameter. Any other parameter is an error, and so is `socket` without a
/// Unix scheme.
fn socket_parameter(query: &str, unix: bool) -> Result<Option<PathBuf>, Problem> {
    let mut socket = None;
    for parameter in query.split(['&', ';']).filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match key {
            "socket" if unix && socket.is_none() => {
                socket = Some(PathBuf::from(OsString::from_vec(decode(value)?)));
            }
            _ if key.starts_with("tls-") => return Err(Problem::TlsParameter(key.to_owned())),
            _ => return Err(Problem::Parameter(key.to_owned())),
        }
    }
    Ok(socket)
}

fn tcp_address(text: &str) -> Result<Address, Problem> {
    let (host, port) = authority(text)?;
    Ok(Address::Tcp { host, port: port.unwrap_or(DEFAULT_PORT) })
}

/// Parses `HOST[:PORT]` as in URIs. An IPv6 address stands in brackets.
///
/// # Errors
/// When the text has another form.
pub fn authority(authority: &str) -> Result<(String, Option<u16>), Problem> {
    if authority.contains('@') {
        return Err(Problem::User);
    }
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let bad = || Problem::Host(authority.to_owned());
        let (host, port) = rest.split_once(']').ok_or_else(bad)?;
        host.parse::<Ipv6Addr>().map_err(|_| bad())?;
        match port.strip_prefix(':') {
            Some(port) => (host.to_owned(), port),
            None if port.is_empty() => (host.to_owned(), ""),
            None => return Err(bad()),
        }
    } else {
        let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
        let bad = || Problem::Host(host.to_owned());
        let name = String::from_utf8(decode(host)?).map_err(|_| bad())?;
        if name.chars().any(|c| c.is_whitespace() || c.is_control() || "[]:/?#@".contains(c)) {
            return Err(bad());
        }
        (name, port)
    };
    if host.is_empty() {
        return Err(Problem::NoHost);
    }
    let port = match port {
        "" => None,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().map_err(|_| Problem::Port(port.to_owned()))?)
        }
        _ => return Err(Problem::Port(port.to_owned())),
    };
    Ok((host, port))
}

/// Decodes percent-encoding.
pub fn decode(text: &str) -> Result<Vec<u8>, Problem> {
    let bad = || Problem::Encoding(text.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| {
            tail.get(at).and_then(|byte| char::from(*byte).to_digit(16)).ok_or_else(bad)
        };
        bytes.push((digit(0)? * 16 + digit(1)?) as u8);
        rest = &tail[2..];
    }
    Ok(bytes)
}

/// Percent-encodes all bytes except slashes and the characters that are allowed in every part of a
/// URI.
pub fn encode(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").expect("writing to a string succeeds");
        }
    }
    text
}

impl Address {
    /// Returns the name of an abstract Unix socket, or `None` for all other addresses.
    pub fn abstract_name(&self) -> Option<&[u8]> {
        match self {
            Self::Unix(path) => OsStr::as_bytes(path.as_os_str()).strip_prefix(b"\0"),
            Self::Tcp { .. } => None,
        }
    }
}
