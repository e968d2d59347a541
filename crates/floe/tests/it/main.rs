//! The features of the library, as its users have them.

mod serde;
