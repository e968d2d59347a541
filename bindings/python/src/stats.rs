//! Statistics of a cache, as a Python class.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Counters of a cache since its creation, and the size of its content.
#[pyclass(frozen, get_all, module = "floe_cache")]
#[derive(Debug, Clone)]
pub(crate) struct Stats {
    /// Lookups that found their key.
    pub(crate) hits: u64,
    /// Lookups that did not find their key.
    pub(crate) misses: u64,
    /// Entries that were inserted, under new or existing keys.
    pub(crate) insertions: u64,
    /// Values that replaced another one of the same key.
    pub(crate) replacements: u64,
    /// Insertions that were refused for lack of room.
    pub(crate) rejections: u64,
    /// Entries that were evicted to make room.
    pub(crate) evictions: u64,
    /// Entries that expired.
    pub(crate) expirations: u64,
    /// Entries that the program removed.
    pub(crate) removals: u64,
    /// Calls of cached functions that ran the function.
    pub(crate) loads: u64,
    /// Calls of cached functions that raised an exception.
    pub(crate) failed_loads: u64,
    /// Entries in the cache.
    pub(crate) entries: u64,
    /// Sum of the entries' weights; their number in a cache without `getsizeof`.
    pub(crate) weight: u64,
    /// Bytes that the cache uses for itself and its entries, without the Python objects.
    pub(crate) memory_bytes: u64,
    /// The name of the eviction policy.
    pub(crate) policy: String,
}

/// Recreates statistics from their values, for copies in another process.
#[pyfunction]
pub(crate) fn make_stats(counts: [u64; 13], policy: String) -> Stats {
    let [
        hits,
        misses,
        insertions,
        replacements,
        rejections,
        evictions,
        expirations,
        removals,
        loads,
        failed_loads,
        entries,
        weight,
        memory_bytes,
    ] = counts;
    Stats {
        hits,
        misses,
        insertions,
        replacements,
        rejections,
        evictions,
        expirations,
        removals,
        loads,
        failed_loads,
        entries,
        weight,
        memory_bytes,
        policy,
    }
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

impl Stats {
    fn counts(&self) -> [(&'static str, u64); 13] {
        [
            ("hits", self.hits),
            ("misses", self.misses),
            ("insertions", self.insertions),
            ("replacements", self.replacements),
            ("rejections", self.rejections),
            ("evictions", self.evictions),
            ("expirations", self.expirations),
            ("removals", self.removals),
            ("loads", self.loads),
            ("failed_loads", self.failed_loads),
            ("entries", self.entries),
            ("weight", self.weight),
            ("memory_bytes", self.memory_bytes),
        ]
    }
}
