//! Features of a controller: Set Features and Get Features.

use super::subsystem::{Controller, QUEUES_MAX};
use crate::wire::code::feature;
use crate::wire::command::Command;
use crate::wire::status::Status;

/// The values that a host has set.
#[derive(Debug, Default)]
pub(super) struct Features {
    /// The time within which the host sends something, in milliseconds; 0 for no bound.
    pub(super) keep_alive_ms: u32,
    /// The events that the host wants to know of.
    pub(super) events: u32,
    /// Queues granted, less one, twice.
    queues: u32,
}

impl Features {
    pub(super) fn new(keep_alive_ms: u32) -> Self {
        Self { keep_alive_ms, ..Self::default() }
    }

    /// Sets a feature. Returns the command's result.
    pub(super) fn set(
        &mut self,
        command: &Command,
        controller: &Controller,
    ) -> Result<u64, Status> {
        let value = command.word(11);
        match command.u8(40) {
            feature::KEEP_ALIVE => self.keep_alive_ms = value,
            feature::ASYNC_EVENTS => self.events = value,
            feature::QUEUES if !controller.discovery => {
                let (submission, completion) = (value as u16, (value >> 16) as u16);
                if submission == u16::MAX || completion == u16::MAX {
                    return Err(Status::INVALID_FIELD.final_());
                }
                // A queue over TCP has both halves.
                let wanted = submission.min(completion).min(QUEUES_MAX - 1) + 1;
                let less_one = u32::from(controller.grant(wanted)) - 1;
                self.queues = less_one | less_one << 16;
                return Ok(self.queues.into());
            }
            feature::WRITE_CACHE if !controller.discovery && value & 1 != 0 => {}
            feature::WRITE_CACHE if !controller.discovery => {
                return Err(Status::FEATURE_NOT_CHANGEABLE.final_());
            }
            feature::ARBITRATION | feature::POWER | feature::WRITE_ATOMICITY => {} // no effect
            _ => return Err(Status::INVALID_FIELD.final_()),
        }
        Ok(0)
    }

    /// Returns the value of a feature.
    pub(super) fn get(&self, command: &Command, controller: &Controller) -> Result<u64, Status> {
        let value = match command.u8(40) {
            feature::KEEP_ALIVE => self.keep_alive_ms,
            feature::ASYNC_EVENTS => self.events,
            feature::QUEUES if !controller.discovery => self.queues,
            feature::WRITE_CACHE if !controller.discovery => 1,
            feature::ARBITRATION | feature::POWER | feature::WRITE_ATOMICITY => 0,
            _ => return Err(Status::INVALID_FIELD.final_()),
        };
        Ok(value.into())
    }
}
