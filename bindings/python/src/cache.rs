//! The Python class `Cache`, a mapping.
//!
//! Its methods access the entries directly, unless a subclass overrides one of the operators on
//! which the methods of `cachetools` are based: see [`overrides`].

use std::sync::OnceLock;
use std::time::Duration;

use floe::InsertOptions;
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyKeyError, PyOverflowError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use pyo3::{Borrowed, PyTraverseError, PyTypeInfo, PyVisit, intern};

use crate::mapping::{Mapping, Settings, Stats};

/// Name of the default policy.
const POLICY: &str = "qd-clock";

/// A cache with a maximum number of entries or a maximum weight.
///
/// `capacity` is the maximum number of entries or, with `getsizeof`, the maximum sum of what
/// `getsizeof(value)` returns. `policy` is the eviction policy by name, with parameters if need be:
/// "lru", "s3-fifo", "slru:segments=2". `admission` decides which new keys are admitted. `ttl` and
/// `idle` are the time, in seconds or as timedelta, after which an entry expires: since its
/// insertion, and since its last use.
#[pyclass(frozen, subclass, weakref, module = "floe_cache")]
pub(crate) struct Cache {
    /// The entries. `__init__` creates them, so that a subclass may have an `__init__` of its own.
    mapping: OnceLock<Mapping>,
}

type Entry<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

fn missing(key: &Bound<'_, PyAny>) -> PyErr {
    PyKeyError::new_err((key.clone().unbind(),))
}

/// Returns whether a subclass overrides one of these methods.
fn overrides(cache: &Bound<'_, Cache>, methods: &[&str]) -> PyResult<bool> {
    if cache.is_exact_instance_of::<Cache>() {
        return Ok(false);
    }
    let (class, base) = (cache.get_type(), Cache::type_object(cache.py()));
    for method in methods {
        if !class.getattr(*method)?.is(&base.getattr(*method)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the value of `self[key]` if `key in self`.
fn subscript<'py>(
    cache: &Bound<'py, Cache>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = cache.py();
    if cache.contains(key)? {
        match cache.get_item(key) {
            // It may have left since.
            Err(error) if error.is_instance_of::<PyKeyError>(py) => {}
            value => return value.map(Some),
        }
    }
    let own = cache.get().mapping()?;
    if !overrides(cache, &["__contains__"])? {
        own.look_up(&own.probe(key)?); // a miss
    }
    Ok(None)
}

/// Returns a time in seconds, the form of the constructor's argument.
fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| if time == Duration::MAX { f64::INFINITY } else { time.as_secs_f64() })
}

impl Cache {
    /// Returns the entries.
    ///
    /// # Errors
    /// When `__init__` was not called.
    #[inline]
    pub(crate) fn mapping(&self) -> PyResult<&Mapping> {
        match self.mapping.get() {
            Some(mapping) => Ok(mapping),
            None => uninitialized(),
        }
    }
}

