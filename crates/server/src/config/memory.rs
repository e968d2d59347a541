//! The memory that settings ask for, against what there is.

use floe_block::format_size;
use floe_device::MemoryLimit;

/// Says that so many bytes of memory are more than there are, if they are.
pub(super) fn too_much_memory(bytes: u64) -> Option<String> {
    let limit = MemoryLimit::here().filter(|limit| bytes > limit.bytes)?;
    Some(format!("more than {limit} ({})", format_size(limit.bytes >> 20 << 20)))
}
