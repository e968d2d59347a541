//! A device that is watched: what fails is counted, and told in the log.

use std::io;

use floe_device::Device;

/// A device, and whether its last operation failed: the first failure of a row is worth a line in
/// the log.
pub(super) struct Watched {
    pub(super) device: Box<dyn Device>,
    name: String,
    failing: bool,
    pub(super) errors: u64,
}

impl Watched {
    /// A device that has not failed yet; `name` is for the log.
    pub(super) fn new(name: String, device: Box<dyn Device>) -> Self {
        Self { device, name, failing: false, errors: 0 }
    }

    /// Notes how an operation ended.
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
