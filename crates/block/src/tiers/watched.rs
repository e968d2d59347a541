//! A device with its error count; failures are reported in the log.

use std::io;

use floe_device::Device;

use crate::engine::request::Fault;

/// A device, and whether its last operation failed: the first failure of a row is reported in the
/// log.
pub(super) struct Watched {
    pub(super) device: Box<dyn Device>,
    name: String,
    failing: bool,
    errors: u64,
}

impl Watched {
    /// Returns a device without failures; `name` is for the log.
    pub(super) fn new(name: String, device: Box<dyn Device>) -> Self {
        Self { device, name, failing: false, errors: 0 }
    }

    /// Returns the number of failed operations.
    pub(super) fn errors(&self) -> u64 {
        self.errors
    }

    /// Records the result of an operation, and returns it as the cache takes it.
    #[inline]
    pub(super) fn note(&mut self, result: &io::Result<()>) -> Result<(), Fault> {
        let Err(error) = result else {
            if self.failing {
                tracing::info!(device = %self.name, errors = self.errors, "works again");
                self.failing = false;
            }
            return Ok(());
        };
        if error.kind() == io::ErrorKind::Unsupported {
            return Err(Fault::Unsupported); // it works as it can
        }
        self.errors += 1;
        if !self.failing {
            tracing::warn!(device = %self.name, %error, "operation failed");
        }
        self.failing = true;
        Err(match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Fault::NoSpace,
            _ => Fault::Io,
        })
    }
}

#[cfg(test)]
mod tests {
    use floe_device::MemoryDevice;

    use super::*;

    #[test]
    fn an_operation_that_a_device_does_not_support_is_no_failure() {
        let mut watched = Watched::new("device".into(), Box::new(MemoryDevice::new(4096)));
        let faults = [
            (io::ErrorKind::Unsupported, Fault::Unsupported),
            (io::ErrorKind::StorageFull, Fault::NoSpace),
            (io::ErrorKind::TimedOut, Fault::Io),
        ];
        for (kind, fault) in faults {
            assert_eq!(watched.note(&Err(kind.into())), Err(fault));
        }
        assert_eq!(watched.note(&Ok(())), Ok(()));
        assert_eq!(watched.errors(), 2);
    }
}
