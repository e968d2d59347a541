//! A worker's part in attaching and detaching a tier: one step for each command.
//!
//! While the I/O gate is shut, the worker begins no work but clients' requests, so that no
//! operation starts below the gate.

use floe_block::Tier;

use super::awaited::{Awaited, TierAwaited};
use super::messages::{Done, Problem, TierCommand};
use super::tier::TierKey;
use super::tier_part::TierPart;
use super::worker::Worker;

impl Worker {
    /// Opens the device of a tier to attach.
    pub(super) fn open_newcomer(&mut self, tier: TierPart) -> Result<(), Problem> {
        let key = tier.key;
        let opened = tier.open(&self.ring, &self.common.pool);
        let tier = opened.map_err(|error| Problem::Other(error.to_string()))?;
        self.commands.tier_change.newcomer = Some((key, tier));
        Ok(())
    }

    /// Takes a step with a tier, or returns the condition for its end.
    pub(super) fn step_with_tier(
        &mut self,
        number: u32,
        command: TierCommand,
    ) -> Result<(), TierAwaited> {
        match command {
            TierCommand::LimitDirty { tier, bytes } => self.tier(tier).limit_dirty(bytes),
            TierCommand::Empty { above, volume } => {
                let at = self.place(above);
                self.driver.drain_below(at, volume, number);
                return Err(TierAwaited::Emptied { above });
            }
            TierCommand::Quiesce { above } => {
                self.commands.tier_change.is_shut = true;
                self.tier(above).io_gate_mut().shut();
                return Err(TierAwaited::Quiet { above });
            }
            TierCommand::Rest { above } => return Err(TierAwaited::Rest { above }),
            TierCommand::PutIn { above, ids } => {
                let newcomer = self.commands.tier_change.newcomer.take();
                let (key, newcomer) = newcomer.expect("a tier is put in after its device is open");
                let at = self.place(above);
                self.driver.put_below(at, newcomer, &ids);
                self.watches.insert(at + 1, key);
                self.open_gate(above);
            }
            TierCommand::TakeOut { above } => {
                let at = self.place(above);
                drop(self.driver.take_below(at));
                self.watches.remove(at + 1);
                self.open_gate(above);
            }
            TierCommand::Dismiss { above } => {
                // where its device could not be opened there is none
                self.commands.tier_change.newcomer = None;
                self.open_gate(above);
            }
            TierCommand::Keep { above, bytes } => {
                self.tier_below(above).limit_dirty(bytes);
                self.open_gate(above);
            }
        }
        Ok(())
    }

    /// The result of a step, once it has ended.
    pub(super) fn tier_step_ended(
        &mut self,
        number: u32,
        awaited: TierAwaited,
    ) -> Option<Result<Done, Problem>> {
        match awaited {
            TierAwaited::Quiet { above } => {
                self.tier(above).io_gate().is_quiet().then_some(Ok(Done::Nothing))
            }
            TierAwaited::Emptied { above } => {
                let mut emptied = std::mem::take(&mut self.commands.tier_change.emptied);
                self.tier(above).io_gate_mut().take_drained(&mut emptied);
                let at = emptied.iter().position(|(of, _)| *of == number);
                let ended = at.map(|at| emptied.swap_remove(at).1);
                self.commands.tier_change.emptied = emptied;
                ended.map(|result| result.map(|()| Done::Nothing).map_err(Problem::Fault))
            }
            TierAwaited::Rest { above } => {
                let below = self.tier_below(above);
                match (below.is_at_rest(), below.cache().condition().has_dirty_data()) {
                    (false, _) => None,
                    (true, false) => Some(Ok(Done::Nothing)),
                    (true, true) => Some(Err(Problem::Other("some of it is dirty again".into()))),
                }
            }
        }
    }

    /// Returns the position of an attached tier, from the top.
    fn place(&self, key: TierKey) -> usize {
        self.watches.position(key).expect("the tier is there")
    }

    /// Returns an attached tier.
    pub(super) fn tier(&mut self, key: TierKey) -> &mut Tier {
        let at = self.place(key);
        self.driver.tier_mut(at).expect("workers have all tiers")
    }

    /// Returns the tier below an attached one, from where it may be detached.
    fn tier_below(&mut self, above: TierKey) -> &mut Tier {
        let at = self.place(above) + 1;
        self.driver.tier_mut(at).expect("it stays until it is taken out")
    }

    /// Opens the gate after a tier was attached or detached, or after a cancelled change. The end
    /// of an abandoned step is no longer awaited.
    fn open_gate(&mut self, above: TierKey) {
        self.commands.tier_change.is_shut = false;
        self.commands.tier_change.emptied.clear();
        self.commands.awaited.retain(|(_, awaited)| !matches!(awaited, Awaited::Tier(_)));
        self.tier(above).io_gate_mut().open();
    }
}
