//! Functions whose results are cached.
//!
//! `floe_cache.cached` turns a function into a [`CachedFunction`]. Coroutine functions are wrapped
//! in Python (`python/floe_cache/_coroutine.py`), which uses [`Calls`] for keys and [`Ticket`] for
//! loads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use floe::InsertOptions;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};

use crate::cache::Cache;
use crate::flight::{FAILURES_MAX, Listening, Part, PendingLoad};
use crate::key::{Call, Key, Probe};
use crate::mapping::{Mapping, Stats};
use crate::waits::{self, lock};

/// Calls of one function, as keys of a cache.
#[pyclass(frozen, module = "floe_cache._floe")]
pub(crate) struct Calls {
    cache: Py<Cache>,
    /// Function that turns the arguments into a key, like those that the program uses directly.
    key: Option<Py<PyAny>>,
    /// Arguments that are equal but of different types make different keys.
    typed: bool,
    function: u64,
}

/// Codes for the shape of arguments in a key, so that `f(1, 2)` and `f((1, 2))` differ.
const SINGLE: u64 = 0;
const POSITIONAL: u64 = 1;
/// Added to the shape for each keyword argument.
const NAMED: u64 = 1;

#[pymethods]
impl Calls {
    #[new]
    fn new(cache: Py<Cache>, key: Option<Py<PyAny>>, typed: bool) -> PyResult<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        cache.get().mapping()?; // it is initialized
        let function = LAST.fetch_add(1, Ordering::Relaxed) + 1; // only to be unique
        Ok(Self { cache, key, typed, function })
    }

    /// The number of failed loads by others for which one caller waits.
    #[classattr]
    const FAILURES_MAX: usize = FAILURES_MAX;

    /// Returns the cached result of a call, or `missing`.
    fn find<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        missing: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (object, call) = self.key(args, Some(kwargs))?;
        let cache = self.mapping()?;
        let probe = Probe::new(&object, call, &cache.identities)?;
        Ok(cache.look_up(&probe).unwrap_or(missing))
    }

    /// Joins the load of a call, as a task of an event loop.
    fn join(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        event_loop: &Bound<'_, PyAny>,
    ) -> PyResult<Ticket> {
        let (object, call) = self.key(args, Some(kwargs))?;
        let (py, cache) = (args.py(), self.mapping()?);
        let key = Probe::new(&object, call, &cache.identities)?.to_key();
        let load = waits::current(py)?;
        let part = cache.join(py, &key, Some(event_loop), load.as_ref());
        Ok(Ticket { part, key, cache: self.cache.clone_ref(py) })
    }

    /// Counts a load that ran beside another load of the same call.
    fn count_alone(&self, has_failed: bool) -> PyResult<()> {
        self.mapping()?.flights.count_alone(has_failed);
        Ok(())
    }

    /// Removes the result of a call, and keeps a load in progress from storing one. Returns
    /// whether there was a result.
    fn invalidate(&self, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<bool> {
        let (object, call) = self.key(args, Some(kwargs))?;
        let cache = self.mapping()?;
        Ok(cache.take(&Probe::new(&object, call, &cache.identities)?).is_some())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.cache)?;
        visit.call(&self.key)
    }
}

impl Calls {
    #[inline]
    fn mapping(&self) -> PyResult<&Mapping> {
        self.cache.get().mapping()
    }

    /// Returns the mark for keys of calls of this shape.
    fn call(&self, shape: u64) -> Call {
        Call(self.function << 32 | shape)
    }

    /// Returns the object that stands for the arguments in the cache.
    fn key<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Bound<'py, PyAny>, Call)> {
        if let Some(key) = &self.key {
            return Ok((key.bind(args.py()).call(args, kwargs)?, Call::default()));
        }
        match kwargs {
            None if self.typed => {
                let types = args.iter().map(|value| value.get_type().into_any());
                let parts: Vec<_> = args.iter().chain(types).collect();
                Ok((PyTuple::new(args.py(), parts)?.into_any(), self.call(POSITIONAL)))
            }
            Some(kwargs) if self.typed || !kwargs.is_empty() => {
                let mut parts: Vec<_> = args.iter().collect();
                for (name, value) in kwargs {
                    parts.extend([name, value]);
                }
                if self.typed {
                    let values = args.iter().chain(kwargs.values());
                    parts.extend(values.map(|value| value.get_type().into_any()));
                }
                let shape = POSITIONAL + NAMED * kwargs.len() as u64;
                Ok((PyTuple::new(args.py(), parts)?.into_any(), self.call(shape)))
            }
            _ if args.len() == 1 => Ok((args.get_item(0)?, self.call(SINGLE))),
            _ => Ok((args.clone().into_any(), self.call(POSITIONAL))),
        }
    }
}

impl Mapping {
    /// Joins the load of a key. If none is in progress, the caller starts one.
    fn join<'py>(
        &self,
        py: Python<'py>,
        key: &Key,
        event_loop: Option<&Bound<'py, PyAny>>,
        load: Option<&Arc<waits::Origin>>,
    ) -> Part {
        self.flights.join(py, key, event_loop, load, || self.store.peek(key)?.object(py))
    }

    /// Stores the result of a load and wakes its waiters. The result is not stored if the key was
    /// changed meanwhile or the value is too heavy.
    fn finish(
        &self,
        key: &Key,
        flight: &Arc<PendingLoad>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = value.py();
        let weight = self.weigh(value);
        self.flights.land(key, flight, || {
            if let Ok(Some(weight)) = weight {
                self.place(key.clone_ref(py), value, weight, InsertOptions::new());
            }
        });
        self.flights.end(py, flight, Some(value.clone().unbind()));
        weight.map(drop)
    }
}

