//! A queue on a transport, with blocking calls.

use std::time::Duration;

use super::command::{CommandError, HostCommand, HostError, Transport};
use super::queue::{Completion, Queue, QueueOptions};

const BUFFER_BYTES: usize = 64 << 10;

/// An initialized connection to a controller.
#[derive(Debug)]
pub struct Connection<T> {
    transport: T,
    queue: Queue,
    buffer: Box<[u8]>,
    failed: bool,
}

impl<T: Transport> Connection<T> {
    /// Connects and negotiates the connection's parameters.
    ///
    /// # Errors
    /// When the controller cannot be reached or answers incorrectly.
    pub fn open(
        address: &str,
        timeout: Option<Duration>,
        options: QueueOptions,
    ) -> Result<Self, HostError> {
        let transport = T::connect(address, timeout)?;
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        let mut new = Self { transport, queue: Queue::new(options), buffer, failed: false };
        while new.queue.agreed().is_none() {
            new.send()?;
            new.receive()?;
        }
        Ok(new)
    }

    /// Returns the state machine of the connection.
    pub fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Submits a command and sends as much as can be sent now. Returns the command's identifier.
    ///
    /// # Errors
    /// When the queue is full, or the connection failed.
    pub fn submit(&mut self, command: HostCommand) -> Result<u16, HostError> {
        if self.failed {
            return Err(HostError::Failed);
        }
        let id = self.queue.submit(command)?;
        self.guard(Self::send)?;
        Ok(id)
    }

    /// Submits a command without sending it yet.
    ///
    /// # Errors
    /// When the queue is full.
    pub fn enqueue(&mut self, command: HostCommand) -> Result<u16, HostError> {
        self.queue.submit(command)
    }

    /// Waits for the next completion and returns it.
    ///
    /// # Errors
    /// When the connection failed.
    pub fn next_completion(&mut self) -> Result<Completion, HostError> {
        self.guard(|this| {
            loop {
                if let Some(completion) = this.queue.next_completion() {
                    return Ok(completion);
                }
                this.send()?;
                if this.queue.output().is_empty() || this.transport.wait_to_send_or_receive()? {
                    this.receive()?;
                }
            }
        })
    }

    /// Submits a command and waits for its completion, which must be the next one.
    ///
    /// # Errors
    /// When the controller fails the command, or the connection failed.
    pub fn call(&mut self, command: HostCommand) -> Result<Completion, HostError> {
        let id = self.submit(command)?;
        loop {
            let completion = self.next_completion()?;
            if completion.id == id {
                return succeeded(completion);
            }
        }
    }

    fn send(&mut self) -> Result<(), HostError> {
        loop {
            let output = self.queue.output();
            if output.is_empty() {
                return Ok(());
            }
            match self.transport.send_some(output)? {
                0 => return Ok(()),
                bytes => self.queue.sent(bytes),
            }
        }
    }

    fn receive(&mut self) -> Result<(), HostError> {
        let bytes = self.transport.receive_some(&mut self.buffer)?;
        self.queue.receive(&self.buffer[..bytes])
    }

    /// Runs an action and marks the connection as failed if the action returns an error.
    fn guard<R>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<R, HostError>,
    ) -> Result<R, HostError> {
        if self.failed {
            return Err(HostError::Failed);
        }
        let result = act(self);
        self.failed = result.is_err();
        result
    }
}

/// Turns the completion of a failed command into an error.
///
/// # Errors
/// When the command failed.
pub(super) fn succeeded(completion: Completion) -> Result<Completion, HostError> {
    if completion.status.is_success() {
        return Ok(completion);
    }
    let Completion { command, status, result, .. } = completion;
    Err(CommandError { command, status, result }.into())
}
