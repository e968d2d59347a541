//! The entries, settings and statistics of a Python cache, and access to it with Python objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use floe::InsertOptions;
use floe::policy::AnyPolicy;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use crate::flight::PendingLoads;
use crate::identity::Identities;
use crate::key::{Call, Key, Probe};
use crate::later;
use crate::slot::Slot;

/// A cached Python object with its weight.
#[derive(Debug)]
pub(crate) struct Value {
    object: Slot,
    weight: u64,
}

impl Value {
    pub(crate) fn new(object: Bound<'_, PyAny>, weight: u64) -> Self {
        Self { object: Slot::new(object.unbind()), weight }
    }

    /// Returns the object, unless its entry has left the cache.
    #[inline]
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.object.get(py)
    }

    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    /// Releases the object after its entry has left the cache.
    pub(crate) fn leave(&self) {
        later::release(self.object.empty());
    }

    /// Reports the object to the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.object.traverse(visit)
    }
}

/// The Rust cache, with Python keys and values.
pub(crate) type Store = floe::Cache<Key, Value, AnyPolicy>;

/// The arguments with which a cache was created, for copies of it.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) policy: String,
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) admission: Option<String>,
    pub(crate) getsizeof: Option<Py<PyAny>>,
}

/// The state of a cache: its entries, the identities of its keys, and its loads in progress.
pub(crate) struct Mapping {
    pub(crate) store: Store,
    pub(crate) identities: Arc<Identities>,
    pub(crate) flights: PendingLoads,
    pub(crate) settings: Settings,
    capacity: AtomicU64,
}

impl Mapping {
    /// Creates an empty mapping.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub(crate) fn new(capacity: u64, settings: Settings) -> PyResult<Self> {
        let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let mut builder = floe::Cache::<Key, Value>::builder()
            .policy_named(&settings.policy)
            .map_err(|error| invalid(&error))?
            .listener(|key: &Key, value: &Value, _| {
                key.leave();
                value.leave();
            });
        builder = match settings.getsizeof {
            Some(_) => builder.weight_capacity(capacity).weigher(|_, value: &Value| value.weight()),
            None => builder.capacity(capacity.try_into()?),
        };
        if let Some(time) = settings.ttl {
            builder = builder.time_to_live(time);
        }
        if let Some(time) = settings.idle {
            builder = builder.time_to_idle(time);
        }
        if let Some(name) = &settings.admission {
            builder = builder.admission_named(name).map_err(|error| invalid(&error))?;
        }
        Ok(Self {
            store: builder.try_build().map_err(|error| invalid(&error))?,
            identities: Arc::default(),
            flights: PendingLoads::default(),
            settings,
            capacity: AtomicU64::new(capacity),
        })
    }

    /// Returns the maximum number of entries, or their maximum weight with `getsizeof`.
    pub(crate) fn maxsize(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed) // a number
    }

    /// Returns the number of entries, or their weight with `getsizeof`.
    pub(crate) fn currsize(&self) -> u64 {
        match self.settings.getsizeof {
            Some(_) => self.store.stats().weight,
            None => self.store.len() as u64,
        }
    }

    /// Changes the capacity, and evicts entries that exceed it.
    ///
    /// # Errors
    /// When the capacity is larger than a cache supports.
    pub(crate) fn resize(&self, capacity: u64) -> PyResult<()> {
        match self.settings.getsizeof {
            Some(_) => self.store.resize_weight(capacity),
            None if capacity >= 1 << 31 => {
                return Err(PyValueError::new_err(format!(
                    "a capacity of {capacity} is more than a cache can number"
                )));
            }
            None => self.store.resize(capacity as usize),
        }
        // Only reported: the library has its own.
        self.capacity.store(capacity, Ordering::Relaxed);
        Ok(())
    }

    /// Removes all entries. Results of loads in progress will not be stored.
    pub(crate) fn clear(&self) {
        self.flights.detach_all();
        self.store.clear();
    }

    pub(crate) fn stats(&self) -> Stats {
        let stats = self.store.stats();
        let (loads, failed_loads) = self.flights.counts();
        Stats {
            hits: stats.hits,
            misses: stats.misses,
            insertions: stats.insertions,
            replacements: stats.replacements,
            rejections: stats.rejections,
            evictions: stats.evictions,
            expirations: stats.expirations,
            removals: stats.removals,
            loads,
            failed_loads,
            entries: stats.entries,
            weight: stats.weight,
            memory_bytes: stats.memory_bytes,
            policy: stats.policy.to_owned(),
        }
    }

    /// Prepares a lookup of a key that the program uses directly, as opposed to a call of a cached
    /// function.
    #[inline]
    pub(crate) fn probe<'a, 'py>(&self, key: &'a Bound<'py, PyAny>) -> PyResult<Probe<'a, 'py>> {
        Probe::new(key, Call::default(), &self.identities)
    }

    /// Looks up a key and counts a hit or a miss.
    #[inline]
    pub(crate) fn look_up<'py>(&self, probe: &Probe<'_, 'py>) -> Option<Bound<'py, PyAny>> {
        self.store.read(probe, |value| value.object(probe.py()))?
    }

    /// Looks up a key without effect on statistics or policy.
    pub(crate) fn look_at<'py>(&self, probe: &Probe<'_, 'py>) -> Option<Bound<'py, PyAny>> {
        self.store.peek(probe)?.object(probe.py())
    }

    /// Weighs a value and inserts it. A load of the key that is in progress will not be stored.
    ///
    /// # Errors
    /// When the value weighs too much, or when `getsizeof` or the key's methods raise an exception.
    pub(crate) fn put(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        options: InsertOptions,
    ) -> PyResult<()> {
        let weight = self.weigh(value)?.ok_or_else(|| PyValueError::new_err("value too large"))?;
        let probe = self.probe(key)?;
        self.flights.detach(&probe);
        self.place(probe.to_key(), value, weight, options);
        Ok(())
    }

    /// Weighs a value and inserts it, unless another thread has inserted one first. Returns the
    /// value that is in the cache then.
    ///
    /// # Errors
    /// See [`put`](Self::put).
    pub(crate) fn put_first<'py>(
        &self,
        probe: &Probe<'_, 'py>,
        value: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let weight = self.weigh(&value)?.ok_or_else(|| PyValueError::new_err("value too large"))?;
        let first = self.flights.replace(probe, || {
            let there = self.look_at(probe);
            if there.is_none() {
                self.place(probe.to_key(), &value, weight, InsertOptions::new());
            }
            there
        });
        Ok(first.unwrap_or(value))
    }

    /// Inserts a value whose weight is known.
    pub(crate) fn place(
        &self,
        key: Key,
        value: &Bound<'_, PyAny>,
        weight: u64,
        options: InsertOptions,
    ) {
        self.store.insert_with(key, Value::new(value.clone(), weight), options);
    }

    /// Removes a key and returns its value.
    pub(crate) fn take<'py>(&self, probe: &Probe<'_, 'py>) -> Option<Bound<'py, PyAny>> {
        self.flights.detach(probe);
        // Seen before it is removed, when its slot is emptied; and removed only if still there.
        let mut value = None;
        let removed = self.store.remove_if(probe, |seen| {
            value = seen.object(probe.py());
            true
        });
        removed.and(value)
    }

    /// Returns the weight of a value; `None` if the weight exceeds the capacity.
    ///
    /// # Errors
    /// When `getsizeof` raises an exception.
    pub(crate) fn weigh(&self, value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let Some(getsizeof) = &self.settings.getsizeof else { return Ok(Some(1)) };
        let weight: u64 = getsizeof.bind(value.py()).call1((value,))?.extract()?;
        Ok(Some(weight).filter(|&weight| weight <= self.maxsize()))
    }

    /// Calls a function with each entry that the program inserted directly. Results of cached
    /// functions are skipped.
    pub(crate) fn for_each<'py>(
        &self,
        py: Python<'py>,
        mut each: impl FnMut(Bound<'py, PyAny>, Bound<'py, PyAny>),
    ) {
        for item in &self.store {
            let (key, value) = (item.key(), item.value());
            if key.call().is_none()
                && let (Some(key), Some(value)) = (key.object(py), value.object(py))
            {
                each(key, value);
            }
        }
    }
}

