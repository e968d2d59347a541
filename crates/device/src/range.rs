//! The ranges a device accepts, and the part of them it really has.
//!
//! Offsets and lengths count in sectors of 4096 bytes. A device whose size is not a multiple of
//! that ends inside its last sector: a range may stop there or be rounded up to the end of the
//! sector, and is then clipped.

use std::io;

use crate::{Action, Operation, SECTOR_BYTES};

/// The bytes of the operation's range that exist on a device of `size` bytes.
///
/// # Errors
/// `InvalidInput` naming the range, when it is not aligned or reaches outside.
pub(crate) fn clip(operation: &Operation, size: u64) -> io::Result<u64> {
    let (what, len) = match &operation.action {
        Action::Read(into) => ("read", into.len() as u64),
        Action::Write { from, .. } => ("write", from.len() as u64),
        Action::Zero { len, .. } => ("zeroing", *len),
        Action::Discard { len } => ("discard", *len),
        Action::Flush => return Ok(0),
    };
    let offset = operation.offset;
    let refuse = |why: &str| {
        let message = format!("{what} of {len} bytes at {offset} {why}");
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    };
    let end = match offset.checked_add(len) {
        Some(end) if offset <= size && end <= size.next_multiple_of(SECTOR_BYTES) => end,
        _ => return refuse(&format!("reaches outside the device of {size} bytes")),
    };
    if !offset.is_multiple_of(SECTOR_BYTES) || !(len.is_multiple_of(SECTOR_BYTES) || end == size) {
        return refuse(&format!("is not aligned to {SECTOR_BYTES} bytes"));
    }
    Ok(end.min(size) - offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discard(offset: u64, len: u64, size: u64) -> Result<u64, String> {
        let operation = Operation { token: 0, offset, action: Action::Discard { len } };
        clip(&operation, size).map_err(|error| error.to_string())
    }

    #[test]
    fn a_range_may_end_at_the_end_or_be_rounded_up_past_it() {
        assert_eq!(discard(4096, 512, 4608), Ok(512));
        assert_eq!(discard(4096, 4096, 4608), Ok(512));
        assert_eq!(discard(0, 8192, 4608), Ok(4608));
        assert_eq!(discard(4096, 0, 4096), Ok(0));
    }

    #[test]
    fn ranges_outside_or_askew_are_refused_by_name() {
        let refused = discard(4096, 8192, 4608).unwrap_err();
        assert_eq!(
            refused,
            "discard of 8192 bytes at 4096 reaches outside the device of 4608 bytes"
        );
        assert!(discard(0, 512, 4608).unwrap_err().ends_with("is not aligned to 4096 bytes"));
        assert!(discard(512, 4096, 8192).unwrap_err().ends_with("is not aligned to 4096 bytes"));
        assert!(discard(u64::MAX - 4095, 4096, 8192).unwrap_err().contains("outside"));
        assert!(discard(8192, 4096, 4096).unwrap_err().contains("outside"));
    }
}
