//! C bindings of Floe's in-memory cache. See the README and `include/floe.h`, which is generated
//! from this crate.
//!
//! Every function catches panics and returns [`floe_status::Panicked`], because a panic must not
//! cross the language boundary. Invalid arguments result in [`floe_status::Invalid`]; the thread's
//! [error message](error::floe_error_message) says what is wrong.
#![allow(unsafe_code)] // pointers from C; each block says why it is sound
#![allow(non_camel_case_types)]
// names are those that C programs write
// The contract of pointers is the same everywhere: see floe.h.
#![expect(clippy::missing_safety_doc)]

pub mod cache;
pub mod error;
pub mod host;
pub mod options;
pub mod value;

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
}
