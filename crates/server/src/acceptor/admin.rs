//! The admin interface's listening sockets and connections, and the encryption of connections.

use std::io;
use std::io::{Read, Write};
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use floe_device::{Buffer, patiently};

use crate::admin::{Access, AdminAddress, AllowedPaths, Conversation, NetworkRules, name_in};
use crate::setup::{AdminSetup, ServeError};
use crate::socket_file::{BACKLOG, Permitted, SocketFile, listen_on};
use crate::tls::{Channel, TlsConfig};

/// A connection of the admin interface.
#[derive(Debug)]
pub(crate) struct AdminSession {
    pub(crate) socket: Rc<OwnedFd>,
    pub(crate) buffer: Buffer,
    pub(crate) encryption: Encryption,
    pub(crate) conversation: Conversation,
    /// True while a receive is under way.
    pub(crate) listening: bool,
    /// True while a send is under way.
    pub(crate) sending: bool,
    /// The client has asked for an upgrade: its connection stays open for the next program.
    pub(crate) upgrading: bool,
    /// Bytes for the next send.
    pub(crate) outgoing: Vec<u8>,
    /// The reply is complete or the connection broken: the server ignores further input.
    pub(crate) is_over: bool,
    /// The client receives the live page's events until it disconnects.
    pub(crate) watching: bool,
    /// The client waits for the server's shutdown.
    pub(crate) stopping: bool,
    /// Deadline for the client to send its request or to read its reply; `None` while the server
    /// works on the request.
    pub(crate) until: Option<Instant>,
    pub(crate) since: Instant,
    /// The client is connected over TCP.
    pub(crate) is_remote: bool,
    /// The server has disconnected the client, and the session is removed soon.
    pub(crate) is_dropped: bool,
}

impl AdminSession {
    /// Returns whether the client has sent no request so far, or does not read its reply.
    pub(crate) fn is_idle(&self) -> bool {
        self.until.is_some() && !self.watching
    }

    /// Returns whether the server works on a request of the client.
    pub(crate) fn is_waiting(&self) -> bool {
        self.until.is_none() && !self.watching
    }

    /// Returns whether the client watches events and has received all that were sent.
    pub(crate) fn is_ready_to_watch(&self) -> bool {
        self.watching && self.until.is_none() && !self.is_over
    }

    /// Returns the paths of devices that the client may name in a request.
    pub(crate) fn paths(&self) -> AllowedPaths {
        self.conversation.access().paths.clone()
    }
}

/// The first byte of TLS: the type of a handshake record (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// The encryption of one admin connection.
///
/// The client's first byte decides: TLS begins with a handshake record, HTTP with a letter.
#[derive(Debug)]
pub(crate) enum Encryption {
    /// The client has sent nothing so far.
    Undecided {
        /// The server's certificates; `None` if the server has no TLS.
        tls: Option<TlsConfig>,
        /// The server refuses clients without TLS.
        required: bool,
    },
    None,
    Tls(Box<Channel>),
}

/// The reason why received bytes cannot be decrypted.
#[derive(Debug)]
pub(crate) enum Undecipherable {
    /// The client did not encrypt, though the address requires TLS.
    InTheClear,
    /// The client violated TLS, or closed the TLS connection.
    Broken(io::Error),
}

impl Encryption {
    /// Decrypts received bytes. The result is empty until a TLS record is complete.
    pub(crate) fn decrypt(&mut self, received: Vec<u8>) -> Result<Vec<u8>, Undecipherable> {
        if let Self::Undecided { tls, required } = self {
            *self = match tls {
                Some(tls) if received.first() == Some(&HANDSHAKE_RECORD) => {
                    Self::Tls(Box::new(tls.channel()))
                }
                _ if *required => return Err(Undecipherable::InTheClear),
                _ => Self::None,
            };
        }
        let Self::Tls(channel) = self else { return Ok(received) };
        channel.received(received.len(), |into| into.copy_from_slice(&received));
        let mut text = Vec::new();
        loop {
            let before = text.len();
            channel.read(&mut text).map_err(Undecipherable::Broken)?;
            if text.len() == before {
                return Ok(text);
            }
        }
    }

