//! A connection against hosts that send anything, cut anywhere.

mod garbage;
mod hosts;
mod sessions;
