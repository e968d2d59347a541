//! The components of a Python cache, and the settings from which it was created.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::flight::PendingLoads;
use crate::identity::Identities;
use crate::key::Key;
use crate::stats::Stats;
use crate::store::{Store, Value};

/// The arguments with which a cache was created, for copies of it.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) policy: String,
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) admission: Option<String>,
    pub(crate) getsizeof: Option<Py<PyAny>>,
}

/// The state of a cache: its entries, the identities of its keys, and its loads in progress.
pub(crate) struct Mapping {
    pub(crate) store: Store,
    pub(crate) identities: Arc<Identities>,
    pub(crate) flights: PendingLoads,
    pub(crate) settings: Settings,
    capacity: AtomicU64,
}

impl Mapping {
    /// Creates an empty mapping.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub(crate) fn new(capacity: u64, settings: Settings) -> PyResult<Self> {
        let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let mut builder = floe::Cache::<Key, Value>::builder()
            .policy_named(&settings.policy)
            .map_err(|error| invalid(&error))?
            .listener(|key: &Key, value: &Value, _| {
                key.leave();
                value.leave();
            });
        builder = match settings.getsizeof {
            Some(_) => builder.weight_capacity(capacity).weigher(|_, value: &Value| value.weight()),
            None => builder.capacity(capacity.try_into()?),
        };
        if let Some(time) = settings.ttl {
            builder = builder.time_to_live(time);
        }
        if let Some(time) = settings.idle {
            builder = builder.time_to_idle(time);
        }
        if let Some(name) = &settings.admission {
            builder = builder.admission_named(name).map_err(|error| invalid(&error))?;
        }
        Ok(Self {
            store: builder.try_build().map_err(|error| invalid(&error))?,
            identities: Arc::default(),
            flights: PendingLoads::default(),
            settings,
            capacity: AtomicU64::new(capacity),
        })
    }

    /// Returns the maximum number of entries, or their maximum weight with `getsizeof`.
    pub(crate) fn maxsize(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed) // a number
    }

    /// Returns the number of entries, or their weight with `getsizeof`.
    pub(crate) fn currsize(&self) -> u64 {
        match self.settings.getsizeof {
            Some(_) => self.store.stats().weight,
            None => self.store.len() as u64,
        }
    }

    /// Changes the capacity, and evicts entries that exceed it.
    ///
    /// # Errors
    /// When the capacity is larger than a cache supports.
    pub(crate) fn resize(&self, capacity: u64) -> PyResult<()> {
        match self.settings.getsizeof {
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

    /// Removes all entries. Results of loads in progress will not be stored.
    pub(crate) fn clear(&self) {
        self.flights.detach_all();
        self.store.clear();
    }

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
            policy: stats.policy.to_owned(),
        }
    }
}
