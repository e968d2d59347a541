//! The listener of objects that leave the cache as a whole.
//!
//! Memory tells of the objects that leave it and that flash does not have; a change of a key tells
//! of an object that only flash had. A store tells of the objects that it evicts, or finds expired,
//! by the bytes of their keys. An object that memory has, or that came again meanwhile, has not
//! left.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use floe_memory::Cause;

/// A function that is told of the objects that leave the cache.
pub(crate) type Listener<K, V> = Arc<dyn Fn(&K, Option<&V>, Cause) + Send + Sync>;

/// A function that is told of the objects that leave flash, by the bytes of their keys.
type OnLeft = Arc<dyn Fn(&[u8], Cause) + Send + Sync>;

/// Returns the cause for which an object leaves flash.
pub(crate) fn evicted_or_expired(is_expired: bool) -> Cause {
    if is_expired { Cause::Expired } else { Cause::Evicted }
}

/// The listener of a store, if it has one.
#[derive(Default)]
pub(crate) struct Left(Mutex<Option<OnLeft>>);

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Left").field("is_listening", &self.is_listening()).finish()
    }
}

impl Left {
    fn listener(&self) -> Option<OnLeft> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the listener. It runs without a lock of the store.
    pub(crate) fn set(&self, listener: OnLeft) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    /// Drops the listener.
    pub(crate) fn end(&self) {
        let listener = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(listener); // without the lock
    }

    /// Returns whether there is a listener.
    pub(crate) fn is_listening(&self) -> bool {
        self.listener().is_some()
    }

    /// Tells the listener of an object that has left flash.
    pub(crate) fn tell(&self, key: &[u8], cause: Cause) {
        if let Some(listener) = self.listener() {
            listener(key, cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_told_until_it_ends_and_may_end_itself() {
        let left = Arc::new(Left::default());
        let (told, log) = std::sync::mpsc::channel();
        left.tell(b"before", Cause::Evicted);
        let own = Arc::clone(&left);
        left.set(Arc::new(move |key: &[u8], cause| {
            told.send((key.to_vec(), cause)).unwrap();
            if cause == Cause::Expired {
                own.end();
            }
        }));
        left.tell(b"one", evicted_or_expired(false));
        left.tell(b"two", evicted_or_expired(true));
        assert!(!left.is_listening());
        left.tell(b"after", Cause::Evicted);
        let told: Vec<(Vec<u8>, Cause)> = log.iter().collect();
        assert_eq!(told, [(b"one".to_vec(), Cause::Evicted), (b"two".to_vec(), Cause::Expired)]);
    }
}
