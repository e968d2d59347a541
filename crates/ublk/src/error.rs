//! The errors of devices and their queues.

use std::io;

use floe_device::kernel_release;

/// The advice for a system without the driver.
const LOAD: &str = "load it with `modprobe ublk_drv` (Linux 6.5 or newer with CONFIG_BLK_DEV_UBLK)";

/// An error of a device or its driver.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The driver is not loaded.
    #[error("the kernel has no ublk driver: {LOAD}; this is Linux {}", kernel_release())]
    NoDriver,
    /// This process may not use the driver.
    #[error("/dev/ublk-control cannot be opened: {0}; only root may attach devices")]
    Forbidden(io::Error),
    /// The driver is too old.
    #[error(
        "the kernel's ublk driver lacks {0}: Linux 6.5 or newer is needed, and this is {running}",
        running = kernel_release()
    )]
    Missing(&'static str),
    /// The kernel offers no ring for commands.
    #[error("cannot set up an io_uring for commands to the ublk driver: {0}")]
    Ring(io::Error),
    /// The kernel refused a command.
    #[error("the ublk driver cannot {what} device {device}: {source}")]
    Command {
        /// The command, as a verb.
        what: &'static str,
        /// The device's number.
        device: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The device's character file cannot be used.
    #[error("/dev/ublkc{device} cannot be {what}: {source}")]
    Character {
        /// The action, as a participle.
        what: &'static str,
        /// The device's number.
        device: u32,
        /// The system's error.
        source: io::Error,
    },
}

impl UblkError {
    /// Returns the kernel's error number.
    pub fn number(&self) -> Option<i32> {
        match self {
            Self::Forbidden(source) | Self::Ring(source) => source.raw_os_error(),
            Self::Command { source, .. } | Self::Character { source, .. } => source.raw_os_error(),
            Self::NoDriver | Self::Missing(_) => None,
        }
    }
}
