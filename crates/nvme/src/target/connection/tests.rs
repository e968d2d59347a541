//! A connection against hosts that send anything, cut anywhere.

mod digests;
mod garbage;
mod hosts;
mod notices;
mod sessions;
