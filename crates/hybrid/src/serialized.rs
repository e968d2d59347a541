//! [`Serde`]: keys and values of any type that implements the traits of `serde`.

use std::ops::Deref;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{Key, Value};

/// A key or value of a type that implements the traits of `serde`. Needs the feature `serde`.
///
/// The bytes on flash are those of [postcard](https://docs.rs/postcard), whose format is fixed. It
/// does not describe itself: fields may be added only by a new type, and `#[serde(flatten)]`,
/// `#[serde(untagged)]`, `#[serde(skip_serializing_if)]` and types such as `serde_json::Value` do
/// not work. Bytes that are no value of the type are a miss.
///
/// Equal keys must have equal bytes, and others must not. Derived implementations have this
/// property. A key must not contain a `HashMap` or `HashSet`, and no field of it may be skipped by
/// one of `Serialize` and `PartialEq` alone.
///
/// A hit clones the value: use `Serde<Arc<T>>` for large ones, with the feature `rc` of `serde`.
///
/// # Panics
/// An insertion or lookup panics if `Serialize` returns an error.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("cache");
/// use floe_hybrid::{Hybrid, Serde};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
/// struct Tile {
///     zoom: u8,
///     position: (u32, u32),
/// }
///
/// let cache: Hybrid<Serde<Tile>, Serde<Vec<String>>> =
///     Hybrid::builder().memory(8 << 20).flash(path, 64 << 20).open()?;
/// let tile = Serde(Tile { zoom: 3, position: (1, 2) });
/// cache.insert(tile.clone(), Serde(vec!["road".to_string()]));
/// assert_eq!(cache.get_blocking(&tile).unwrap()[0], "road");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Serde<T>(pub T);

impl<T> Deref for Serde<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Serde<T> {
    fn from(inner: T) -> Self {
        Self(inner)
    }
}

fn encode<T: Serialize, R>(inner: &T, with: impl FnOnce(&[u8]) -> R) -> R {
    match postcard::to_extend(inner, Vec::new()) {
        Ok(bytes) => with(&bytes),
        Err(error) => panic!("{} cannot be serialized: {error}", std::any::type_name::<T>()),
    }
}

/// Decodes all of the bytes: a longer encoding is that of another type.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<Serde<T>> {
    let (inner, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(Serde(inner))
}

impl<T> Key for Serde<T>
where
    T: Serialize + DeserializeOwned + std::hash::Hash + Eq,
{
    fn encode_key<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        encode(&self.0, with)
    }

    fn decode_key(bytes: &[u8]) -> Option<Self> {
        decode(bytes)
    }
}

impl<T> Value for Serde<T>
where
    T: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
{
    fn encode<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        encode(&self.0, with)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        decode(bytes)
    }

    /// Returns the size of the type and of its encoding together, an estimate of its memory.
    fn bytes(&self) -> usize {
        size_of::<T>() + self.encode(<[u8]>::len)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
    enum Shape {
        Point,
        Line { from: (i32, i32), to: Option<i64> },
        Named(String, Vec<u8>),
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        prop_oneof![
            Just(Shape::Point),
            any::<((i32, i32), Option<i64>)>().prop_map(|(from, to)| Shape::Line { from, to }),
            any::<(String, Vec<u8>)>().prop_map(|(name, data)| Shape::Named(name, data)),
        ]
    }

    proptest! {
        #[test]
        fn keys_and_values_are_read_as_written(first in shapes(), second in shapes()) {
            let keys = [Serde(first), Serde(second)];
            let bytes = keys.each_ref().map(|key| key.encode_key(<[u8]>::to_vec));
            prop_assert_eq!(keys[0] == keys[1], bytes[0] == bytes[1]);
            for (key, bytes) in keys.iter().zip(&bytes) {
                prop_assert_eq!(Serde::decode_key(bytes), Some(key.clone()));
                prop_assert_eq!(key.clone().encode(<[u8]>::to_vec), bytes.clone());
                prop_assert!(key.bytes() >= bytes.len());
                let longer = [&bytes[..], &[0]].concat();
                prop_assert_eq!(Serde::<Shape>::decode(&longer), None);
            }
        }

        #[test]
        fn other_bytes_are_no_value(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            // Must neither panic nor take much memory.
            let _ = Serde::<BTreeMap<String, Vec<Shape>>>::decode(&bytes);
            let _ = Serde::<Shape>::decode_key(&bytes);
        }
    }

    #[test]
    #[should_panic(expected = "cannot be serialized")]
    fn a_type_that_cannot_be_serialized_is_told_at_once() {
        struct Broken;
        impl Serialize for Broken {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("no bytes"))
            }
        }
        encode(&Broken, |_| ());
    }
}