    /// Encrypts a part of a reply that continues later.
    pub(crate) fn encrypt(&mut self, text: &[u8]) -> Vec<u8> {
        let Self::Tls(channel) = self else { return text.to_vec() };
        channel.write(text);
        self.take()
    }

    /// Encrypts the last part of a reply, and adds the TLS close notification.
    pub(crate) fn encrypt_last(&mut self, text: Vec<u8>) -> Vec<u8> {
        let Self::Tls(channel) = self else { return text };
        channel.write(&text);
        channel.close();
        self.take()
    }

    /// Returns the bytes that TLS itself wants to send, such as handshake messages.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Self::Tls(channel) = self {
            channel.take(&mut bytes);
        }
        bytes
    }
}

/// Longest time that a running server takes to answer a health check.
const ANSWER: Duration = Duration::from_secs(1);

/// A listening socket of the admin interface.
#[derive(Debug)]
pub(crate) struct AdminListener {
    pub(crate) socket: Rc<OwnedFd>,
    /// The address that clients connect to, with the port that was bound.
    pub(crate) address: AdminAddress,
    pub(crate) access: Arc<Access>,
    _file: Option<SocketFile>,
}

impl AdminListener {
    /// Listens on an address of the admin interface.
    ///
    /// # Errors
    /// When the address cannot be bound, or other machines could reach it without encryption.
    pub(crate) fn bind(
        address: &AdminAddress,
        config: &AdminSetup,
        tls: Option<&TlsConfig>,
        insecure: bool,
    ) -> Result<Self, ServeError> {
        match address {
            AdminAddress::Unix(path) => Self::on_socket(address, path, config),
            AdminAddress::Tcp(text) => Self::on_tcp(text, config, tls, insecure),
        }
    }

    /// Listens on the default admin socket if the settings want it in addition to the configured
    /// addresses. Returns `None` if they do not.
    ///
    /// # Errors
    /// The reason why the server goes without the default socket.
    pub(crate) fn beside(config: &AdminSetup) -> Result<Option<Self>, String> {
        let Some(address) = &config.beside else { return Ok(None) };
        let AdminAddress::Unix(path) = address else { return Ok(None) };
        if is_served(path) {
            return Err(format!("another program serves {address}"));
        }
        let listener = Self::on_socket(address, path, config);
        listener.map(Some).map_err(|error| error.to_string())
    }

    fn on_socket(
        address: &AdminAddress,
        path: &Path,
        config: &AdminSetup,
    ) -> Result<Self, ServeError> {
        if let Some(folder) =
            path.parent().filter(|folder| address.is_default() && !folder.exists())
        {
            // Every permitted user has to reach the socket, also with a strict umask. A readable
            // folder does no harm.
            let made = std::fs::create_dir(folder)
                .and_then(|()| std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)));
            made.map_err(|source| ServeError::Admin { address: address.to_string(), source })?;
        }
        let permitted = config.group.map_or(Permitted::Nobody, Permitted::Group);
        let (socket, file) = listen_on(path, permitted)
            .map_err(|source| ServeError::AdminSocket { address: address.to_string(), source })?;
        // Without a group, only users that can open all of the server's files may connect.
        let paths = match (&config.paths, config.group) {
            (None, None) => AllowedPaths::All,
            _ => config.limited(),
        };
        let page = config.page.clone();
        let access = Arc::new(Access { network: None, page, paths });
        Ok(Self { socket: Rc::new(socket), address: address.clone(), access, _file: Some(file) })
    }

    fn on_tcp(
        text: &str,
        config: &AdminSetup,
        tls: Option<&TlsConfig>,
        insecure: bool,
    ) -> Result<Self, ServeError> {
        let refused = |source| ServeError::Admin { address: text.to_owned(), source };
        let addresses: Vec<_> = text.to_socket_addrs().map_err(refused)?.collect();
        // A client shows its certificate in TLS only.
        let encrypted_only = tls.is_some_and(TlsConfig::verifies_peers)
            || !insecure && addresses.iter().any(|address| !address.ip().is_loopback());
        if encrypted_only && !tls.is_some_and(TlsConfig::required) {
            return Err(ServeError::AdminExposed { address: text.to_owned() });
        }
        let in_use = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
        let listener = patiently(|| TcpListener::bind(&addresses[..]), in_use).map_err(refused)?;
        // A queue as long as that of a Unix socket: a crowd must not keep later clients out.
        rustix::net::listen(&listener, BACKLOG).map_err(|error| refused(error.into()))?;
        let bound = listener.local_addr().map_err(refused)?;
        let own_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let hosts =
            [name_in(text).to_owned(), own_name].into_iter().chain(config.hosts.iter().cloned());
        let network =
            NetworkRules { hosts: hosts.collect(), token: config.token.clone(), encrypted_only };
        let page = config.page.clone();
        let access = Arc::new(Access { network: Some(network), page, paths: config.limited() });
        let address = AdminAddress::Tcp(bound.to_string());
        Ok(Self { socket: Rc::new(listener.into()), address, access, _file: None })
    }
}

