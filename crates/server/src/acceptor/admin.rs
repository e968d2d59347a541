//! The admin interface's listening sockets, and its connections with their encryption.

use std::io::{self, Read, Write};
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use floe_device::{Buffer, Pool, Ring, SocketOutcome, Sockets, patiently};
use rustix::net::{Shutdown, shutdown};

use crate::acceptor::entrance::AcceptorToken;
use crate::admin::{
    Access, AdminAddress, AdminCommand, AllowedPaths, Conversation, Heard, NetworkRules, Reply,
    Trouble, name_in,
};
use crate::setup::{AdminSetup, ServeError};
use crate::slots::Slots;
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

/// A thread's ring, the buffer pool and sockets on that ring, and the descriptor that delivers
/// signals.
pub(crate) struct Io {
    pub(crate) ring: Ring,
    pub(crate) pool: Pool,
    pub(crate) sockets: Sockets,
    pub(crate) signal: Rc<OwnedFd>,
}

impl Io {
    pub(crate) fn new(ring: Ring, signal: OwnedFd) -> Self {
        let (sockets, signal) = (Sockets::new(&ring), Rc::new(signal));
        Self { ring, pool: Pool::new(0), sockets, signal }
    }
}

/// The connections of admin clients on a thread: their requests, replies, deadlines and encryption.
///
/// The acceptor of a server that serves has one, and so has a standby.
pub(crate) struct AdminClients {
    pub(crate) io: Io,
    pub(crate) sessions: Slots<AdminSession>,
    /// Connections of clients that were told of the server's end. They stay open until its caches
    /// are closed, and clients wait for that.
    pub(crate) told: Vec<OwnedFd>,
    tls: Option<TlsConfig>,
    /// Time limit for a client to send its request, and again to read the reply.
    patience: Duration,
}

impl AdminClients {
    pub(crate) fn new(io: Io, tls: Option<TlsConfig>, patience: Duration) -> Self {
        Self { io, sessions: Slots::default(), told: Vec::new(), tls, patience }
    }

    /// Begins a conversation with a client that has these rights.
    pub(crate) fn greet(&mut self, access: Arc<Access>, socket: OwnedFd) {
        let (is_remote, required) = (access.network.is_some(), access.encrypted_only());
        let encryption = match is_remote {
            true => Encryption::Undecided { tls: self.tls.clone(), required },
            false => Encryption::None,
        };
        self.make_room(is_remote);
        let now = Instant::now();
        let session = AdminSession {
            socket: Rc::new(socket),
            buffer: self.io.pool.allocate(RECEIVE_BYTES),
            encryption,
            conversation: Conversation::new(access),
            listening: false,
            sending: false,
            outgoing: Vec::new(),
            is_over: false,
            watching: false,
            stopping: false,
            upgrading: false,
            until: Some(now + self.patience),
            since: now,
            is_remote,
            is_dropped: false,
        };
        let index = self.sessions.insert(session);
        self.listen(index);
    }

    /// Disconnects an admin client if the limit of connections of its kind (Unix or TCP) is
    /// reached. The oldest client that has sent no request goes first, then one that does not read
    /// its reply.
    fn make_room(&mut self, is_remote: bool) {
        let sessions = self.sessions.iter();
        let alike: Vec<(u32, &AdminSession)> =
            sessions.filter(|(_, it)| it.is_remote == is_remote && !it.is_dropped).collect();
        if alike.len() < MOST_CONNECTIONS {
            return;
        }
        let idle = alike.into_iter().filter(|(_, session)| session.is_idle());
        let oldest = idle.min_by_key(|(_, session)| (!session.listening, session.since));
        if let Some((oldest, _)) = oldest {
            let session = &mut self.sessions[oldest];
            session.is_dropped = true;
            let _ = shutdown(&session.socket, Shutdown::Both); // it may be gone already
        }
    }

    /// Returns whether the server accepts one more request that waits for workers, from clients
    /// over TCP or over Unix sockets.
    fn may_wait(&self, is_remote: bool) -> bool {
        let waiting = |(_, session): &(u32, &AdminSession)| {
            session.is_remote == is_remote && !session.is_dropped && session.is_waiting()
        };
        self.sessions.iter().filter(waiting).count() < MOST_WAITING
    }

    /// Returns the earliest deadline of all admin clients, or now if the sockets have results.
    pub(crate) fn due(&self) -> Option<Instant> {
        let deadlines = self.sessions.iter().filter_map(|(_, session)| session.until);
        deadlines.chain(self.io.sockets.next_due()).min()
    }

    /// Disconnects admin clients that missed their deadline, which ends the operations under way on
    /// their sockets.
    pub(crate) fn hang_up_on_late(&mut self) {
        let now = Instant::now();
        for index in self.sessions.indices() {
            let session = &mut self.sessions[index];
            if session.until.take_if(|until| *until <= now).is_some() {
                session.is_dropped = true;
                let _ = shutdown(&session.socket, Shutdown::Both); // it may be gone already
            }
        }
    }

