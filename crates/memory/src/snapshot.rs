//! Snapshots: the entries of a cache in any format of `serde`, for a warm start of another cache.
//!
//! A snapshot is a tuple: the version of its format, the time at which it was written, and a
//! sequence of entries. An entry is a tuple of key, value, and three optional times in
//! milliseconds: remaining time to live, time to idle, and refresh time before the end.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, SystemTime};

use floe_policy::Replacement;
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Serialize, Serializer};

use crate::cache::Cache;
use crate::clock::{TICK_US, Ticks};
use crate::compute::place;
use crate::guard::Item;
use crate::options::InsertOptions;
use crate::renewal::{Renewal, Unused};

/// Version of the snapshot format that is written and accepted.
const VERSION: u32 = 1;

/// Key, value, and the times of an entry in milliseconds.
type Stored<K, V> = (K, V, Option<u64>, Option<u64>, Option<u64>);

/// A snapshot of a cache's entries: serialized by any format of `serde`, and read back for a warm
/// start. Needs the feature `serde`.
///
/// Entries keep their remaining time to live; the time between writing and reading counts, by the
/// system's date. The policy's state, priorities, pins and the frozen marks are not written. While
/// a snapshot is written, all entries stay in memory, and the cache remains usable. The snapshot
/// has all entries that were in the cache throughout, and perhaps others.
///
/// ```
/// # use floe_memory as floe;
/// use floe::{Cache, Snapshot};
///
/// let cache = Cache::new(1000);
/// cache.insert("key".to_string(), 1);
/// let text = serde_json::to_string(&Snapshot::of(&cache))?;
///
/// let warm = Cache::<String, u64>::new(1000);
/// let mut reader = serde_json::Deserializer::from_str(&text);
/// assert_eq!(Snapshot::of(&warm).restore(&mut reader)?, 1);
/// assert_eq!(warm.get_cloned("key"), Some(1));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub struct Snapshot<'a, K, V, P: Replacement, S> {
    cache: &'a Cache<K, V, P, S>,
}

impl<K, V, P: Replacement, S> fmt::Debug for Snapshot<'_, K, V, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("cache", self.cache).finish()
    }
}

impl<'a, K, V, P, S> Snapshot<'a, K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Makes a snapshot of a cache. It reads the entries when it is serialized.
    pub fn of(cache: &'a Cache<K, V, P, S>) -> Self {
        Self { cache }
    }

    /// Inserts the entries of a snapshot as they are read. Entries that have expired since, and
    /// keys that the cache has already, are left out: a present value is newer. Returns the number
    /// of entries inserted; the policy may have evicted some of them again.
    ///
    /// # Errors
    /// When the input is no snapshot with such keys and values, or has another version. The entries
    /// before the error stay inserted.
    pub fn restore<'de, D: Deserializer<'de>>(&self, from: D) -> Result<u64, D::Error>
    where
        K: Deserialize<'de>,
        V: Deserialize<'de>,
    {
        from.deserialize_tuple(3, Whole(self.cache))
    }

    /// Inserts an entry that was read, unless it has expired. Returns true if the cache took it.
    fn put(&self, stored: Stored<K, V>, elapsed_ms: u64) -> bool {
        let (key, value, live, idle, ahead) = stored;
        let mut options = InsertOptions::new();
        if let Some(live) = live {
            let Some(left) = live.checked_sub(elapsed_ms).filter(|&left| left > 0) else {
                return false;
            };
            options = options.time_to_live(Duration::from_millis(left));
        }
        if let Some(idle) = idle {
            options = options.time_to_idle(Duration::from_millis(idle));
        }
        if let Some(ahead) = ahead {
            options = options.refresh_ahead(Duration::from_millis(ahead));
        }
        let hash = self.cache.inner.hash(&key);
        place(self.cache, (key, value), hash, &options, None, |there| there.is_none()).is_ok()
    }
}

/// Milliseconds since 1970, by the system's date.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Converts ticks to milliseconds.
fn ms(ticks: u64) -> u64 {
    ticks * TICK_US / 1000
}

impl<K, V, P, S> Serialize for Snapshot<'_, K, V, P, S>
where
    K: Serialize + Hash + Eq + Send + Sync + 'static,
    V: Serialize + Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    fn serialize<T: Serializer>(&self, to: T) -> Result<T::Ok, T::Error> {
        // All at once, as many formats have to know how many there are.
        let mut iter = self.cache.iter();
        let entries: Vec<_> = std::iter::from_fn(|| iter.next_renewed()).collect();
        let now = self.cache.inner.lifetimes.clock().now();
        let mut tuple = to.serialize_tuple(3)?;
        tuple.serialize_element(&VERSION)?;
        tuple.serialize_element(&unix_ms())?;
        tuple.serialize_element(&Entries { entries: &entries, now })?;
        tuple.end()
    }
}

/// The entries of a cache that are to be written.
struct Entries<'a, K, V> {
    entries: &'a [(Item<'a, K, V>, Renewal)],
    now: Ticks,
}

impl<K: Serialize, V: Serialize> Serialize for Entries<'_, K, V> {
    fn serialize<T: Serializer>(&self, to: T) -> Result<T::Ok, T::Error> {
        to.collect_seq(self.entries.iter().map(|(item, renewal)| {
            let left = item.entry().head.left(self.now);
            let (live, unused) = renewal.spans(self.now, left);
            let (idle, ahead) = match unused {
                None => (None, None),
                Some(Unused::Expires(idle)) => (Some(ms(idle)), None),
                Some(Unused::Refreshes(ahead)) => (None, Some(ms(ahead))),
            };
            (item.key(), item.value(), live.map(ms), idle, ahead)
        }))
    }
}

/// Visitor that reads a whole snapshot into a cache.
struct Whole<'a, K, V, P: Replacement, S>(&'a Cache<K, V, P, S>);

impl<'de, K, V, P, S> Visitor<'de> for Whole<'_, K, V, P, S>
where
    K: Deserialize<'de> + Hash + Eq + Send + Sync + 'static,
    V: Deserialize<'de> + Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a snapshot of a cache")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let missing = |at| A::Error::invalid_length(at, &"three elements");
        let version: u32 = seq.next_element()?.ok_or_else(|| missing(0))?;
        if version != VERSION {
            return Err(A::Error::custom(format_args!(
                "a snapshot of version {version}; this library reads version {VERSION}"
            )));
        }
        let taken_ms: u64 = seq.next_element()?.ok_or_else(|| missing(1))?;
        let elapsed_ms = unix_ms().saturating_sub(taken_ms);
        let snapshot = Snapshot { cache: self.0 };
        seq.next_element_seed(Each(snapshot, elapsed_ms))?.ok_or_else(|| missing(2))
    }
}

/// Visitor that reads the entries of a snapshot. The second field is the snapshot's age in
/// milliseconds.
struct Each<'a, K, V, P: Replacement, S>(Snapshot<'a, K, V, P, S>, u64);

impl<'de, K, V, P, S> DeserializeSeed<'de> for Each<'_, K, V, P, S>
where
    K: Deserialize<'de> + Hash + Eq + Send + Sync + 'static,
    V: Deserialize<'de> + Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u64, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, K, V, P, S> Visitor<'de> for Each<'_, K, V, P, S>
where
    K: Deserialize<'de> + Hash + Eq + Send + Sync + 'static,
    V: Deserialize<'de> + Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the entries of a cache")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut came = 0;
        while let Some(stored) = seq.next_element::<Stored<K, V>>()? {
            came += u64::from(self.0.put(stored, self.1));
        }
        Ok(came)
    }
}
