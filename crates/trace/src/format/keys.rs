//! Keys as binary integers and nothing else: 32 or 64 bits, either byte order.
//!
//! cache2k's traces are big-endian 32-bit, Corda's big-endian 64-bit. Any bytes could be integers,
//! so that content never tells: only a file's name does.

use super::Spec;
use crate::decode::{Batch, Decode, Decoded, Record, Records, key_only};
use crate::request::Kind;

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
            names: $names,
            decoder: || -> Box<dyn Decode> {
                Box::new(Records::new(Keys(|bytes: &[u8; size_of::<$integer>()]| {
                    u64::from(<$integer>::$from(*bytes))
                })))
            },
            ..Spec::NONE
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
    &["cache2k", "orm-busy", "orm-night", "web07", "web12"]
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
