//! Functions whose results are cached.
//!
//! [`CachedFunction`] is what `floe_cache.cached` makes of a function. What it makes of a coroutine
//! function is written in Python (`python/floe_cache/_coroutine.py`), with [`Calls`] for keys and
//! [`Ticket`] for loads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use floe::InsertOptions;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};

use crate::cache::Cache;
use crate::flight::{Listening, Part, Waited};
use crate::key::{Call, Key, Probe};
use crate::mapping::Mapping;
use crate::stats::Stats;
use crate::waits::{self, lock};

/// The calls of one function, as keys of a cache.
#[pyclass(frozen, module = "floe_cache._floe")]
pub(crate) struct Calls {
    cache: Py<Cache>,
    /// Makes a key of the arguments, which is one of the mapping then.
    key: Option<Py<PyAny>>,
    /// Arguments of different types differ.
    typed: bool,
    function: u64,
}

/// Loads of others that one caller waits for, as long as they fail: then it loads beside them. So a
/// source that is there again is asked once, and one that keeps failing does not make its callers
/// wait for each other.
const FAILURES_MAX: usize = 2;

/// Shapes of arguments, so that `f(1, 2)` and `f((1, 2))` differ.
const SINGLE: u64 = 0;
const POSITIONAL: u64 = 1;
/// With so many named ones in addition.
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

    /// The failed loads of others that one caller waits for.
    #[classattr]
    const FAILURES_MAX: usize = FAILURES_MAX;

    /// The value of a call, or `missing`.
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

    /// Joins the load of a call, by a task of an event loop.
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

    /// Counts a load beside another one of the same call.
    fn count_alone(&self, has_failed: bool) -> PyResult<()> {
        self.mapping()?.flights.count_alone(has_failed);
        Ok(())
    }

    /// Removes the value of a call, and keeps a load of it that is under way from coming in.
    /// Returns whether there was a value.
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

    /// Marks the keys of calls of this shape.
    fn call(&self, shape: u64) -> Call {
        Call(self.function << 32 | shape)
    }

    /// The object that stands for the arguments in the cache.
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
    /// Joins the load of a key, which begins if none is under way.
    fn join<'py>(
        &self,
        py: Python<'py>,
        key: &Key,
        event_loop: Option<&Bound<'py, PyAny>>,
        load: Option<&Arc<waits::Origin>>,
    ) -> Part {
        self.flights.join(py, key, event_loop, load, || self.store.peek(key)?.object(py))
    }

    /// Has the value of a load come in, unless its key was changed meanwhile or the cache cannot
    /// hold it, and tells those that wait for it.
    fn finish(&self, key: &Key, part: &Part, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = value.py();
        let weight = self.weigh(value);
        self.flights.land(key, &part.flight, || {
            if let Ok(Some(weight)) = weight {
                self.place(key.clone_ref(py), value, weight, InsertOptions::new());
            }
        });
        self.flights.end(py, &part.flight, Some(value.clone().unbind()));
        weight.map(drop)
    }

    /// Gives a load up.
    fn give_up(&self, py: Python<'_>, key: &Key, part: &Part) {
        self.flights.land(key, &part.flight, || ());
        self.flights.end(py, &part.flight, None);
    }
}

/// A part in the load of a call.
#[pyclass(frozen, module = "floe_cache._floe")]
pub(crate) struct Ticket {
    part: Part,
    key: Key,
    cache: Py<Cache>,
}

#[pymethods]
impl Ticket {
    /// True for the holder that runs the load.
    #[getter]
    fn leads(&self) -> bool {
        self.part.leads
    }

    /// Makes the calling code part of the load. Returns what it was part of.
    fn enter(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        waits::enter(py, self.part.flight.origin())
    }

    /// Makes the calling code part of what it was part of.
    fn leave(&self, py: Python<'_>, before: Py<PyAny>) -> PyResult<()> {
        waits::leave(py, self.part.flight.origin(), before)
    }

    /// Ends the load with its value.
    fn finish(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.cache.get().mapping()?.finish(&self.key, &self.part, value)
    }

    /// Ends the load without a value.
    fn give_up(&self, py: Python<'_>) -> PyResult<()> {
        self.cache.get().mapping()?.give_up(py, &self.key, &self.part);
        Ok(())
    }

    /// Has a function called at the end of the load, by any thread; at once if that has come.
    /// Returns the wait, or `None` if it could have no end.
    fn listen(
        &self,
        event_loop: &Bound<'_, PyAny>,
        function: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Listener>> {
        let load = waits::current(function.py())?;
        let listening = self.part.flight.listen(event_loop, load.as_ref(), function)?;
        Ok(listening.map(|listening| Listener(Mutex::new(Some(listening)))))
    }

    /// The value of a load that has ended with one, or `missing`.
    fn value<'py>(&self, missing: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
        self.part.flight.value(missing.py()).unwrap_or(missing)
    }
}

/// A coroutine's wait for a load.
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

/// A function whose results are cached: see `floe_cache.cached`.
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

    /// A method, if the function is one of a class.
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

    /// The cache with the results.
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

    /// The counts of the cache.
    fn stats(&self) -> PyResult<Stats> {
        Ok(self.calls.mapping()?.stats())
    }

    /// As that of `functools.lru_cache`.
    fn cache_info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("floe_cache._cached")?.getattr("_cache_info")?.call1((&self.calls.cache,))
    }

    /// As that of `functools.lru_cache`.
    fn cache_parameters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let parameters = PyDict::new(py);
        parameters.set_item("maxsize", self.calls.mapping()?.maxsize())?;
        parameters.set_item("typed", self.calls.typed)?;
        Ok(parameters)
    }

    /// Removes everything from the cache.
    fn cache_clear(&self) -> PyResult<()> {
        self.calls.mapping()?.clear();
        Ok(())
    }

    /// Another process finds the function under its name, as any other.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.getattr("__qualname__")
    }

    /// Itself: a function is not copied.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Itself: a function is not copied.
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
        let load = waits::current(py)?;
        let mut failures = 0;
        loop {
            let part = cache.join(py, key, None, load.as_ref());
            if part.leads {
                let origin = part.flight.origin();
                let result = waits::run(py, origin, || function.call(args, kwargs));
                match &result {
                    Ok(value) => cache.finish(key, &part, value)?,
                    Err(_) => cache.give_up(py, key, &part),
                }
                return result;
            }
            if failures == FAILURES_MAX {
                break;
            }
            match part.flight.wait(py, load.as_ref())? {
                Waited::Loaded(value) => return Ok(value),
                Waited::Failed => failures += 1,
                // It waits for this thread, as a function that calls itself for the same key does.
                Waited::Alone => break,
            }
        }
        let result = function.call(args, kwargs);
        cache.flights.count_alone(result.is_err());
        result
    }
}
