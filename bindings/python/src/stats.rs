//! Statistics of a cache, as Python sees them.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Counts of a cache since it was made, and what it holds.
#[pyclass(frozen, get_all, module = "floe_cache")]
#[derive(Debug, Clone)]
pub(crate) struct Stats {
    /// Lookups that found their key.
    pub(crate) hits: u64,
    /// Lookups that did not.
    pub(crate) misses: u64,
    /// Entries that came in, under a new key or in another's place.
    pub(crate) insertions: u64,
    /// Values that took another's place.
    pub(crate) replacements: u64,
    /// Entries that did not come in.
    pub(crate) rejections: u64,
    /// Entries that left to make room.
    pub(crate) evictions: u64,
    /// Entries whose time was over.
    pub(crate) expirations: u64,
    /// Entries that were removed.
    pub(crate) removals: u64,
    /// Calls of cached functions that ran the function.
    pub(crate) loads: u64,
    /// Of these, those that raised.
    pub(crate) failed_loads: u64,
    /// Entries.
    pub(crate) entries: u64,
    /// Their weight; their number, if they are not weighed.
    pub(crate) weight: u64,
    /// Bytes that the cache holds for itself and its entries, without Python's objects.
    pub(crate) memory_bytes: u64,
    /// The name of the eviction policy.
    pub(crate) policy: String,
}

/// Makes statistics of their counts, as those of another process.
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
    /// The share of lookups that found their key; `None` before the first.
    #[getter]
    fn hit_ratio(&self) -> Option<f64> {
        let lookups = self.hits + self.misses;
        (lookups > 0).then(|| self.hits as f64 / lookups as f64)
    }

    /// The counts by name.
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
