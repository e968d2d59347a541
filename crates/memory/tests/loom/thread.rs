//! Threads of a model, which the [barrier](crate::barrier) knows of.

#![allow(dead_code, unused_imports)] // not every model has all of it

pub(crate) use loom::thread::{current, yield_now};

use crate::barrier;

/// Of a thread, in words: a cache's operation and what the model does for each of its steps go
/// deep.
const STACK: usize = 0x2_0000;

pub(crate) struct JoinHandle<T>(loom::thread::JoinHandle<T>);

fn start<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    JoinHandle(
        loom::thread::Builder::new()
            .stack_size(STACK)
            .spawn(run)
            .expect("a model can start threads"),
    )
}

pub(crate) fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    start(move || {
        let _here = barrier::here();
        run()
    })
}

/// Runs a model in its first thread.
pub(crate) fn run(model: impl FnOnce() + Send + 'static) {
    let first = start(move || {
        let _here = barrier::begin();
        model();
    });
    first.0.join().expect("a model that panics ends here");
}

impl<T> JoinHandle<T> {
    pub(crate) fn join(self) -> std::thread::Result<T> {
        barrier::sleeps();
        let result = self.0.join();
        barrier::wakes();
        result
    }
}
