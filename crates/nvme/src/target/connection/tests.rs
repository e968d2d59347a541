//! A connection tested against hosts that send arbitrary input, split at arbitrary places.

mod digests;
mod garbage;
mod hosts;
mod notices;
mod reservations;
mod sessions;
