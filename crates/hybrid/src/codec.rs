//! [`Key`] and [`Value`]: traits of types that can be stored on flash.

use std::hash::Hash;
use std::sync::Arc;

use bytes::Bytes;

/// A key that can be written to flash.
///
/// A borrowed form, such as `str` for `String`, encodes to the same bytes as the owned one. Two
/// keys must be equal exactly when their bytes are.
pub trait Key: Hash + Eq {
    /// Calls `with` with the bytes of the key, at most 65,535.
    fn encode_key<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R;

    /// Decodes a key from its bytes, for [`remove_if`](crate::Hybrid::remove_if). `None` means that
    /// the bytes are no key of this type. A type without a size, such as `str`, does not need it.
    fn decode_key(bytes: &[u8]) -> Option<Self>
    where
        Self: Sized;
}

/// A value that can be written to flash and read again.
///
/// Each hit clones the value: use a shared type for large values, such as [`Bytes`] or an `Arc`.
///
/// ```
/// use floe_hybrid::Value;
///
/// #[derive(Clone)]
/// struct Tile {
///     zoom: u8,
///     pixels: bytes::Bytes,
/// }
///
/// impl Value for Tile {
///     fn encode<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
///         let mut bytes = vec![self.zoom];
///         bytes.extend_from_slice(&self.pixels);
///         with(&bytes)
///     }
///
///     fn decode(bytes: &[u8]) -> Option<Self> {
///         let (zoom, pixels) = bytes.split_first()?;
///         Some(Self { zoom: *zoom, pixels: bytes::Bytes::copy_from_slice(pixels) })
///     }
///
///     fn bytes(&self) -> usize {
///         1 + self.pixels.len()
///     }
/// }
/// ```
pub trait Value: Clone + Send + Sync + 'static {
    /// Calls `with` with the bytes of the value.
    fn encode<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R;

    /// Decodes a value from its bytes. `None` counts as a miss: another version of the program may
    /// have written the bytes.
    fn decode(bytes: &[u8]) -> Option<Self>;

    /// Makes a value from bytes that it may keep, without a copy. The bytes share a buffer that is
    /// up to two pages longer.
    fn decode_shared(bytes: Bytes) -> Option<Self> {
        Self::decode(&bytes)
    }

    /// Returns the memory that the value takes in bytes, which counts towards the cache's limit.
    fn bytes(&self) -> usize;
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Key for $integer {
            fn encode_key<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
                with(&self.to_le_bytes())
            }

            fn decode_key(bytes: &[u8]) -> Option<Self> {
                Self::decode(bytes)
            }
        }

        impl Value for $integer {
            fn encode<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
                with(&self.to_le_bytes())
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }

            fn bytes(&self) -> usize {
                size_of::<Self>()
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

macro_rules! keys_of_bytes {
    ($($key:ty),*) => {$(
        impl Key for $key {
            fn encode_key<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
                with(self.as_ref())
            }

            fn decode_key(bytes: &[u8]) -> Option<Self> {
                Self::decode(bytes)
            }
        }
    )*};
}

keys_of_bytes!(Vec<u8>, Box<[u8]>, Arc<[u8]>, Bytes);

impl Key for [u8] {
    fn encode_key<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        with(self)
    }
}

macro_rules! keys_of_text {
    ($($key:ty),*) => {$(
        impl Key for $key {
            fn encode_key<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
                with(self.as_bytes())
            }

            fn decode_key(bytes: &[u8]) -> Option<Self> {
                Self::decode(bytes)
            }
        }
    )*};
}

keys_of_text!(String, Box<str>, Arc<str>);

impl Key for str {
    fn encode_key<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        with(self.as_bytes())
    }
}

impl<const N: usize> Key for [u8; N] {
    fn encode_key<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        with(self)
    }

    fn decode_key(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok()
    }
}

/// A pair is encoded as the length of the first key in 2 bytes, the first key and the second key.
impl<A: Key, B: Key> Key for (A, B) {
    fn encode_key<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        let mut bytes = Vec::new();
        self.0.encode_key(|first| {
            bytes.extend_from_slice(&(first.len() as u16).to_le_bytes());
            bytes.extend_from_slice(first);
        });
        self.1.encode_key(|second| bytes.extend_from_slice(second));
        with(&bytes)
    }

    fn decode_key(bytes: &[u8]) -> Option<Self> {
        let (len, rest) = bytes.split_first_chunk::<2>()?;
        let (first, second) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        Some((A::decode_key(first)?, B::decode_key(second)?))
    }
}

macro_rules! values_of_bytes {
    ($($value:ty),*) => {$(
        impl Value for $value {
            fn encode<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
                with(self.as_ref())
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(Self::from(bytes.to_vec()))
            }

            fn bytes(&self) -> usize {
                self.len()
            }
        }
    )*};
}

values_of_bytes!(Vec<u8>, Box<[u8]>, Arc<[u8]>);

impl Value for Bytes {
    fn encode<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        with(self)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self::copy_from_slice(bytes))
    }

    fn decode_shared(bytes: Bytes) -> Option<Self> {
        Some(bytes)
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

macro_rules! values_of_text {
    ($($value:ty),*) => {$(
        impl Value for $value {
            fn encode<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
                with(self.as_bytes())
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(Self::from(std::str::from_utf8(bytes).ok()?))
            }

            fn bytes(&self) -> usize {
                self.len()
            }
        }
    )*};
}

values_of_text!(String, Box<str>, Arc<str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn key_round_trip<K: Key + std::fmt::Debug>(key: K) {
        assert_eq!(key.encode_key(K::decode_key), Some(key));
    }

    #[test]
    fn keys_are_decoded_from_their_bytes() {
        key_round_trip(7u64);
        key_round_trip(-7i16);
        key_round_trip("text".to_owned());
        key_round_trip(vec![1u8, 2]);
        key_round_trip(Bytes::from_static(b"bytes"));
        key_round_trip([1u8, 2, 3]);
        key_round_trip(("tenant".to_owned(), 7u32));
        key_round_trip((("a".to_owned(), String::new()), vec![1u8]));
        assert_eq!(<(String, u32)>::decode_key(&[9, 0, b'a']), None);
        assert_eq!(u64::decode_key(&[1]), None);
    }

    fn round_trip<V: Value + PartialEq + std::fmt::Debug>(value: V) {
        assert_eq!(value.encode(V::decode), Some(value));
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        round_trip(7u8);
        round_trip(-7i128);
        round_trip("text".to_owned());
        round_trip(Arc::<str>::from("text"));
        round_trip(vec![1u8, 2]);
        round_trip(Bytes::from_static(b"bytes"));
        round_trip(Arc::<[u8]>::from([1, 2, 3]));
        assert_eq!(u32::decode(&[1, 2, 3]), None);
        assert_eq!(String::decode(&[0xff]), None);
    }

    #[test]
    fn keys_of_two_parts_differ_where_the_parts_do() {
        let bytes = |key: &(String, String)| key.encode_key(<[u8]>::to_vec);
        let (one, other) = (("a".to_owned(), "bc".to_owned()), ("ab".to_owned(), "c".to_owned()));
        assert_ne!(bytes(&one), bytes(&other));
        assert_eq!("key".encode_key(<[u8]>::to_vec), "key".to_owned().encode_key(<[u8]>::to_vec));
    }
}
