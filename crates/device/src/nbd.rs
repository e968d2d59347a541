//! An export of an NBD server as a device.
//!
//! All threads share one connection, which a separate thread drives ([hub]): a flush covers only
//! writes that were answered on its connection, unless the server promises more, and many servers
//! take one client at a time. A thread's operations travel to the hub and their results back by
//! mailboxes; the data is lent, not copied.
//!
//! After a lost connection the hub reconnects and sends the unanswered requests again. A server
//! that crashed may also have lost writes that it had acknowledged and not flushed. So the hub
//! keeps a copy of those ([log](work::Log)), and repeats them first. It makes the server flush when
//! the log grows large.

mod hub;
mod socket;
mod work;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use floe_nbd::uri::Address;

use self::hub::{Connected, Event, Hub, Shared, connect};
use self::work::{Answer, Job, JobAction};
use crate::buffer::Slice;
use crate::device::{Action, Completion, Device, Operation, clip};
use crate::identity::{Fact, FactKind, Identity};
use crate::queue::{Inbox, Mailbox, Queue, check_resize};
use crate::ring::Ring;

use crate::buffer::Pool;
use crate::file::OpenError;
use crate::source::{PreparedDevice, Source};
use crate::spec::{DeviceSpec, Setting, SpecError, Wanted, size_of_present, write_timeout};
use floe_nbd::uri::Uri;
pub use hub::{NbdError, NbdName};
pub use socket::Socket as NbdSocket;
use std::fmt;

/// Submission entries of the hub's ring, which carries three operations at a time.
const RING_ENTRIES: u32 = 8;

/// The time limit for the server to report the size of an export.
const PATIENCE: Duration = Duration::from_secs(30);

/// An open export, from which each thread opens a [`NbdDevice`]. Clones share the connection, which
/// ends with the last clone and device.
#[derive(Debug, Clone)]
pub(crate) struct NbdSource(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    shared: Arc<Shared>,
    /// The hub's thread; `None` once it is being joined.
    thread: Option<JoinHandle<()>>,
}

impl NbdSource {
    /// Connects to the server and starts the hub.
    ///
    /// # Errors
    /// Names the export: the server cannot be reached or does not grant it, it refuses writes, or
    /// its sizes make no device.
    pub(crate) fn prepare(name: &NbdName, read_only: bool) -> Result<NbdSource, NbdError> {
        let failed = |source| NbdError::System { export: name.to_string(), source };
        let first = connect(name, read_only)?;
        let shared = Arc::new(Shared {
            name: name.clone(),
            read_only,
            mailbox: Mailbox::new().map_err(failed)?,
            size: AtomicU64::new(first.info.size_bytes),
        });
        let thread = start(Arc::clone(&shared), first).map_err(failed)?;
        Ok(NbdSource(Arc::new(Opened { shared, thread: Some(thread) })))
    }

    fn export(&self) -> &NbdName {
        &self.0.shared.name
    }

    fn is_read_only(&self) -> bool {
        self.0.shared.read_only
    }

    fn tell(&self, event: Event) {
        self.0.shared.mailbox.leave(event);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.shared.mailbox.leave(Event::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic has been printed
        }
    }
}

/// Starts the hub's thread, and waits until its ring and socket are set up.
fn start(shared: Arc<Shared>, first: Connected) -> io::Result<JoinHandle<()>> {
    let (began, has_begun) = channel();
    let run = move || {
        let ring = Ring::new(RING_ENTRIES).map_err(io::Error::other);
        match ring.and_then(|ring| Hub::new(shared, ring, first)) {
            Ok(mut hub) => {
                let _ = began.send(Ok(())); // it is waited for
                hub.run();
            }
            Err(error) => drop(began.send(Err(error))),
        }
    };
    let thread = std::thread::Builder::new().name("nbd".to_owned()).spawn(run)?;
    has_begun.recv().expect("the thread says whether it could begin")?;
    Ok(thread)
}

/// One thread's handle of an export.
#[derive(Debug)]
struct NbdDevice {
    source: NbdSource,
    size: u64,
    /// The time after which an operation that the server has not answered fails.
    timeout: Option<Duration>,
    inbox: Inbox<Answer>,
    queue: Queue<NbdOperation>,
    answers: Vec<Answer>,
}

/// An operation that has been passed to the hub.
#[derive(Debug)]
struct NbdOperation {
    token: u64,
    /// The memory to read into or write from, lent to the hub.
    _slice: Option<Slice>,
}

