//! The key that a caller asks for, and the making of one that the cache keeps.

use std::hash::Hash;

use equivalent::Equivalent;

/// A key that may have to be loaded. Not to be implemented outside.
pub trait Asked<K> {
    /// Its form for lookups.
    type Query: Hash + Equivalent<K> + ?Sized;

    /// For lookups, as long as it was not [taken](Self::take).
    fn query(&self) -> &Self::Query;

    /// Makes the key that the cache keeps, unless it is there. May be the user's code.
    fn make(&mut self);

    /// Hands over the key that was made.
    fn take(&mut self) -> K;
}

/// A borrowed key, of which one is made if need be.
#[derive(Debug)]
pub struct Borrowed<'q, K, Q: ?Sized> {
    query: &'q Q,
    made: Option<K>,
}

impl<'q, K, Q: ?Sized> Borrowed<'q, K, Q> {
    pub(super) fn new(query: &'q Q) -> Self {
        Self { query, made: None }
    }
}

impl<K, Q> Asked<K> for Borrowed<'_, K, Q>
where
    Q: Hash + Equivalent<K> + ToOwned<Owned: Into<K>> + ?Sized,
{
    type Query = Q;

    fn query(&self) -> &Q {
        self.query
    }

    fn make(&mut self) {
        if self.made.is_none() {
            self.made = Some(self.query.to_owned().into());
        }
    }

    fn take(&mut self) -> K {
        self.made.take().expect("it was made")
    }
}

/// A key that the caller has given away.
#[derive(Debug)]
pub struct Owned<K>(Option<K>);

impl<K> Owned<K> {
    pub(super) fn new(key: K) -> Self {
        Self(Some(key))
    }
}

impl<K: Hash + Eq> Asked<K> for Owned<K> {
    type Query = K;

    fn query(&self) -> &K {
        self.0.as_ref().expect("not taken yet")
    }

    fn make(&mut self) {}

    fn take(&mut self) -> K {
        self.0.take().expect("it was made")
    }
}
