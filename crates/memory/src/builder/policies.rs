//! Choosing the eviction policy and the admission of a cache.

use floe_policy::admission::{AdmissionFactory, Admissions};
use floe_policy::registry::ChoiceError;
use floe_policy::{AnyPolicy, Replacement};

use super::Builder;

impl<K, V, P, S> Builder<K, V, P, S> {
    /// Sets the eviction policy by its type, for which the code of hits is compiled. All policies
    /// are in [`policy`](crate::policy). Each shard gets a copy of the one given.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::{Cache, policy::Lru};
    ///
    /// let cache = Cache::builder().capacity(2).policy(Lru::default()).build();
    /// cache.insert(1, "a");
    /// cache.insert(2, "b");
    /// cache.get(&1);
    /// cache.insert(3, "c");
    /// assert!(cache.contains_key(&1) && !cache.contains_key(&2));
    /// ```
    pub fn policy<P2: Replacement>(self, policy: P2) -> Builder<K, V, P2, S> {
        self.policy_over(|_| policy)
    }

    /// Sets the policy to one made of the present one.
    pub(crate) fn policy_over<P2>(self, make: impl FnOnce(P) -> P2) -> Builder<K, V, P2, S> {
        let Self {
            entries,
            weight,
            weigher,
            listener,
            admission,
            policy,
            hasher,
            live,
            idle,
            ahead,
            shards,
            clock,
            freezing,
            keeper,
        } = self;
        Builder {
            entries,
            weight,
            weigher,
            listener,
            admission,
            policy: make(policy),
            hasher,
            live,
            idle,
            ahead,
            shards,
            clock,
            freezing,
            keeper,
        }
    }

    /// Sets the eviction policy by name, with parameters if need be: `lru`, `slru:segments=2`, as
    /// `floe simulate` takes them. This changes the cache's type to
    /// [`Cache<K, V, AnyPolicy>`](crate::Cache), whatever the name; a field or argument names that.
    ///
    /// # Errors
    /// When there is no such policy or parameter; the error names those that there are.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(100).policy_named("slru:segments=2")?.build();
    /// cache.insert(1, 1);
    /// assert_eq!(cache.stats().policy, "slru");
    /// # Ok::<(), floe::policy::registry::ChoiceError>(())
    /// ```
    pub fn policy_named(self, name: &str) -> Result<Builder<K, V, AnyPolicy, S>, ChoiceError> {
        let policy = name.parse()?;
        Ok(self.policy::<AnyPolicy>(policy))
    }

    /// Sets the admission, which decides whether a new key comes in. Without one every key does, at
    /// no cost. Each shard gets a copy of the one given.
    ///
    /// A rejected key is not kept: `insert` returns, the value is dropped, and the
    /// [listener](Self::listener) is told with [`Cause::Bypassed`](crate::Cause::Bypassed).
    /// `get_or_insert_with` and its sisters return the loaded value all the same, to all waiting
    /// callers. A value inserted under a key that is there replaces the other without a question,
    /// and pinned entries always come in.
    ///
    /// - [`Duel`](floe_policy::admission::Duel) compares with the victim, so it needs a policy that
    ///   [names](floe_policy::Eviction::victim) it: fifo, lru, relaxed-lru, prob-lru, clock, slru,
    ///   2q, s3-fifo, sieve, lfu, qdlp, qd-clock. With others it admits everything.
    /// - An admission hears of hits in LRU-like orders, with each promotion. Of hits that change no
    ///   order (those of FIFO-like policies, and on frozen entries) it only gets the count. So with
    ///   a FIFO-like policy `duel` compares how often keys were *inserted*, and `small-bypass` does
    ///   not see keys that are only hit.
    /// - [`Obp`](floe_policy::admission::Obp) keeps insertions and removals to a share of lookups
    ///   with `get` and its sisters; an insertion looks nothing up. While it forbids evictions
    ///   ([`Orders::hold`](floe_policy::admission::Orders::hold)), it rejects all keys that would
    ///   need one.
    /// - Admissions that need the position of blocks (`sequential`), or that fetch admitted blocks
    ///   (`fussy`), are refused when the cache is built.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// use floe::{Cache, policy::Lru, policy::admission::Duel};
    ///
    /// // TinyLFU: a candidate must have been asked for more often than the victim.
    /// let cache = Cache::builder()
    ///     .capacity(2)
    ///     .shards(1)
    ///     .policy(Lru::default())
    ///     .admission(Duel::default())
    ///     .build();
    /// for key in ["a", "b"] {
    ///     cache.insert(key, 1);
    ///     cache.get(key);
    /// }
    /// cache.insert("passes by", 1);
    /// assert!(cache.contains_key("a") && cache.contains_key("b"));
    /// assert!(!cache.contains_key("passes by"));
    /// let admission = cache.stats().admission.unwrap();
    /// assert_eq!((admission.offered, admission.admitted, admission.bypassed), (3, 2, 1));
    /// ```
    pub fn admission(self, admission: impl AdmissionFactory) -> Self {
        Self { admission: Some(Box::new(admission)), ..self }
    }

    /// Sets the admission by name, with parameters if need be, and with `+` between several that
    /// have to agree: `obp:target=0.2`, `second-access + obp`, as `floe simulate --admit` takes
    /// them. See [`admission`](Self::admission).
    ///
    /// # Errors
    /// When there is no such admission or parameter; the error names those that there are.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// let cache = floe::Cache::builder().capacity(100).admission_named("second-access")?.build();
    /// cache.insert("a", 1);
    /// assert!(!cache.contains_key("a"));
    /// cache.insert("a", 1);
    /// assert!(cache.contains_key("a"));
    /// # Ok::<(), floe::policy::registry::ChoiceError>(())
    /// ```
    pub fn admission_named(self, text: &str) -> Result<Self, ChoiceError> {
        let admission: Admissions = text.parse()?;
        Ok(self.admission(admission))
    }
}
