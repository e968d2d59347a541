//! A device with its error count; failures are reported in the log.

use std::io;

use floe_device::Device;

/// A device, and whether its last operation failed: the first failure of a row is reported in the
/// log.
pub(super) struct Watched {
    pub(super) device: Box<dyn Device>,
    name: String,
    failing: bool,
    pub(super) errors: u64,
}

impl Watched {
    /// Returns a device without failures; `name` is for the log.
    pub(super) fn new(name: String, device: Box<dyn Device>) -> Self {
        Self { device, name, failing: false, errors: 0 }
    }

    /// Records the result of an operation.
    pub(super) fn note(&mut self, result: &io::Result<()>) {
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Unsupported) {
            return; // it works as it can
        }
        if let Err(error) = result {
            self.errors += 1;
            if !self.failing {
                tracing::warn!(device = %self.name, %error, "operation failed");
            }
        } else if self.failing {
            tracing::info!(device = %self.name, errors = self.errors, "works again");
        }
        self.failing = result.is_err();
    }
}
