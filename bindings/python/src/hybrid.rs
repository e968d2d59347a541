//! The Python class `HybridStore`, on which `floe_cache.HybridCache` is based.
//!
//! A lookup that memory answers, and one that the index rejects, stay attached to the interpreter.
//! So threads that hit do not pass its lock around. Reads of flash, waits for the drive and waits
//! for a key's lock detach.
//!
//! Changes of a key hold the lock of its stripe, which makes `add`, `setdefault` and `pop` one step
//! each. The result of a load is stored under that lock, if no change has detached the load before.
//! Nothing runs Python code under it.

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use bytes::Bytes;
use floe::hybrid::{
    Admission, Declined, FileError, Hybrid, InsertOptions, Inserted, OpenError, Opened,
    WriteBudget, figures,
};
use pyo3::exceptions::{PyKeyError, PyOSError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::cache::{OrMissing, duration};
use crate::flight::{PendingLoad, PendingLoads};
use crate::identity::Identities;
use crate::key::{Call, Key, Probe};
use crate::stored::{Serializer, decode_key, encode_key};
use crate::waits;

/// Number of locks for changes of keys.
const STRIPES: usize = 64;

type Store = Hybrid<Vec<u8>, Bytes>;

/// A cache in memory and on flash, without the methods that are written in Python.
#[pyclass(frozen, subclass, module = "floe_cache._floe")]
pub(crate) struct HybridStore {
    /// The open cache. `_open` creates it.
    open: OnceLock<OpenCache>,
}

struct OpenCache {
    path: PathBuf,
    serializer: Serializer,
    opened: Opened,
    /// Process that opened the file: see [`waits::generation`].
    generation: u64,
    /// The cache; `None` once it is closed.
    store: RwLock<Option<Store>>,
    stripes: [Mutex<()>; STRIPES],
    loads: PendingLoads,
    identities: Arc<Identities>,
}

impl Drop for OpenCache {
    fn drop(&mut self) {
        let slot = self.store.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = slot.take() else { return };
        if self.generation != waits::generation() {
            std::mem::forget(store); // a thread that is no more may have locked its parts
            return;
        }
        // It is closed, which writes what is in memory.
        let mut store = Some(store);
        Python::try_attach(|py| py.detach(|| drop(store.take())));
    }
}

/// Wakes a thread that waits in [`block_on`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks the calling thread until a future is ready.
fn block_on<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls a future, and detaches from the interpreter to wait for it if it is not ready.
fn wait<F: Future<Output: Send> + Send>(py: Python<'_>, future: F) -> F::Output {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => py.detach(|| block_on(future)),
    }
}

/// Converts an error of opening into an exception that names the path.
fn open_error(error: &OpenError) -> PyErr {
    let text = error.to_string();
    match error {
        OpenError::File(FileError::InUse { .. }) => PyOSError::new_err(format!(
            "{text}; give each process a file of its own, or close the other cache"
        )),
        OpenError::File(FileError::WrongSize { path, actual, wanted }) => {
            PyValueError::new_err(format!(
                "{} has {actual} bytes, not the {wanted} asked for; open it with flash={actual}, \
                or remove it to begin anew",
                path.display()
            ))
        }
        OpenError::File(FileError::System { source, .. }) | OpenError::Io { source, .. } => {
            io::Error::new(source.kind(), text).into()
        }
        OpenError::Setting(_) => PyValueError::new_err(text),
        _ => PyOSError::new_err(text),
    }
}

/// Parses a size: a number of bytes, or text such as "200 GiB".
fn size(name: &str, given: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(text) = given.extract::<String>() {
        return floe_device::parse_bytes(&text).ok_or_else(|| {
            PyValueError::new_err(format!(
                "{name} must be a size such as '64MiB' or '200GiB', not '{text}'"
            ))
        });
    }
    given.extract().map_err(|_| {
        PyTypeError::new_err(format!("{name} must be a number of bytes, or text such as '200GiB'"))
    })
}

fn options(expire: Option<&Bound<'_, PyAny>>) -> PyResult<InsertOptions> {
    let options = InsertOptions::new();
    Ok(match expire {
        Some(time) => options.time_to_live(duration("expire", time)?),
        None => options,
    })
}

