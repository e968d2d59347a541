//! The allocated parts of an export, as a reply to `BLOCK_STATUS` tells them.
//!
//! The server gives extents in a row from the beginning of the request, as fine or coarse as it
//! knows them; here they are joined, cut to the request, and put into the wire's form. Source:
//! proto.md, `NBD_REPLY_TYPE_BLOCK_STATUS`.

use super::transmission::Request;
use super::wire::{EXTENT_BYTES, state};

/// Most extents in one reply; it may end early, and the client asks again from there. With its
/// header a reply fits a page.
pub const EXTENTS_MAX: usize = 500;

/// A run of bytes in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its length.
    pub bytes: u64,
    /// Not allocated: writing there may need space that is not there.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

impl Extent {
    /// Bytes of which nothing is known but that they are there.
    pub fn data(bytes: u64) -> Self {
        Self { bytes, hole: false, zero: false }
    }
}

/// The bytes after the header of a reply: at least one extent, no two alike in a row, together not
/// longer than the request. Bytes that `extents` do not cover are left open; if they cover nothing,
/// the whole range counts as data.
pub fn encode(request: &Request, extents: &[Extent]) -> Vec<u8> {
    let most = if request.one_extent() { 1 } else { EXTENTS_MAX };
    let mut runs: Vec<(u32, u32)> = Vec::new();
    let mut left = request.length;
    let all = [Extent::data(u64::from(request.length))];
    let known = if extents.iter().all(|extent| extent.bytes == 0) { &all } else { extents };
    for extent in known {
        let bytes = u64::from(left).min(extent.bytes) as u32; // not longer than `left`
        if bytes == 0 {
            continue;
        }
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let states = flag(extent.hole, state::HOLE) | flag(extent.zero, state::ZERO);
        let full = runs.len() == most;
        match runs.last_mut() {
            Some((length, before)) if *before == states => *length += bytes,
            _ if full => break,
            _ => runs.push((bytes, states)),
        }
        left -= bytes;
    }
    let mut payload = Vec::with_capacity(runs.len() * EXTENT_BYTES);
    for (length, states) in runs {
        payload.extend(length.to_be_bytes());
        payload.extend(states.to_be_bytes());
    }
    payload
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transmission::Command;
    use crate::wire::{command_flag, u32_at};

    fn told(length: u32, flags: u16, extents: &[Extent]) -> Vec<(u32, u32)> {
        let request =
            Request { cookie: 1, command: Command::BlockStatus, flags, offset: 0, length };
        let bytes = encode(&request, extents);
        bytes.chunks(EXTENT_BYTES).map(|run| (u32_at(run, 0), u32_at(run, 4))).collect()
    }

    fn extent(bytes: u64, hole: bool, zero: bool) -> Extent {
        Extent { bytes, hole, zero }
    }

    #[test]
    fn neighbours_in_one_state_are_one_extent_and_the_last_ends_with_the_request() {
        let extents = [
            Extent::data(512),
            Extent::data(512),
            extent(0, true, true),
            extent(u64::MAX, true, true),
        ];
        assert_eq!(told(4096, 0, &extents), [(1024, 0), (3072, state::HOLE | state::ZERO)]);
        assert_eq!(told(1000, 0, &extents), [(1000, 0)]);
        assert_eq!(
            told(100, 0, &[extent(50, true, false), extent(50, false, true)]),
            [(50, 1), (50, 2)]
        );
    }

    #[test]
    fn a_client_that_asks_for_one_extent_gets_one_as_long_as_it_is_known() {
        let extents = [Extent::data(512), Extent::data(512), extent(1024, true, true)];
        assert_eq!(told(4096, command_flag::REQ_ONE, &extents), [(1024, 0)]);
    }

    #[test]
    fn many_extents_are_cut_off_and_none_at_all_means_data() {
        let extents: Vec<_> = (0..2000).map(|n| extent(512, n % 2 == 1, false)).collect();
        assert_eq!(told(1 << 20, 0, &extents).len(), EXTENTS_MAX);
        assert_eq!(told(u32::MAX, 0, &[]), [(u32::MAX, 0)]);
        assert_eq!(told(7, 0, &[extent(0, true, true)]), [(7, 0)]);
    }
}
