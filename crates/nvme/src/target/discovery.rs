//! The discovery log, from which hosts learn the name and the address of the subsystem.
//!
//! Every connection serves it, under the name that all discovery subsystems have. Its one entry has
//! the address that the host has connected to, because another may not lead here.
//!
//! Source: NVM Express Base 2.0, "Discovery Log Page"; TCP Transport 1.0, "Discovery Log Page
//! Entry".

use std::net::SocketAddr;

use super::identify::Page;
use super::{QUEUE_MAX, subsystem::Subsystem};
use crate::wire::ANY_CONTROLLER;

/// Bytes of the log's header, and of each entry.
const ENTRY_BYTES: usize = 1024;
/// The time after which a host that made no promise to send something is gone.
pub(super) const SILENCE_MS: u32 = 60_000;

/// Makes the log; it is empty where the address is not known.
pub(super) fn page(subsystem: &Subsystem, address: Option<SocketAddr>) -> Vec<u8> {
    const TCP: u8 = 3;
    const NVM_SUBSYSTEM: u8 = 2;
    const NO_SECURE_CHANNEL: u8 = 2;
    let mut page = Page::new(ENTRY_BYTES + address.map_or(0, |_| ENTRY_BYTES));
    page.put(0, &1_u64.to_le_bytes()); // it does not change
    let Some(address) = address else { return page.done() };
    let (ip, port) = (address.ip().to_canonical(), address.port().to_string());
    let family = if ip.is_ipv4() { 1 } else { 2 };
    page.put(8, &1_u64.to_le_bytes())
        .put(ENTRY_BYTES, &[TCP, family, NVM_SUBSYSTEM, NO_SECURE_CHANNEL])
        .put(ENTRY_BYTES + 6, &ANY_CONTROLLER.to_le_bytes())
        .put(ENTRY_BYTES + 8, &QUEUE_MAX.to_le_bytes())
        .text(ENTRY_BYTES + 32, 32, &port)
        .put(ENTRY_BYTES + 256, subsystem.nqn().as_bytes())
        .text(ENTRY_BYTES + 512, 256, &ip.to_string());
    page.done()
}
