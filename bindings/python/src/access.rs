//! Access to a cache with Python's objects: how entries are looked up, put in and taken out.

use floe::InsertOptions;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::key::{Call, Key, Probe};
use crate::mapping::Mapping;
use crate::store::Value;

impl Mapping {
    /// A key of the mapping.
    #[inline]
    pub(crate) fn probe<'a, 'py>(&self, key: &'a Bound<'py, PyAny>) -> PyResult<Probe<'a, 'py>> {
        Probe::new(key, Call::default(), &self.identities)
    }

    /// Looks a key up and counts that.
    #[inline]
    pub(crate) fn look_up<'py>(&self, probe: &Probe<'_, 'py>) -> Option<Bound<'py, PyAny>> {
        self.store.read(probe, |value| value.object(probe.py()))?
    }

    /// Looks a key up without a trace.
    pub(crate) fn look_at<'py>(&self, probe: &Probe<'_, 'py>) -> Option<Bound<'py, PyAny>> {
        self.store.peek(probe)?.object(probe.py())
    }

    /// Weighs a value and inserts it. A load of the key that is under way will not come in.
    ///
    /// # Errors
    /// When it weighs too much, and those of the function that weighs and of the key.
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

    /// Weighs a value and inserts it, unless another thread that does so has been first. Returns
    /// the one that is there then.
    ///
    /// # Errors
    /// As [`put`](Self::put).
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

    /// Inserts a value that was weighed.
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

    /// The weight of a value; `None` if it is more than the cache can hold, or 2³² or more.
    ///
    /// # Errors
    /// Those of the function that weighs.
    pub(crate) fn weigh(&self, value: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        let Some(getsizeof) = &self.settings.getsizeof else { return Ok(Some(1)) };
        let weight: u64 = getsizeof.bind(value.py()).call1((value,))?.extract()?;
        Ok(u32::try_from(weight).ok().filter(|_| weight <= self.maxsize()))
    }

    /// Calls a function with each entry of the mapping, which those of cached functions are not.
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
