//! A key, and the making of its value.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash};

use floe_policy::Replacement;

use super::asked::Asked;
use super::loader::{Loader, Sharing};
use super::plain;
use crate::cache::Cache;
use crate::guard::Ref;

/// A key whose value is looked up, and made if it is not there: of [`Cache::entry`] and
/// [`Loads::entry_ref`](crate::Loads::entry_ref). `A` is the key as it was given.
#[must_use = "nothing is looked up before one of its methods"]
pub struct KeyEntry<'a, K, V, P: Replacement, S, A> {
    cache: &'a Cache<K, V, P, S>,
    key: A,
}

impl<'a, K, V, P, S, A> KeyEntry<'a, K, V, P, S, A>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
    A: Asked<K>,
{
    pub(super) fn new(cache: &'a Cache<K, V, P, S>, key: A) -> Self {
        Self { cache, key }
    }

    /// The value that is there, or else this one, which comes in.
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn or_insert(self, value: V) -> Ref<'a, V> {
        self.or_insert_with(|| value)
    }

    /// The value that is there, or else the default one, which comes in.
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn or_default(self) -> Ref<'a, V>
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    /// The value that is there, or else what this makes: see [`Cache::get_with`].
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> Ref<'a, V> {
        match self.or_try_insert_with(|| Ok::<_, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// The value that is there, or else what this loads: see [`Cache::get_or_insert_with`].
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn or_try_insert_with<E>(
        self,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<Ref<'a, V>, E> {
        Loader::of(self.cache).load(self.key, || load().map(plain), &Sharing::none())
    }

    /// The value that is there, or else what this loads: see [`Cache::get_or_insert_async`].
    ///
    /// # Errors
    /// The error of `load`, for the caller that ran it.
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub async fn or_try_insert_async<E>(
        self,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<Ref<'a, V>, E> {
        let load = async { load.await.map(plain) };
        Loader::of(self.cache).load_async(self.key, load, Sharing::none()).await
    }
}

impl<K, V, P: Replacement, S, A> fmt::Debug for KeyEntry<'_, K, V, P, S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyEntry").finish_non_exhaustive()
    }
}
