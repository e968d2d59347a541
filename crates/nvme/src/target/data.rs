//! The data part of a message that is being received.

use crate::wire::command::Command;

/// The receiver of data.
#[derive(Debug)]
pub(super) enum Sink {
    /// Nobody: the command was answered.
    Nothing,
    /// The buffer of the request with this tag.
    Payload(u16),
    /// The command itself, which is carried out when it has all of it.
    Command(Box<Command>, Vec<u8>),
}

/// The bytes of a message behind its header.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Bytes to skip first.
    pub(super) before: usize,
    /// Bytes for the sink.
    pub(super) bytes: usize,
    /// Bytes to skip last.
    pub(super) after: usize,
    pub(super) sink: Sink,
}

impl Incoming {
    /// Skips so many bytes.
    pub(super) fn skip(bytes: usize) -> Self {
        Self { before: bytes, bytes: 0, after: 0, sink: Sink::Nothing }
    }

    /// Takes bytes that are not payload. Returns how many.
    pub(super) fn take(&mut self, input: &[u8]) -> usize {
        let mut used = input.len().min(self.before);
        self.before -= used;
        if self.before == 0 && self.bytes > 0 {
            let here = match &mut self.sink {
                Sink::Payload(_) => return used,
                Sink::Nothing => (input.len() - used).min(self.bytes),
                Sink::Command(_, data) => {
                    let here = (input.len() - used).min(self.bytes);
                    data.extend_from_slice(&input[used..used + here]);
                    here
                }
            };
            self.bytes -= here;
            used += here;
        }
        if self.before == 0 && self.bytes == 0 {
            let here = (input.len() - used).min(self.after);
            self.after -= here;
            used += here;
        }
        used
    }

    /// Returns whether everything has come.
    pub(super) fn is_complete(&self) -> bool {
        self.before == 0 && self.bytes == 0 && self.after == 0
    }
}
