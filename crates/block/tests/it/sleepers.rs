//! The handshake of sleepers and wakers under a model checker, which tries every order in which
//! threads and their memory can meet.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

#[path = "../../src/sleep.rs"]
mod sleep;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::sync::atomic::AtomicUsize;
use loom::thread;
use sleep::Sleep;

/// A thread's queue, reduced to how much is in it, and its bell.
struct Place {
    sleep: Sleep,
    queued: AtomicUsize,
    rung: AtomicUsize,
}

/// Two senders put something there; the thread looks, and waits if it may. It must never wait
/// unrung while there is something for it.
#[test]
fn nobody_sleeps_over_something() {
    loom::model(|| {
        let place = Arc::new(Place {
            sleep: Sleep::new(),
            queued: AtomicUsize::new(0),
            rung: AtomicUsize::new(0),
        });
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let place = Arc::clone(&place);
                thread::spawn(move || {
                    place.queued.fetch_add(1, Ordering::Release);
                    if place.sleep.must_be_woken() {
                        place.rung.fetch_add(1, Ordering::Release);
                    }
                })
            })
            .collect();
        let waits = place.sleep.fall_asleep(|| place.queued.load(Ordering::Acquire) == 0);
        for sender in senders {
            sender.join().unwrap();
        }
        let rung = place.rung.load(Ordering::Acquire);
        assert!(!waits || rung > 0, "it sleeps, and nobody has rung");
        assert!(rung <= 1, "one ringing is enough");
    });
}
