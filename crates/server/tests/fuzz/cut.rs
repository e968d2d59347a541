//! Cuts an input into pieces at random.

/// The length of the next piece.
pub(super) struct Cut {
    pub(super) left: usize,
    pub(super) random: Random,
}

impl Cut {
    /// Takes the next piece, of at most `most` bytes, off `rest`.
    pub(super) fn next<'a>(&mut self, rest: &mut &'a [u8], most: usize) -> &'a [u8] {
        if self.left == 0 {
            // Mostly short, now and then long.
            let bits = self.random.next() % 16;
            self.left = 1 + (self.random.next() % (1 << bits)) as usize;
        }
        let bytes = self.left.min(most).min(rest.len());
        if self.left != usize::MAX {
            self.left -= bytes;
        }
        let (piece, after) = rest.split_at(bytes);
        *rest = after;
        piece
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