/// A caller's participation in the load of a call.
#[pyclass(frozen, module = "floe_cache._floe")]
pub(crate) struct Ticket {
    part: Part,
    key: Key,
    cache: Py<Cache>,
}

#[pymethods]
impl Ticket {
    /// True if the holder runs the load itself.
    #[getter]
    fn leads(&self) -> bool {
        self.part.leads
    }

    /// Marks the calling code as part of the load. Returns the previous mark.
    fn enter(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        waits::enter(py, self.part.flight.origin())
    }

    /// Restores the previous mark of the calling code.
    fn leave(&self, py: Python<'_>, before: Py<PyAny>) -> PyResult<()> {
        waits::leave(py, self.part.flight.origin(), before)
    }

    /// Ends the load with its result.
    fn finish(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.cache.get().mapping()?.finish(&self.key, &self.part.flight, value)
    }

    /// Ends the load without a result.
    fn give_up(&self, py: Python<'_>) -> PyResult<()> {
        self.cache.get().mapping()?.flights.give_up(py, &self.key, &self.part.flight);
        Ok(())
    }

    /// Registers a function to be called at the end of the load, by any thread; immediately if the
    /// load has ended. Returns the wait, or `None` if waiting could deadlock.
    fn listen(
        &self,
        event_loop: &Bound<'_, PyAny>,
        function: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Listener>> {
        let load = waits::current(function.py())?;
        let listening = self.part.flight.listen(event_loop, load.as_ref(), function)?;
        Ok(listening.map(|listening| Listener(Mutex::new(Some(listening)))))
    }

    /// Returns the result of a load that has ended successfully, or `missing`.
    fn value<'py>(&self, missing: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
        self.part.flight.value(missing.py()).unwrap_or(missing)
    }
}

/// A coroutine's wait for the end of a load.
#[pyclass(frozen, module = "floe_cache._floe")]
pub(crate) struct Listener(Mutex<Option<Listening>>);

#[pymethods]
impl Listener {
    /// Ends the wait.
    fn end(&self) {
        let listening = lock(&self.0).take();
        drop(listening);
    }
}

/// A function whose results are cached. See `floe_cache.cached`.
#[pyclass(frozen, dict, weakref, module = "floe_cache")]
pub(crate) struct CachedFunction {
    calls: Calls,
    function: Py<PyAny>,
}

#[pymethods]
impl CachedFunction {
    #[new]
    #[pyo3(signature = (function, cache, key, typed=false))]
    fn new(
        function: Py<PyAny>,
        cache: Py<Cache>,
        key: Option<Py<PyAny>>,
        typed: bool,
    ) -> PyResult<Self> {
        Ok(Self { calls: Calls::new(cache, key, typed)?, function })
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let is_simple = kwargs.is_none() && self.calls.key.is_none() && !self.calls.typed;
        if is_simple && args.len() == 1 {
            // Most calls: the argument as it is, without a reference of one's own.
            let argument = args.get_borrowed_item(0)?;
            return self.find_or_load(&argument, self.calls.call(SINGLE), args, None);
        }
        let (object, call) = self.calls.key(args, kwargs)?;
        self.find_or_load(&object, call, args, kwargs)
    }

    /// Binds the function to an object, if it is a method of a class.
    fn __get__<'py>(
        slf: Bound<'py, Self>,
        object: Option<Bound<'py, PyAny>>,
        _class: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static METHOD: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        match object {
            None => Ok(slf.into_any()),
            Some(object) => METHOD.import(slf.py(), "types", "MethodType")?.call1((slf, object)),
        }
    }

    /// The cache that stores the results.
    #[getter]
    fn cache(&self, py: Python<'_>) -> Py<Cache> {
        self.calls.cache.clone_ref(py)
    }

    /// Removes the result for these arguments. Returns whether there was one.
    #[pyo3(signature = (*args, **kwargs))]
    fn invalidate(
        &self,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        let none = PyDict::new(args.py());
        self.calls.invalidate(args, kwargs.unwrap_or(&none))
    }

    /// Returns the statistics of the cache.
    fn stats(&self) -> PyResult<Stats> {
        Ok(self.calls.mapping()?.stats())
    }

    /// Returns hits, misses, maxsize and currsize, like `functools.lru_cache`.
    fn cache_info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("floe_cache._cached")?.getattr("_cache_info")?.call1((&self.calls.cache,))
    }

    /// Returns the parameters of the cache, like `functools.lru_cache`.
    fn cache_parameters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let parameters = PyDict::new(py);
        parameters.set_item("maxsize", self.calls.mapping()?.maxsize())?;
        parameters.set_item("typed", self.calls.typed)?;
        Ok(parameters)
    }

    /// Removes all entries of the cache.
    fn cache_clear(&self) -> PyResult<()> {
        self.calls.mapping()?.clear();
        Ok(())
    }

    /// Pickles the function by its name, so that another process imports it like any other
    /// function.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.getattr("__qualname__")
    }

    /// Returns the function itself, because functions are not copied.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Returns the function itself, because functions are not copied.
    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.function)?;
        self.calls.__traverse__(visit)
    }
}

impl CachedFunction {
    #[inline(always)]
    fn find_or_load<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        call: Call,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let cache = self.calls.mapping()?;
        let probe = Probe::new(object, call, &cache.identities)?;
        match cache.look_up(&probe) {
            Some(value) => Ok(value),
            None => self.load(&probe.to_key(), args, kwargs),
        }
    }

    #[inline(never)]
    fn load<'py>(
        &self,
        key: &Key,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, cache) = (args.py(), self.calls.mapping()?);
        let function = self.function.bind(py);
        cache.flights.load(
            py,
            key,
            || cache.store.peek(key)?.object(py),
            || function.call(args, kwargs),
            |flight, value| cache.finish(key, flight, value),
        )
    }
}