fn missing(key: &Bound<'_, PyAny>) -> PyErr {
    PyKeyError::new_err((key.clone().unbind(),))
}

impl OpenCache {
    /// Returns the cache.
    ///
    /// # Errors
    /// When it is closed, or belongs to the parent of this process.
    fn store(&self) -> PyResult<Store> {
        if self.generation != waits::generation() {
            return Err(PyRuntimeError::new_err(format!(
                "the cache {} belongs to the process that forked this one: open a cache with a \
                file of its own in each process",
                self.path.display()
            )));
        }
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        store.clone().ok_or_else(|| {
            PyValueError::new_err(format!("the cache {} is closed", self.path.display()))
        })
    }

    /// Locks the changes of a key.
    fn lock(&self, py: Python<'_>, key: &[u8]) -> MutexGuard<'_, ()> {
        let tail = &key[key.len().saturating_sub(8)..];
        let hash = tail
            .iter()
            .fold(key.len(), |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)));
        self.stripes[hash % STRIPES].lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of a value. Counts a hit or a miss.
    fn look_up(&self, py: Python<'_>, store: &Store, key: &[u8]) -> Option<Bytes> {
        store.get_blocking_around(key, |read| py.detach(read))
    }

    /// Returns the bytes of a value. Does not affect statistics or eviction.
    fn look_at(&self, py: Python<'_>, store: &Store, key: &[u8]) -> Option<Bytes> {
        if !store.contains(key) {
            return None;
        }
        py.detach(|| store.peek_blocking(key))
    }

    fn decode<'py>(
        &self,
        py: Python<'py>,
        bytes: Option<Bytes>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        bytes.map_or(Ok(None), |bytes| self.serializer.decode(py, &bytes))
    }

    /// Inserts a value under the lock of its key. A load in progress will not be stored.
    fn insert(
        &self,
        py: Python<'_>,
        store: &Store,
        key: Vec<u8>,
        value: Bytes,
        options: InsertOptions,
    ) -> PyResult<Inserted> {
        self.detach(py, &key)?;
        Ok(wait(py, store.insert_async_with(key, value, options)))
    }

    /// Keeps the load of a key that is in progress from being stored. The key is locked.
    fn detach(&self, py: Python<'_>, key: &[u8]) -> PyResult<()> {
        if !self.loads.is_empty() {
            let object = PyBytes::new(py, key).into_any();
            self.loads.detach(&Probe::new(&object, Call::default(), &self.identities)?);
        }
        Ok(())
    }

    /// Removes a key under its lock.
    fn remove(&self, py: Python<'_>, store: &Store, key: &[u8]) -> PyResult<()> {
        self.detach(py, key)?;
        py.detach(|| store.remove(key));
        Ok(())
    }

    /// Removes a key. Returns its value, if it was there.
    fn take(&self, py: Python<'_>, key: &[u8]) -> PyResult<Option<Bytes>> {
        let store = self.store()?;
        let _lock = self.lock(py, key);
        let there = self.look_at(py, &store, key);
        // Also if it is absent: an unreadable object must not come back.
        self.remove(py, &store, key)?;
        Ok(there)
    }

    /// Inserts a value if its key is absent. Returns the value that is there otherwise.
    fn put_first(
        &self,
        py: Python<'_>,
        key: Vec<u8>,
        value: Bytes,
        options: InsertOptions,
    ) -> PyResult<Option<Bytes>> {
        let store = self.store()?;
        let _lock = self.lock(py, &key);
        let there = self.look_up(py, &store, &key);
        if there.is_none() {
            self.insert(py, &store, key, value, options)?;
        }
        Ok(there)
    }

    /// Stores the result of a load, unless its key was changed meanwhile, and ends the load.
    fn finish(
        &self,
        key: (&Key, &[u8]),
        flight: &Arc<PendingLoad>,
        value: &Bound<'_, PyAny>,
        options: InsertOptions,
    ) -> PyResult<()> {
        let py = value.py();
        let store = || {
            let bytes = self.serializer.encode(value)?;
            let store = self.store()?;
            let _lock = self.lock(py, key.1);
            let mut is_attached = false;
            self.loads.land(key.0, flight, || is_attached = true);
            if is_attached {
                wait(py, store.insert_async_with(key.1.to_vec(), bytes, options));
            }
            Ok(())
        };
        let stored = store();
        self.loads.land(key.0, flight, || ()); // if that has failed
        self.loads.end(py, flight, Some(value.clone().unbind()));
        stored
    }

    /// Reads the keys, each once.
    fn keys(&self, py: Python<'_>) -> PyResult<HashSet<Vec<u8>>> {
        let store = self.store()?;
        let mut keys = HashSet::new();
        let mut interrupt = None;
        let swept = py.detach(|| {
            store.for_each_key_while(
                |key| {
                    keys.insert(key.clone());
                },
                |_, _| match Python::attach(|py| py.check_signals()) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        interrupt = Some(error);
                        ControlFlow::Break(())
                    }
                },
            )
        });
        match interrupt {
            Some(error) => Err(error),
            None => swept.map(|_| keys).map_err(|error| self.failed(&error)),
        }
    }

    fn failed(&self, error: &io::Error) -> PyErr {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display())).into()
    }
}

