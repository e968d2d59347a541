//! The barrier between readers and reclaimers under the model checker, as what it is: readers fence
//! nothing, and a reclaimer has every other thread pass a fence.
//!
//! The heavy barrier is a handshake. The reclaimer fences, says so to each thread of the model,
//! lets them run, and goes on with a fence of its own when all have fenced. A thread does that
//! before its next access to shared memory ([`step`]), which is the same to the others as any later
//! point before the reclaimer goes on: that does nothing meanwhile. A thread that takes a lock,
//! waits for another thread, or begins has fenced before and fences when it goes on, as one that
//! the system has put to sleep: lookups do neither, so that hides nothing of theirs. What is said
//! and heard is the system's memory, not the model's: it puts nothing in order but by the fences.
//!
//! Covered: which accesses a reader's processor may have under way when the barrier reaches it,
//! threads that reclaim at once, that begin, end and wait meanwhile, and a barrier that is refused
//! ([`BarrierKind::Refused`]), when readers hear late that they have to fence. Not covered: code
//! that the compiler moves (`compiler_fence` is nothing here), interrupts in the middle of an
//! access, and that stores arrive by themselves after a refusal: that is taken for granted, and
//! modelled as the handshake.
//!
//! [`BarrierKind::Missing`] is a fault: the barrier reaches nobody. `loom_cache` holds that the
//! models find it.

#![allow(dead_code)] // not every model has all of it

use std::cell::Cell;

use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread::ThreadId;

/// Tells which barrier there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    /// Readers do not fence, and lookups begin with the short look.
    Asymmetric,
    /// Both sides fence, as where the system knows no other.
    Symmetric,
    /// Asymmetric, until the first heavy barrier is refused.
    Refused,
    /// Readers do not fence, and neither does the barrier reach them.
    Missing,
}

/// Threads of a model.
const THREADS_MAX: usize = 6;

/// Holds what is known of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    Runs,
    /// The barrier has reached it, and it has yet to fence.
    Reached,
    /// It waits, and has fenced before.
    Waits,
}

std::thread_local! {
    static KIND: Cell<BarrierKind> = const { Cell::new(BarrierKind::Asymmetric) };
    /// One model runs on one thread of the system, whatever threads are in it.
    static THREADS: [Cell<Option<(ThreadId, Thread)>>; THREADS_MAX] =
        const { [const { Cell::new(None) }; THREADS_MAX] };
}

loom::lazy_static! {
    /// True if readers have been told to fence.
    static ref TOLD: AtomicBool = AtomicBool::new(false);
}

/// Returns which barrier the next models have.
pub(crate) fn with(kind: BarrierKind) {
    KIND.set(kind);
}

/// Begins a model. The first thread is there from now on.
pub(crate) fn begin() -> Here {
    THREADS.with(|threads| threads.iter().for_each(|thread| thread.set(None)));
    here()
}

/// A thread of the model, until it ends.
pub(crate) struct Here(());

/// The calling thread begins.
pub(crate) fn here() -> Here {
    THREADS.with(|threads| {
        let free = threads.iter().find(|thread| thread.get().is_none());
        free.expect("few threads").set(Some((this(), Thread::Runs)));
    });
    fence(Ordering::SeqCst); // the system has put it on a processor
    Here(())
}

impl Drop for Here {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            fence(Ordering::SeqCst); // the system takes it off
            exchange(None);
        }
    }
}

fn this() -> ThreadId {
    loom::thread::current().id()
}

/// Sets what is known of the calling thread, and returns what was, unless the model does not know
/// it.
fn exchange(state: Option<Thread>) -> Option<Thread> {
    let this = this();
    THREADS.with(|threads| {
        let own = threads.iter().find(|thread| thread.get().is_some_and(|(id, _)| id == this))?;
        own.replace(state.map(|state| (this, state))).map(|(_, before)| before)
    })
}

/// Before each access to memory that threads share: passes the fence if a barrier has reached this
/// thread.
pub(crate) fn step() {
    let is_any_reached = THREADS.with(|threads| {
        threads.iter().any(|thread| matches!(thread.get(), Some((_, Thread::Reached))))
    });
    if is_any_reached && !std::thread::panicking() {
        match exchange(Some(Thread::Runs)) {
            Some(Thread::Reached) => fence(Ordering::SeqCst),
            Some(before) => _ = exchange(Some(before)),
            None => {}
        }
    }
}

/// The system puts the calling thread to sleep, as it waits for something.
pub(crate) fn sleeps() {
    // Where both sides fence, this would hide fences that the crate lacks.
    if KIND.get() != BarrierKind::Symmetric && !std::thread::panicking() {
        fence(Ordering::SeqCst);
        exchange(Some(Thread::Waits));
    }
}

/// The system wakes the calling thread.
pub(crate) fn wakes() {
    if KIND.get() != BarrierKind::Symmetric && !std::thread::panicking() {
        exchange(Some(Thread::Runs));
        fence(Ordering::SeqCst);
    }
}

/// Has all other threads pass a fence between two of this thread's.
fn reach_all() {
    let this = this();
    let is_other = |thread: &Cell<Option<(ThreadId, Thread)>>, state| {
        thread.get().filter(|(id, is)| *id != this && *is == state).map(|(id, _)| id)
    };
    fence(Ordering::SeqCst);
    THREADS.with(|threads| {
        for thread in threads {
            if let Some(id) = is_other(thread, Thread::Runs) {
                thread.set(Some((id, Thread::Reached)));
            }
        }
    });
    while THREADS
        .with(|threads| threads.iter().any(|thread| is_other(thread, Thread::Reached).is_some()))
    {
        step(); // others may do the same
        loom::thread::yield_now();
    }
    step();
    fence(Ordering::SeqCst);
}

pub(crate) fn choose() {}

pub(crate) fn is_asymmetric() -> bool {
    match KIND.get() {
        BarrierKind::Asymmetric | BarrierKind::Missing => true,
        BarrierKind::Symmetric => false,
        BarrierKind::Refused => !TOLD.load(Ordering::Relaxed), // as in `src/barrier.rs`
    }
}

pub(crate) fn light() {
    if !is_asymmetric() {
        fence(Ordering::SeqCst);
    }
}

pub(crate) fn light_if_asymmetric() {}

pub(crate) fn heavy() -> bool {
    fence(Ordering::SeqCst);
    match KIND.get() {
        BarrierKind::Asymmetric => reach_all(),
        BarrierKind::Symmetric | BarrierKind::Missing => {}
        BarrierKind::Refused => TOLD.store(true, Ordering::Relaxed), // as in `src/barrier.rs`
    }
    KIND.get() != BarrierKind::Refused
}

pub(crate) fn let_stores_arrive() {
    reach_all();
}
