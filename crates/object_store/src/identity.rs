//! [`Known`]: the metadata of one version of an object, and the keys of its parts.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::DateTime;
use foldhash::quality::FixedState;
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectMeta};

use crate::parts::{PART_BYTES, Part};

/// Version of the encoding of metadata in the cache.
const VERSION: u8 = 1;
/// The kinds of records that the cache has of an object.
const METADATA: u8 = b'm';
const PART: u8 = b'p';

/// The version of an object that is known.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) meta: ObjectMeta,
    pub(crate) attributes: Attributes,
    /// Key of a part, but for its place.
    key: Arc<[u8]>,
    /// Hash of the store, the location and the version.
    pub(crate) hash: u64,
    /// Time of the program at which the object was this version, in microseconds.
    validated: AtomicU64,
}

impl Known {
    /// `salt` keeps versions apart that neither an ETag nor a version tells apart.
    pub(crate) fn new(
        namespace: &str,
        meta: ObjectMeta,
        attributes: Attributes,
        salt: u64,
        now: Duration,
    ) -> Self {
        let mut key = record_key(namespace, &meta.location, PART);
        key.extend_from_slice(&meta.size.to_le_bytes());
        match (strong(meta.e_tag.as_deref()), &meta.version) {
            (Some(tag), _) => {
                key.push(b'e');
                key.extend_from_slice(tag.as_bytes());
            }
            (None, Some(version)) => {
                key.push(b'v');
                key.extend_from_slice(version.as_bytes());
            }
            (None, None) => {
                key.push(b't');
                key.extend_from_slice(&salt.to_le_bytes());
                key.extend_from_slice(&meta.last_modified.timestamp_micros().to_le_bytes());
                key.extend_from_slice(meta.e_tag.as_deref().unwrap_or_default().as_bytes());
            }
        }
        key.push(0);
        let hash = FixedState::default().hash_one(&key);
        let validated = AtomicU64::new(micros(now));
        Self { meta, attributes, key: key.into(), hash, validated }
    }

    /// Returns the key of all parts, which identifies the version.
    pub(crate) fn key(&self) -> &Arc<[u8]> {
        &self.key
    }

    /// Returns the key of a part.
    pub(crate) fn part_key(&self, part: Part) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.key.len() + 9);
        key.extend_from_slice(&self.key);
        key.push(PART_BYTES[usize::from(part.size)].trailing_zeros() as u8);
        key.extend_from_slice(&part.index.to_le_bytes());
        key
    }

    /// Returns whether the version is known by a strong ETag or a version of the store.
    pub(crate) fn is_versioned(&self) -> bool {
        is_versioned(&self.meta)
    }

    /// Returns whether metadata is that of the same version, as far as it can be known.
    pub(crate) fn is_same(&self, meta: &ObjectMeta) -> bool {
        let own = &self.meta;
        let tags = match (strong(own.e_tag.as_deref()), strong(meta.e_tag.as_deref())) {
            (Some(own), Some(other)) => own == other,
            (None, None) => own.version.is_some() || own.last_modified == meta.last_modified,
            _ => false,
        };
        own.size == meta.size && tags && own.version == meta.version
    }

    /// Returns whether the store had this version at a time, or later.
    pub(crate) fn was_valid_at(&self, time: Duration) -> bool {
        self.validated.load(Ordering::Relaxed) >= micros(time)
    }

    /// Notes that the store had this version at a time.
    pub(crate) fn validate(&self, time: Duration) {
        self.validated.fetch_max(micros(time), Ordering::Relaxed);
    }

    /// Returns the memory that the metadata takes in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let attributes = |(key, value): (&Attribute, &object_store::AttributeValue)| {
            let name = if let Attribute::Metadata(name) = key { name.len() } else { 0 };
            name + value.len() + size_of::<(Attribute, Box<str>)>()
        };
        size_of::<Self>()
            + self.key.len()
            + 2 * self.meta.location.as_ref().len() // one is the key in the catalog
            + text(&self.meta.e_tag)
            + text(&self.meta.version)
            + self.attributes.iter().map(attributes).sum::<usize>()
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

/// Returns the ETag if equal bytes follow from equal tags.
fn strong(tag: Option<&str>) -> Option<&str> {
    tag.filter(|tag| !tag.is_empty() && !tag.starts_with("W/"))
}

/// Returns whether metadata names a version by a strong ETag or a version of the store.
pub(crate) fn is_versioned(meta: &ObjectMeta) -> bool {
    strong(meta.e_tag.as_deref()).is_some() || meta.version.is_some()
}

/// Returns the ETag to ask for in a request for more bytes of the version.
pub(crate) fn if_match(meta: &ObjectMeta) -> Option<String> {
    strong(meta.e_tag.as_deref()).map(str::to_owned)
}

/// Returns the key of a record of an object, or the start of such keys. Neither the namespace nor
/// a location has a zero byte.
fn record_key(namespace: &str, location: &Path, kind: u8) -> Vec<u8> {
    let mut key = Vec::with_capacity(namespace.len() + location.as_ref().len() + 64);
    key.extend_from_slice(namespace.as_bytes());
    key.push(0);
    key.extend_from_slice(location.as_ref().as_bytes());
    key.extend_from_slice(&[0, kind]);
    key
}

/// Returns the key of the metadata of an object.
pub(crate) fn metadata_key(namespace: &str, location: &Path) -> Vec<u8> {
    record_key(namespace, location, METADATA)
}

/// Returns whether a key is of an object below a prefix, or of the object that the prefix names.
pub(crate) fn is_below(key: &[u8], namespace: &str, prefix: &Path) -> bool {
    let Some(rest) =
        key.strip_prefix(namespace.as_bytes()).and_then(|rest| rest.strip_prefix(&[0]))
    else {
        return false;
    };
    let prefix = prefix.as_ref().as_bytes();
    prefix.is_empty()
        || rest.strip_prefix(prefix).is_some_and(|rest| matches!(rest.first(), Some(0 | b'/')))
}

