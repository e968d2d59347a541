//! The cache, as Python sees it: a mapping.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use floe::InsertOptions;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};

use crate::flight::Flights;
use crate::identity::Identities;
use crate::key::Key;
use crate::settings::{self, OrMissing};
use crate::stats::Stats;
use crate::store::{Store, Value};

/// The policy of caches that name none.
const POLICY: &str = "qd-clock";

/// A cache of a bounded number of entries, or of a bounded weight.
///
/// `capacity` is the largest number of entries or, with `getsizeof`, the largest sum of what
/// `getsizeof(value)` returns. `policy` is the eviction policy by name, with parameters if need be:
/// "lru", "s3-fifo", "slru:segments=2". `admission` decides which new keys come in, and `ttl` and
/// `idle` are the seconds, or the timedelta, after which an entry expires: since it came in, and
/// since it was last used.
#[pyclass(frozen, subclass, weakref, module = "floe")]
pub(crate) struct Cache {
    pub(crate) store: Store,
    pub(crate) identities: Arc<Identities>,
    pub(crate) flights: Flights,
    pub(crate) getsizeof: Option<Py<PyAny>>,
    pub(crate) capacity: AtomicU64,
}

fn missing(key: &Bound<'_, PyAny>) -> PyErr {
    PyKeyError::new_err((key.clone().unbind(),))
}

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (
        capacity, *, policy=POLICY, ttl=None, idle=None, getsizeof=None, admission=None
    ))]
    fn new(
        capacity: u64,
        policy: &str,
        ttl: Option<&Bound<'_, PyAny>>,
        idle: Option<&Bound<'_, PyAny>>,
        getsizeof: Option<Py<PyAny>>,
        admission: Option<&str>,
    ) -> PyResult<Self> {
        let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let mut builder = floe::Cache::<Key, Value>::builder()
            .policy_named(policy)
            .map_err(|error| invalid(&error))?
            .listener(|key: &Key, value: &Value, _| {
                key.leave();
                value.leave();
            });
        builder = match getsizeof {
            Some(_) => builder.weight_capacity(capacity).weigher(|_, value: &Value| value.weight()),
            None => builder.capacity(capacity.try_into()?),
        };
        if let Some(time) = ttl {
            builder = builder.time_to_live(settings::time("ttl", time)?);
        }
        if let Some(time) = idle {
            builder = builder.time_to_idle(settings::time("idle", time)?);
        }
        if let Some(name) = admission {
            builder = builder.admission_named(name).map_err(|error| invalid(&error))?;
        }
        Ok(Self {
            store: builder.try_build().map_err(|error| invalid(&error))?,
            identities: Arc::default(),
            flights: Flights::default(),
            getsizeof,
            capacity: AtomicU64::new(capacity),
        })
    }

    /// The value of a key, or `default` if it is not there.
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.look_up(&self.probe(key)?).or(default))
    }

    /// The value of a key, or `default` if it is not there: without a trace, so that neither
    /// statistics nor the policy know of it.
    #[pyo3(signature = (key, default=None, /))]
    fn peek<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.look_at(&self.probe(key)?).or(default))
    }

    /// Inserts a value that expires at another time than the cache's others, or is not evicted
    /// (`pinned`).
    #[pyo3(signature = (key, value, /, *, ttl=None, idle=None, pinned=false))]
    fn insert(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<&Bound<'_, PyAny>>,
        idle: Option<&Bound<'_, PyAny>>,
        pinned: bool,
    ) -> PyResult<()> {
        let mut options = InsertOptions::new();
        if let Some(time) = ttl {
            options = options.time_to_live(settings::time("ttl", time)?);
        }
        if let Some(time) = idle {
            options = options.time_to_idle(settings::time("idle", time)?);
        }
        if pinned {
            options = options.pinned();
        }
        self.put(key, value, options)
    }

    /// Removes everything. Loads that are under way do not come in.
    pub(crate) fn clear(&self) {
        self.flights.detach_all();
        self.store.clear();
    }

    /// Frees the memory of entries that have left and those that have expired. Otherwise some wait,
    /// so that they can be freed together: with their keys, but without their values.
    fn reclaim(&self) {
        self.store.reclaim();
    }

    /// Changes the capacity, and evicts what is too much.
    fn resize(&self, capacity: u64) -> PyResult<()> {
        match self.getsizeof {
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

    /// The counts of the cache. For once a second, not once a request.
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
            policy: stats.policy,
        }
    }

    /// The largest number of entries, or their largest weight.
    #[getter]
    pub(crate) fn maxsize(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// The number of entries, or their weight.
    #[getter]
    pub(crate) fn currsize(&self) -> u64 {
        match self.getsizeof {
            Some(_) => self.store.stats().weight,
            None => self.store.len() as u64,
        }
    }

    fn __len__(&self) -> usize {
        self.store.len()
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.store.contains_key(&self.probe(key)?))
    }

    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get();
        if let Some(value) = own.look_up(&own.probe(key)?) {
            return Ok(value);
        }
        if !slf.is_exact_instance_of::<Self>() && slf.hasattr("__missing__")? {
            return slf.call_method1("__missing__", (key,));
        }
        Err(missing(key))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(key, value, InsertOptions::new())
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        self.take(&self.probe(key)?).map(drop).ok_or_else(|| missing(key))
    }

    /// Iterates over the keys that are there now, in no particular order.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut keys = Vec::new();
        self.for_each(py, |key, _| keys.push(key));
        Ok(PyList::new(py, keys)?.try_iter()?.into_any())
    }

    /// The entries that are there now, as pairs; no hit is counted.
    fn _entries<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut entries = Vec::new();
        self.for_each(py, |key, value| entries.push((key, value)));
        PyList::new(py, entries)
    }

    /// Removes a key and returns its value, or `default` if it is not there.
    #[pyo3(
        signature = (key, default=OrMissing(None), /),
        text_signature = "($self, key, default=..., /)"
    )]
    fn pop<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: OrMissing<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.take(&self.probe(key)?).or(default.0).ok_or_else(|| missing(key))
    }

    /// Removes an entry, in no particular order, and returns its key and value.
    fn popitem<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        loop {
            let mut entries = self.store.into_iter().filter(|item| item.key().call().is_none());
            let first = entries.next().map(|item| item.key().object(py));
            drop(entries);
            let first = first.ok_or_else(|| PyKeyError::new_err("the cache is empty"))?;
            // Otherwise it has just left.
            if let Some(key) = first
                && let Some(value) = self.take(&self.probe(&key)?)
            {
                return Ok((key, value));
            }
        }
    }

    /// The value of a key; if it is not there, `default`, which is inserted.
    #[pyo3(signature = (key, default=None, /))]
    fn setdefault<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let probe = self.probe(key)?;
        if let Some(value) = self.look_up(&probe) {
            return Ok(value);
        }
        let default = default.unwrap_or_else(|| key.py().None().into_bound(key.py()));
        self.put_first(&probe, default)
    }

    /// Inserts what a mapping or an iterable of pairs holds, and the named arguments.
    #[pyo3(signature = (other=None, /, **named))]
    fn update(
        slf: &Bound<'_, Self>,
        other: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let own = slf.get();
        for pairs in [other, named].into_iter().flatten() {
            let pairs = slf.py().get_type::<PyDict>().call1((pairs,))?;
            for pair in pairs.call_method0("items")?.try_iter()? {
                let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
                own.put(&key, &value, InsertOptions::new())?;
            }
        }
        Ok(())
    }

    /// A view of the keys.
    fn keys<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("floe._views")?.getattr("Keys")?.call1((slf,))
    }

    /// A view of the values.
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("floe._views")?.getattr("Values")?.call1((slf,))
    }

    /// A view of keys and values.
    fn items<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("floe._views")?.getattr("Items")?.call1((slf,))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let own = slf.get();
        let (name, policy) = (slf.get_type().name()?, own.store.stats().policy);
        let (maxsize, currsize) = (own.maxsize(), own.currsize());
        Ok(format!("{name}(maxsize={maxsize}, currsize={currsize}, policy='{policy}')"))
    }

    #[classmethod]
    fn __class_getitem__<'py>(
        cls: &Bound<'py, PyType>,
        parameters: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let alias = cls.py().import("types")?.getattr("GenericAlias")?;
        alias.call1(PyTuple::new(cls.py(), [cls.as_any(), parameters])?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.getsizeof)?;
        for item in &self.store {
            item.key().traverse(&visit)?;
            item.value().traverse(&visit)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.store.clear();
    }
}
