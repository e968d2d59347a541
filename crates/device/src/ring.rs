//! One thread's io_uring, shared by all devices and sockets of that thread.
//!
//! Each device or socket layer takes an [`Owner`] and tags its entries with it. One [`Ring::wait`]
//! submits all pushed entries, sleeps until one completes, and sorts the completions into a queue
//! per owner, from where [`Ring::take`] fetches them. So one system call serves all of a thread's
//! disks and sockets.
//!
//! Invariants: a completion is in exactly one place (kernel, completion queue, its owner's queue)
//! until taken; none is lost when the completion queue overflows, since the kernel keeps the
//! surplus (`IORING_FEAT_NODROP`) until the next `wait`. `wait` never sleeps while some owner's
//! queue still holds events.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, squeue};
use rustix::io::Errno;

use crate::buffer::{Pool, Slice};
use crate::system::kernel_release;

const TOKEN_BITS: u32 = 48;
const TOKEN_MASK: u64 = (1 << TOKEN_BITS) - 1;

/// A completed entry: its token, its result (a negative errno on failure), and its completion
/// flags.
pub type Event = (u64, i32, u32);

/// A tag for the entries of one device or socket layer, which selects the queue for their
/// completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u16);

/// The reason why a ring could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The kernel has no io_uring, or forbids it.
    #[error("cannot set up an io_uring with {entries} entries: {source}{}", advice(source))]
    Setup {
        /// The number of submission entries requested.
        entries: u32,
        /// The error from the kernel.
        source: io::Error,
    },
    /// The kernel's io_uring is too old.
    #[error(
        "the kernel's io_uring lacks {0}: Linux 5.11 or newer is needed, and this is {running}",
        running = kernel_release()
    )]
    Missing(&'static str),
}

/// The reason why a pool's arenas could not be registered. I/O still works, only slower.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The kernel refused; usually the limit on locked memory (RLIMIT_MEMLOCK).
    #[error(
        "cannot register {bytes} bytes of buffer arenas with io_uring: {source}{}",
        advice(source)
    )]
    Refused {
        /// Total size of the arenas in bytes.
        bytes: usize,
        /// The error from the kernel.
        source: io::Error,
    },
    /// The ring already has registered arenas; it accepts those of one family only.
    #[error("this ring has already registered its arenas")]
    Already,
}

/// A handle to a thread's io_uring. Clones share it.
#[derive(Clone)]
pub struct Ring(Rc<Inner>);

struct Inner {
    uring: RefCell<IoUring>,
    owners: RefCell<Owners>,
    /// The number of events sorted into owners' queues and not yet taken.
    ready: Cell<usize>,
    fixed: Cell<Fixed>,
    /// The pool whose arenas are registered, kept so that their addresses stay mapped.
    registered: RefCell<Option<Pool>>,
}

/// The address range of the registered arenas, which are adjacent; none are registered while `end`
/// is zero.
#[derive(Debug, Clone, Copy, Default)]
struct Fixed {
    start: usize,
    end: usize,
    arena_bytes: usize,
}

#[derive(Default)]
struct Owners {
    queues: Vec<Vec<Event>>,
    retired: Vec<u16>,
}

impl Ring {
    /// Creates a ring with room for `entries` submissions at a time (rounded up to a power of two)
    /// and four times as many completions. More operations than either may be in flight.
    pub fn new(entries: u32) -> Result<Ring, RingError> {
        let uring = setup(entries).map_err(|source| RingError::Setup { entries, source })?;
        if !uring.params().is_feature_ext_arg() {
            return Err(RingError::Missing("timeouts on waiting"));
        }
        if !uring.params().is_feature_nodrop() {
            return Err(RingError::Missing("lossless completion queues"));
        }
        Ok(Ring(Rc::new(Inner {
            uring: RefCell::new(uring),
            owners: RefCell::default(),
            ready: Cell::new(0),
            fixed: Cell::default(),
            registered: RefCell::new(None),
        })))
    }