#[cold]
fn uninitialized<T>() -> PyResult<T> {
    Err(PyRuntimeError::new_err(
        "this cache has no capacity yet: its __init__ has to call super().__init__(capacity)",
    ))
}

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(
        signature = (*_args, **_kwargs),
        text_signature = "(capacity, *, policy='qd-clock', ttl=None, idle=None, getsizeof=None, \
            admission=None)"
    )]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self { mapping: OnceLock::new() }
    }

    #[pyo3(signature = (
        capacity, *, policy=POLICY, ttl=None, idle=None, getsizeof=None, admission=None
    ))]
    fn __init__(
        &self,
        capacity: &Bound<'_, PyAny>,
        policy: &str,
        ttl: Option<&Bound<'_, PyAny>>,
        idle: Option<&Bound<'_, PyAny>>,
        getsizeof: Option<Py<PyAny>>,
        admission: Option<String>,
    ) -> PyResult<()> {
        if capacity.is_none() {
            return Err(PyTypeError::new_err(
                "a cache has a capacity; functools.cache and dict have none",
            ));
        }
        let settings = Settings {
            policy: policy.to_owned(),
            ttl: ttl.map(|time| duration("ttl", time)).transpose()?,
            idle: idle.map(|time| duration("idle", time)).transpose()?,
            admission,
            getsizeof,
        };
        let mapping = Mapping::new(capacity.extract()?, settings)?;
        self.mapping
            .set(mapping)
            .map_err(|_| PyRuntimeError::new_err("this cache has its capacity already: resize it"))
    }

    /// Returns the value of a key, or `default` if the key is not in the cache.
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if overrides(slf, &["__getitem__", "__contains__"])? {
            return Ok(subscript(slf, key)?.or(default));
        }
        let own = slf.get().mapping()?;
        Ok(own.look_up(&own.probe(key)?).or(default))
    }

    /// Returns the value of a key, or `default` if the key is not in the cache. Does not affect
    /// statistics or eviction.
    #[pyo3(signature = (key, default=None, /))]
    fn peek<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let own = self.mapping()?;
        Ok(own.look_at(&own.probe(key)?).or(default))
    }

    /// Inserts a value with a time to live of its own, or one that is never evicted (`pinned`).
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
            options = options.time_to_live(duration("ttl", time)?);
        }
        if let Some(time) = idle {
            options = options.time_to_idle(duration("idle", time)?);
        }
        if pinned {
            options = options.pinned();
        }
        self.mapping()?.put(key, value, options)
    }

    /// Removes all entries. Results of loads in progress will not be stored.
    fn clear(&self) -> PyResult<()> {
        self.mapping()?.clear();
        Ok(())
    }

    /// Frees the memory of removed and expired entries now. By default, some entries wait to be
    /// freed together: with their keys, but without their values.
    fn reclaim(&self) -> PyResult<()> {
        self.mapping()?.store.reclaim();
        Ok(())
    }

    /// Changes the capacity, and evicts entries that exceed it.
    fn resize(&self, capacity: u64) -> PyResult<()> {
        self.mapping()?.resize(capacity)
    }

    /// Returns the statistics of the cache. Meant for once a second, not for every request.
    fn stats(&self) -> PyResult<Stats> {
        Ok(self.mapping()?.stats())
    }

    /// The maximum number of entries, or the maximum weight with `getsizeof`.
    #[getter]
    fn maxsize(&self) -> PyResult<u64> {
        Ok(self.mapping()?.maxsize())
    }

    /// The number of entries, or their weight with `getsizeof`.
    #[getter]
    fn currsize(&self) -> PyResult<u64> {
        Ok(self.mapping()?.currsize())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.mapping()?.store.len())
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let own = self.mapping()?;
        Ok(own.store.contains_key(&own.probe(key)?))
    }

    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get().mapping()?;
        if let Some(value) = own.look_up(&own.probe(key)?) {
            return Ok(value);
        }
        if overrides(slf, &["__missing__"])? {
            return slf.call_method1(intern!(slf.py(), "__missing__"), (key,));
        }
        Err(missing(key))
    }

    /// Called by `self[key]` if the key is not in the cache. Raises KeyError, unless overridden.
    fn __missing__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(missing(key))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.mapping()?.put(key, value, InsertOptions::new())
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let own = self.mapping()?;
        own.take(&own.probe(key)?).map(drop).ok_or_else(|| missing(key))
    }

    /// Iterates over the keys that are in the cache now, in no particular order.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut keys = Vec::new();
        self.mapping()?.for_each(py, |key, _| keys.push(key));
        Ok(PyList::new(py, keys)?.try_iter()?.into_any())
    }

    /// Disables `reversed()`, as for any mapping: the entries have no order.
    #[classattr]
    #[pyo3(name = "__reversed__")]
    fn reversed() -> Option<()> {
        None
    }

    /// Returns the current entries as a list of pairs. No hit is counted.
    fn _entries<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let mut entries = Vec::new();
        if overrides(slf, &["__iter__", "__getitem__", "__contains__"])? {
            for key in slf.try_iter()? {
                let key = key?;
                if let Some(value) = subscript(slf, &key)? {
                    entries.push((key, value));
                }
            }
        } else {
            slf.get().mapping()?.for_each(slf.py(), |key, value| entries.push((key, value)));
        }
        PyList::new(slf.py(), entries)
    }

    /// Removes a key and returns its value, or `default` if the key is not in the cache.
    #[pyo3(
        signature = (key, default=OrMissing(None), /),
        text_signature = "($self, key, default=..., /)"
    )]
    fn pop<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        default: OrMissing<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = if overrides(slf, &["__getitem__", "__delitem__", "__contains__"])? {
            let value = subscript(slf, key)?;
            if value.is_some() {
                slf.del_item(key)?;
            }
            value
        } else {
            let own = slf.get().mapping()?;
            own.take(&own.probe(key)?)
        };
        value.or(default.0).ok_or_else(|| missing(key))
    }

    /// Removes an arbitrary entry and returns its key and value.
    fn popitem<'py>(slf: &Bound<'py, Self>) -> PyResult<Entry<'py>> {
        let (py, own) = (slf.py(), slf.get().mapping()?);
        let empty = || PyKeyError::new_err("the cache is empty");
        if overrides(slf, &["__iter__", "__getitem__", "__delitem__", "__contains__"])? {
            for key in slf.try_iter()? {
                let key = key?;
                if let Some(value) = subscript(slf, &key)? {
                    slf.del_item(&key)?;
                    return Ok((key, value));
                }
            }
            return Err(empty());
        }
        loop {
            let mut entries = own.store.into_iter().filter(|item| item.key().call().is_none());
            let first = entries.next().map(|item| item.key().object(py));
            drop(entries);
            // Otherwise it has just left.
            if let Some(key) = first.ok_or_else(empty)?
                && let Some(value) = own.take(&own.probe(&key)?)
            {
                return Ok((key, value));
            }
        }
    }

    /// Returns the value of a key. If the key is not in the cache, inserts and returns `default`.
    #[pyo3(signature = (key, default=None, /))]
    fn setdefault<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let default = default.unwrap_or_else(|| slf.py().None().into_bound(slf.py()));
        if overrides(slf, &["__getitem__", "__setitem__", "__contains__"])? {
            if let Some(value) = subscript(slf, key)? {
                return Ok(value);
            }
            slf.set_item(key, &default)?;
            return Ok(default);
        }
        let own = slf.get().mapping()?;
        let probe = own.probe(key)?;
        match own.look_up(&probe) {
            Some(value) => Ok(value),
            None => own.put_first(&probe, default),
        }
    }

    /// Inserts the entries of a mapping or of an iterable of pairs, and the keyword arguments.
    #[pyo3(signature = (other=None, /, **named))]
    fn update(
        slf: &Bound<'_, Self>,
        other: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let own = slf.get().mapping()?;
        let is_overridden = overrides(slf, &["__setitem__"])?;
        for pairs in [other, named].into_iter().flatten() {
            let pairs = slf.py().get_type::<PyDict>().call1((pairs,))?;
            for pair in pairs.call_method0("items")?.try_iter()? {
                let (key, value): Entry<'_> = pair?.extract()?;
                if is_overridden {
                    slf.set_item(key, value)?;
                } else {
                    own.put(&key, &value, InsertOptions::new())?;
                }
            }
        }
        Ok(())
    }

    /// Returns a view of the keys.
    fn keys<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("floe_cache._views")?.getattr("Keys")?.call1((slf,))
    }

    /// Returns a view of the values.
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("floe_cache._views")?.getattr("Values")?.call1((slf,))
    }

    /// Returns a view of the entries, as pairs of key and value.
    fn items<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("floe_cache._views")?.getattr("Items")?.call1((slf,))
    }

    /// Compares with another mapping: equal if both have equal entries.
    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        operator: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let mapping = py.import("collections.abc")?.getattr("Mapping")?;
        let asks = matches!(operator, CompareOp::Eq | CompareOp::Ne);
        if !asks || !other.is_instance(&mapping)? {
            return Ok(py.NotImplemented().into_bound(py));
        }
        let dict = py.get_type::<PyDict>();
        let own = dict.call1((slf.call_method0("items")?,))?;
        own.rich_compare(dict.call1((other.call_method0("items")?,))?, operator)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let own = slf.get().mapping()?;
        let (name, policy) = (slf.get_type().name()?, own.store.stats().policy);
        let (maxsize, currsize) = (own.maxsize(), own.currsize());
        Ok(format!("{name}(maxsize={maxsize}, currsize={currsize}, policy='{policy}')"))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let make = py.import("copyreg")?.getattr("__newobj__")?;
        let state = slf.call_method0("__getstate__")?;
        (make, (slf.get_type(),), state).into_pyobject(py).map(Bound::into_any)
    }

    /// Returns the settings and the entries, from which a copy is made.
    fn __getstate__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let (py, own) = (slf.py(), slf.get().mapping()?);
        let settings = PyDict::new(py);
        settings.set_item("policy", &own.settings.policy)?;
        settings.set_item("ttl", seconds(own.settings.ttl))?;
        settings.set_item("idle", seconds(own.settings.idle))?;
        settings.set_item("getsizeof", &own.settings.getsizeof)?;
        settings.set_item("admission", &own.settings.admission)?;
        let mut entries = Vec::new();
        own.for_each(py, |key, value| entries.push((key, value)));
        let state = PyDict::new(py);
        state.set_item("capacity", own.maxsize())?;
        state.set_item("settings", settings)?;
        state.set_item("entries", PyList::new(py, entries)?)?;
        let attributes = PyDict::new(py);
        if let Ok(own) = slf.getattr("__dict__") {
            attributes.call_method1("update", (own,))?;
        }
        let slots = py.import("copyreg")?.getattr("_slotnames")?.call1((slf.get_type(),))?;
        for name in slots.try_iter()? {
            let name = name?.extract::<String>()?;
            if let Ok(value) = slf.getattr(&*name) {
                attributes.set_item(name, value)?;
            }
        }
        state.set_item("attributes", attributes)?;
        Ok(state)
    }

    fn __setstate__(slf: &Bound<'_, Self>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let settings = state.as_any().get_item("settings")?.cast_into::<PyDict>()?;
        let capacity = state.as_any().get_item("capacity")?;
        let base = Self::type_object(slf.py());
        base.call_method("__init__", (slf, capacity), Some(&settings))?;
        let attributes = state.as_any().get_item("attributes")?.cast_into::<PyDict>()?;
        for (name, value) in &attributes {
            slf.setattr(name.extract::<&str>()?, value)?;
        }
        let own = slf.get().mapping()?;
        for entry in state.as_any().get_item("entries")?.try_iter()? {
            let (key, value): Entry<'_> = entry?.extract()?;
            own.put(&key, &value, InsertOptions::new())?;
        }
        Ok(())
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
        let Some(own) = self.mapping.get() else { return Ok(()) };
        visit.call(&own.settings.getsizeof)?;
        for item in &own.store {
            item.key().traverse(&visit)?;
            item.value().traverse(&visit)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        if let Some(own) = self.mapping.get() {
            own.store.clear();
            own.store.reclaim(); // keys that wait may be part of the cycle
        }
    }
}

/// Converts a time in seconds, or a `timedelta`. Infinite times, and those too long for a
/// `Duration`, mean never.
///
/// # Errors
/// When the argument has another type or is not positive.
pub(crate) fn duration(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds = match given.extract::<f64>() {
        Ok(seconds) => seconds,
        Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
            if given.lt(0)? {
                f64::NEG_INFINITY
            } else {
                f64::INFINITY
            }
        }
        Err(_) => given
            .call_method0("total_seconds")
            .and_then(|seconds| seconds.extract())
            .map_err(|_| {
                PyTypeError::new_err(format!(
                    "{name} must be a number of seconds or a \
                                                  timedelta"
                ))
            })?,
    };
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(PyValueError::new_err(format!("{name} must be more than 0 s, not {seconds}")));
    }
    // Less than a nanosecond is one.
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    Ok(time.max(Duration::from_nanos(1)))
}

/// An optional argument for which omission differs from `None`.
#[derive(Debug, Clone)]
pub(crate) struct OrMissing<'py>(pub(crate) Option<Bound<'py, PyAny>>);

impl<'py> FromPyObject<'_, 'py> for OrMissing<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(object.to_owned())))
    }
}