/// Encodes metadata for the cache. `None` for attributes that a later version of the crate
/// `object_store` has brought.
pub(crate) fn encode(known: &Known) -> Option<Vec<u8>> {
    let meta = &known.meta;
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&meta.size.to_le_bytes());
    bytes.extend_from_slice(&meta.last_modified.timestamp_nanos_opt()?.to_le_bytes());
    put_text(&mut bytes, meta.e_tag.as_deref());
    put_text(&mut bytes, meta.version.as_deref());
    for (attribute, value) in &known.attributes {
        let (kind, name) = match attribute {
            Attribute::ContentDisposition => (0, None),
            Attribute::ContentEncoding => (1, None),
            Attribute::ContentLanguage => (2, None),
            Attribute::ContentType => (3, None),
            Attribute::CacheControl => (4, None),
            Attribute::StorageClass => (5, None),
            Attribute::Metadata(name) => (6, Some(name.as_ref())),
            _ => return None,
        };
        bytes.push(kind);
        put_text(&mut bytes, name);
        put_text(&mut bytes, Some(value));
    }
    Some(bytes)
}

/// Decodes metadata. `None` for other bytes.
pub(crate) fn decode(location: &Path, bytes: &[u8]) -> Option<(ObjectMeta, Attributes)> {
    let (version, mut bytes) = bytes.split_first()?;
    if *version != VERSION {
        return None;
    }
    let size = u64::from_le_bytes(*take(&mut bytes)?);
    let last_modified = DateTime::from_timestamp_nanos(i64::from_le_bytes(*take(&mut bytes)?));
    let (e_tag, version) = (take_text(&mut bytes)?, take_text(&mut bytes)?);
    let mut attributes = Attributes::new();
    while let Some((kind, rest)) = bytes.split_first() {
        bytes = rest;
        let name = take_text(&mut bytes)?;
        let attribute = match kind {
            0 => Attribute::ContentDisposition,
            1 => Attribute::ContentEncoding,
            2 => Attribute::ContentLanguage,
            3 => Attribute::ContentType,
            4 => Attribute::CacheControl,
            5 => Attribute::StorageClass,
            6 => Attribute::Metadata(name?.into()),
            _ => return None,
        };
        attributes.insert(attribute, take_text(&mut bytes)??.into());
    }
    let location = location.clone();
    Some((ObjectMeta { location, last_modified, size, e_tag, version }, attributes))
}

/// Appends a length and a text. The length of no text is the largest number.
fn put_text(bytes: &mut Vec<u8>, text: Option<&str>) {
    bytes.extend_from_slice(&text.map_or(u32::MAX, |text| text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text.unwrap_or_default().as_bytes());
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(taken)
}

/// Takes a text, or `Some(None)` where none was put.
fn take_text(bytes: &mut &[u8]) -> Option<Option<String>> {
    let len = u32::from_le_bytes(*take(bytes)?);
    if len == u32::MAX {
        return Some(None);
    }
    let (text, rest) = bytes.split_at_checked(len as usize)?;
    *bytes = rest;
    Some(Some(String::from_utf8(text.to_vec()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(e_tag: Option<&str>, version: Option<&str>) -> ObjectMeta {
        ObjectMeta {
            location: Path::from("table/part"),
            last_modified: DateTime::from_timestamp_nanos(1_700_000_000_123_456_789),
            size: 7,
            e_tag: e_tag.map(str::to_owned),
            version: version.map(str::to_owned),
        }
    }

    fn known(meta: ObjectMeta, salt: u64) -> Known {
        Known::new("s3", meta, Attributes::new(), salt, Duration::ZERO)
    }

    #[test]
    fn metadata_is_read_as_it_was_written() {
        let attributes = Attributes::from_iter([
            (Attribute::ContentType, "text/html"),
            (Attribute::Metadata("owner".into()), ""),
        ]);
        for meta in [meta(None, None), meta(Some("\"1\""), Some("v"))] {
            let known = Known::new("s3", meta.clone(), attributes.clone(), 1, Duration::ZERO);
            let bytes = encode(&known).unwrap();
            assert_eq!(decode(&meta.location, &bytes), Some((meta, attributes.clone())));
            for len in 0..bytes.len() {
                decode(&known.meta.location, &bytes[..len]); // does not panic
            }
        }
    }

    #[test]
    fn versions_have_keys_of_their_own() {
        let part = Part { size: 0, index: 0 };
        let key = |meta, salt| known(meta, salt).part_key(part);
        assert_ne!(key(meta(Some("\"1\""), None), 0), key(meta(Some("\"2\""), None), 0));
        assert_ne!(key(meta(None, Some("1")), 0), key(meta(None, Some("2")), 0));
        assert_eq!(key(meta(Some("\"1\""), None), 0), key(meta(Some("\"1\""), None), 1));
        // Only the salt tells these apart.
        assert_ne!(key(meta(None, None), 0), key(meta(None, None), 1));
        assert_ne!(key(meta(Some("W/\"1\""), None), 0), key(meta(Some("W/\"1\""), None), 1));
    }

    #[test]
    fn a_prefix_ends_at_a_slash() {
        let key = known(meta(Some("\"1\""), None), 0).part_key(Part { size: 0, index: 0 });
        let below = |prefix: &str| is_below(&key, "s3", &Path::from(prefix));
        assert!(below("") && below("table") && below("table/part"));
        assert!(!below("tab") && !below("table/pa") && !below("other"));
        assert!(!is_below(&key, "s", &Path::from("")));
    }
}
