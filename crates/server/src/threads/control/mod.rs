//! The control thread: runs admin operations one after the other, each as straight code in its own
//! function, and acts on the workers' events of failing tiers.
//!
//! An operation broadcasts a command to the workers and waits for their replies; its undo stands
//! beside each step. Workers never wait for the control thread. The control thread stops waiting
//! for a worker that takes no messages for
//! [`Limits::reply_time`](crate::limits::Limits::reply_time), and the operation fails with the
//! worker's number. Meanwhile the acceptor answers health, status and metrics from the `board`.

mod add_volume;
mod attach_tier;
mod core;
mod detach_tier;
mod failing_tier;
mod opening;
mod remove_volume;
mod resize_volume;
mod restore;
mod set_access;
mod shutdown;
mod upgrade;

use super::closing::Closing;
use super::messages::{Job, Notice, Operation, Problem};
use super::setup::ServeError;
use crate::admin::Reply;
pub(super) use core::{Control, End, Inbox};

/// Runs jobs until the server is to end, then ends it.
///
/// # Errors
/// When the last flush leaves dirty data behind, or a thread does not answer.
pub(super) fn run(mut control: Control) -> Result<Closing, ServeError> {
    control.offer.all().iter().for_each(|offered| resize_volume::watch(&control, &offered.volume));
    loop {
        if control.end.is_due {
            for job in std::mem::take(&mut control.jobs) {
                control.answer(job.admin, Problem::Ending.into_reply());
            }
            return shutdown::shutdown(control);
        }
        match control.jobs.pop_front() {
            Some(Job { admin: Some(admin), operation: Operation::Upgrade }) => {
                match upgrade::make_ready(&mut control) {
                    Ok(()) => control.acceptor.post(Notice::Replace { admin }),
                    Err(refusal) => control.answer(Some(admin), refusal),
                }
            }
            Some(Job { admin, operation }) => {
                let reply = carry_out(&mut control, operation).unwrap_or_else(|refusal| refusal);
                control.answer(admin, reply);
            }
            None => drop(control.next(None)),
        }
    }
}

fn carry_out(control: &mut Control, operation: Operation) -> Result<Reply, Reply> {
    match operation {
        Operation::Upgrade => unreachable!("it is answered by the end of the server"),
        Operation::Restore => restore::restore(control),
        Operation::AddVolume { addition, paths } => {
            add_volume::add_volume(control, *addition, paths)
        }
        Operation::RemoveVolume { name, force } => {
            remove_volume::remove_volume(control, &name, force)
        }
        Operation::ResizeVolume { name, size_bytes } => {
            resize_volume::resize_volume(control, &name, size_bytes)
        }
        Operation::FollowDevice { name } => {
            resize_volume::follow_device(control, &name);
            Ok(Reply::Done("looked at"))
        }
        Operation::SetAccess { name, state } => set_access::set_access(control, &name, state),
        Operation::AttachTier { wanted, paths } => attach_tier::attach_tier(control, wanted, paths),
        Operation::DetachTier { number } => detach_tier::detach_tier(control, number),
    }
}
