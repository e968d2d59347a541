//! An I/O queue: reads, writes and what else concerns blocks.

use super::command::{Command, Payload, io_command};
use super::connection::Connection;
use super::error::HostError;
use super::queue::Completion;
use super::transport::Transport;

/// Bit of command doubleword 12: force unit access.
const FUA: u32 = 1 << 30;
/// Bit of command doubleword 12 of Write Zeroes: deallocate.
const DEALLOCATE_ZEROES: u32 = 1 << 25;
/// Bit of command doubleword 11 of Dataset Management: deallocate.
const DEALLOCATE: u32 = 1 << 2;

/// Blocks of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The namespace.
    pub namespace: u32,
    /// The first block.
    pub first: u64,
    /// The number of blocks, 1 to 65,536.
    pub blocks: u32,
}

impl Range {
    /// A command on the range.
    fn command(self, name: &'static str, opcode: u8, flags: u32, payload: Payload) -> Command {
        Command::new(name, opcode, self.namespace, payload)
            .dwords(10, self.first)
            .dword(12, (self.blocks - 1) & 0xFFFF | flags)
    }

    /// Read of the range, of `bytes` in all.
    pub fn read(self, bytes: u32) -> Command {
        self.command("Read", io_command::READ, 0, Payload::FromController(bytes))
    }

    /// Write of the range; with `fua` it is durable afterwards.
    pub fn write(self, data: Vec<u8>, fua: bool) -> Command {
        let flags = if fua { FUA } else { 0 };
        self.command("Write", io_command::WRITE, flags, Payload::ToController(data))
    }

    /// Compare of the range with `data`.
    pub fn compare(self, data: Vec<u8>) -> Command {
        self.command("Compare", io_command::COMPARE, 0, Payload::ToController(data))
    }

    /// Write Zeroes on the range; with `may_deallocate` its space may be given back.
    pub fn write_zeroes(self, may_deallocate: bool) -> Command {
        let flags = if may_deallocate { DEALLOCATE_ZEROES } else { 0 };
        self.command("Write Zeroes", io_command::WRITE_ZEROES, flags, Payload::None)
    }

    /// Flush of the range's namespace.
    pub fn flush(self) -> Command {
        Command::new("Flush", io_command::FLUSH, self.namespace, Payload::None)
    }
}

/// A connected I/O queue.
#[derive(Debug)]
pub struct IoQueue<T> {
    connection: Connection<T>,
}

impl<T: Transport> IoQueue<T> {
    /// An I/O queue on a connection whose Connect succeeded.
    pub fn new(connection: Connection<T>) -> Self {
        Self { connection }
    }

    /// The queue's connection, to have many commands in flight.
    pub fn connection(&mut self) -> &mut Connection<T> {
        &mut self.connection
    }

    /// Reads `bytes` bytes, which are the range's.
    ///
    /// # Errors
    /// As every call: the controller's refusal, or a failed connection.
    pub fn read(&mut self, range: Range, bytes: u32) -> Result<Vec<u8>, HostError> {
        Ok(self.connection.call(range.read(bytes))?.data)
    }

    /// Writes the range.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn write(&mut self, range: Range, data: Vec<u8>, fua: bool) -> Result<(), HostError> {
        self.connection.call(range.write(data, fua)).map(drop)
    }

    /// Compares the range with `data`. A refusal with the status "compare failure" says that they
    /// differ.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn compare(&mut self, range: Range, data: Vec<u8>) -> Result<(), HostError> {
        self.connection.call(range.compare(data)).map(drop)
    }

    /// Makes every write that has ended durable.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn flush(&mut self, range: Range) -> Result<(), HostError> {
        self.connection.call(range.flush()).map(drop)
    }

    /// Makes a range read as zeroes.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn write_zeroes(&mut self, range: Range, deallocate: bool) -> Result<(), HostError> {
        self.connection.call(range.write_zeroes(deallocate)).map(drop)
    }

    /// Tells the controller that ranges of one namespace, 1 to 256, are no longer needed.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn deallocate(&mut self, ranges: &[Range]) -> Result<Completion, HostError> {
        let mut data = Vec::with_capacity(16 * ranges.len());
        for range in ranges {
            data.extend_from_slice(&[0; 4]);
            data.extend_from_slice(&range.blocks.to_le_bytes());
            data.extend_from_slice(&range.first.to_le_bytes());
        }
        let (opcode, namespace) = (io_command::DATASET_MANAGEMENT, ranges[0].namespace);
        let payload = Payload::ToController(data);
        let command = Command::new("Dataset Management", opcode, namespace, payload)
            .dword(10, ranges.len() as u32 - 1)
            .dword(11, DEALLOCATE);
        self.connection.call(command)
    }
}
