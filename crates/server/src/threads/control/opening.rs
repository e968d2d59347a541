//! Runs work that may take long and concerns no worker, such as opening a device, on an extra
//! thread. Meanwhile the control thread acts on events.
//!
//! Opening a device may take any time. When the server is to end meanwhile, the job ends at once,
//! and the result of the work is dropped. A cache device can be restored meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, TryRecvError};
use std::thread::Builder;

use super::super::messages::{Event, Job, Operation, Problem};
use super::core::Control;
use super::restore::restore;

/// Runs the work on an extra thread, and waits for it.
///
/// # Errors
/// When the server is to end first, the work panics, or there is no thread for it.
pub(super) fn beside<T: Send + 'static>(
    control: &mut Control,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    wait_for(control, work, |control| control.end.is_due)
}

/// Runs work of the end of the server on an extra thread, and waits for it.
///
/// # Errors
/// When the server is abandoned first, the work panics, or there is no thread for it.
pub(super) fn beside_the_end<T: Send + 'static>(
    control: &mut Control,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    wait_for(control, work, |control| control.end.is_abandoned)
}

fn wait_for<T: Send + 'static>(
    control: &mut Control,
    work: impl FnOnce() -> T + Send + 'static,
    is_over: impl Fn(&Control) -> bool,
) -> Result<T, Problem> {
    let (result, results) = mpsc::channel();
    let sender = control.inbox.sender.clone();
    let run = move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        // The receiver is gone when the server ends.
        let _ = result.send(done);
        let _ = sender.send(Event::WorkDone);
    };
    let thread = Builder::new().name("floe-open".to_owned()).spawn(run);
    thread.map_err(|error| Problem::Other(format!("cannot start a thread: {error}")))?;
    loop {
        match results.try_recv() {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(_)) => return Err(Problem::Other("the work on a device panicked".to_owned())),
            Err(TryRecvError::Disconnected) => unreachable!("it sends a result first"),
            Err(TryRecvError::Empty) if is_over(control) => return Err(Problem::Ending),
            Err(TryRecvError::Empty) => {}
        }
        let restores = |job: &Job| matches!(job.operation, Operation::Restore);
        if let Some(at) = control.jobs.iter().position(restores) {
            let job = control.jobs.remove(at).expect("it has just been there");
            let reply = restore(control).unwrap_or_else(|refusal| refusal);
            control.answer(job.admin, reply);
        } else {
            control.next(None);
        }
    }
}
