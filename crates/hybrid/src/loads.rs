//! [`Loads`]: fetches whose values have options, and refreshes in the background.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::{fmt, mem};

use floe_memory::RefreshTask;

use crate::codec::{Key, Value};
use crate::flow::{Departing, Held, lock};
use crate::format::seconds_now;
use crate::options::{InsertOptions, Placement};
use crate::order::Change;
use crate::shared::Shared;

/// Loads with options: the fetched value comes with [`InsertOptions`], such as a time to live.
/// [`Hybrid::loads`](crate::Hybrid::loads) returns it. A key has one load at a time.
pub struct Loads<'a, K: Key + Send + Sync + 'static, V: Value> {
    pub(crate) shared: &'a Arc<Shared<K, V>>,
}

impl<K: Key + Send + Sync + 'static, V: Value> Clone for Loads<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Key + Send + Sync + 'static, V: Value> Copy for Loads<'_, K, V> {}

impl<K: Key + Send + Sync + 'static, V: Value> fmt::Debug for Loads<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loads").finish_non_exhaustive()
    }
}

/// The end of a load without a value for memory.
enum End<V, E> {
    Failed(Arc<E>),
    /// The value is for flash alone.
    ToFlash(V),
}

impl<K: Key + Send + Sync + 'static, V: Value> Loads<'_, K, V> {
    /// Returns the value of a key. If neither memory nor flash has it, awaits `fetch` and inserts
    /// the result with its options. Concurrent callers for the key wait for that one fetch.
    ///
    /// If the object is [stale](InsertOptions::stale_while_revalidate), the first caller fetches it
    /// anew, and other callers get the old value meanwhile. If the fetch fails, the first caller
    /// gets the old value, too.
    ///
    /// # Errors
    /// The error of `fetch`, for all callers that waited for it.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// use std::time::Duration;
    /// use floe_hybrid::{Hybrid, InsertOptions};
    ///
    /// async fn page(cache: &Hybrid<String, Vec<u8>>) -> Result<Vec<u8>, std::sync::Arc<String>> {
    ///     let (fresh, stale) = (Duration::from_secs(60), Duration::from_secs(600));
    ///     let fetch = async {
    ///         let body = b"from the origin".to_vec(); // and its lifetime from the answer's head
    ///         Ok((body, InsertOptions::new().stale_while_revalidate(fresh, stale)))
    ///     };
    ///     cache.loads().get("/index.html", fetch).await
    /// }
    /// # let cache = Hybrid::builder().memory(8 << 20).flash(path, 64 << 20).open()?;
    /// # let mut page = std::pin::pin!(page(&cache));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # assert!(page.as_mut().poll(&mut context).is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn get<Q, E>(
        self,
        key: &Q,
        fetch: impl Future<Output = Result<(V, InsertOptions), E>>,
    ) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let shared = &**self.shared;
        if let Some(value) = self.fresh_departing(key) {
            return Ok(value);
        }
        let mut fetch = pin!(fetch);
        let (change, to_flash) = (Mutex::new(None), Mutex::new(None));
        let is_stale = AtomicBool::new(false);
        let load = async {
            // The load of an object in memory is its refresh.
            if !shared.memory.contains_key(key)
                && let Some((held, options)) = self.bring(key).await
            {
                is_stale.store(held.lifetime.is_stale(seconds_now()), Ordering::Relaxed);
                return Ok((held, options));
            }
            self.fetch(key, fetch.as_mut(), &change, &to_flash).await
        };
        let mut result = {
            let loaded = shared.memory.loads().try_get_async(key, load).await;
            loaded.map(|held| held.value.clone())
        };
        if is_stale.load(Ordering::Relaxed) {
            // Memory has the stale object of flash now, for others; this caller refreshes it.
            let load = self.fetch(key, fetch, &change, &to_flash);
            let loaded = shared.memory.loads().try_get_async(key, load).await;
            result = loaded.map(|held| held.value.clone());
        }
        drop(change);
        shared.flows.drain();
        if let Some(value) = mem::take(&mut *lock(&to_flash)) {
            return Ok(value);
        }
        result.or_else(|end| match &*end {
            End::ToFlash(value) => Ok(value.clone()),
            End::Failed(error) => Err(Arc::clone(error)),
        })
    }

    /// Returns the value of a key, as [`get`](Self::get) does. A refresh of a stale object is
    /// handed to `spawn`, to be run elsewhere, and the old value is returned at once. `spawn` may
    /// be `tokio::spawn`, for example. A call awaits `fetch` itself if there is no value.
    ///
    /// The error of a refresh is dropped. If the task is dropped before its end, the refresh
    /// fails, and a later call tries again.
    ///
    /// # Errors
    /// The error of `fetch`, for all callers that waited for it.
    pub async fn get_in_background<Q, E>(
        self,
        key: &Q,
        fetch: impl Future<Output = Result<(V, InsertOptions), E>> + Send + 'static,
        spawn: impl FnOnce(RefreshTask),
    ) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + Sync + ?Sized,
        E: Send + Sync + 'static,
    {
        let shared = &**self.shared;
        if let Some(value) = self.fresh_departing(key) {
            return Ok(value);
        }
        let held = |held: &Held<V>| (held.value.clone(), self.begins_refresh(held));
        let mut found = shared.memory.read(key, |entry| {
            entry.count_use();
            held(entry)
        });
        if found.is_none() {
            let bring = async { self.bring(key).await.ok_or(()) };
            let loaded = shared.memory.loads().get_async(key, bring).await;
            found = loaded.ok().map(|loaded| held(&loaded));
        }
        match found {
            Some((value, false)) => Ok(value),
            Some((value, true)) => {
                let refresh = Refresh { shared: Arc::clone(self.shared), key: key.to_owned() };
                spawn(Box::pin(async move {
                    let loads = Loads { shared: &refresh.shared };
                    let _ = loads.get(refresh.key.borrow(), fetch).await; // the old value stays
                    drop(refresh);
                }));
                Ok(value)
            }
            None => self.get(key, fetch).await,
        }
    }

    /// Returns whether an object is stale and this caller is the first to see that.
    fn begins_refresh(self, held: &Held<V>) -> bool {
        held.lifetime.is_stale(seconds_now()) && !held.refreshing.swap(true, Ordering::Relaxed)
    }

    /// Returns the value of a key that is on its way from memory to flash, if it is fresh.
    fn fresh_departing<Q>(self, key: &Q) -> Option<V>
    where
        Q: Key + ?Sized,
    {
        let hash = self.shared.hash(key);
        let (value, lifetime) = key.encode_key(|key| self.shared.departing(hash, key))?;
        let is_fresh = !lifetime.is_stale(seconds_now());
        is_fresh.then(|| {
            self.shared.count_flash(hash, true);
            value
        })
    }

    /// Reads an object for memory, as the load of its key.
    async fn bring<Q>(self, key: &Q) -> Option<(Held<V>, floe_memory::InsertOptions)>
    where
        Q: Key + ?Sized,
    {
        let hash = self.shared.hash(key);
        self.shared.store(hash).look_up(hash); // counts a use
        let bytes = key.encode_key(<[u8]>::to_vec);
        let found = self.shared.load_from_flash(hash, bytes).await;
        self.shared.count_flash(hash, found.is_ok());
        found.ok()
    }

    /// Fetches an object, as the load of its key, and begins its change.
    async fn fetch<'s, Q, E>(
        &'s self,
        key: &Q,
        fetch: impl Future<Output = Result<(V, InsertOptions), E>>,
        change: &Mutex<Option<Change<'s, Departing>>>,
        to_flash: &Mutex<Option<V>>,
    ) -> Result<(Held<V>, floe_memory::InsertOptions), End<V, E>>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
    {
        let shared = &**self.shared;
        let (value, options) = fetch.await.map_err(|error| End::Failed(Arc::new(error)))?;
        let hash = shared.hash(key);
        let begun = loop {
            match shared.try_begin_change(hash) {
                Ok(begun) => break begun,
                Err(needed) => shared.store(hash).log.room(needed).await,
            }
        };
        let key: K = key.to_owned();
        if options.placement == Placement::ToFlash {
            shared.insert_changed(begun, key, value.clone(), &options);
            *lock(to_flash) = Some(value.clone());
            return Err(End::ToFlash(value));
        }
        shared.tell_replaced(&begun, &key);
        *lock(change) = Some(begun);
        let held = shared.hold(&key, value, &options);
        // A value that memory declines, since its key changed meanwhile, must not go to flash.
        shared.note_load();
        Ok(held)
    }
}

/// A refresh in the background. When it is dropped, the next caller may begin another one.
struct Refresh<K: Key + Send + Sync + 'static, V: Value> {
    shared: Arc<Shared<K, V>>,
    key: K,
}

impl<K: Key + Send + Sync + 'static, V: Value> Drop for Refresh<K, V> {
    fn drop(&mut self) {
        if let Some(held) = self.shared.memory.peek(&self.key) {
            held.refreshing.store(false, Ordering::Relaxed); // also of the new object, harmlessly
        }
    }
}
