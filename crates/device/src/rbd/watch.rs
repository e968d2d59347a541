//! The watch of an image, for as long as it is open.

use std::io;
use std::sync::Arc;

use super::handles::Handles;
use super::library::{Functions, checked};
use super::news::{News, changed};

impl Handles {
    /// Has the library tell of changes, until [`Handles::unwatch`].
    pub(super) fn watch(&mut self, library: &Functions, news: &Arc<News>) -> io::Result<()> {
        let argument = Arc::into_raw(Arc::clone(news));
        let mut number = 0;
        // SAFETY: the image is open; the argument is a `News`, which lives until the watch ends.
        let watched = checked(unsafe {
            (library.rbd_update_watch)(self.image, &mut number, changed, argument.cast_mut().cast())
        });
        match watched {
            Ok(_) => self.watch = Some((number, argument)),
            // SAFETY: it is from `into_raw`, and the library does not know it.
            Err(_) => drop(unsafe { Arc::from_raw(argument) }),
        }
        watched.map(drop)
    }

    /// Ends the watch, if there is one.
    ///
    /// # Safety
    /// Is called once, and the image is open.
    pub(super) unsafe fn unwatch(&self, library: &Functions) {
        let Some((number, argument)) = self.watch else { return };
        // SAFETY: the image is open.
        let ended = checked(unsafe { (library.rbd_update_unwatch)(self.image, number) });
        if ended.is_ok() {
            // SAFETY: it is from `into_raw`, and the library calls back no more.
            drop(unsafe { Arc::from_raw(argument) });
        }
    }
}