    /// Returns a new tag.
    ///
    /// # Panics
    /// When 65,536 owners exist.
    pub fn owner(&self) -> Owner {
        let mut owners = self.0.owners.borrow_mut();
        if let Some(owner) = owners.retired.pop() {
            return Owner(owner);
        }
        owners.queues.push(Vec::new());
        Owner(u16::try_from(owners.queues.len() - 1).expect("fewer than 65,536 owners on one ring"))
    }

    /// Releases a tag for reuse. No entry with this tag may be in flight.
    pub(crate) fn retire(&self, owner: Owner) {
        let mut owners = self.0.owners.borrow_mut();
        let left = std::mem::take(&mut owners.queues[owner.0 as usize]).len();
        self.0.ready.set(self.0.ready.get() - left);
        owners.retired.push(owner.0);
    }

    /// Queues an entry. The kernel receives it at the next [`Ring::wait`], or now if the submission
    /// queue is full. Overwrites the entry's user data.
    ///
    /// # Errors
    /// When the queue is full and the kernel refuses to take it.
    ///
    /// # Panics
    /// When `token` needs more than 48 bits.
    ///
    /// # Safety
    /// Everything the entry points to (memory, file descriptor) stays valid until its last
    /// completion was taken.
    pub unsafe fn push(&self, owner: Owner, token: u64, entry: squeue::Entry) -> io::Result<()> {
        let entry = entry.user_data(self.user_data(owner, token));
        loop {
            // SAFETY: the caller keeps what the entry points to valid.
            if unsafe { self.0.uring.borrow_mut().submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            match self.enter(0, None) {
                Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the user data that [`Ring::push`] gives an entry, by which a cancellation identifies
    /// it.
    ///
    /// # Panics
    /// When `token` needs more than 48 bits.
    pub fn user_data(&self, owner: Owner, token: u64) -> u64 {
        assert!(token <= TOKEN_MASK, "a ring token has 48 bits");
        u64::from(owner.0) << TOKEN_BITS | token
    }

    /// Submits all pushed entries and waits for at least one completion, until `timeout` has passed
    /// (`None`: for ever; zero: not at all) or a signal arrives. Returns the number of events to
    /// take.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<usize> {
        let pending = self.0.ready.get() > 0 || !self.0.uring.borrow_mut().completion().is_empty();
        match timeout {
            _ if pending => self.enter(0, None)?,
            Some(Duration::ZERO) => self.enter(0, None)?,
            _ => self.enter(1, timeout)?,
        }
        Ok(self.0.ready.get())
    }

    /// Calls [`Ring::wait`] with a deadline, as [`Device::next_due`](crate::Device::next_due)
    /// returns.
    pub fn wait_until(&self, due: Option<Instant>) -> io::Result<usize> {
        self.wait(due.map(|due| due.saturating_duration_since(Instant::now())))
    }

    /// Moves the owner's events to `events`.
    pub fn take(&self, owner: Owner, events: &mut Vec<Event>) {
        let queue = &mut self.0.owners.borrow_mut().queues[owner.0 as usize];
        self.0.ready.set(self.0.ready.get() - queue.len());
        events.append(queue);
    }

    /// Registers the arenas of the pool's whole family. This saves the kernel a page lookup at
    /// every read and write, also for buffers lent by other threads. The ring keeps the arenas
    /// alive from then on.
    ///
    /// # Errors
    /// When the kernel refuses, or arenas are registered already. I/O with the pool's memory still
    /// works.
    pub fn register_pool(&self, pool: &Pool) -> Result<(), RegisterError> {
        let mut registered = self.0.registered.borrow_mut();
        if registered.is_some() {
            return Err(RegisterError::Already);
        }
        let family = pool.arenas();
        let (start, bytes, arena_bytes) =
            (family.start().as_ptr(), family.bytes(), family.arena_bytes());
        let vectors: Vec<libc::iovec> = (0..bytes)
            .step_by(arena_bytes.max(1))
            .map(|at| libc::iovec { iov_base: start.wrapping_add(at).cast(), iov_len: arena_bytes })
            .collect();
        // SAFETY: the arenas stay mapped while the ring lives, since `registered` holds the pool.
        unsafe { self.0.uring.borrow().submitter().register_buffers(&vectors) }
            .map_err(|source| RegisterError::Refused { bytes, source })?;
        *registered = Some(pool.clone());
        let start = start as usize;
        self.0.fixed.set(Fixed { start, end: start + bytes, arena_bytes });
        Ok(())
    }

    /// Returns the index of the registered buffer that contains `slice`, for `ReadFixed` and
    /// `WriteFixed`.
    pub fn fixed_buffer(&self, slice: &Slice) -> Option<u16> {
        let Fixed { start, end, arena_bytes } = self.0.fixed.get();
        let at = slice.as_ptr() as usize;
        // A buffer never reaches from one arena into the next.
        let inside = start <= at && at + slice.len() <= end && at < end;
        inside.then(|| ((at - start) / arena_bytes) as u16)
    }

    /// Submits entries, waits for `want` completions, and sorts all available ones. Transient
    /// conditions (a signal, a timeout, a kernel short of resources) are no errors: the caller
    /// tries again.
    fn enter(&self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let mut uring = self.0.uring.borrow_mut();
        let queue = uring.submission();
        let (pushed, collect) = (queue.len(), queue.taskrun() || queue.cq_overflow());
        drop(queue);
        let entered = match timeout {
            _ if want == 0 && pushed == 0 && !collect => Ok(0),
            // SAFETY: no argument is passed, and the submission queue holds `pushed` valid entries.
            _ if want == 0 => unsafe {
                uring.submitter().enter::<libc::sigset_t>(
                    pushed as u32,
                    0,
                    EnterFlags::GETEVENTS.bits(),
                    None,
                )
            },
            None => uring.submit_and_wait(want),
            Some(timeout) => {
                let until = Timespec::from(timeout);
                uring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&until))
            }
        };
        self.sort(&mut uring);
        entered.map(drop).or_else(passing)
    }

    /// Moves the completion queue into the owners' queues. Completions that overflowed it arrive
    /// with the next `enter`, which is not skipped then.
    fn sort(&self, uring: &mut IoUring) {
        let queues = &mut self.0.owners.borrow_mut().queues;
        for entry in uring.completion() {
            let (owner, token) = (entry.user_data() >> TOKEN_BITS, entry.user_data() & TOKEN_MASK);
            queues[owner as usize].push((token, entry.result(), entry.flags()));
            self.0.ready.set(self.0.ready.get() + 1);
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("ready", &self.0.ready.get()).finish_non_exhaustive()
    }
}

/// Returns advice to the operator for a kernel that refuses an io_uring or a feature of it.
fn advice(refusal: &io::Error) -> &'static str {
    match Errno::from_io_error(refusal) {
        Some(Errno::PERM) => {
            "; this process may not use io_uring: set sysctl kernel.io_uring_disabled=0 (with 1, \
             join the group of kernel.io_uring_group), and in a container allow io_uring_setup, \
             io_uring_enter and io_uring_register in its seccomp profile"
        }
        Some(Errno::NOSYS) => {
            "; the kernel offers no io_uring: use Linux 5.11 or newer with CONFIG_IO_URING, and in \
             a container allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp \
             profile"
        }
        Some(Errno::NOMEM) => {
            "; raise the limit on locked memory (LimitMEMLOCK= in the systemd unit, ulimit -l) or \
             free memory"
        }
        _ => "",
    }
}

/// Creates an io_uring with the best setup this kernel supports: completions run on the waiting
/// thread, when it waits, and interrupt no other.
fn setup(entries: u32) -> io::Result<IoUring> {
    let base = || {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(entries.saturating_mul(4));
        builder
    };
    base()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(entries)
        .or_else(|_| {
            base().setup_coop_taskrun().setup_taskrun_flag().setup_submit_all().build(entries)
        })
        .or_else(|_| base().build(entries))
}

/// Turns errors of `io_uring_enter` that mean "try again after collecting" into success.
fn passing(error: io::Error) -> io::Result<()> {
    match Errno::from_io_error(&error) {
        Some(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => Ok(()),
        _ => Err(error),
    }
}
