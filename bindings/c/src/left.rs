//! Entries that leave, and the function that is told of them.

use std::ffi::c_void;

use floe_memory::Cause;

use crate::value::{Key, Value};

/// Why an entry left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum floe_cause {
    /// To make room.
    Evicted = 0,
    /// Its time was over.
    Expired = 1,
    /// It was removed.
    Removed = 2,
    /// Another value took its place.
    Replaced = 3,
    /// It did not fit.
    Rejected = 4,
    /// The admission declined it.
    Bypassed = 5,
    /// For a reason that this version has no name for.
    Other = 6,
}

/// Is told of an entry that left. Key and value are valid during the call.
pub type floe_left_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        key: *const c_void,
        key_len: usize,
        data: *const c_void,
        len: usize,
        cause: floe_cause,
    ),
>;

/// A listener of the program's.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) tell:
        unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_void, usize, floe_cause),
    pub(crate) context: *mut c_void,
}

// SAFETY: the program promises that any thread may call it: see `floe_options_set_listener`.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

impl Listener {
    pub(crate) fn tell(&self, key: &Key, value: &Value, cause: Cause) {
        let cause = match cause {
            Cause::Evicted => floe_cause::Evicted,
            Cause::Expired => floe_cause::Expired,
            Cause::Removed => floe_cause::Removed,
            Cause::Replaced => floe_cause::Replaced,
            Cause::Rejected => floe_cause::Rejected,
            Cause::Bypassed => floe_cause::Bypassed,
            _ => floe_cause::Other,
        };
        let (key, key_len) = (key.0.as_ptr().cast(), key.0.len());
        // SAFETY: the program gave the function, and key and value are there during the call.
        unsafe { (self.tell)(self.context, key, key_len, value.data(), value.len(), cause) };
    }
}
