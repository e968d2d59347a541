//! Linux block devices whose requests this process serves, by means of the driver `ublk_drv`.
//!
//! [`Control`] creates, starts, stops and deletes devices. A [`Queue`] fetches the requests of one
//! hardware queue on the serving thread's ring, and completes them. Data is copied between a
//! request and a buffer by reads and writes of the device's character file (`UBLK_F_USER_COPY`).
//!
//! A device outlives its server. When the server is killed, the device is *quiesced*: new requests
//! wait. The next server takes the device over ([`Control::begin_recovery`]) and receives the
//! requests again that the killed server had fetched.
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
