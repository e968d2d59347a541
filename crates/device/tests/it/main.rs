//! Devices, rings and sockets, from outside.

mod common;
mod devices;
mod faults;
mod files;
mod hosts;
mod lending;
mod media;
mod mirrors;
mod nbd;

mod rings;
mod shapes;
mod sockets;
mod specs;
mod stripes;
mod volatile;
