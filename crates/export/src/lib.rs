//! Not yet written.
pub mod nbd;
pub mod uri;
