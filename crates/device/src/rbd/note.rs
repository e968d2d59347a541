//! Notes that servers of an image leave for each other.
//!
//! A note is an object of its own in the image's pool, `floe.KEY.ID` with the image's id, and not
//! metadata of the image: a change of metadata is announced to every client that has the image
//! open, and waits five seconds for one that has died. A note can be written when the cluster is
//! full.

use std::ffi::{CString, c_int};
use std::io;

use super::handles::Handles;
use super::library::{Functions, checked, text};
use super::lock::is_absent;

/// The longest note.
const MOST: usize = 64 << 10;

/// `LIBRADOS_OPERATION_FULL_FORCE`: also when the cluster is full.
const FULL_FORCE: c_int = 128;

impl Handles {
    /// The name of a note's object.
    fn object(&self, library: &Functions, key: &str) -> io::Result<CString> {
        // SAFETY: the image is open; as many bytes as said.
        let id = text(256, |at, most| unsafe { (library.rbd_get_id)(self.image, at, most) })?;
        Ok(CString::new(format!("floe.{key}.{id}"))?)
    }

    /// Reads a note; `None` where there is none.
    pub(super) fn note(&self, library: &Functions, key: &str) -> io::Result<Option<String>> {
        let object = self.object(library, key)?;
        let mut bytes = vec![0u8; MOST];
        let into = bytes.as_mut_ptr().cast();
        // SAFETY: the pool is open; a text, and room for as many bytes as said.
        let read =
            checked(unsafe { (library.rados_read)(self.pool, object.as_ptr(), into, MOST, 0) });
        let length = match read {
            Err(error) if is_absent(&error) => return Ok(None),
            read => read? as usize,
        };
        Ok(Some(String::from_utf8_lossy(&bytes[..length]).into_owned()))
    }

    /// Writes a note, whole and durably.
    pub(super) fn set_note(&self, library: &Functions, key: &str, note: &str) -> io::Result<()> {
        if note.len() > MOST {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let object = self.object(library, key)?;
        // SAFETY: the pool is open; the bytes and the text are there until the operation has ended,
        // which is released once.
        let written = unsafe {
            let operation = (library.rados_create_write_op)();
            (library.rados_write_op_write_full)(operation, note.as_ptr().cast(), note.len());
            let (at, now) = (object.as_ptr(), std::ptr::null_mut());
            let written =
                (library.rados_write_op_operate)(operation, self.pool, at, now, FULL_FORCE);
            (library.rados_release_write_op)(operation);
            written
        };
        checked(written).map(drop)
    }
}