/// Defines the class of statistics with these counters, in the order of `__reduce__`.
macro_rules! define_stats {
    ($($(#[$doc:meta])* $counter:ident,)*) => {
        /// Counters of a cache since its creation, and the size of its content.
        #[pyclass(frozen, get_all, module = "floe_cache")]
        #[derive(Debug, Clone)]
        pub(crate) struct Stats {
            $($(#[$doc])* pub(crate) $counter: u64,)*
            /// The name of the eviction policy.
            pub(crate) policy: String,
        }

        const COUNTERS: usize = [$(stringify!($counter)),*].len();

        impl Stats {
            fn counts(&self) -> [(&'static str, u64); COUNTERS] {
                [$((stringify!($counter), self.$counter)),*]
            }
        }

        /// Recreates statistics from their values, for copies in another process.
        #[pyfunction]
        pub(crate) fn make_stats(counts: [u64; COUNTERS], policy: String) -> Stats {
            let [$($counter),*] = counts;
            Stats { $($counter,)* policy }
        }
    };
}

define_stats! {
    /// Lookups that found their key.
    hits,
    /// Lookups that did not find their key.
    misses,
    /// Entries that were inserted, under new or existing keys.
    insertions,
    /// Values that replaced another one of the same key.
    replacements,
    /// Entries that the cache did not insert: too heavy, or loaded and out of date.
    rejections,
    /// Entries that were evicted to make room.
    evictions,
    /// Entries that expired.
    expirations,
    /// Entries that the program removed.
    removals,
    /// Calls of cached functions that ran the function.
    loads,
    /// Calls of cached functions that raised an exception.
    failed_loads,
    /// Entries in the cache.
    entries,
    /// Sum of the entries' weights; their number in a cache without `getsizeof`.
    weight,
    /// Bytes that the cache uses for itself and its entries, without the Python objects.
    memory_bytes,
}

#[pymethods]
impl Stats {
    /// The share of lookups that found their key; `None` before the first lookup.
    #[getter]
    fn hit_ratio(&self) -> Option<f64> {
        let lookups = self.hits + self.misses;
        (lookups > 0).then(|| self.hits as f64 / lookups as f64)
    }

    /// Returns the statistics as a dict, by name.
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, count) in self.counts() {
            dict.set_item(name, count)?;
        }
        dict.set_item("policy", &self.policy)?;
        dict.set_item("hit_ratio", self.hit_ratio())?;
        Ok(dict)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let make = py.import("floe_cache._floe")?.getattr("make_stats")?;
        let counts: Vec<u64> = self.counts().into_iter().map(|(_, count)| count).collect();
        (make, (counts, &self.policy)).into_pyobject(py).map(Bound::into_any)
    }

    fn __repr__(&self) -> String {
        let mut text = String::from("Stats(");
        for (name, count) in self.counts() {
            text += &format!("{name}={count}, ");
        }
        text + &format!("policy='{}')", self.policy)
    }
}
