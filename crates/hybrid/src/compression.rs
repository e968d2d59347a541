//! [`Compression`]: the compression of values on flash.

use crate::format::Compressed;

/// Number of the method lz4: a block without a frame.
#[cfg(feature = "lz4")]
const LZ4: u8 = 1;
/// Number of the method zstd: one frame.
#[cfg(feature = "zstd")]
const ZSTD: u8 = 2;

/// The compression of values on flash, for [`Builder::compression`](crate::Builder::compression).
///
/// Values in memory are not compressed. A value that does not become smaller is stored as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// Values are stored as they are.
    #[default]
    None,
    /// The fastest compression. Needs the feature `lz4`.
    #[cfg(feature = "lz4")]
    Lz4,
    /// A slower and better compression. Needs the feature `zstd`.
    #[cfg(feature = "zstd")]
    Zstd {
        /// The level, from 1 to 22; 0 stands for the default of zstd, which is 3.
        level: i32,
    },
}

impl Compression {
    /// Compresses a value. Returns `None` if it does not become smaller.
    pub(crate) fn compress(self, value: &[u8]) -> Option<(Compressed, Vec<u8>)> {
        let original_bytes = u32::try_from(value.len()).ok()?;
        let (method, smaller): (u8, Option<Vec<u8>>) = match self {
            Self::None => (0, None),
            #[cfg(feature = "lz4")]
            Self::Lz4 => (LZ4, Some(lz4_flex::block::compress(value))),
            #[cfg(feature = "zstd")]
            Self::Zstd { level } => (ZSTD, zstd::bulk::compress(value, level).ok()),
        };
        let smaller = smaller?;
        let with_length = smaller.len() + size_of::<u32>();
        (with_length < value.len()).then_some((Compressed { method, original_bytes }, smaller))
    }
}

/// Decompresses a value. Returns `None` if it is damaged, longer than `most` bytes, or compressed
/// by a method that is not built in.
pub(crate) fn decompress(how: Compressed, value: &[u8], most: usize) -> Option<Vec<u8>> {
    let original_bytes = how.original_bytes as usize;
    if original_bytes > most {
        return None; // memory is taken before the value is known to be intact
    }
    let original = match (how.method, value) {
        #[cfg(feature = "lz4")]
        (LZ4, value) => lz4_flex::block::decompress(value, original_bytes).ok(),
        #[cfg(feature = "zstd")]
        (ZSTD, value) => zstd::bulk::decompress(value, original_bytes).ok(),
        _ => None,
    };
    original.filter(|original: &Vec<u8>| original.len() == original_bytes)
}

#[cfg(all(test, feature = "lz4", feature = "zstd"))]
mod tests {
    use proptest::prelude::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const METHODS: [Compression; 3] =
        [Compression::Lz4, Compression::Zstd { level: 0 }, Compression::Zstd { level: 9 }];

    proptest! {
        #[test]
        fn values_are_read_as_they_were_compressed(
            words in proptest::collection::vec(0u8..4, 0..2000),
            flips in proptest::collection::vec((any::<proptest::sample::Index>(), 0u8..8), 1..4),
            length: u32,
        ) {
            for method in METHODS {
                let Some((how, mut smaller)) = method.compress(&words) else { continue };
                prop_assert!(smaller.len() + 4 < words.len());
                let most = words.len();
                let original = decompress(how, &smaller, most);
                prop_assert_eq!(original.as_ref(), Some(&words));
                prop_assert_eq!(decompress(how, &smaller, most - 1), None);
                // A wrong length, or damage, yields nothing or as many bytes as the header says.
                let wrong = Compressed { original_bytes: length, ..how };
                if length as usize != words.len() {
                    prop_assert_eq!(decompress(wrong, &smaller, 1 << 20), None);
                }
                for (index, bit) in &flips {
                    let at = index.index(smaller.len());
                    smaller[at] ^= 1 << bit;
                }
                if let Some(found) = decompress(how, &smaller, most) {
                    prop_assert_eq!(found.len(), words.len());
                }
            }
        }
    }

    #[test]
    fn values_that_do_not_become_smaller_stay_as_they_are() {
        let mut random = SmallRng::seed_from_u64(1);
        let noise: Vec<u8> = (0..999).map(|_| random.random()).collect();
        for method in METHODS {
            assert_eq!(method.compress(b"short"), None);
            assert_eq!(method.compress(&noise), None);
            assert!(method.compress(&[7; 999]).is_some());
        }
        assert_eq!(Compression::None.compress(&[7; 999]), None);
        let unknown = Compressed { method: 9, original_bytes: 5 };
        assert_eq!(decompress(unknown, b"value", 100), None);
    }
}