    pub(crate) fn listen(&mut self, index: u32) {
        let session = &mut self.sessions[index];
        session.listening = true;
        let (socket, into) = (Rc::clone(&session.socket), session.buffer.whole());
        self.io.sockets.receive(AcceptorToken::ReceiveAdmin(index).encode(), &socket, into, false);
    }

    /// Handles the completion of a receive from an admin client. Returns the client's command once
    /// the request is complete. Refuses a request that is none, or one too many.
    pub(crate) fn heard(
        &mut self,
        index: u32,
        result: io::Result<SocketOutcome>,
    ) -> Option<AdminCommand> {
        let session = &mut self.sessions[index];
        session.listening = false;
        let received = match result {
            Ok(SocketOutcome::Received(bytes)) if bytes > 0 && !session.watching => {
                session.buffer.slice(0..bytes).to_vec()
            }
            _ => {
                self.leave(index); // one that watches has nothing more to say
                return None;
            }
        };
        let text = session.encryption.decrypt(received);
        session.outgoing.extend(session.encryption.take());
        let heard = match text {
            Ok(text) => session.conversation.hear(&text),
            Err(Undecipherable::InTheClear) => {
                let problem = "this address takes TLS only, as other machines can reach it or \
                               clients must show certificates; use https";
                Heard::Refusal(Reply::trouble(Trouble::Forbidden, problem))
            }
            Err(Undecipherable::Broken(error)) => {
                tracing::debug!(%error, "admin client broke TLS");
                self.leave(index); // an alert that says why is sent
                return None;
            }
        };
        match heard {
            Heard::More => {
                self.send(index);
                self.listen(index);
            }
            Heard::Refusal(refusal) => self.tell(index, &refusal),
            Heard::Command(command) => {
                let is_remote = session.is_remote;
                // The end is what may help if all others hang.
                let is_urgent = matches!(command, AdminCommand::Health | AdminCommand::Stop);
                if is_urgent || self.may_wait(is_remote) {
                    self.sessions[index].until = None;
                    return Some(command);
                }
                let problem = "too many requests are under way; try again when some are done";
                self.tell(index, &Reply::trouble(Trouble::Busy, problem));
            }
        }
        None
    }

    /// Handles the completion of a send to an admin client: sends the rest, or closes the
    /// connection when it is over.
    pub(crate) fn sent(&mut self, index: u32, result: &io::Result<SocketOutcome>) {
        let session = &mut self.sessions[index];
        session.sending = false;
        if result.is_err() {
            session.outgoing.clear();
            let _ = shutdown(&session.socket, Shutdown::Both); // ends a receive that is under way
        }
        if session.watching && session.outgoing.is_empty() {
            session.until = None; // until the next event
        }
        self.send(index);
    }

    /// Closes a connection of the admin interface once all its bytes are sent.
    fn leave(&mut self, index: u32) {
        self.sessions[index].is_over = true;
        self.send(index);
    }

    /// Sends the pending bytes of an admin session, unless a send is under way. If none are pending
    /// and the connection is over, the session is removed.
    fn send(&mut self, index: u32) {
        let session = &mut self.sessions[index];
        if session.sending {
            return;
        }
        if session.outgoing.is_empty() {
            if session.is_over {
                // The state of TLS cannot be handed on.
                let is_kept = session.upgrading && matches!(session.encryption, Encryption::None);
                if let (true, Ok(socket)) = (is_kept, session.socket.try_clone()) {
                    keep_upgrade_client(socket);
                }
                self.sessions.remove(index);
            }
            return;
        }
        let bytes = std::mem::take(&mut session.outgoing);
        let buffer = self.io.pool.allocate(bytes.len()).slice(0..bytes.len());
        buffer.copy_from(&bytes);
        session.sending = true;
        let socket = Rc::clone(&session.socket);
        self.io.sockets.send(AcceptorToken::SendAdmin(index).encode(), &socket, vec![buffer]);
    }

    /// Sends a part of a reply that continues later, such as an event.
    pub(crate) fn say(&mut self, index: u32, text: &str) {
        let session = &mut self.sessions[index];
        let bytes = session.encryption.encrypt(text.as_bytes());
        session.outgoing.extend(bytes);
        session.until = Some(Instant::now() + self.patience);
        self.send(index);
    }

    /// Sends an admin client its reply and then closes the connection.
    pub(crate) fn tell(&mut self, index: u32, reply: &Reply) {
        let session = &mut self.sessions[index];
        let answer = session.encryption.encrypt_last(reply.encode());
        session.outgoing.extend(answer);
        session.until = Some(Instant::now() + self.patience);
        self.leave(index);
    }
}

/// Size of an admin session's receive buffer, in bytes.
const RECEIVE_BYTES: usize = 4096;

/// Maximum number of admin connections over Unix sockets, and as many over TCP, so that neither
/// crowds out the other. Beyond that the oldest idle one is disconnected. Each lasts
/// [`admin_time`](crate::limits::Limits::admin_time) at most.
const MOST_CONNECTIONS: usize = 32;

/// Maximum number of admin sessions whose requests wait for workers. The other connections are
/// reserved for requests that are answered at once, such as health checks.
const MOST_WAITING: usize = 24;

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
