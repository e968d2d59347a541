//! Devices that tests look into.

use std::io;
use std::time::Instant;

use floe_device::{Completion, Device, Operation};

/// A device of which a function sees each operation first. Where the function returns a result, the
/// operation ends with it, and the device never sees it.
pub struct Intercepted<D, F> {
    device: D,
    intercept: F,
    ended: Vec<Completion>,
}

impl<D: Device, F: FnMut(&Operation) -> Option<io::Result<()>>> Intercepted<D, F> {
    /// Puts `intercept` before a device.
    pub fn new(device: D, intercept: F) -> Self {
        Self { device, intercept, ended: Vec::new() }
    }
}

impl<D: Device, F: FnMut(&Operation) -> Option<io::Result<()>>> Device for Intercepted<D, F> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        self.device.set_size(bytes)
    }

    fn submit(&mut self, operation: Operation) {
        match (self.intercept)(&operation) {
            Some(result) => self.ended.push(Completion { token: operation.token, result }),
            None => self.device.submit(operation),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ended);
        self.device.poll(done);
    }

    fn next_due(&self) -> Option<Instant> {
        self.device.next_due()
    }
}
