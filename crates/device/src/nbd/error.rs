//! The errors of opening an export.

use std::io;

use floe_nbd::client::ClientError;

use crate::SECTOR_BYTES;

/// Why an export could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The server could not be reached, or did not grant the export.
    #[error("cannot use export {export}: {source}")]
    Client {
        /// The export.
        export: String,
        /// The client's error.
        source: ClientError,
    },
    /// It refuses writes.
    #[error("export {export} is read-only; serve it read-only")]
    ReadOnly {
        /// The export.
        export: String,
    },
    /// Its size makes no device.
    #[error("export {export} has {size} bytes, which is not a positive multiple of 512")]
    OddSize {
        /// The export.
        export: String,
        /// Its size.
        size: u64,
    },
    /// Its blocks are larger than sectors, or not of whole bytes of the device's end.
    #[error(
        "export {export} takes requests in units of {minimum} bytes only; a device is read and \
         written in units of {SECTOR_BYTES}"
    )]
    LargeBlocks {
        /// The export.
        export: String,
        /// Its least block size.
        minimum: u32,
    },
    /// Its requests are shorter than a sector.
    #[error(
        "export {export} takes requests of at most {maximum} bytes; a device needs {SECTOR_BYTES}"
    )]
    SmallRequests {
        /// The export.
        export: String,
        /// Its longest request.
        maximum: u32,
    },
    /// After a lost connection, something else is there.
    #[error("export {export} is not what it was: {change}")]
    Changed {
        /// The export.
        export: String,
        /// The difference.
        change: String,
    },
    /// The system has no thread, ring or socket left for it.
    #[error("cannot serve the connection to export {export}: {source}")]
    System {
        /// The export.
        export: String,
        /// The system's error.
        source: io::Error,
    },
}
