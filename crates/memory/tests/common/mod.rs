//! Values that are counted and know when they are looked at after their end.

#![allow(dead_code)] // each test binary takes what it needs

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

const ALIVE: u64 = 0x5afe_0000_c0de_1234;
const DEAD: u64 = 0xdead_dead_dead_dead;

/// Counts how many values there have been and are no more.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    made: AtomicU64,
    dropped: AtomicU64,
}

impl Tally {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Values made and not yet dropped.
    pub(crate) fn alive(&self) -> u64 {
        let dropped = self.dropped.load(SeqCst); // first: a value is made before it is dropped
        self.made.load(SeqCst).checked_sub(dropped).expect("no value is dropped twice")
    }

    pub(crate) fn made(&self) -> u64 {
        self.made.load(SeqCst)
    }

    /// A value of its own number that belongs to a key.
    pub(crate) fn value(self: &Arc<Self>, key: u64) -> Value {
        let number = self.made.fetch_add(1, SeqCst);
        let (canary, end) = (AtomicU64::new(ALIVE ^ key), AtomicU64::new(DEAD ^ key ^ number));
        Value { canary, key, number, end, tally: Arc::clone(self) }
    }
}

/// A value that checks itself.
#[derive(Debug)]
pub(crate) struct Value {
    /// Atomic, so that the last words are written although nobody may look any more.
    canary: AtomicU64,
    key: u64,
    number: u64,
    end: AtomicU64,
    tally: Arc<Tally>,
}

impl Value {
    /// Its number, after a check that it is whole and was made for the key.
    pub(crate) fn of(&self, key: u64) -> u64 {
        assert_eq!(self.key, key, "the value belongs to another key");
        self.check();
        self.number
    }

    /// Its number.
    pub(crate) fn number(&self) -> u64 {
        self.check();
        self.number
    }

    fn check(&self) {
        let (canary, end) = (self.canary.load(SeqCst), self.end.load(SeqCst));
        let whole = canary == ALIVE ^ self.key && end == DEAD ^ self.key ^ self.number;
        assert!(
            whole,
            "a value was looked at after its end, or before its beginning: {canary:x} {end:x}"
        );
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        let (canary, end) = (self.canary.swap(DEAD, SeqCst), self.end.swap(DEAD, SeqCst));
        if canary != ALIVE ^ self.key || end != DEAD ^ self.key ^ self.number {
            eprintln!("a value was dropped twice, or written over: {canary:x} {end:x}");
            std::process::abort(); // a panic in a destructor could be swallowed
        }
        self.tally.dropped.fetch_add(1, SeqCst);
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(out) => return out,
            Poll::Pending => std::thread::park(),
        }
    }
}
