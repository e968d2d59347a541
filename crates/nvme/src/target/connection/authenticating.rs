//! The commands that carry the messages of an authentication.

use super::{Connection, Event, Role, Violation};
use crate::target::IN_CAPSULE_MAX_BYTES;
use crate::target::admin::Outcome;
use crate::target::authentication::Failed;
use crate::target::calculation::Calculation;
use crate::wire::code::{admin, fabrics};
use crate::wire::command::Command;
use crate::wire::status::Status;

/// The security protocol of NVMe authentication, with its parameters, in front of it.
const PROTOCOL: [u8; 3] = [1, 1, 0xe9];

/// Returns whether a command carries a message of an authentication.
pub(super) fn is_authentication(command: &Command) -> bool {
    command.opcode() == admin::FABRICS
        && matches!(
            command.fabrics_type(),
            fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE
        )
}

impl Connection {
    /// Returns whether the host has still to prove its name.
    pub(super) fn owes_proof(&self) -> bool {
        self.authentication.as_ref().is_some_and(|it| !it.is_authenticated())
    }

    /// Acts on a command of an authentication with so many bytes in its capsule.
    pub(super) fn authenticate(
        &mut self,
        command: &Command,
        data: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let bytes = command.u32(44) as usize;
        let is_known = [command.u8(41), command.u8(42), command.u8(43)] == PROTOCOL;
        let invalid = Status::INVALID_FIELD.final_();
        if !is_known || bytes == 0 || bytes > IN_CAPSULE_MAX_BYTES {
            return Ok(Some(self.refuse(command.id(), 0, invalid, out)));
        }
        if command.fabrics_type() == fabrics::AUTHENTICATION_SEND {
            return Ok(match self.gather(command, bytes, data) {
                Ok(()) => None,
                Err(status) => Some(self.refuse(command.id(), 0, status, out)),
            });
        }
        let authentication = self.authentication.as_mut().expect("it was asked for");
        let Some((mut message, result)) = authentication.receive(bytes) else {
            return Ok(Some(self.refuse(command.id(), 0, invalid, out)));
        };
        message.resize(bytes, 0);
        self.admin_answer(command, Ok(Outcome::Data(message)), out);
        result.map_err(|Failed| Violation::NotAuthenticated)?;
        self.proved()?;
        Ok(Some(Event::Nothing))
    }

    /// An I/O queue has its number once its host has proved its name.
    fn proved(&mut self) -> Result<(), Violation> {
        let is_proved = !self.owes_proof();
        match &mut self.role {
            Role::Io(lease) if is_proved && !lease.holds() => {
                lease.claim().map_err(|_| Violation::QueueTaken)
            }
            _ => Ok(()),
        }
    }

    /// Acts on a message of the host. Its command is not completed before the calculation that it
    /// needs.
    pub(super) fn authentication_sent(
        &mut self,
        command: &Command,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Violation> {
        let authentication = self.authentication.as_mut().expect("it was asked for");
        let calculation = match authentication.send(message) {
            Ok(calculation) => calculation,
            Err(Failed) => {
                self.complete(command.id(), 0, Status::SUCCESS, out);
                return Err(Violation::NotAuthenticated);
            }
        };
        let Some(calculation) = calculation else {
            return self.authentication_taken(*command, out);
        };
        if !self.calculates_elsewhere {
            calculation.run();
        }
        self.calculating = Some((*command, calculation));
        match self.go_on_calculated(out)? {
            Some(event) => Ok(event),
            None => Ok(Event::Nothing),
        }
    }

    /// Completes the command that waits for a calculation, once there is the result.
    pub(super) fn go_on_calculated(
        &mut self,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let Some((command, calculation)) = &self.calculating else { return Ok(None) };
        let Some(result) = calculation.result() else { return Ok(None) };
        let authentication = self.authentication.as_mut().expect("it was asked for");
        authentication.calculated(result.as_deref());
        let command = *command;
        self.calculating = None;
        self.authentication_taken(command, out).map(Some)
    }

    fn authentication_taken(
        &mut self,
        command: Command,
        out: &mut Vec<u8>,
    ) -> Result<Event, Violation> {
        self.complete(command.id(), 0, Status::SUCCESS, out);
        self.proved()?;
        Ok(Event::Nothing)
    }

    /// Leaves calculations to the caller, who takes each by [`Connection::calculation`]. Without
    /// this, [`Connection::advance`] does them.
    pub fn calculate_elsewhere(&mut self) {
        self.calculates_elsewhere = true;
    }

    /// Returns the calculation without which the connection takes no further bytes. Advance it
    /// again when that has been run.
    pub fn calculation(&self) -> Option<&Calculation> {
        self.calculating.as_ref().map(|(_, calculation)| calculation)
    }
}
