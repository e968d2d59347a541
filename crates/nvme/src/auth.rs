//! The arithmetic of DH-HMAC-CHAP, which both sides use: secrets, hashes and groups.
//! The messages are written twice, in [`target`](crate::target) and in [`host`](crate::host).

mod group;
mod hash;
mod secret;

pub use group::Group;
pub use hash::Hash;
pub use secret::{Secret, SecretError};

/// Fills a buffer with random bytes that nobody can guess. Returns false when there are none.
pub type Random = fn(&mut [u8]) -> bool;
