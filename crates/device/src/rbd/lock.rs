//! The exclusive lock of an image, and the metadata that servers of it leave for each other.
//!
//! librbd does not ask for the lock at each write. A client that stood still while another broke
//! its lock writes on when it wakes, unless the cluster refuses it by name: the *blocklist*. An
//! owner is fenced in this order: it is put on the blocklist for a year, the newest map of the
//! cluster is awaited, and only then its lock is broken, without the entry of an hour that librbd
//! would make in its place.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;

use super::error::RbdError;
use super::handles::{Handles, OpenImage, c_string, checked};
use super::library::{Functions, library};
use super::name::RbdName;

const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
const LOCK_EXCLUSIVE: c_int = 0;

/// The time for which a fenced client is refused: librbd's hour is shorter than a machine sleeps.
const YEAR_SECONDS: u32 = 365 * 24 * 60 * 60;

/// The longest value of metadata that is read.
const MOST_METADATA: usize = 64 << 10;

/// An image that is looked at, not served: a standby server's. It has no lock, nor writes.
#[derive(Debug)]
pub struct RbdWatch {
    open: OpenImage,
    name: RbdName,
}

impl RbdWatch {
    /// Connects to the cluster and opens the image. The library tells the owner of its lock only
    /// where it was opened for writing.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    pub fn open(name: &RbdName) -> Result<Self, RbdError> {
        let open = OpenImage::new(library()?, name, false, &[])?;
        Ok(Self { open, name: name.clone() })
    }

    /// The image's name.
    pub fn name(&self) -> &RbdName {
        &self.name
    }

    /// The client that holds the lock, as the cluster calls it.
    ///
    /// # Errors
    /// The library's.
    pub fn owner(&self) -> io::Result<Option<String>> {
        self.open.0.owner(functions())
    }

    /// A value of the image's metadata.
    ///
    /// # Errors
    /// The library's.
    pub fn metadata(&self, key: &str) -> io::Result<Option<String>> {
        self.open.0.metadata(functions(), key)
    }

    /// Fences `owner`, which held the lock, and breaks its lock. It may be gone, and its lock as
    /// well. When this returns the cluster refuses whatever it sends.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    pub fn fence(&self, owner: &str) -> Result<(), RbdError> {
        let failed = |what| {
            let image = self.name.to_string();
            move |source| RbdError::Image { what, image, source }
        };
        let functions = library()?;
        let settings = [("rbd_blocklist_on_break_lock", "false")];
        let open = OpenImage::new(functions, &self.name, false, &settings)?;
        let text = c_string(owner)?;
        // The library parses the address in place: it gets a copy.
        let mut address = text.clone().into_bytes_with_nul();
        // SAFETY: the cluster is connected; a text that may be written to.
        checked(unsafe {
            (functions.rados_blocklist_add)(
                open.0.cluster,
                address.as_mut_ptr().cast(),
                YEAR_SECONDS,
            )
        })
        .map_err(failed("fence the owner of"))?;
        // SAFETY: the cluster is connected.
        checked(unsafe { (functions.rados_wait_for_latest_osdmap)(open.0.cluster) })
            .map_err(failed("await the fencing of the owner of"))?;
        // SAFETY: the image is open; a text.
        let broken = checked(unsafe {
            (functions.rbd_lock_break)(open.0.image, LOCK_EXCLUSIVE, text.as_ptr())
        });
        match broken {
            Err(error) if !is_absent(&error) && error.raw_os_error() != Some(libc::EBUSY) => {
                Err(failed("break the lock of")(error))
            }
            _ => Ok(()), // another owner's lock is refused when it is taken
        }
    }
}

/// The library, once an image is open.
fn functions() -> &'static Functions {
    library().expect("an image is open, so the library is")
}

fn is_absent(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}

impl Handles {
    /// Takes the lock for as long as the image is open.
    pub(super) fn lock(&mut self, library: &Functions, name: &RbdName) -> Result<(), RbdError> {
        let mut features = 0;
        // SAFETY: the image is open; a place for the number.
        let known = checked(unsafe { (library.rbd_get_features)(self.image, &mut features) });
        let image = || name.to_string();
        known.map_err(|source| RbdError::Image { what: "ask", image: image(), source })?;
        if features & FEATURE_EXCLUSIVE_LOCK == 0 {
            return Err(RbdError::NoLock { image: image() });
        }
        // SAFETY: the image is open.
        match checked(unsafe { (library.rbd_lock_acquire)(self.image, LOCK_EXCLUSIVE) }) {
            Ok(_) => self.is_locked = true,
            // That is how it calls a lock that its owner does not give away.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EBUSY)) => {
                return Err(RbdError::Locked { image: image() });
            }
            Err(source) => return Err(RbdError::Image { what: "lock", image: image(), source }),
        }
        Ok(())
    }

    /// The client that holds the lock.
    pub(super) fn owner(&self, library: &Functions) -> io::Result<Option<String>> {
        let (mut mode, mut most) = (0, 8);
        let mut owners = [std::ptr::null_mut::<c_char>(); 8];
        // SAFETY: the image is open; places for the mode and for as many texts as said.
        let asked = checked(unsafe {
            (library.rbd_lock_get_owners)(self.image, &mut mode, owners.as_mut_ptr(), &mut most)
        });
        match asked {
            Err(error) if is_absent(&error) => return Ok(None),
            asked => asked?,
        };
        // SAFETY: the library has filled in so many texts.
        let texts = owners[..most].iter().map(|&owner| unsafe { CStr::from_ptr(owner) });
        let first = texts.map(|text| text.to_string_lossy().into_owned()).next();
        // SAFETY: the texts are freed once, and not used any more.
        unsafe { (library.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), most) };
        Ok(first)
    }

    /// A value of the image's metadata.
    pub(super) fn metadata(&self, library: &Functions, key: &str) -> io::Result<Option<String>> {
        let key = CString::new(key)?;
        let (mut bytes, mut length) = (vec![0u8; MOST_METADATA], MOST_METADATA);
        let into = bytes.as_mut_ptr().cast();
        // SAFETY: the image is open; a text, and room for as many bytes as said.
        let asked = checked(unsafe {
            (library.rbd_metadata_get)(self.image, key.as_ptr(), into, &mut length)
        });
        match asked {
            Err(error) if is_absent(&error) => return Ok(None),
            asked => asked?,
        };
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(Some(String::from_utf8_lossy(&bytes[..end]).into_owned()))
    }

    /// Sets a value of the image's metadata.
    pub(super) fn set_metadata(
        &self,
        library: &Functions,
        key: &str,
        value: &str,
    ) -> io::Result<()> {
        let (key, value) = (CString::new(key)?, CString::new(value)?);
        // SAFETY: the image is open for writing; two texts.
        let set = unsafe { (library.rbd_metadata_set)(self.image, key.as_ptr(), value.as_ptr()) };
        checked(set).map(drop)
    }
}
