//! The admin interface of a standby server, which reports its state and accepts a few commands.
//! Data clients are disconnected at once, so that they try the other server.

mod away;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use floe_device::{Ring, SocketCompletion};
use rustix::net::accept;

use crate::acceptor::admin::{AdminClients, Io};
use crate::acceptor::entrance::{AcceptorToken, Entrance};
use crate::admin::{Access, AdminCommand, Reply, Trouble};
use crate::pair::{Role, StandbyStatus, Turn};
use crate::setup::ServeError;
use crate::tls::TlsConfig;
use crate::worker::RING_ENTRIES;

pub use away::Away;

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
/// its accepts at once. The thread itself ends with the last client that it has accepted.
#[derive(Debug)]
pub struct Desk {
    stop: Option<UnixStream>,
    /// The thread has begun, or could not; disconnected once it accepts no more clients.
    opened: Receiver<Result<(), ServeError>>,
    ended: Receiver<()>,
}

impl Desk {
    /// Starts the thread that answers admin clients.
    ///
    /// # Errors
    /// When a socket, a ring or a thread cannot be created.
    pub(crate) fn open(sockets: Sockets, turn: &Arc<Turn>) -> Result<Self, ServeError> {
        let (stop, stopped) = UnixStream::pair().map_err(ServeError::Standby)?;
        let (end, ended) = channel();
        let (begun, opened) = channel();
        let turn = Arc::clone(turn);
        let serve = move || match Ring::new(RING_ENTRIES) {
            Ok(ring) => {
                let _ = begun.send(Ok(()));
                StandbyAcceptor::new(sockets, stopped, ring, turn, end).run(begun);
            }
            Err(error) => drop(begun.send(Err(error.into()))),
        };
        let thread = Builder::new().name("floe-standby".to_owned()).spawn(serve);
        thread.map_err(ServeError::Standby)?;
        opened.recv().expect("it sends a result first")?;
        Ok(Self { stop: Some(stop), opened, ended })
    }

    pub(crate) fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    /// Waits until the server is told to end, for at most the time `within`. Returns whether it is.
    pub fn has_ended(&self, within: Duration) -> bool {
        self.ended.recv_timeout(within) != Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.stop = None;
        let _ = self.opened.recv(); // also if the thread has panicked, which has been logged
    }
}

/// State of the thread that answers admin clients.
struct StandbyAcceptor {
    clients: AdminClients,
    data: Vec<Rc<OwnedFd>>,
    admin: Vec<(Rc<OwnedFd>, Arc<Access>)>,
    stopped: Rc<OwnedFd>,
    entrance: Entrance,
    turn: Arc<Turn>,
    /// Sends the order to end the server.
    end: Sender<()>,
}

impl StandbyAcceptor {
    fn new(
        sockets: Sockets,
        stopped: UnixStream,
        ring: Ring,
        turn: Arc<Turn>,
        end: Sender<()>,
    ) -> Self {
        let Sockets { data, admin, signal, tls, patience } = sockets;
        Self {
            clients: AdminClients::new(Io::new(ring, signal), tls, patience),
            data: data.into_iter().map(Rc::new).collect(),
            admin: admin.into_iter().map(|(socket, access)| (Rc::new(socket), access)).collect(),
            stopped: Rc::new(stopped.into()),
            entrance: Entrance::default(),
            turn,
            end,
        }
    }

