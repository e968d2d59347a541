//! Facts about a file, found in the system. One that cannot be found out is left out.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use super::{Fact, FactKind, Identity};

/// What is known of an open file or block device.
pub(crate) fn identify(file: &File, is_block_device: bool) -> Identity {
    if is_block_device {
        return Identity::default();
    }
    Identity::of(file.metadata().map(|data| Fact::number(FactKind::Inode, data.ino())))
}
