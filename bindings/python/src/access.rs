//! Access to a cache with Python objects: lookup, insertion and removal of entries.

use floe::InsertOptions;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::key::{Call, Key, Probe};
use crate::mapping::Mapping;
use crate::store::Value;

impl Mapping {
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
        weight: u32,
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

    /// Returns the weight of a value; `None` if the weight exceeds the capacity, or is 2³² or more.
    ///
    /// # Errors
    /// When `getsizeof` raises an exception.
    pub(crate) fn weigh(&self, value: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let Some(getsizeof) = &self.settings.getsizeof else { return Ok(Some(1)) };
        let weight: u64 = getsizeof.bind(value.py()).call1((value,))?.extract()?;
        Ok(u32::try_from(weight).ok().filter(|_| weight <= self.maxsize()))
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
