//! The receiver of an image's news: that its header has changed, by a resize or a snapshot.
//!
//! The library calls back on a thread of its own, which may call nothing of the library. It may
//! call for a change of no interest, and once for several.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Called when an image has changed.
pub(super) type Notify = Box<dyn Fn() + Send + Sync>;

/// The receiver of news; it does not move while the library knows of it.
#[derive(Default)]
pub(super) struct News(Mutex<Option<Notify>>);

impl News {
    pub(super) fn set(&self, notify: Notify) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(notify);
    }
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("News")
    }
}

/// Called by a thread of the library.
///
/// # Safety
/// The argument is a `News` that lives.
pub(super) unsafe extern "C" fn changed(argument: *mut c_void) {
    // SAFETY: see above.
    let news = unsafe { &*argument.cast::<News>() };
    if let Some(notify) = &*news.0.lock().unwrap_or_else(PoisonError::into_inner) {
        notify();
    }
}
