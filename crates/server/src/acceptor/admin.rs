//! The admin interface's listening sockets, connections and their encryption.

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
    /// A receive is under way; otherwise an answer is, or what is to be answered.
    pub(crate) listening: bool,
    /// A send is under way.
    pub(crate) sending: bool,
    /// The client waits for the next program, too.
    pub(crate) upgrading: bool,
    /// Bytes to be sent next.
    pub(crate) outgoing: Vec<u8>,
    /// The answer is given, or the connection broken: nothing is listened to any more.
    pub(crate) is_over: bool,
    /// The client gets events until it leaves.
    pub(crate) watching: bool,
    /// The client waits for the end of the server.
    pub(crate) stopping: bool,
    /// Time by which it must have sent its request, or taken its answer; `None` while the server
    /// works on it.
    pub(crate) until: Option<Instant>,
    pub(crate) since: Instant,
    /// The client came over TCP.
    pub(crate) is_remote: bool,
    /// The client was disconnected, and the session will end soon.
    pub(crate) is_dropped: bool,
}

impl AdminSession {
    /// It has asked for nothing so far, or does not take its answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.until.is_some() && !self.watching
    }

    /// The server works on its request.
    pub(crate) fn is_waiting(&self) -> bool {
        self.until.is_none() && !self.watching
    }

    /// It watches, and has taken all events so far.
    pub(crate) fn is_ready_to_watch(&self) -> bool {
        self.watching && self.until.is_none() && !self.is_over
    }

    /// Returns the limit on devices that the client may name.
    pub(crate) fn paths(&self) -> AllowedPaths {
        self.conversation.access().paths.clone()
    }
}

/// The first byte of TLS: the type of a record that is part of the handshake (RFC 8446, section
/// 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// The encryption of one connection.
///
/// The client's first byte decides: TLS begins with a handshake record, HTTP with a letter.
#[derive(Debug)]
pub(crate) enum Encryption {
    /// The client has sent nothing so far.
    Undecided {
        /// The certificates, for clients that ask for TLS.
        tls: Option<TlsConfig>,
        /// Others get nothing.
        required: bool,
    },
    None,
    Tls(Box<Channel>),
}

/// A client whose bytes cannot be taken.
#[derive(Debug)]
pub(crate) enum Undecipherable {
    /// The client must encrypt here.
    InTheClear,
    /// The client broke TLS, or has ended it.
    Broken(io::Error),
}

impl Encryption {
    /// The text in what was received, which may be empty so far.
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

    /// The bytes of something that is said, with more to follow.
    pub(crate) fn encrypt(&mut self, text: &[u8]) -> Vec<u8> {
        let Self::Tls(channel) = self else { return text.to_vec() };
        channel.write(text);
        self.take()
    }

    /// The bytes of the last thing that is said.
    pub(crate) fn encrypt_last(&mut self, text: Vec<u8>) -> Vec<u8> {
        let Self::Tls(channel) = self else { return text };
        channel.write(&text);
        channel.close();
        self.take()
    }

    /// The bytes that TLS itself has to say.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Self::Tls(channel) = self {
            channel.take(&mut bytes);
        }
        bytes
    }
}

/// The time in which a server that lives answers whether it is well.
const ANSWER: Duration = Duration::from_secs(1);

/// A listening socket of the admin interface.
#[derive(Debug)]
pub(crate) struct AdminListener {
    pub(crate) socket: Rc<OwnedFd>,
    /// The address, with the bound port.
    pub(crate) address: AdminAddress,
    pub(crate) access: Arc<Access>,
    _file: Option<SocketFile>,
}

impl AdminListener {
    /// Begins to listen.
    ///
    /// # Errors
    /// When the address cannot be bound or may not be.
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

    /// Begins to listen on the default socket, where the server shall have it beside its addresses.
    ///
    /// # Errors
    /// The reason for which it does without.
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

/// Returns whether a server answers on a socket. One that was just killed does not, though its
/// socket may be there for a moment: that is worth waiting for.
fn is_served(path: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        stream.read(&mut [0; 1])
    };
    ask().is_ok_and(|bytes| bytes > 0)
}

/// The connection of the client that has asked for another program: the next program tells it the
/// reason if it cannot serve. The process has one such client, and answers later ones only.
static UPGRADE_CLIENT: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Keeps the connection of a client, unless there is one.
pub(crate) fn keep_upgrade_client(socket: OwnedFd) {
    UPGRADE_CLIENT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(socket);
}

/// Takes the connection of the client that waits for the next program.
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
