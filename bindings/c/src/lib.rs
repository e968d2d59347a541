//! C bindings of Floe's caches. See the README and `include/floe.h`, which is generated
//! from this crate.
//!
//! Every function catches panics and returns [`floe_status::Panicked`], because a panic must not
//! cross the language boundary. Invalid arguments result in [`floe_status::Invalid`]; the thread's
//! [error message](floe_error_message) says what is wrong.
#![allow(unsafe_code)] // pointers from C; each block says why it is sound
#![allow(non_camel_case_types)]
// names are those that C programs write
// The contract of pointers is the same everywhere: see floe.h.
#![expect(clippy::missing_safety_doc)]

pub mod cache;
pub mod host;
#[cfg(feature = "hybrid")]
pub mod hybrid;
pub mod options;
pub mod value;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a function that can fail. 0 is success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum floe_status {
    /// Done.
    Ok = 0,
    /// The key is not there.
    NotFound = 1,
    /// An argument is invalid, or the value that a callback returned; `floe_error_message` says
    /// which.
    Invalid = 2,
    /// The buffer is smaller than the value.
    TooSmall = 3,
    /// The loader returned something other than 0.
    LoadFailed = 4,
    /// Floe has a fault; the call may have had part of its effect. Please report it.
    Panicked = 5,
    /// Objects with handles fill a strict cache.
    Full = 6,
    /// The drive of a cache in memory and on flash has failed, or the cache is closed;
    /// `floe_error_message` says which and why.
    FlashFailed = 7,
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Returns the message of this thread's last failed call, a line of text. It is empty before the
/// first failure, and valid until the thread's next failed call.
#[unsafe(no_mangle)]
pub extern "C" fn floe_error_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn floe_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Reason why a call failed: its status and its message.
pub(crate) struct Failure {
    status: floe_status,
    message: String,
}

impl Failure {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { status: floe_status::Invalid, message: message.into() }
    }

    pub(crate) fn new(status: floe_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

/// Runs the body of a call. A failure or a panic becomes a status, and its message the thread's
/// last error.
pub(crate) fn guarded(call: impl FnOnce() -> Result<floe_status, Failure>) -> floe_status {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => status,
        Ok(Err(Failure { status, message })) => {
            remember(&message);
            status
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            remember(text.unwrap_or("a panic without a text"));
            floe_status::Panicked
        }
    }
}

/// Runs the body of a call that returns no status. A failure or a panic returns `otherwise`, and
/// its message becomes the thread's last error.
pub(crate) fn guarded_or<T>(otherwise: T, call: impl FnOnce() -> Result<T, Failure>) -> T {
    let mut result = None;
    guarded(|| {
        result = Some(call()?);
        Ok(floe_status::Ok)
    });
    result.unwrap_or(otherwise)
}

fn remember(message: &str) {
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // While the thread ends there is nowhere to keep it, and nobody to read it.
    let _ = MESSAGE.try_with(|last| *last.borrow_mut() = message);
}

/// Converts a pointer from C to a reference.
///
/// # Errors
/// When the pointer is null.
///
/// # Safety
/// The pointer is null, or points to a value that outlives the call.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller says so.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{name} is NULL")))
}

/// Returns the bytes at a pointer from C, which may be null if `len` is 0.
///
/// # Safety
/// `len` bytes can be read at the pointer during the call.
pub(crate) unsafe fn bytes<'a>(
    data: *const c_void,
    len: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    region(data, len, name)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, not too long, and the caller says that it can be read.
    Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) })
}

/// Checks that a pointer and length from C are plausible. The pointer may be null if `len` is 0.
pub(crate) fn region(data: *const c_void, len: usize, name: &str) -> Result<(), Failure> {
    if data.is_null() && len > 0 {
        return Err(Failure::invalid(format!("{name} is NULL, but its length is {len}")));
    }
    if len > isize::MAX as usize {
        return Err(Failure::invalid(format!("{name} has an impossible length, {len}")));
    }
    Ok(())
}

/// Converts a `bool` from C: anything but 0 is true. A program in another language, or one without
/// our header, may pass any byte, which a Rust `bool` must not hold.
pub(crate) fn flag(given: MaybeUninit<bool>) -> bool {
    // SAFETY: C has passed a byte, and any byte is an `u8`.
    unsafe { given.as_ptr().cast::<u8>().read() != 0 }
}

/// Writes a result to memory of the C program.
///
/// # Safety
/// The pointer is null, or the value can be written there.
pub(crate) unsafe fn give<T>(place: *mut T, value: T, name: &str) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    // SAFETY: the caller says so.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes as much of a structure to memory of the C program as the program's version of it has, and
/// zero to fields that this library does not know.
///
/// # Safety
/// The pointer is null, or `size` bytes can be written there. `T` has no padding.
pub(crate) unsafe fn write_prefix<T: Copy>(
    all: &T,
    place: *mut T,
    size: usize,
    name: &str,
) -> Result<(), Failure> {
    let place = place.cast::<u8>();
    // SAFETY: the program's place, of so many bytes.
    unsafe {
        if size > 0 {
            give(place, 0, name)?;
            place.write_bytes(0, size);
        }
        place.copy_from_nonoverlapping(std::ptr::from_ref(all).cast(), size.min(size_of::<T>()));
    }
    Ok(())
}
