//! Work on the bytes of buffers, in parts that fit a processor's cache.

use floe_device::Slice;

/// Bytes of a part.
const PART_BYTES: usize = 16 << 10;

/// Copies bytes out, part by part.
pub(super) fn in_parts(bytes: &Slice, mut take: impl FnMut(&[u8])) {
    let mut part = [0; PART_BYTES];
    for begin in (0..bytes.len()).step_by(PART_BYTES) {
        let end = bytes.len().min(begin + PART_BYTES);
        let part = &mut part[..end - begin];
        bytes.slice(begin..end).copy_to(part);
        take(part);
    }
}

/// Returns whether two slices of one length have the same bytes.
pub(crate) fn same_bytes(one: &Slice, other: &Slice) -> bool {
    let (mut at, mut is_same) = (0, one.len() == other.len());
    in_parts(one, |part| {
        if is_same {
            let mut beside = [0; PART_BYTES];
            let beside = &mut beside[..part.len()];
            other.slice(at..at + part.len()).copy_to(beside);
            at += part.len();
            is_same = part == beside;
        }
    });
    is_same
}

#[cfg(test)]
mod tests {
    use floe_device::Pool;

    use super::*;

    #[test]
    fn bytes_are_the_same_if_each_is() {
        let pool = Pool::new(0);
        let len = 3 * PART_BYTES + 100;
        let slice = |changed: Option<usize>| {
            let mut bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            if let Some(at) = changed {
                bytes[at] ^= 1;
            }
            let slice = pool.allocate(len).slice(0..len);
            slice.copy_from(&bytes);
            slice
        };
        assert!(same_bytes(&slice(None), &slice(None)));
        for at in [0, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 5, len - 1] {
            assert!(!same_bytes(&slice(None), &slice(Some(at))), "at {at}");
        }
        assert!(!same_bytes(&slice(None), &slice(None).slice(1..len)));
    }
}
