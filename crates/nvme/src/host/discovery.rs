//! The log of a discovery controller.
//!
//! Source: NVMe Base Specification, "Discovery Log Page".

use super::error::{HostError, broken};
use super::pdu::{text_at, u16_at, u64_at};

/// The name of the subsystem that knows the others.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Bytes of the log's header, and of each entry.
pub(super) const ENTRY_BYTES: usize = 1024;

/// Most entries that are read.
const ENTRIES_MAX: u64 = 4096;

/// One way to a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// TRTYPE: 3 for TCP.
    pub transport: u8,
    /// ADRFAM: 1 for IPv4, 2 for IPv6.
    pub family: u8,
    /// SUBTYPE: 1 refers to another discovery service, 2 has namespaces, 3 is this service.
    pub subsystem_type: u8,
    /// PORTID.
    pub port_id: u16,
    /// CNTLID: 0xFFFF when the controller is made on Connect.
    pub controller_id: u16,
    /// ASQSZ.
    pub admin_entries: u16,
    /// TRSVCID: the port.
    pub service: String,
    /// SUBNQN.
    pub subsystem: String,
    /// TRADDR.
    pub address: String,
}

/// The log's header: its generation and the number of entries.
pub(super) fn parse_header(bytes: &[u8]) -> Result<(u64, u64), HostError> {
    let (generation, entries, format) = (u64_at(bytes, 0), u64_at(bytes, 8), u16_at(bytes, 16));
    if format != 0 {
        return Err(broken(format!("the discovery log has RECFMT {format}")));
    }
    if entries > ENTRIES_MAX {
        return Err(broken(format!("the discovery log has NUMREC {entries}")));
    }
    Ok((generation, entries))
}

/// One entry of the log.
pub(super) fn parse_entry(bytes: &[u8]) -> Result<DiscoveryEntry, HostError> {
    let entry = DiscoveryEntry {
        transport: bytes[0],
        family: bytes[1],
        subsystem_type: bytes[2],
        port_id: u16_at(bytes, 4),
        controller_id: u16_at(bytes, 6),
        admin_entries: u16_at(bytes, 8),
        service: text_at(bytes, 32, 32),
        subsystem: text_at(bytes, 256, 256),
        address: text_at(bytes, 512, 256),
    };
    if !(1..=3).contains(&entry.subsystem_type) {
        return Err(broken(format!("a discovery entry has SUBTYPE {}", entry.subsystem_type)));
    }
    if entry.admin_entries < 32 {
        return Err(broken(format!("a discovery entry has ASQSZ {}", entry.admin_entries)));
    }
    Ok(entry)
}