    /// Accepts and answers clients until the server serves, then answers the last ones. `accepting`
    /// is dropped once no more clients are accepted.
    fn run(mut self, accepting: Sender<Result<(), ServeError>>) {
        let mut accepting = Some(accepting);
        let (signal, stopped) = (Rc::clone(&self.clients.io.signal), Rc::clone(&self.stopped));
        self.clients.io.sockets.readable(AcceptorToken::Signal.encode(), &signal);
        self.clients.io.sockets.readable(AcceptorToken::WakeUp.encode(), &stopped);
        (0..self.data.len() as u32).for_each(|it| self.listen(AcceptorToken::Accept(it)));
        (0..self.admin.len() as u32).for_each(|it| self.listen(AcceptorToken::AcceptAdmin(it)));
        let mut arrived = Vec::new();
        while accepting.is_some() || !self.clients.sessions.is_empty() {
            let due = self.clients.due().into_iter().chain(self.entrance.due()).min();
            if let Err(error) = self.clients.io.ring.wait_until(due) {
                tracing::error!(%error, "a standby cannot answer admin clients any more");
                return;
            }
            self.clients.io.sockets.poll(&mut arrived);
            for SocketCompletion { token, result } in arrived.drain(..) {
                match AcceptorToken::decode(token) {
                    AcceptorToken::WakeUp => accepting = None,
                    AcceptorToken::Signal => drop(self.end.send(())),
                    token @ (AcceptorToken::Accept(_) | AcceptorToken::AcceptAdmin(_)) => {
                        if accepting.is_some() {
                            self.accept(token);
                        }
                    }
                    AcceptorToken::ReceiveAdmin(index) => {
                        if let Some(command) = self.clients.heard(index, result) {
                            let reply = self.obey(index, &command);
                            self.clients.tell(index, &reply);
                        }
                    }
                    AcceptorToken::SendAdmin(index) => {
                        let is_stopping = self.clients.sessions[index].stopping;
                        self.clients.sent(index, &result);
                        if is_stopping && !self.clients.sessions.contains(index) {
                            let _ = self.end.send(()); // after the reply, or it might not arrive
                        }
                    }
                }
            }
            self.clients.hang_up_on_late();
            let now = Instant::now();
            self.entrance.warnings.tell(now);
            let again = self.entrance.accept_again(now);
            again.into_iter().filter(|_| accepting.is_some()).for_each(|it| self.listen(it));
        }
    }

    fn listener(&self, token: AcceptorToken) -> &Rc<OwnedFd> {
        match token {
            AcceptorToken::Accept(index) => &self.data[index as usize],
            AcceptorToken::AcceptAdmin(index) => &self.admin[index as usize].0,
            _ => unreachable!("nothing else accepts"),
        }
    }

    /// Waits for a client without accepting it: the server that serves next may be faster.
    fn listen(&mut self, token: AcceptorToken) {
        let listener = Rc::clone(self.listener(token));
        self.clients.io.sockets.readable(token.encode(), &listener);
    }

    /// Accepts a client: disconnects a data client, and listens to an admin client.
    fn accept(&mut self, token: AcceptorToken) {
        match accept(self.listener(token).as_fd()).map_err(io::Error::from) {
            Ok(client) => {
                self.entrance.accepted();
                if let AcceptorToken::AcceptAdmin(index) = token {
                    self.clients.greet(Arc::clone(&self.admin[index as usize].1), client);
                }
                self.listen(token);
            }
            Err(error) => self.entrance.not_accepted(token, &error, Instant::now()),
        }
    }

    fn obey(&mut self, index: u32, command: &AdminCommand) -> Reply {
        let pair = self.turn.status();
        match command {
            AdminCommand::Status => Reply::json(&StandbyStatus { pair }),
            AdminCommand::Health if pair.role == Role::Active => {
                Reply::trouble(Trouble::Refusing, "waiting for a half of the mirror")
            }
            AdminCommand::Health => Reply::Done("standby"),
            AdminCommand::Metrics => Reply::Metrics(crate::metrics::of_standby(&pair)),
            AdminCommand::Stop => {
                self.clients.sessions[index].stopping = true;
                Reply::Done("stopped")
            }
            AdminCommand::TakeOver if pair.active.is_none() => {
                let problem = "no active server is known that keeps a lease; see floe status";
                Reply::trouble(Trouble::Conflict, problem)
            }
            AdminCommand::TakeOver => {
                self.turn.want();
                Reply::Done("taking over")
            }
            _ => {
                let active = pair.active.as_deref().unwrap_or("the active server");
                let problem = format!("this server stands by and serves nothing; ask {active}");
                Reply::trouble(Trouble::Conflict, problem)
            }
        }
    }
}
