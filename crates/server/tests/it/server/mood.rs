//! A device with moods: a test lets it fail, panic or keep its thread busy, while a server works
//! with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use floe_device::{Action, Completion, Device, Operation, delegate_device};
use floe_server::admin::client as admin;
use floe_testkit::{PATIENCE, patiently};

use crate::rig::Rig;

/// The test's handle on a device, all threads' handles of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mood(Arc<State>);

#[derive(Debug, Default)]
struct State {
    failing: AtomicBool,
    failing_flushes: AtomicBool,
    panicking: AtomicBool,
    /// The thread that is kept busy, counted from one.
    busy: AtomicUsize,
    /// It is indeed.
    caught: AtomicBool,
    operations: AtomicUsize,
}

impl Mood {
    /// From now on all operations of the threads that serve fail, or none.
    pub(crate) fn fail(&self, failing: bool) {
        self.0.failing.store(failing, SeqCst);
    }

    /// From now on flushes fail, or not.
    pub(crate) fn fail_flushes(&self, failing: bool) {
        self.0.failing_flushes.store(failing, SeqCst);
    }

    /// The next operation panics.
    pub(crate) fn panic(&self) {
        self.0.panicking.store(true, SeqCst);
    }

    /// Keeps a thread of the server busy until [`Mood::let_go`], and returns when it is.
    pub(crate) fn keep_busy(&self, thread: usize, rig: &Rig) {
        self.0.busy.store(thread + 1, SeqCst);
        // The question wakes the thread. It may be kept busy before it answers, so nobody waits.
        let admin = rig.admin.clone();
        std::thread::spawn(move || drop(admin::status(&admin)));
        patiently(|| self.0.caught.load(SeqCst).then_some(()));
    }

    pub(crate) fn let_go(&self) {
        self.0.busy.store(0, SeqCst);
    }

    /// Operations so far.
    pub(crate) fn operations(&self) -> usize {
        self.0.operations.load(SeqCst)
    }

    pub(crate) fn before(&self, device: impl Device + 'static) -> Box<dyn Device> {
        Box::new(Moody { device, mood: self.clone(), failed: Vec::new() })
    }
}

struct Moody<D> {
    device: D,
    mood: Mood,
    failed: Vec<Completion>,
}

impl<D: Device> Device for Moody<D> {
    delegate_device!(this => this.device; size_bytes set_size);

    fn submit(&mut self, operation: Operation) {
        let state = &self.mood.0;
        state.operations.fetch_add(1, SeqCst);
        assert!(!state.panicking.swap(false, SeqCst), "a device panics, as the test wants");
        let flush = matches!(operation.action, Action::Flush);
        let thread = std::thread::current();
        let number = thread.name().and_then(|name| name.strip_prefix("floe-"));
        let serves = number.is_some_and(|number| number.parse::<usize>().is_ok());
        if state.failing.load(SeqCst) && serves || flush && state.failing_flushes.load(SeqCst) {
            let result = Err(std::io::Error::other("as the test wants"));
            self.failed.push(Completion { token: operation.token, result });
        } else {
            self.device.submit(operation);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let state = &self.mood.0;
        let here = |number| std::thread::current().name() == Some(&format!("floe-{number}"));
        let begun = Instant::now();
        while state.busy.load(SeqCst).checked_sub(1).is_some_and(here) && begun.elapsed() < PATIENCE
        {
            state.caught.store(true, SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        done.append(&mut self.failed);
        self.device.poll(done);
    }

    fn next_due(&self) -> Option<Instant> {
        let soon = (!self.failed.is_empty()).then(Instant::now);
        [soon, self.device.next_due()].into_iter().flatten().min()
    }
}
