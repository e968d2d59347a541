//! Keys as binary integers and nothing else: 32 or 64 bits, either byte order.
//!
//! cache2k's traces are big-endian 32-bit, Corda's big-endian 64-bit. The byte order only renames
//! keys, which matters to nothing but ranges of keys; the width matters.

use std::collections::HashSet;

use super::Spec;
use crate::decode::{Batch, Decode, Record, Records, Decoded, key_only};
use crate::request::Kind;
use crate::sample::Sample;

macro_rules! keys {
    (
        $spec:ident, $name:literal, $integer:ty, $from:ident, $layout:literal, $origin:literal,
        $names:expr
    ) => {
        pub(super) static $spec: Spec = Spec {
            name: $name,
            kind: Kind::Key,
            layout: $layout,
            origin: $origin,
            fit: |sample| fit(sample, <$integer>::BITS, $name.starts_with("be")),
            names: $names,
            decoder: || -> Box<dyn Decode> {
                Box::new(Records::new(Keys(|bytes: &[u8; size_of::<$integer>()]| {
                    u64::from(<$integer>::$from(*bytes))
                })))
            },
            block_decoder: None,
        };
    };
}

keys!(
    BE32,
    "be32",
    u32,
    from_be_bytes,
    "binary: u32, big-endian",
    "cache2k",
    &["cache2k", ".trace", ".trk"]
);
keys!(
    BE64,
    "be64",
    u64,
    from_be_bytes,
    "binary: u64, big-endian",
    "Corda",
    &["corda", "vaultservice"]
);
keys!(LE32, "le32", u32, from_le_bytes, "binary: u32, little-endian", "your own", &[]);
keys!(LE64, "le64", u64, from_le_bytes, "binary: u64, little-endian", "your own", &[]);

/// Records of `N` bytes and how to turn one into a key.
struct Keys<const N: usize, F>(F)
where
    F: Fn(&[u8; N]) -> u64;

impl<const N: usize, F: Fn(&[u8; N]) -> u64 + Send> Record for Keys<N, F> {
    fn record(&mut self, input: &[u8], batch: &mut Batch) -> Decoded {
        let Some(bytes) = input.first_chunk() else { return Decoded::Need };
        batch.push(key_only(self.0(bytes)));
        Decoded::Took(N)
    }
}

/// A guess from how words vary. In a trace of 64-bit keys, the upper halves vary far less than the
/// lower, or the two share no values; in one of 32-bit keys, words at even and odd places are
/// alike. Upper bytes vary less than lower ones.
fn fit(sample: &Sample<'_>, bits: u32, big_endian: bool) -> u8 {
    const LIKELY: u8 = 60;
    const POSSIBLE: u8 = 30;
    let (words, rest) = sample.bytes.as_chunks::<4>();
    if sample.is_text() || words.len() < 2 || sample.whole && !rest.is_empty() {
        return 0;
    }
    let even: HashSet<_> = words.iter().step_by(2).collect();
    let odd: HashSet<_> = words.iter().skip(1).step_by(2).collect();
    let upper: HashSet<_> = words.iter().map(|word| [word[0], word[1]]).collect();
    let lower: HashSet<_> = words.iter().map(|word| [word[2], word[3]]).collect();
    // Some(true): big-endian.
    let order = |upper: usize, lower: usize, times: usize| {
        let (less, more) = (upper.min(lower), upper.max(lower));
        (less * times <= more).then_some(upper < lower)
    };
    let whole_words = order(even.len(), odd.len(), 8);
    let half_words = order(upper.len(), lower.len(), 2);
    // Keys that are multiples of something vary little in their lower bytes too, and leave the
    // order open.
    let first: HashSet<_> = words.iter().map(|word| word[0]).collect();
    let last: HashSet<_> = words.iter().map(|word| word[3]).collect();
    let end_bytes = order(first.len(), last.len(), 4);
    let shared = even.intersection(&odd).count() * 20 >= even.len().min(odd.len());
    let (width, order) = match whole_words {
        Some(_) => (64, whole_words),
        None if shared || half_words.is_some() => {
            (32, half_words.filter(|_| half_words == end_bytes))
        }
        None => (64, None),
    };
    let odd_length = sample.whole && words.len() % 2 == 1;
    match (width == bits, order) {
        _ if odd_length && bits == 64 => 0,
        (true, Some(order)) if order == big_endian => LIKELY,
        (true, None) => POSSIBLE,
        _ => 0,
    }
}
