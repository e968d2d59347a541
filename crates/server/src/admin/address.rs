//! Addresses of the admin interface: a Unix socket, or TCP if an address for it is given.
//!
//! A socket is written as `unix:PATH` or a path, a TCP address as `tcp:HOST:PORT` or `HOST:PORT`. A
//! server listens on the default socket unless a setting names another one, or `none`. Server and
//! clients find the default socket by one rule: the folder that systemd gives a service, else
//! `/run/floe` for root and `$XDG_RUNTIME_DIR/floe` for others.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Folder of the socket of root's server. Clients of other users look there as well, because their
/// group may be allowed to use it.
const SYSTEM_FOLDER: &str = "/run/floe";

const SOCKET_NAME: &str = "admin.sock";

/// The address of an admin interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminAddress {
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// A TCP address, `host:port`.
    Tcp(String),
}

/// A value of the `admin` setting: an address to listen on, or `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminChoice {
    /// Listens on this address. Given once for each address.
    At(AdminAddress),
    /// Turns the default socket off: written as `none`.
    NoSocket,
}

impl FromStr for AdminChoice {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text {
            "none" => Ok(Self::NoSocket),
            _ => text.parse().map(Self::At),
        }
    }
}

impl fmt::Display for AdminChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::NoSocket => f.write_str("none"),
        }
    }
}

/// An error while parsing an admin address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is neither a socket's path nor `HOST:PORT`.
    #[error(
        "`{0}` is not an address; write unix:PATH, or HOST:PORT for TCP, such as 127.0.0.1:10810"
    )]
    Form(String),
    /// The text lists several addresses, separated by commas.
    #[error("`{0}` is more than one address; give each with an --admin of its own")]
    Several(String),
}

/// The error that no default address exists: the user has no folder for sockets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no folder for the admin socket: XDG_RUNTIME_DIR is not set; give --admin unix:PATH"
)]
pub struct NoDefaultAddress;

impl FromStr for AdminAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let refused = || AddressError::Form(text.to_owned());
        if text.split_once(',').is_some_and(|(_, further)| further.parse::<Self>().is_ok()) {
            return Err(AddressError::Several(text.to_owned()));
        }
        let (path, address) = match text.split_once(':') {
            Some(("unix", path)) => (path, ""),
            Some(("tcp", address)) => ("", address),
            _ if text.contains('/') => (text, ""),
            _ => ("", text),
        };
        if !path.is_empty() {
            return Ok(Self::Unix(path.into()));
        }
        match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(address.to_owned()))
            }
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

impl AdminAddress {
    /// Returns the address on which a server of this user listens by default.
    ///
    /// # Errors
    /// When the user has no folder for sockets.
    pub fn of_server() -> Result<Self, NoDefaultAddress> {
        Surroundings::here().candidates().into_iter().next().map(Self::Unix).ok_or(NoDefaultAddress)
    }

    /// Returns the address that a client uses by default: the first existing socket among the
    /// default sockets of this user's server and root's.
    ///
    /// # Errors
    /// None at present: where no socket exists, the preferred address is returned.
    pub fn of_client() -> Result<Self, NoDefaultAddress> {
        let mut candidates = Surroundings::here().candidates();
        let system = Path::new(SYSTEM_FOLDER).join(SOCKET_NAME);
        if !candidates.contains(&system) {
            candidates.push(system);
        }
        let there = candidates.iter().position(|path| path.exists()).unwrap_or(0);
        Ok(Self::Unix(candidates.swap_remove(there)))
    }

    /// Returns whether this is the default address of this user's server. The server creates the
    /// folder of its default socket.
    pub(crate) fn is_default(&self) -> bool {
        Self::of_server().as_ref() == Ok(self)
    }
}

/// The environment variables and user on which the default address depends.
struct Surroundings {
    /// `RUNTIME_DIRECTORY`: the folders that systemd has created for a service, separated by
    /// colons.
    service: Option<OsString>,
    is_root: bool,
    /// `XDG_RUNTIME_DIR`: the user's folder for sockets.
    user: Option<OsString>,
}

impl Surroundings {
    fn here() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            service: variable("RUNTIME_DIRECTORY"),
            is_root: rustix::process::geteuid().is_root(),
            user: variable("XDG_RUNTIME_DIR"),
        }
    }

    /// Returns the default sockets of this user's server, the preferred one first.
    fn candidates(&self) -> Vec<PathBuf> {
        let service =
            self.service.as_ref().and_then(|folders| std::env::split_paths(folders).next());
        let own = match (self.is_root, &self.user) {
            (true, _) => Some(PathBuf::from(SYSTEM_FOLDER)),
            (false, Some(folder)) => Some(Path::new(folder).join("floe")),
            (false, None) => None,
        };
        let folders = [service, own].into_iter().flatten().filter(|folder| folder.is_absolute());
        folders.map(|folder| folder.join(SOCKET_NAME)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart_by_their_form_and_print_as_they_parse() {
        let unix = |path: &str| AdminAddress::Unix(path.into());
        let tcp = |address: &str| AdminAddress::Tcp(address.to_owned());
        for (text, address) in [
            ("unix:/run/floe/admin.sock", unix("/run/floe/admin.sock")),
            ("/run/floe/admin.sock", unix("/run/floe/admin.sock")),
            ("./a:1", unix("./a:1")),
            ("unix:admin.sock", unix("admin.sock")),
            ("unix:a,b.sock", unix("a,b.sock")),
            ("127.0.0.1:10810", tcp("127.0.0.1:10810")),
            ("tcp:[::1]:1", tcp("[::1]:1")),
            ("localhost:1", tcp("localhost:1")),
        ] {
            let parsed: AdminAddress = text.parse().unwrap();
            assert_eq!(parsed, address, "{text}");
            assert_eq!(parsed.to_string().parse(), Ok(address), "{text}");
        }
        for text in ["unix:/a,127.0.0.1:1", "127.0.0.1:1,unix:/a", "unix:a,unix:b"] {
            let refused = text.parse::<AdminAddress>().unwrap_err().to_string();
            assert!(refused.contains("give each with an --admin of its own"), "{refused}");
        }
        for text in ["", "nowhere", "unix:", "tcp:", "tcp:/a", ":1", "127.0.0.1:99999", "http:x"] {
            assert!(text.parse::<AdminAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_default_socket_is_in_the_folder_that_the_user_has_for_sockets() {
        let found = |service: Option<&str>, is_root, user: Option<&str>| {
            let surroundings = Surroundings {
                service: service.map(Into::into),
                is_root,
                user: user.map(Into::into),
            };
            surroundings.candidates().into_iter().next().map(|path| path.display().to_string())
        };
        let path = |text: &str| Some(text.to_owned());
        assert_eq!(found(None, true, Some("/run/user/0")), path("/run/floe/admin.sock"));
        assert_eq!(found(Some("/run/a:/run/b"), true, None), path("/run/a/admin.sock"));
        assert_eq!(found(Some("/run/a"), false, Some("/run/user/5")), path("/run/a/admin.sock"));
        assert_eq!(found(None, false, Some("/run/user/5")), path("/run/user/5/floe/admin.sock"));
        assert_eq!(found(None, false, Some("relative")), None);
        assert_eq!(found(None, false, None), None);
    }
}
