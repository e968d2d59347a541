//! The exclusive lock of a Ceph image, its owner, and fencing.
//!
//! librbd does not check the lock at each write. A client that was suspended while another broke
//! its lock continues to write when it wakes, unless the cluster refuses it by name: the
//! *blocklist*. An owner is fenced in three steps. It is put on the blocklist for a year. The
//! newest map of the cluster is awaited. Only then its lock is broken, without the entry of an hour
//! that librbd would make in its place.

use std::ffi::{CStr, CString, c_int};
use std::io;
use std::sync::Arc;

use super::library::{
    Functions, Handles, News, OpenImage, Watcher, c_string, changed, checked, library, text,
};
use super::name::{RbdError, RbdName};

const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
const LOCK_EXCLUSIVE: c_int = 0;

/// The time in seconds for which a fenced client is refused. librbd's default, an hour, is shorter
/// than a machine may be suspended.
const YEAR_SECONDS: u32 = 365 * 24 * 60 * 60;

/// The prefix of lock cookies that librbd itself creates for its clients.
const AUTOMATIC: &str = "auto ";

/// An image that a standby server observes but does not serve. It takes no lock and writes no data,
/// and the cluster does not wait for it when the image changes.
#[derive(Debug)]
pub struct RbdWatch {
    open: OpenImage,
    name: RbdName,
}

impl RbdWatch {
    /// Connects to the cluster and opens the image.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    pub fn open(name: &RbdName) -> Result<Self, RbdError> {
        let settings = [("rbd_blocklist_on_break_lock", "false")];
        let open = OpenImage::new(library()?, name, true, &settings)?;
        Ok(Self { open, name: name.clone() })
    }

    /// Returns the image's name and cluster settings.
    pub fn name(&self) -> &RbdName {
        &self.name
    }

    /// Returns the image's size in bytes.
    ///
    /// # Errors
    /// The error of the library.
    pub fn size_bytes(&self) -> io::Result<u64> {
        self.open.handles.size(functions())
    }

    /// Returns the client that holds the lock, under the cluster's name for it.
    ///
    /// # Errors
    /// The error of the library.
    pub fn owner(&self) -> io::Result<Option<String>> {
        self.open.handles.owner(functions())
    }

    /// Returns false if the owner of the lock is certainly dead. A client watches the image while
    /// it has it open for writing, and the cluster drops a dead client's watch after half a minute.
    /// Returns true for a lock that an operator has set (`rbd lock add`), whose owner is unknown.
    ///
    /// # Errors
    /// The error of the library.
    pub fn may_live(&self, owner: &str) -> io::Result<bool> {
        let locker = self.open.handles.locker(functions())?;
        let by_hand = |it: &Locker| it.address == owner && !it.cookie.starts_with(AUTOMATIC);
        Ok(locker.as_ref().is_some_and(by_hand)
            || self.open.handles.watchers(functions())?.iter().any(|address| address == owner))
    }

    /// Reads a note that is stored beside the image.
    ///
    /// # Errors
    /// The error of the library.
    pub fn note(&self, key: &str) -> io::Result<Option<String>> {
        self.open.handles.note(functions(), key)
    }

    /// Writes a note beside the image, durably, even when the cluster is full.
    ///
    /// # Errors
    /// The error of the library, and `E2BIG` for more than 64 KiB.
    pub fn set_note(&self, key: &str, note: &str) -> io::Result<()> {
        self.open.handles.set_note(functions(), key, note)
    }

    /// Fences `owner`: when this returns, the cluster refuses all its requests, to any image. Its
    /// locks still exist.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    pub fn fence(&self, owner: &str) -> Result<(), RbdError> {
        let (functions, cluster) = (library()?, self.open.handles.cluster);
        // The library parses the address in place: it gets a copy.
        let mut address = c_string(owner)?.into_bytes_with_nul();
        // SAFETY: the cluster is connected; a text that may be written to.
        checked(unsafe {
            (functions.rados_blocklist_add)(cluster, address.as_mut_ptr().cast(), YEAR_SECONDS)
        })
        .map_err(self.failed("fence the owner of"))?;
        let awaited = self.open.connection().wait_for_newest_map(functions);
        awaited.map_err(self.failed("await the fencing of the owner of"))
    }

    /// Breaks the lock of `owner`, which has been fenced, perhaps through another image. The owner
    /// and its lock may already be gone.
    ///
    /// # Errors
    /// Names the image and the step that failed.
    pub fn break_lock(&self, owner: &str) -> Result<(), RbdError> {
        let functions = library()?;
        let text = c_string(owner)?;
        // Also where another connection has fenced the owner: OSDs learn the map from its clients.
        let awaited = self.open.connection().wait_for_newest_map(functions);
        awaited.map_err(self.failed("await the fencing of the owner of"))?;
        let open = OpenImage::by(functions, self.open.connection(), &self.name, false)?;
        // SAFETY: the image is open; a text.
        let broken = checked(unsafe {
            (functions.rbd_lock_break)(open.handles.image, LOCK_EXCLUSIVE, text.as_ptr())
        });
        match broken {
            Err(error) if !is_absent(&error) && error.raw_os_error() != Some(libc::EBUSY) => {
                Err(self.failed("break the lock of")(error))
            }
            _ => Ok(()), // another owner's lock is refused when it is taken
        }
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> RbdError {
        let image = self.name.to_string();
        move |source| RbdError::Image { what, image, source }
    }
}

