//! The order of changes to a key across memory and flash.
//!
//! An object leaves memory before it reaches flash. Between the two, its key may be inserted anew,
//! or removed, and the object must not reach flash then. Each change of a key is noted in the
//! key's stripe: [`Stripes::begin_change`] before memory is changed, and the end of the
//! [`Change`] after it. An object that leaves memory is superseded if its key was changed since the
//! call began that made it leave.
//!
//! Keys whose hashes cannot be told apart by the [index](crate::index) have the same stripe, so the
//! log has their records in the order in which the index saw them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Number of stripes, a power of two. The bits of the hash that choose a stripe are part of every
/// tag.
const STRIPES: usize = 1 << 12;
const STRIPE_SHIFT: u32 = 7;

/// The state of the keys of a stripe.
#[derive(Debug)]
pub(crate) struct Stripe<T> {
    /// The latest changes: hashes of keys and times.
    recent: [(u64, u64); 2],
    /// Hashes of the keys that are being changed in memory.
    changing: Vec<u64>,
    /// Objects that have left memory and are not on flash yet, by their hashes.
    departing: Vec<(u64, T)>,
}

impl<T> Stripe<T> {
    /// Returns whether the key was, or may have been, changed at or after a time. `own` is the
    /// number of changes under way that are the caller's.
    pub(crate) fn changed_since(&self, hash: u64, time: u64, own: usize) -> bool {
        let oldest = self.recent.iter().map(|(_, at)| *at).min().unwrap_or(0);
        let noted = self.recent.iter().any(|&(changed, at)| changed == hash && at >= time);
        let changing = self.changing.iter().filter(|changing| **changing == hash).count();
        noted || oldest >= time || changing > own
    }

    /// Returns the object of a key that is on its way from memory to flash.
    pub(crate) fn departing(&self, hash: u64) -> Option<&T> {
        self.departing.iter().find(|(departing, _)| *departing == hash).map(|(_, object)| object)
    }

    /// Returns the object of a key that is on its way from memory to flash, to change it.
    pub(crate) fn departing_mut(&mut self, hash: u64) -> Option<&mut T> {
        let found = self.departing.iter_mut().find(|(departing, _)| *departing == hash);
        found.map(|(_, object)| object)
    }

    /// Removes the object of a key from those on their way to flash.
    pub(crate) fn take_departing(&mut self, hash: u64) -> Option<T> {
        let at = self.departing.iter().position(|(departing, _)| *departing == hash)?;
        Some(self.departing.swap_remove(at).1)
    }

    /// Adds an object to those on their way to flash.
    pub(crate) fn depart(&mut self, hash: u64, object: T) {
        self.take_departing(hash);
        self.departing.push((hash, object));
    }

    /// Returns all objects that are on their way to flash.
    pub(crate) fn all_departing(&self) -> impl Iterator<Item = &T> {
        self.departing.iter().map(|(_, object)| object)
    }

    /// Removes all objects that are on their way to flash.
    pub(crate) fn take_all_departing(&mut self) -> Vec<(u64, T)> {
        std::mem::take(&mut self.departing)
    }
}

/// The clock of a cache, in nanoseconds.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The system's clock, from this start on.
    System(Instant),
    /// The time of a simulation, set by [`Clock::advance_to`].
    Simulated(AtomicU64),
}

impl Clock {
    /// Creates a clock that shows the system's time from now on.
    pub(crate) fn system() -> Self {
        Self::System(Instant::now())
    }

    /// Returns the time, never 0. A simulated clock shows no time twice.
    fn now(&self) -> u64 {
        match self {
            Self::System(start) => start.elapsed().as_nanos() as u64 + 1,
            // Relaxed: one thread simulates.
            Self::Simulated(time) => time.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// Sets the time of a simulation, unless it is later already.
    pub(crate) fn advance_to(&self, nanoseconds: u64) {
        if let Self::Simulated(time) = self {
            time.fetch_max(nanoseconds, Ordering::Relaxed);
        }
    }
}

/// The stripes of a cache.
#[derive(Debug)]
pub(crate) struct Stripes<T> {
    stripes: Box<[Mutex<Stripe<T>>]>,
    clock: Clock,
    /// Time at which all objects were removed; 0 if never. Written while all stripes are locked and
    /// read under the lock of one, which orders it.
    cleared: AtomicU64,
    /// Numbers of removals by a predicate that have begun and ended.
    removals_begun: AtomicU32,
    removals_ended: AtomicU32,
}

impl<T> Stripes<T> {
    pub(crate) fn new(clock: Clock) -> Self {
        let stripe = || Stripe { recent: [(0, 0); 2], changing: Vec::new(), departing: Vec::new() };
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(stripe())).collect(),
            clock,
            cleared: AtomicU64::new(0),
            removals_begun: AtomicU32::new(0),
            removals_ended: AtomicU32::new(0),
        }
    }