impl HybridStore {
    fn cache(&self) -> PyResult<&OpenCache> {
        self.open.get().ok_or_else(|| {
            PyRuntimeError::new_err(
                "this cache has no file yet: its __init__ has to call super().__init__(path, …)",
            )
        })
    }
}

#[pymethods]
impl HybridStore {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self { open: OnceLock::new() }
    }

    /// Opens the cache.
    #[pyo3(signature = (path, memory, flash, ttl, admission, write_budget, serializer))]
    #[expect(clippy::too_many_arguments, reason = "called by `HybridCache.__init__` alone")]
    fn _open(
        &self,
        py: Python<'_>,
        path: PathBuf,
        memory: &Bound<'_, PyAny>,
        flash: &Bound<'_, PyAny>,
        ttl: Option<&Bound<'_, PyAny>>,
        admission: Option<&str>,
        write_budget: Option<&str>,
        serializer: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.open.get().is_some() {
            return Err(PyRuntimeError::new_err("this cache is open already"));
        }
        let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let serializer = Serializer::new(py, serializer)?;
        let flash = size("flash", flash)?;
        let mut builder = Store::builder().memory(size("memory", memory)?).flash(&path, flash);
        if let Some(time) = ttl {
            builder = builder.time_to_live(duration("ttl", time)?);
        }
        if let Some(name) = admission {
            let admission: Admission = name.parse().map_err(|error| invalid(&error))?;
            builder = builder.admission(admission);
        }
        if let Some(text) = write_budget {
            let budget: WriteBudget = text.parse().map_err(|error| invalid(&error))?;
            builder = builder.write_budget(budget);
        }
        let store = py.detach(|| builder.open()).map_err(|error| open_error(&error))?;
        let cache = OpenCache {
            path,
            serializer,
            opened: store.opened(),
            generation: waits::generation(),
            store: RwLock::new(Some(store)),
            stripes: [const { Mutex::new(()) }; STRIPES],
            loads: PendingLoads::default(),
            identities: Arc::default(),
        };
        self.open.set(cache).map_err(|_| PyRuntimeError::new_err("this cache is open already"))
    }

    /// Writes the objects in memory to flash and closes the cache. Does nothing if the cache is
    /// closed, and in a child of `fork`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(cache) = self.open.get() else { return Ok(()) };
        if cache.generation != waits::generation() {
            return Ok(()); // the parent's
        }
        let store = cache.store.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(store) = store else { return Ok(()) };
        let closed = py.detach(|| {
            let closed = store.close();
            drop(store); // gives up the file's lock
            closed
        });
        closed.map_err(|error| cache.failed(&error))
    }

    /// True if the cache is closed, and in a child of `fork`.
    #[getter]
    fn closed(&self) -> bool {
        self.open.get().is_none_or(|cache| {
            cache.generation != waits::generation()
                || cache.store.read().unwrap_or_else(PoisonError::into_inner).is_none()
        })
    }

    /// The path of the file.
    #[getter]
    fn path(&self) -> PyResult<String> {
        Ok(self.cache()?.path.to_string_lossy().into_owned())
    }

    /// The state of the file when it was opened: "new", "clean", or "recovered" after a process
    /// that did not close it.
    #[getter]
    fn opened(&self) -> PyResult<&'static str> {
        Ok(match self.cache()?.opened {
            Opened::New => "new",
            Opened::Clean => "clean",
            Opened::Recovered => "recovered",
        })
    }

    /// Returns the value of a key, or `default` if the key is not in the cache.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, cache) = (key.py(), self.cache()?);
        let key = encode_key(key)?;
        let found = cache.look_up(py, &cache.store()?, &key);
        Ok(cache.decode(py, found)?.or(default))
    }

    /// Returns the value of a key, or `default` if the key is not in the cache. Does not affect
    /// statistics or eviction.
    #[pyo3(signature = (key, default=None))]
    fn peek<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, cache) = (key.py(), self.cache()?);
        let key = encode_key(key)?;
        let found = cache.look_at(py, &cache.store()?, &key);
        Ok(cache.decode(py, found)?.or(default))
    }

    /// Returns the values of those keys that are in the cache. The reads of flash are in flight
    /// together.
    fn get_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let (py, cache) = (keys.py(), self.cache()?);
        let objects: Vec<Bound<'py, PyAny>> = keys.try_iter()?.collect::<PyResult<_>>()?;
        let keys: Vec<Vec<u8>> = objects.iter().map(encode_key).collect::<PyResult<_>>()?;
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let store = cache.store()?;
        let values = wait(py, store.get_many(&keys));
        let found = PyDict::new(py);
        for (key, value) in objects.iter().zip(values) {
            if let Some(value) = cache.decode(py, value)? {
                found.set_item(key, value)?;
            }
        }
        Ok(found)
    }

    /// Inserts a value. `expire` is the time in seconds, or as timedelta, after which it expires.
    /// Returns False if the cache does not keep it, for example because it is too large.
    #[pyo3(signature = (key, value, expire=None))]
    fn set(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let (py, cache) = (key.py(), self.cache()?);
        let (key, options) = (encode_key(key)?, options(expire)?);
        let value = cache.serializer.encode(value)?;
        let store = cache.store()?;
        let _lock = cache.lock(py, &key);
        let inserted = cache.insert(py, &store, key, value, options)?;
        Ok(!matches!(inserted, Inserted::Declined(_)))
    }

    /// Inserts a value if its key is not in the cache. Returns whether it did.
    #[pyo3(signature = (key, value, expire=None))]
    fn add(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let (py, cache) = (key.py(), self.cache()?);
        let (key, options) = (encode_key(key)?, options(expire)?);
        let value = cache.serializer.encode(value)?;
        Ok(cache.put_first(py, key, value, options)?.is_none())
    }

    /// Returns the value of a key. If the key is not in the cache, inserts and returns `default`.
    #[pyo3(signature = (key, default=None))]
    fn setdefault<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, cache) = (key.py(), self.cache()?);
        let default = default.unwrap_or_else(|| py.None().into_bound(py));
        let value = cache.serializer.encode(&default)?;
        let there = cache.put_first(py, encode_key(key)?, value, InsertOptions::new())?;
        Ok(cache.decode(py, there)?.unwrap_or(default))
    }

    /// Returns the value of a key. If the key is not in the cache, calls `function` without
    /// arguments and inserts its result. Other callers for the key wait for that call.
    #[pyo3(signature = (key, function, expire=None))]
    fn get_or_set<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        function: &Bound<'py, PyAny>,
        expire: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, cache) = (key.py(), self.cache()?);
        let key = encode_key(key)?;
        let found = cache.look_up(py, &cache.store()?, &key);
        if let Some(value) = cache.decode(py, found)? {
            return Ok(value);
        }
        let options = options(expire)?;
        let object = PyBytes::new(py, &key).into_any();
        let native = Probe::new(&object, Call::default(), &cache.identities)?.to_key();
        let is_there = std::cell::Cell::new(false);
        cache.loads.load(
            py,
            &native,
            || None,
            || {
                // Another load may have ended since the miss.
                let found = cache.look_at(py, &cache.store()?, &key);
                match cache.decode(py, found)? {
                    Some(value) => {
                        is_there.set(true);
                        Ok(value)
                    }
                    None => function.call0(),
                }
            },
            |flight, value| {
                if is_there.get() {
                    cache.loads.land(&native, flight, || ());
                    cache.loads.end(py, flight, Some(value.clone().unbind()));
                    return Ok(());
                }
                cache.finish((&native, &key), flight, value, options)
            },
        )
    }

    /// Removes a key. Returns whether it was in the cache.
    fn delete(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.cache()?.take(key.py(), &encode_key(key)?)?.is_some())
    }

    /// Removes a key and returns its value, or `default` if the key is not in the cache.
    #[pyo3(signature = (key, default=OrMissing(None)))]
    fn pop<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: OrMissing<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, cache) = (key.py(), self.cache()?);
        let taken = cache.take(py, &encode_key(key)?)?;
        cache.decode(py, taken)?.or(default.0).ok_or_else(|| missing(key))
    }

    /// Removes all entries. Results of loads in progress will not be stored.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.cache()?;
        let store = cache.store()?;
        let _locks: Vec<_> =
            cache.stripes.iter().map(|stripe| stripe.lock_py_attached(py)).collect();
        cache.loads.detach_all();
        let cleared = py.detach(|| store.clear());
        cleared.map_err(|error| cache.failed(&error))
    }

    /// Removes a key. Reads nothing, and so does not know whether it was there.
    fn _forget(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, cache) = (key.py(), self.cache()?);
        let key = encode_key(key)?;
        let store = cache.store()?;
        let _lock = cache.lock(py, &key);
        cache.remove(py, &store, &key)
    }

    /// Returns whether a key is in the cache, by its index alone: true for a few absent keys, too.
    fn _may_have(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.cache()?.store()?.contains(encode_key(key)?.as_slice()))
    }

    /// Makes all earlier removals and replacements durable. Objects that are only in memory are not
    /// written: `close` writes them.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.cache()?;
        let store = cache.store()?;
        py.detach(|| store.sync()).map_err(|error| cache.failed(&error))
    }

    /// Returns the statistics since the opening, by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let cache = self.cache()?;
        let stats = cache.store()?.stats();
        let dict = PyDict::new(py);
        for figure in figures() {
            dict.set_item(figure.name, (figure.value)(&stats))?;
        }
        let (loads, failed_loads) = cache.loads.counts();
        dict.set_item("loads", loads)?;
        dict.set_item("failed_loads", failed_loads)?;
        Ok(dict)
    }

    /// Returns False if the cache is empty.
    fn __bool__(&self) -> PyResult<bool> {
        let stats = self.cache()?.store()?.stats();
        Ok(stats.memory.entries > 0 || stats.flash.objects > 0)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.cache()?.keys(py)?.len())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut objects = Vec::new();
        for key in self.cache()?.keys(py)? {
            objects.extend(decode_key(py, &key)?);
        }
        Ok(PyList::new(py, objects)?.try_iter()?.into_any())
    }

    /// Disables `reversed()`, as for any mapping: the entries have no order.
    #[classattr]
    #[pyo3(name = "__reversed__")]
    fn reversed() -> Option<()> {
        None
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let cache = self.cache()?;
        Ok(cache.look_at(key.py(), &cache.store()?, &encode_key(key)?).is_some())
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.get(key, None)?.ok_or_else(|| missing(key))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, cache) = (key.py(), self.cache()?);
        let (key, value) = (encode_key(key)?, cache.serializer.encode(value)?);
        let (store, bytes) = (cache.store()?, value.len());
        let _lock = cache.lock(py, &key);
        match cache.insert(py, &store, key, value, InsertOptions::new())? {
            Inserted::Declined(Declined::TooLarge) => Err(PyValueError::new_err(format!(
                "a value of {bytes} bytes is too large: it may have an eighth of flash, and 1 GiB"
            ))),
            _ => Ok(()),
        }
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.delete(key)? { Ok(()) } else { Err(missing(key)) }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.open.get().map_or(Ok(()), |cache| cache.serializer.traverse(&visit))
    }
}
