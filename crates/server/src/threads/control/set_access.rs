//! Sets the access that NVMe hosts have to a volume on this server.

use super::super::messages::Problem;
use super::super::offer::present;
use super::core::{Control, Wait};
use crate::admin::{AnaState, Reply};

/// Sets the access to a volume. Once this returns, no connection begins a request that the state
/// forbids; requests that it had begun before may still be under way.
pub(super) fn set_access(
    control: &mut Control,
    name: &str,
    state: AnaState,
) -> Result<Reply, Reply> {
    present(control.offer.all(), name)?;
    control.config.nvme.paths.set_access(name, state.into());
    control.announce();
    // Workers take messages in order, so all have taken the offer when they answer.
    control.snapshots(Wait::UntilEnd).map_err(Problem::into_reply)?;
    tracing::info!(volume = name, %state, "access of NVMe hosts set");
    Ok(Reply::Done("set"))
}
