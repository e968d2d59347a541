//! Functions whose results are cached.
//!
//! [`CachedFunction`] is what `floe.cached` makes of a function. What it makes of a coroutine
//! function is written in Python (`python/floe/_coroutine.py`), with [`Calls`] for keys and
//! [`Ticket`] for loads.

use std::sync::atomic::{AtomicU64, Ordering};

use floe::InsertOptions;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use pyo3::{PyTraverseError, PyVisit};

use crate::cache::Cache;
use crate::flight::Part;
use crate::key::{Call, Key, Probe};
use crate::stats::Stats;

/// The calls of one function, as keys of a cache.
#[pyclass(frozen, module = "floe._floe")]
pub(crate) struct Calls {
    cache: Py<Cache>,
    /// Makes a key of the arguments, which is one of the mapping then.
    key: Option<Py<PyAny>>,
    function: u64,
}

/// Shapes of arguments, so that `f(1, 2)` and `f((1, 2))` differ.
const SINGLE: u64 = 0;
const POSITIONAL: u64 = 1;
/// With so many named ones in addition.
const NAMED: u64 = 1;

#[pymethods]
impl Calls {
    #[new]
    fn new(cache: Py<Cache>, key: Option<Py<PyAny>>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let function = LAST.fetch_add(1, Ordering::Relaxed) + 1; // only to be unique
        Self { cache, key, function }
    }

    /// The value of a call, or `missing`.
    fn find<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        missing: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (object, call) = self.key(args, Some(kwargs))?;
        let cache = self.cache.get();
        let probe = Probe::new(&object, call, &cache.identities)?;
        Ok(cache.look_up(&probe).unwrap_or(missing))
    }

    /// Joins the load of a call.
    fn join(&self, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<Ticket> {
        let (object, call) = self.key(args, Some(kwargs))?;
        let cache = self.cache.get();
        let key = Probe::new(&object, call, &cache.identities)?.to_key();
        let part = cache.join(args.py(), &key);
        Ok(Ticket { part, key, cache: self.cache.clone_ref(args.py()) })
    }

    /// Removes the value of a call, and keeps a load of it that is under way from coming in.
    /// Returns whether there was a value.
    fn invalidate(&self, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<bool> {
        let (object, call) = self.key(args, Some(kwargs))?;
        let cache = self.cache.get();
        Ok(cache.take(&Probe::new(&object, call, &cache.identities)?).is_some())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.cache)?;
        visit.call(&self.key)
    }
}

impl Calls {
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
            Some(kwargs) if !kwargs.is_empty() => {
                let mut parts: Vec<_> = args.iter().collect();
                for (name, value) in kwargs {
                    parts.extend([name, value]);
                }
                let shape = POSITIONAL + NAMED * kwargs.len() as u64;
                Ok((PyTuple::new(args.py(), parts)?.into_any(), self.call(shape)))
            }
            _ if args.len() == 1 => Ok((args.get_item(0)?, self.call(SINGLE))),
            _ => Ok((args.clone().into_any(), self.call(POSITIONAL))),
        }
    }
}

impl Cache {
    /// Joins the load of a key, which begins if none is under way.
    fn join(&self, py: Python<'_>, key: &Key) -> Part {
        self.flights.join(py, key, || self.store.peek(key)?.object(py))
    }

    /// Has the value of a load come in, unless its key was changed meanwhile or the cache cannot
    /// hold it, and tells those that wait for it.
    fn finish(&self, key: &Key, part: &Part, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let weight = self.weigh(value);
        self.flights.land(key, &part.flight, || {
            if let Ok(Some(weight)) = weight {
                self.place(key.clone_ref(value.py()), value, weight, InsertOptions::new());
            }
        });
        self.flights.end(&part.flight, Some(value.clone().unbind()));
        weight.map(drop)
    }

    /// Gives a load up.
    fn give_up(&self, key: &Key, part: &Part) {
        self.flights.land(key, &part.flight, || ());
        self.flights.end(&part.flight, None);
    }
}

/// A part in the load of a call.
#[pyclass(frozen, module = "floe._floe")]
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

    /// The number of the load, which no other has.
    #[getter]
    fn number(&self) -> u64 {
        self.part.flight.number()
    }

    /// Ends the load with its value.
    fn finish(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.cache.get().finish(&self.key, &self.part, value)
    }

    /// Ends the load without a value.
    fn give_up(&self) {
        self.cache.get().give_up(&self.key, &self.part);
    }
}

/// A function whose results are cached: see `floe.cached`.
#[pyclass(frozen, dict, weakref, module = "floe")]
pub(crate) struct CachedFunction {
    calls: Calls,
    function: Py<PyAny>,
}

#[pymethods]
impl CachedFunction {
    #[new]
    fn new(function: Py<PyAny>, cache: Py<Cache>, key: Option<Py<PyAny>>) -> Self {
        Self { calls: Calls::new(cache, key), function }
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if kwargs.is_none() && self.calls.key.is_none() && args.len() == 1 {
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
    fn stats(&self) -> Stats {
        self.calls.cache.get().stats()
    }

    /// As that of `functools.lru_cache`.
    fn cache_info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("floe._cached")?.getattr("_cache_info")?.call1((&self.calls.cache,))
    }

    /// Removes everything from the cache.
    fn cache_clear(&self) {
        self.calls.cache.get().clear();
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
        let cache = self.calls.cache.get();
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
        let (py, cache) = (args.py(), self.calls.cache.get());
        let function = self.function.bind(py);
        loop {
            let part = cache.join(py, key);
            if part.leads {
                let result = function.call(args, kwargs);
                match &result {
                    Ok(value) => cache.finish(key, &part, value)?,
                    Err(_) => cache.give_up(key, &part),
                }
                return result;
            }
            match part.flight.wait(py)? {
                Some(Some(value)) => return Ok(value),
                Some(None) => {} // it failed: the next one loads
                // It waits for this thread, as a function that calls itself for the same key does.
                None => return function.call(args, kwargs),
            }
        }
    }
}
