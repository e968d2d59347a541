//! The admin interface of a standby server, which reports its state and accepts a few commands.
//! Data clients are disconnected at once, so that they try the other server.

mod away;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::accept;

use crate::acceptor::admin::{Encryption, Undecipherable};
use crate::admin::{Access, AdminCommand, Conversation, Heard, Reply, Trouble};
use crate::pair::{Role, StandbyStatus, Turn};
use crate::tls::TlsConfig;

pub use away::Away;

/// Most admin clients at a time; further ones are disconnected.
const MOST_CLIENTS: usize = 32;

/// The sockets of a standby server, and the settings of its admin interface.
pub(crate) struct Sockets {
    /// Listening sockets for data clients.
    pub(crate) data: Vec<OwnedFd>,
    pub(crate) admin: Vec<(OwnedFd, Arc<Access>)>,
    /// A descriptor that becomes readable when the server is to end.
    pub(crate) signal: OwnedFd,
    pub(crate) tls: Option<TlsConfig>,
    /// Time limit for a client to send its request, and again to read the reply.
    pub(crate) patience: Duration,
}

/// The thread that answers admin clients while the server does not serve yet. Dropping this ends
/// the thread.
#[derive(Debug)]
pub struct Desk {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    ended: Receiver<()>,
}

/// State that the threads of all admin clients share.
struct Shared {
    turn: Arc<Turn>,
    /// Sends the order to end the server.
    end: Sender<()>,
    tls: Option<TlsConfig>,
    patience: Duration,
    clients: AtomicUsize,
}

impl Desk {
    /// Starts the thread that answers admin clients.
    ///
    /// # Errors
    /// When a socket or a thread cannot be created.
    pub(crate) fn open(sockets: Sockets, turn: &Arc<Turn>) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let (end, ended) = channel();
        let shared = Shared {
            turn: Arc::clone(turn),
            end,
            tls: sockets.tls.clone(),
            patience: sockets.patience,
            clients: AtomicUsize::new(0),
        };
        let serve = move || serve(&sockets, &stopped, &Arc::new(shared));
        let thread = Builder::new().name("floe-standby".to_owned()).spawn(serve)?;
        Ok(Self { stop: Some(stop), thread: Some(thread), ended })
    }

    pub(crate) fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    /// Waits for the order to end the server, for at most the time `within`. Returns whether the
    /// order has come.
    pub fn has_ended(&self, within: Duration) -> bool {
        self.ended.recv_timeout(within) != Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic of it has been logged
        }
    }
}

/// Accepts clients until `stopped` is closed.
fn serve(sockets: &Sockets, stopped: &UnixStream, shared: &Arc<Shared>) {
    let admin = sockets.admin.iter().map(|(socket, _)| socket.as_fd());
    let all = [stopped.as_fd(), sockets.signal.as_fd()].into_iter().chain(admin);
    let all = all.chain(sockets.data.iter().map(AsFd::as_fd)).collect::<Vec<_>>();
    let mut signalled = false;
    loop {
        let waiting = |at: usize| !(signalled && at == 1);
        let polled: Vec<usize> = (0..all.len()).filter(|&at| waiting(at)).collect();
        let mut events: Vec<_> =
            polled.iter().map(|&at| PollFd::new(&all[at], PollFlags::IN)).collect();
        if poll(&mut events, None).is_err() {
            continue; // a signal
        }
        let ready = events.iter().zip(&polled).filter(|(event, _)| !event.revents().is_empty());
        let ready: Vec<usize> = ready.map(|(_, &at)| at).collect();
        for at in ready {
            match at {
                0 => return,
                1 => {
                    signalled = true; // the next who looks is to find the signal, too
                    let _ = shared.end.send(());
                }
                at => {
                    let Ok(client) = accept(all[at]) else { continue };
                    if let Some((_, access)) = sockets.admin.get(at - 2) {
                        greet(client, access, shared);
                    }
                }
            }
        }
    }
}

/// Starts a thread that talks to an admin client, unless there are too many clients.
fn greet(client: OwnedFd, access: &Arc<Access>, shared: &Arc<Shared>) {
    if shared.clients.fetch_add(1, Ordering::Relaxed) >= MOST_CLIENTS {
        shared.clients.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let (access, of_client) = (Arc::clone(access), Arc::clone(shared));
    let talk = move || {
        if let Err(error) = talk(client, access, &of_client) {
            tracing::debug!(%error, "an admin client broke off");
        }
        of_client.clients.fetch_sub(1, Ordering::Relaxed);
    };
    if Builder::new().name("floe-standby-admin".to_owned()).spawn(talk).is_err() {
        shared.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

fn talk(client: OwnedFd, access: Arc<Access>, shared: &Shared) -> io::Result<()> {
    let until = Instant::now() + shared.patience;
    // Receiving and sending are the same for all streams, those of Unix sockets among them.
    let mut stream = TcpStream::from(client);
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(shared.patience))?;
    let mut encryption = match access.network.is_some() {
        true => {
            Encryption::Undecided { tls: shared.tls.clone(), required: access.encrypted_only() }
        }
        false => Encryption::None,
    };
    let mut conversation = Conversation::new(access);
    let mut bytes = [0; 4096];
    let reply = loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let received = stream.read(&mut bytes)?;
        if received == 0 {
            return Ok(());
        }
        let text = encryption.decrypt(bytes[..received].to_vec());
        stream.write_all(&encryption.take())?;
        match text {
            Ok(text) => match conversation.hear(&text) {
                Heard::More => {}
                Heard::Refusal(reply) => break reply,
                Heard::Command(command) => break obey(&command, shared),
            },
            Err(Undecipherable::InTheClear) => {
                let problem = "this address can be reached from other machines and takes TLS \
                               only; ask by https";
                break Reply::trouble(Trouble::Forbidden, problem);
            }
            Err(Undecipherable::Broken(error)) => return Err(error),
        }
    };
    stream.write_all(&encryption.encrypt_last(reply.encode()))
}

fn obey(command: &AdminCommand, shared: &Shared) -> Reply {
    let pair = shared.turn.status();
    match command {
        AdminCommand::Status => Reply::json(&StandbyStatus { pair }),
        AdminCommand::Health if pair.role == Role::Active => {
            Reply::trouble(Trouble::Refusing, "waiting for a half of the mirror")
        }
        AdminCommand::Health => Reply::Done("standby"),
        AdminCommand::Metrics => Reply::Metrics(crate::metrics::of_standby(&pair)),
        AdminCommand::Stop => {
            let _ = shared.end.send(()); // it may have ended
            Reply::Done("stopped")
        }
        AdminCommand::TakeOver if pair.active.is_none() => {
            let problem = "no active server is known that keeps a lease; see floe status";
            Reply::trouble(Trouble::Conflict, problem)
        }
        AdminCommand::TakeOver => {
            shared.turn.want();
            Reply::Done("taking over")
        }
        _ => {
            let active = pair.active.as_deref().unwrap_or("the active server");
            let problem = format!("this server stands by and serves nothing; ask {active}");
            Reply::trouble(Trouble::Conflict, problem)
        }
    }
}
