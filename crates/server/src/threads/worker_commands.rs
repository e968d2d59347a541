//! Commands of the control thread to a worker.

use std::io;
use std::time::Instant;

use floe_block::{Request, VolumeError};

use super::awaited::Awaited;
use super::messages::{Command, Done, Problem, Ticket};
use super::origin::Origin;
use super::worker::Worker;
use crate::session::Session;
use crate::status::Snapshot;

impl Worker {
    /// Carries out a command, or begins to.
    pub(super) fn begin_command(&mut self, ticket: Ticket, command: Command) {
        let until = Some(Instant::now() + self.config.limits.farewell_time);
        let awaited = match command {
            Command::Flush(volume, kind) => {
                let flush = Request { volume, kind, offset: 0, len: 0 };
                return self.submit_for(Origin::Command(ticket), flush, None);
            }
            Command::ResizeVolume(volume, bytes) => Awaited::Grown { volume, bytes },
            Command::RetireVolume(volume) => Awaited::Unused { volume, until },
            Command::RemoveVolume { tier, volume } => Awaited::Idle { tier, volume },
            Command::Tier(command) => match self.step_with_tier(ticket.number, command) {
                Ok(()) => return self.post.outbox.reply(ticket, Ok(Done::Nothing)),
                Err(awaited) => Awaited::Tier(awaited),
            },
            Command::Rest => {
                self.commands.resting = true;
                Awaited::Rest
            }
            Command::NoteRest => Awaited::Noted { begun: false },
            Command::End => {
                self.driver.set_timeout(self.config.limits.stop_timeout);
                self.sessions.end(self.config.nvme.hands_off, &mut self.sockets);
                self.locals.end();
                Awaited::Quiet { until }
            }
            command => {
                let result = self.carry_out(command);
                return self.post.outbox.reply(ticket, result);
            }
        };
        self.commands.wait_for(ticket, awaited);
    }

    /// Carries out a command that is done at once.
    fn carry_out(&mut self, command: Command) -> Result<Done, Problem> {
        match command {
            Command::Sample(sampling) => {
                let touches = self.requests.sampler.take(sampling);
                let snapshot = Snapshot { touches, ..self.snapshot() };
                return Ok(Done::Snapshot(Box::new(snapshot)));
            }
            Command::Snapshot => return Ok(Done::Snapshot(Box::new(self.snapshot()))),
            Command::OpenVolume { name, source } => {
                let device = source.open(&self.ring, &self.common.pool);
                let device = device.map_err(|error| Problem::Other(error.to_string()))?;
                self.commands.opened.insert(name, device);
            }
            Command::CloseVolume { name } => {
                self.commands.opened.remove(&name); // where it could not be opened there is none
            }
            Command::AddVolume { name } => {
                let device = self
                    .commands
                    .opened
                    .remove(&name)
                    .expect("a volume is added after its device is open");
                let volume = self.driver.add_volume(&name, device);
                self.tally.forget(volume);
                return Ok(Done::Numbered(self.driver.volume_ids(volume)));
            }
            Command::Restore => self.watches.restored(&mut self.driver),
            Command::OpenTier(tier) => self.open_newcomer(*tier)?,
            _ => unreachable!("the end of other commands is awaited"),
        }
        Ok(Done::Nothing)
    }

    /// Replies to commands that have come to their end, and breaks off with clients that keep them
    /// from it.
    pub(super) fn look_after_commands(&mut self) {
        let now = Instant::now();
        for (ticket, awaited) in std::mem::take(&mut self.commands.awaited) {
            let result = match awaited {
                Awaited::Quiet { until } => self
                    .clients_are_gone(now, until, |it| it.is_quiet() && !it.is_leaving())
                    .filter(|()| self.locals.is_quiet())
                    .map(|()| Ok(Done::Nothing)),
                Awaited::Unused { volume, until } => {
                    let unused = |session: &Session| !session.uses(volume);
                    self.clients_are_gone(now, until, unused).map(|()| Ok(Done::Nothing))
                }
                Awaited::Idle { tier, volume } => {
                    match self.driver.remove_volume(tier, volume, false) {
                        Ok(()) => Some(Ok(Done::Nothing)),
                        Err(VolumeError::Busy) => None,
                        Err(error) => Some(Err(Problem::Other(error.to_string()))),
                    }
                }
                Awaited::Grown { volume, bytes } => {
                    match self.driver.resize_volume(volume, bytes) {
                        Ok(()) => Some(Ok(Done::Nothing)),
                        Err(error) if is_busy(&error) => None,
                        Err(error) => Some(Err(Problem::Other(error.to_string()))),
                    }
                }
                Awaited::Rest | Awaited::Noted { begun: true } => {
                    self.driver.is_idle().then_some(Ok(Done::Nothing))
                }
                Awaited::Noted { begun: false } if self.driver.is_idle() => {
                    self.driver.note_rest();
                    if !self.driver.is_idle() {
                        self.commands.wait_for(ticket, Awaited::Noted { begun: true });
                        continue;
                    }
                    Some(Ok(Done::Nothing)) // there was nothing to note
                }
                Awaited::Noted { begun: false } => None,
                Awaited::Tier(awaited) => self.tier_step_ended(ticket.number, awaited),
            };
            match result {
                Some(result) => self.post.outbox.reply(ticket, result),
                None => self.commands.wait_for(ticket, awaited.after(now)),
            }
        }
    }

    /// `Some` when `is_gone` holds for all sessions. Those that take too long are broken off with.
    fn clients_are_gone(
        &mut self,
        now: Instant,
        until: Option<Instant>,
        is_gone: impl Fn(&Session) -> bool,
    ) -> Option<()> {
        let indices = self.sessions.indices();
        let left: Vec<u32> =
            indices.into_iter().filter(|&index| !is_gone(&self.sessions[index])).collect();
        if left.is_empty() {
            return Some(());
        }
        if until.is_some_and(|until| until <= now) {
            left.into_iter().for_each(|index| self.break_off(index));
            self.pump_touched();
        }
        None
    }
}

/// Returns whether a volume cannot be changed just now, but soon.
fn is_busy(error: &io::Error) -> bool {
    error.get_ref().and_then(|error| error.downcast_ref()) == Some(&VolumeError::Busy)
}