/// Returns whether a running server answers on a socket. The socket of a killed server may still
/// exist for a moment; its address is worth waiting for.
fn is_served(path: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        stream.read(&mut [0; 1])
    };
    ask().is_ok_and(|bytes| bytes > 0)
}

/// The connection of the admin client that asked for an upgrade. If the next program cannot serve,
/// it sends the reason to this client. A process keeps one such connection.
static UPGRADE_CLIENT: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Keeps the connection of a client that asked for an upgrade, unless one is kept already.
pub(crate) fn keep_upgrade_client(socket: OwnedFd) {
    UPGRADE_CLIENT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(socket);
}

/// Takes the connection of the client that asked for the upgrade to this program, if there is one.
pub fn take_upgrade_client() -> Option<OwnedFd> {
    UPGRADE_CLIENT.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod admin_tls_tests {
    use super::*;

    #[test]
    fn without_encryption_all_is_as_it_was_sent_unless_it_is_required() {
        let mut plain = Encryption::Undecided { tls: None, required: false };
        assert_eq!(plain.decrypt(b"GET /".to_vec()).unwrap(), b"GET /");
        assert_eq!(plain.decrypt(vec![HANDSHAKE_RECORD]).unwrap(), [HANDSHAKE_RECORD]);
        assert_eq!(plain.encrypt_last(b"HTTP".to_vec()), b"HTTP");
        assert!(plain.take().is_empty());
        let mut required = Encryption::Undecided { tls: None, required: true };
        assert!(matches!(required.decrypt(b"GET /".to_vec()), Err(Undecipherable::InTheClear)));
    }
}

#[cfg(test)]
mod admin_listener_tests {
    use floe_testkit::certificates;

    use super::*;

    #[test]
    fn other_machines_are_kept_out_unless_they_encrypt_or_are_asked_in() {
        let folder = certificates();
        let tls = |required| TlsConfig::load(folder.path(), false, required).unwrap();
        let bind = |tls: Option<&TlsConfig>, insecure| {
            AdminListener::bind(
                &AdminAddress::Tcp("0.0.0.0:0".into()),
                &AdminSetup::default(),
                tls,
                insecure,
            )
            .map(|listener| listener.access.encrypted_only())
            .map_err(|error| error.to_string())
        };
        for refused in [bind(None, false), bind(Some(&tls(false)), false)] {
            assert!(refused.unwrap_err().contains("without encryption"));
        }
        assert_eq!(bind(Some(&tls(true)), false), Ok(true));
        assert_eq!(bind(Some(&tls(true)), true), Ok(false));
        assert_eq!(bind(None, true), Ok(false));
        // A client that must show a certificate must encrypt, wherever it comes from.
        let verified = TlsConfig::load(folder.path(), true, false).unwrap();
        let address = AdminAddress::Tcp("127.0.0.1:0".into());
        let setup = AdminSetup::default();
        let listener = AdminListener::bind(&address, &setup, Some(&verified), true).unwrap();
        assert!(verified.required() && listener.access.encrypted_only());
    }
}
