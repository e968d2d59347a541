//! Block devices of Linux whose requests this program serves, by the driver `ublk_drv`.
//!
//! [`Control`] makes, starts, stops and deletes devices. A [`Queue`] takes the requests of one
//! hardware queue on the ring of the thread that serves it, and completes them. Data is copied
//! between a request and a buffer by reads and writes of the device's character file
//! (`UBLK_F_USER_COPY`).
//!
//! A device outlives its server. When that is killed, the device is *quiesced*: new requests wait,
//! and requests that the server had taken are issued again to the next server, which takes the
//! device over ([`Control::begin_recovery`]).
//!
//! Source: `Documentation/block/ublk.rst` and `include/uapi/linux/ublk_cmd.h` of Linux 6.12.

#![allow(unsafe_code)]

mod abi;
mod control;
mod memory;
mod queue;

pub use abi::{Parameters, UblkError};
pub use control::{Control, DeviceInfo, NewDevice, State, block_path};
pub use memory::{protect_memory, ready_thread};
pub use queue::{Action, Character, Queue, Request};
