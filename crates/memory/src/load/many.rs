//! One load for all keys of a batch that are not there.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use floe_policy::Replacement;

use super::asked::Borrowed;
use super::loader::{Loader, Lookup, WAITS};
use super::loading::Turn;
use crate::cache::Cache;
use crate::guard::Ref;
use crate::options::InsertOptions;
use crate::waits::{LoadRun, Wait};

impl<K, V, P, S> Cache<K, V, P, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    P: Replacement,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Looks many keys up, loads all absent ones by one call of `load`, and returns a guard for
    /// each key, in the order of `keys`.
    ///
    /// `load` gets the absent keys. It returns their values in the same order, with `None` for a
    /// key that the source does not have; a shorter list means `None` for the rest. Keys that
    /// another caller loads already are waited for, after this call's own load. `load` is called
    /// again only where the load of another caller fails.
    ///
    /// # Errors
    /// The error of `load`, unless all that it was to bring was to
    /// [refresh](crate::Builder::refresh_ahead) what is there.
    ///
    /// # Panics
    /// When `load` asks for one of its own keys, and when it panics.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::new(10);
    /// cache.insert(2, "two".to_string());
    /// let query = |keys: &[&u64]| {
    ///     assert_eq!(keys, [&1, &3, &400]); // SELECT … WHERE key IN (1, 3, 400)
    ///     Ok::<_, std::io::Error>(vec![Some("one".to_string()), Some("three".to_string()), None])
    /// };
    /// let rows = cache.get_or_load_many(&[1, 2, 3, 400], query)?;
    /// assert_eq!(rows[0].as_deref().unwrap(), "one");
    /// assert_eq!(rows[1].as_deref().unwrap(), "two");
    /// assert!(rows[3].is_none());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn get_or_load_many<Q, E>(
        &self,
        keys: &[Q],
        mut load: impl FnMut(&[&Q]) -> Result<Vec<Option<V>>, E>,
    ) -> Result<Vec<Option<Ref<'_, V>>>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K>,
    {
        let loader = Loader::of(self);
        let mut found = Vec::with_capacity(keys.len());
        let (mut absent, mut own) = (Vec::new(), Vec::new());
        let mut run = LoadRun::new(); // one for all keys of a call of `load`
        for (at, key) in keys.iter().enumerate() {
            let (hash, value) = loader.look_in(Some(&run), &mut Borrowed::new(key));
            found.push(match value {
                Lookup::Fresh(value) => Some(value),
                Lookup::Due(value, loading) => {
                    own.push((at, loading));
                    Some(value)
                }
                Lookup::Absent => {
                    absent.push((at, hash));
                    None
                }
            });
        }
        let mut waits = WAITS;
        loop {
            let mut others = Vec::new();
            for (at, hash) in absent.drain(..) {
                let mut key = Borrowed::new(&keys[at]);
                while found[at].is_none() {
                    match loader.turn_in(&run, hash, &mut key, waits > 0) {
                        Turn::LookAgain => found[at] = loader.present(hash, &keys[at]),
                        Turn::Load(loading) => {
                            own.push((at, loading));
                            break;
                        }
                        Turn::Wait(flight) => {
                            others.push((at, hash, flight));
                            break;
                        }
                    }
                }
            }
            if !own.is_empty() {
                let asked: Vec<_> = own.iter().map(|(at, _)| &keys[*at]).collect();
                let inside = run.enter();
                let loaded = load(&asked);
                drop(inside);
                let loaded = match loaded {
                    Err(error) if own.iter().any(|(_, own)| !own.refreshes()) => return Err(error),
                    loaded => loaded.unwrap_or_default(),
                };
                let mut loaded = loaded.into_iter();
                for (at, loading) in own.drain(..) {
                    // Those without a value fail, by being dropped.
                    if let Some(value) = loaded.next().flatten() {
                        found[at] = Some(loading.finish(value, &InsertOptions::new()));
                    }
                }
            }
            waits -= u32::from(waits > 0);
            for (at, hash, flight) in others {
                let Some(_wait) = Wait::block(flight.run()) else {
                    (waits, _) = (0, absent.push((at, hash))); // it would have no end
                    continue;
                };
                match loader.landed(&flight) {
                    Ok(value) => found[at] = Some(value),
                    // The same key twice: the source does not have it.
                    Err(_) if *flight.run() == run => {}
                    Err(_) => absent.push((at, hash)),
                }
            }
            if absent.is_empty() {
                return Ok(found);
            }
            run = LoadRun::new();
        }
    }
}
