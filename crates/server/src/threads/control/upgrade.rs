//! Prepares the server for a program that replaces this one.
//!
//! The server then ends in good order, except that its local devices stay, and the process carries
//! out the new program, with the same arguments. So requests to local devices wait from the last
//! answer of this program until the new one has opened the cache.

use floe_block::Kind;

use super::core::{Control, Wait};
use super::opening::beside;
use crate::admin::{Reply, Trouble};

/// Checks that the new program takes this server's settings, and makes written data durable, so
/// that little is left to do while requests wait.
///
/// # Errors
/// The reply that refuses to replace the program. The server goes on.
pub(super) fn make_ready(control: &mut Control) -> Result<(), Reply> {
    let check = control.config.check_program;
    let checked = beside(control, check).map_err(|problem| problem.into_reply())?;
    checked.map_err(|problem| {
        let problem = format!("the new program is not taken: {problem}");
        Reply::trouble(Trouble::Failed, problem)
    })?;
    let flushed = control.flush(Wait::UntilEnd, control.offer.ids(), Kind::Flush);
    flushed.map_err(|problem| problem.into_reply())
}
