//! Devices, rings and sockets, from outside.

mod common;
mod devices;
mod faults;
mod files;
mod lending;
mod media;
mod mirrors;
mod nbd;
mod rbd;
mod rings;
mod shapes;
mod sockets;
mod specs;
mod stripes;
mod volatile;
