//! The discovery log, from which hosts learn the name and the addresses of the subsystem.
//!
//! Every connection serves it, under the name that all discovery subsystems have. It has an entry
//! for each port that the host reaches, as far as the address that it has called tells. Its
//! generation counts changes of the ports, and volumes that come and go.
//!
//! Source: NVM Express Base 2.0, "Discovery Log Page"; TCP Transport 1.0, "Discovery Log Page
//! Entry".

use std::net::SocketAddr;

use super::identify::Page;
use super::paths::Port;
use super::{QUEUE_MAX, subsystem::Subsystem};
use crate::wire::ANY_CONTROLLER;

/// Bytes of the log's header, and of each entry.
const ENTRY_BYTES: usize = 1024;
/// The time after which a host that made no promise to send something is gone.
pub(super) const SILENCE_MS: u32 = 60_000;

/// Makes the log; it is empty where the address is not known. `generation` is that of the
/// namespaces.
pub(super) fn page(subsystem: &Subsystem, address: Option<SocketAddr>, generation: u64) -> Vec<u8> {
    const TCP: u8 = 3;
    const NVM_SUBSYSTEM: u8 = 2;
    const NO_SECURE_CHANNEL: u8 = 2;
    let paths = subsystem.paths();
    let generation = generation + paths.port_changes() + 1; // each part only grows
    let ports = address.map_or(Vec::new(), |called| paths.ports_for(called));
    let mut page = Page::new(ENTRY_BYTES * (1 + ports.len()));
    page.put(0, &generation.to_le_bytes()).put(8, &(ports.len() as u64).to_le_bytes());
    for (port, at) in ports.iter().zip((1..).map(|entry| entry * ENTRY_BYTES)) {
        let Port { id, address } = port;
        let family = if address.is_ipv4() { 1 } else { 2 };
        page.put(at, &[TCP, family, NVM_SUBSYSTEM, NO_SECURE_CHANNEL])
            .put(at + 4, &id.to_le_bytes())
            .put(at + 6, &ANY_CONTROLLER.to_le_bytes())
            .put(at + 8, &QUEUE_MAX.to_le_bytes())
            .text(at + 32, 32, &address.port().to_string())
            .put(at + 256, subsystem.nqn().as_bytes())
            .text(at + 512, 256, &address.ip().to_string());
    }
    page.done()
}
