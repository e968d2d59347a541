//! The acceptor's part in the jobs of the control thread.

use super::acceptor::{Acceptor, Change, Phase};
use super::messages::{Event, Job, Operation, Problem};
use super::offer::{absent, present};
use crate::admin::{Reply, Trouble};

impl Acceptor {
    /// Gives a job to the control thread. Volumes and tiers change one at a time: another change is
    /// refused until that is done.
    pub(super) fn begin_job(&mut self, admin: u32, operation: Operation) -> Result<(), Reply> {
        if self.phase != Phase::Serving {
            return Err(Problem::Ending.into_reply());
        }
        let change = match &operation {
            Operation::Restore | Operation::Upgrade => None,
            Operation::AttachTier { .. } | Operation::DetachTier { .. } => Some(Change::Tier),
            _ => Some(Change::Volume),
        };
        if let (Some(_), Some((_, under_way))) = (change, self.change) {
            let state = self.board.state();
            match &operation {
                Operation::AddVolume { addition, .. } => absent(&state.volumes, &addition.name)?,
                Operation::RemoveVolume { name, .. }
                | Operation::ResizeVolume { name, .. }
                | Operation::SetAccess { name, .. } => present(&state.volumes, name).map(drop)?,
                _ => {}
            }
            return Err(Reply::trouble(Trouble::Conflict, under_way.text()));
        }
        if let Some(change) = change {
            self.change = Some((admin, change));
        }
        self.send_to_control(Event::Job(Job { admin: Some(admin), operation }));
        Ok(())
    }

    /// The control thread has done a job, or could not.
    pub(super) fn job_done(&mut self, admin: u32, reply: &Reply) {
        self.change.take_if(|(by, _)| *by == admin);
        self.tell_admin(admin, reply);
    }
}