    /// Begins a removal of keys by a predicate. It ends when the result is dropped.
    pub(crate) fn begin_removal(&self) -> Removal<'_, T> {
        self.removals_begun.fetch_add(1, Ordering::SeqCst);
        Removal(self)
    }

    /// Returns the number of removals by a predicate so far; `None` while one is under way.
    pub(crate) fn removals(&self) -> Option<u32> {
        // In this order: if both are equal, all that had begun by the second load had ended by the
        // first. A removal that begins later locks all stripes, which orders it for their holders.
        let ended = self.removals_ended.load(Ordering::SeqCst);
        let begun = self.removals_begun.load(Ordering::SeqCst);
        (begun == ended).then_some(begun)
    }

    /// Returns the time on the clock of the stripes, in nanoseconds, never 0.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Sets the time of a simulation.
    pub(crate) fn advance_to(&self, nanoseconds: u64) {
        self.clock.advance_to(nanoseconds);
    }

    /// Locks the stripe of a key.
    pub(crate) fn of(&self, hash: u64) -> MutexGuard<'_, Stripe<T>> {
        let stripe = &self.stripes[(hash >> STRIPE_SHIFT) as usize % STRIPES];
        stripe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a time. Objects that memory evicted before it do not reach flash any more. The
    /// caller holds all stripes.
    pub(crate) fn note_clear(&self) {
        self.cleared.store(self.now(), Ordering::Relaxed);
    }

    /// Returns whether all objects were removed at or after a time. The caller holds a stripe.
    pub(crate) fn cleared_since(&self, time: u64) -> bool {
        self.cleared.load(Ordering::Relaxed) >= time
    }

    /// Locks all stripes, in order.
    pub(crate) fn all(&self) -> Vec<MutexGuard<'_, Stripe<T>>> {
        self.stripes.iter().map(|it| it.lock().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Begins a change of a key in memory. `forget` runs under the stripe's lock, removes the key
    /// from flash, and returns whether it was there. If it fails, no change is recorded.
    pub(crate) fn begin_change<E>(
        &self,
        hash: u64,
        forget: impl FnOnce() -> Result<bool, E>,
    ) -> Result<Change<'_, T>, E> {
        let mut stripe = self.of(hash);
        let was_on_flash = forget()?;
        let was_departing = stripe.take_departing(hash).is_some();
        let began = self.note(&mut stripe, hash) + 1;
        stripe.changing.push(hash);
        Ok(Change { stripes: self, hash, began, had: was_on_flash || was_departing })
    }

    /// Records a change of a key. Returns its time.
    fn note(&self, stripe: &mut Stripe<T>, hash: u64) -> u64 {
        let now = self.now();
        let known = stripe.recent.iter().position(|(changed, _)| *changed == hash);
        let oldest = usize::from(stripe.recent[1].1 < stripe.recent[0].1);
        stripe.recent[known.unwrap_or(oldest)] = (hash, now);
        now
    }
}

/// A removal of keys by a predicate that is under way.
#[derive(Debug)]
pub(crate) struct Removal<'a, T>(&'a Stripes<T>);

impl<T> Drop for Removal<'_, T> {
    fn drop(&mut self) {
        self.0.removals_ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// A change of a key in memory that is under way. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Change<'a, T> {
    stripes: &'a Stripes<T>,
    hash: u64,
    began: u64,
    had: bool,
}

impl<T> Change<'_, T> {
    /// Returns the hash of the key.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns whether an object of the key was on flash, or on its way there.
    pub(crate) fn had(&self) -> bool {
        self.had
    }

    /// Returns the first time after the start of the change.
    pub(crate) fn began(&self) -> u64 {
        self.began
    }
}

impl<T> Drop for Change<'_, T> {
    fn drop(&mut self) {
        let mut stripe = self.stripes.of(self.hash);
        let at = stripe.changing.iter().position(|changing| *changing == self.hash);
        stripe.changing.swap_remove(at.expect("a change is noted until its end"));
        self.stripes.note(&mut stripe, self.hash);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    type Text = &'static str;

    fn begin(stripes: &Stripes<Text>, hash: u64) -> Change<'_, Text> {
        let Ok(change) = stripes.begin_change(hash, || Ok::<_, Infallible>(false));
        change
    }

    #[test]
    fn a_change_is_known_until_its_end_and_after() {
        let stripes = Stripes::new(Clock::system());
        let before = stripes.now();
        drop(begin(&stripes, 7));
        assert!(stripes.of(7).changed_since(7, before, 0));
        assert!(!stripes.of(7).changed_since(7, stripes.now(), 0));
        stripes.of(7).depart(7, "object");
        assert_eq!(stripes.of(7).departing(7), Some(&"object"));
        let change = begin(&stripes, 7);
        assert_eq!(stripes.of(7).departing(7), None);
        assert!(stripes.of(7).changed_since(7, stripes.now(), 0));
        assert!(!stripes.of(7).changed_since(7, stripes.now(), 1));
        drop(change);
        assert!(!stripes.of(7).changed_since(7, stripes.now(), 0));
    }

    #[test]
    fn changes_of_other_keys_matter_only_when_too_many_were_noted() {
        let stripes = Stripes::new(Clock::system());
        let other = |n: u64| 7 + (n << 40); // of the same stripe
        let before = stripes.now();
        drop(begin(&stripes, other(1)));
        assert!(!stripes.of(7).changed_since(7, before, 0));
        drop(begin(&stripes, other(2)));
        assert!(stripes.of(7).changed_since(7, before, 0));
    }

    #[test]
    fn nothing_is_noted_where_flash_refused() {
        let stripes: Stripes<&str> = Stripes::new(Clock::system());
        let before = stripes.now();
        assert!(stripes.begin_change(7, || Err(())).is_err());
        assert!(!stripes.of(7).changed_since(7, before, 0));
    }
}