impl NbdDevice {
    /// Creates a thread's device for an open export.
    ///
    /// # Errors
    /// When the system has no eventfd left.
    fn new(ring: &Ring, source: &NbdSource) -> io::Result<NbdDevice> {
        Ok(NbdDevice {
            source: source.clone(),
            size: source.size_bytes(),
            timeout: source.export().timeout,
            inbox: Inbox::new(ring)?,
            queue: Queue::default(),
            answers: Vec::new(),
        })
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let bytes = clip(&operation, self.size)?;
        let Operation { token, offset, action } = operation;
        if self.source.is_read_only() && !matches!(action, Action::Read(_) | Action::Flush) {
            let message = format!("export {} was opened for reading only", self.source.export());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        let slice = match &action {
            Action::Read(into) => {
                into.slice(bytes as usize..into.len()).fill_zero();
                Some(into.slice(0..bytes as usize))
            }
            Action::Write { from, .. } => Some(from.slice(0..bytes as usize)),
            _ => None,
        };
        if bytes == 0 && !matches!(action, Action::Flush) {
            self.queue.end(token, Ok(()));
            return Ok(());
        }
        let lend = || slice.as_ref().expect("it has one").lend();
        let action = match action {
            Action::Read(_) => JobAction::Read(lend()),
            Action::Write { durable, .. } => JobAction::Write { from: lend(), durable },
            Action::Zero { may_unmap, fast, .. } => JobAction::Zero { may_unmap, fast },
            Action::Discard { .. } => JobAction::Discard,
            Action::Flush => JobAction::Flush,
        };
        self.inbox.listen()?;
        let slot = self.queue.insert(NbdOperation { token, _slice: slice });
        let due = self.timeout.map(|timeout| Instant::now() + timeout);
        let to = Arc::clone(&self.inbox.mailbox);
        self.source.tell(Event::Job(Job { to, slot, offset, bytes, action, due }));
        Ok(())
    }
}

impl Device for NbdDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn submit(&mut self, operation: Operation) {
        let token = operation.token;
        if let Err(error) = self.begin(operation) {
            self.queue.end(token, Err(error));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.queue.take_ended(done);
        self.inbox.collect(&mut self.answers, self.queue.len());
        for (slot, result) in self.answers.drain(..) {
            done.push(Completion { token: self.queue.remove(slot).token, result });
        }
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        check_resize("export", bytes, self.source.size_bytes())?;
        self.size = bytes;
        Ok(())
    }

    fn set_timeout(&mut self, timeout: Duration) {
        let timeout = self.timeout.map_or(timeout, |own| own.min(timeout));
        self.timeout = Some(timeout);
        // The hub has several devices' operations, and what holds for one holds for all.
        self.source.tell(Event::Timeout(timeout));
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.next_due().or_else(|| self.inbox.next_due(self.queue.len()))
    }
}

/// Returns whether a text is an NBD URI.
pub(crate) fn is_export(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| matches!(scheme, "nbd" | "nbds" | "nbd+unix" | "nbds+unix"))
}

impl NbdName {
    pub(crate) fn parse_spec(spec: &str, text: &str) -> Result<Box<dyn DeviceSpec>, SpecError> {
        let problem = match text.parse::<Uri>() {
            Ok(uri) if !uri.tls => return Ok(Box::new(NbdName { uri, timeout: None })),
            Ok(_) => "a device's connection does not speak TLS; put a tunnel before it".to_owned(),
            Err(error) => error.problem.to_string(),
        };
        Err(SpecError::Export(spec.to_owned(), problem))
    }
}

impl DeviceSpec for NbdName {
    fn kind(&self) -> &'static str {
        "nbd"
    }

    fn title(&self) -> String {
        self.to_string()
    }

    fn write_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_timeout(f, self.timeout)
    }

    fn settings(&self) -> &'static str {
        "timeout=TIME, medium=NAME, interference=off, iops=N and bandwidth=SIZE"
    }

    fn set(&mut self, setting: &Setting<'_>) -> Result<bool, SpecError> {
        if setting.name == "timeout" {
            self.timeout = Some(setting.time()?);
        }
        Ok(setting.name == "timeout")
    }

    fn become_half(&mut self, timeout: Duration) -> bool {
        // The half leaves after that time; its operations must have ended to return.
        self.timeout = Some(timeout);
        true
    }

    fn size_found(&self) -> Option<u64> {
        size_of_present(self)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn prepare(&self, wanted: &Wanted<'_>) -> Result<Source, OpenError> {
        let export = NbdSource::prepare(self, wanted.read_only())?;
        wanted.checked(Source::new(export, wanted.imitation, wanted.number))
    }
}

impl PreparedDevice for NbdSource {
    fn size_bytes(&self) -> u64 {
        self.0.shared.size_bytes()
    }

    fn name(&self) -> String {
        self.export().to_string()
    }

    /// Returns the server's address and the export's name, since the protocol offers nothing
    /// better. If the server exports another disk under that name, this goes undetected.
    fn identity(&self) -> Identity {
        let uri = &self.export().uri;
        let server = match &uri.address {
            Address::Tcp { host, port } => format!("{host}:{port}"),
            Address::Unix(path) => path.display().to_string(),
        };
        Identity::of([Fact::text(FactKind::Export, &format!("{server}/{}", uri.export))])
    }

    /// Asks the server for the export's size, on a new connection.
    fn refresh(&self) -> io::Result<u64> {
        let (to, answer) = channel();
        self.tell(Event::Measure(to));
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the server has not answered");
        let size = answer.recv_timeout(PATIENCE).map_err(late)??;
        self.0.shared.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    fn open(&self, ring: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
        let failed = |source| NbdError::System { export: self.export().to_string(), source };
        Ok(Box::new(NbdDevice::new(ring, self).map_err(failed)?))
    }
}