struct Locker {
    cookie: String,
    address: String,
}

/// Returns the library's functions, which are loaded once an image is open.
fn functions() -> &'static Functions {
    library().expect("an image is open, so the library is")
}

pub(super) fn is_absent(error: &io::Error) -> bool {
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
            return Err(RbdError::NoLock(image()));
        }
        // SAFETY: the image is open.
        match checked(unsafe { (library.rbd_lock_acquire)(self.image, LOCK_EXCLUSIVE) }) {
            Ok(_) => self.is_locked = true,
            // That is how it calls a lock that its owner does not give away.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EBUSY)) => {
                return Err(RbdError::Locked(image()));
            }
            Err(source) => return Err(RbdError::Image { what: "lock", image: image(), source }),
        }
        Ok(())
    }

    pub(super) fn owner(&self, library: &Functions) -> io::Result<Option<String>> {
        Ok(self.locker(library)?.map(|locker| locker.address))
    }

    /// Reads the lock from the object in which librbd stores it, since librbd does not report it to
    /// read-only clients.
    fn locker(&self, library: &Functions) -> io::Result<Option<Locker>> {
        // SAFETY: the image is open; as many bytes as said.
        let id = text(256, |at, most| unsafe { (library.rbd_get_id)(self.image, at, most) })?;
        let object = CString::new(format!("rbd_header.{id}"))?;
        let mut exclusive = 0;
        let mut texts = [(); 4].map(|()| [0u8; 4096]); // tag, clients, cookies and addresses
        let mut lengths = texts.each_ref().map(|text| text.len());
        let [tag, clients, cookies, addresses] = texts.each_mut().map(|it| it.as_mut_ptr().cast());
        let [tag_length, clients_length, cookies_length, addresses_length] = lengths.each_mut();
        // SAFETY: the pool is open; two texts, and places for the number, the texts and their
        // lengths.
        let found = unsafe {
            (library.rados_list_lockers)(
                self.pool,
                object.as_ptr(),
                c"rbd_lock".as_ptr(),
                &mut exclusive,
                tag,
                tag_length,
                clients,
                clients_length,
                cookies,
                cookies_length,
                addresses,
                addresses_length,
            )
        };
        if checked(found as c_int)? == 0 {
            return Ok(None);
        }
        let first = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        // Elsewhere the library writes addresses without the messenger's version, as in `v1:…`.
        let address = first(&texts[3]);
        let plain = address.trim_start_matches("v1:").trim_start_matches("any:").to_owned();
        Ok(Some(Locker { cookie: first(&texts[2]), address: plain }))
    }

    /// Returns the addresses of the clients that watch the image.
    fn watchers(&self, library: &Functions) -> io::Result<Vec<String>> {
        let mut most = 16;
        loop {
            let nobody = Watcher { address: std::ptr::null_mut(), id: 0, cookie: 0 };
            let mut watchers = vec![nobody; most];
            // SAFETY: the image is open; places for as many watchers as said.
            let asked = checked(unsafe {
                (library.rbd_watchers_list)(self.image, watchers.as_mut_ptr(), &mut most)
            });
            match asked {
                Err(error) if error.raw_os_error() == Some(libc::ERANGE) => continue, // `most` grew
                asked => asked?,
            };
            // SAFETY: the library has filled in so many, with texts.
            let texts = watchers[..most].iter().map(|it| unsafe { CStr::from_ptr(it.address) });
            let addresses = texts.map(|text| text.to_string_lossy().into_owned()).collect();
            // SAFETY: the texts are freed once, and not used any more.
            unsafe { (library.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), most) };
            return Ok(addresses);
        }
    }

    /// Returns the name of a note's object.
    pub(super) fn object(&self, library: &Functions, key: &str) -> io::Result<CString> {
        // SAFETY: the image is open; as many bytes as said.
        let id = text(256, |at, most| unsafe { (library.rbd_get_id)(self.image, at, most) })?;
        Ok(CString::new(format!("floe.{key}.{id}"))?)
    }

    /// Reads a note; `None` if it does not exist.
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

    /// Replaces a note, atomically and durably.
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

    /// Registers for changes of the image, until [`Handles::unwatch`] is called.
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
    /// Must be called once, while the image is open.
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

/// The longest note in bytes.
///
/// A note is an object `floe.KEY.ID` in the image's pool. Metadata of the image would be announced
/// to every client that has it open, which waits five seconds for one that has died.
const MOST: usize = 64 << 10;

/// `LIBRADOS_OPERATION_FULL_FORCE`: perform the operation even when the cluster is full.
const FULL_FORCE: c_int = 128;
