//! Parsers of the structures that Identify returns, and of the discovery log.
//!
//! Source: NVMe Base Specification, "Identify command"; NVM Command Set Specification, "Identify
//! Namespace". Sizes keep the unit of the specification unless the name says bytes.

use super::command::{HostError, broken, text_at, u16_at, u32_at, u64_at};

/// Bytes of a structure that Identify returns.
const STRUCTURE_BYTES: usize = 4096;

/// Unit of capsule sizes in bytes.
const CAPSULE_UNIT_BYTES: u32 = 16;

/// Properties of a controller, from the Identify Controller structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerData {
    /// Serial number (SN).
    pub serial_number: String,
    /// Model number (MN).
    pub model_number: String,
    /// Firmware revision (FR).
    pub firmware_revision: String,
    /// NVMe qualified name of the subsystem (SUBNQN).
    pub subsystem: String,
    /// Identifier of the controller (CNTLID).
    pub controller_id: u16,
    /// Version of the specification (VER).
    pub version: u32,
    /// Type of the controller (CNTRLTYPE): 1 for I/O, 2 for discovery.
    pub controller_type: u8,
    /// Maximum data transfer size (MDTS), as a power of two in units of the smallest memory page; 0
    /// for no limit.
    pub longest_transfer: u8,
    /// Granularity of the keep-alive timeout (KAS), in units of 100 ms.
    pub keep_alive_granularity: u16,
    /// Maximum number of outstanding commands (MAXCMD).
    pub outstanding_commands: u16,
    /// Highest namespace identifier (NN).
    pub namespaces: u32,
    /// Bit mask of supported asynchronous events (OAES).
    pub async_events: u32,
    /// Maximum number of outstanding event requests (AERL plus one).
    pub async_event_requests: u16,
    /// Bit mask of optional commands that the controller supports (ONCS).
    pub optional_commands: u16,
    /// The controller has a volatile write cache (VWC).
    pub volatile_write_cache: bool,
    /// Bit mask of supported SGL features (SGLS).
    pub sgl_support: u32,
    /// Maximum data in a command capsule in bytes (from IOCCSZ, without the command itself).
    pub in_capsule_bytes: u32,
}

impl ControllerData {
    /// Bit of [`Self::optional_commands`]: Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Bit of [`Self::optional_commands`]: Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Bit of [`Self::async_events`]: namespaces were added, removed or changed.
    pub const NAMESPACE_NOTICES: u32 = 1 << 8;
    /// Bit of [`Self::async_events`]: the access to namespaces has changed.
    pub const ANA_NOTICES: u32 = 1 << 11;
    /// Bit of [`Self::async_events`]: the discovery log has changed.
    pub const DISCOVERY_NOTICES: u32 = 1 << 31;

    /// Parses the Identify Controller structure (CNS 1), and checks the fields that fabrics
    /// require.
    ///
    /// # Errors
    /// When a field has a value that the specification forbids.
    pub fn parse(bytes: &[u8]) -> Result<Self, HostError> {
        check_length("controller", bytes)?;
        let (entry, kas, capsule, response, offset) = (
            (bytes[512], bytes[513]),
            u16_at(bytes, 320),
            u32_at(bytes, 1792),
            u32_at(bytes, 1796),
            u16_at(bytes, 1800),
        );
        let controller_type = bytes[111];
        // Discovery controllers have no I/O queues.
        if controller_type != 2 {
            if !(4..=1 << 20).contains(&capsule) {
                return Err(broken(format!("IOCCSZ is {capsule}")));
            }
            if response < 1 {
                return Err(broken(format!("IORCSZ is {response}")));
            }
            if entry != (0x66, 0x44) {
                return Err(broken(format!("SQES and CQES are {:#x} and {:#x}", entry.0, entry.1)));
            }
            if kas == 0 {
                return Err(broken("KAS is 0"));
            }
        }
        if offset != 0 {
            return Err(broken(format!("ICDOFF is {offset}")));
        }
        if u32_at(bytes, 536) & 3 == 0 {
            return Err(broken(format!("SGLS is {:#x}, without SGLs", u32_at(bytes, 536))));
        }
        if u16_at(bytes, 514) == 0 {
            return Err(broken("MAXCMD is 0"));
        }
        Ok(Self {
            serial_number: text_at(bytes, 4, 20),
            model_number: text_at(bytes, 24, 40),
            firmware_revision: text_at(bytes, 64, 8),
            subsystem: text_at(bytes, 768, 256),
            controller_id: u16_at(bytes, 78),
            version: u32_at(bytes, 80),
            controller_type,
            longest_transfer: bytes[77],
            keep_alive_granularity: kas,
            outstanding_commands: u16_at(bytes, 514),
            namespaces: u32_at(bytes, 516),
            async_events: u32_at(bytes, 92),
            async_event_requests: u16::from(bytes[259]) + 1,
            optional_commands: u16_at(bytes, 520),
            volatile_write_cache: bytes[525] & 1 != 0,
            sgl_support: u32_at(bytes, 536),
            in_capsule_bytes: capsule.saturating_sub(4) * CAPSULE_UNIT_BYTES,
        })
    }
}

/// Properties of a namespace, from the Identify Namespace structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceData {
    /// Size in blocks (NSZE).
    pub blocks: u64,
    /// Bytes of a logical block, from the LBA format in use.
    pub block_bytes: u32,
    /// The namespace is write-protected (NSATTR).
    pub write_protected: bool,
    /// Bit mask of the namespace's features (NSFEAT).
    pub features: u8,
    /// Globally unique identifier of 16 bytes (NGUID).
    pub guid: [u8; 16],
    /// Globally unique identifier of 8 bytes (EUI64).
    pub eui64: [u8; 8],
}

impl NamespaceData {
    /// Parses the Identify Namespace structure (CNS 0).
    ///
    /// # Errors
    /// When a field has a value that the specification forbids, or the format requires metadata.
    pub fn parse(bytes: &[u8]) -> Result<Self, HostError> {
        check_length("namespace", bytes)?;
        let (formats, format) = (bytes[25], bytes[26] & 15);
        if format > formats {
            return Err(broken(format!("FLBAS is {format} of NLBAF {formats}")));
        }
        let format = u32_at(bytes, 128 + 4 * usize::from(format));
        let (metadata, shift) = (format as u16, (format >> 16) as u8);
        let (size, capacity, used) = (u64_at(bytes, 0), u64_at(bytes, 8), u64_at(bytes, 16));
        if metadata != 0 {
            return Err(broken(format!("MS is {metadata}")));
        }
        // An inactive namespace has zeroes everywhere.
        if size > 0 && !(9..=24).contains(&shift) {
            return Err(broken(format!("LBADS is {shift}")));
        }
        if used > capacity || capacity > size {
            return Err(broken(format!("NSZE {size}, NCAP {capacity}, NUSE {used}")));
        }
        Ok(Self {
            blocks: size,
            block_bytes: 1 << shift,
            write_protected: bytes[99] & 1 != 0,
            features: bytes[24],
            guid: bytes[104..120].try_into().expect("16 bytes"),
            eui64: bytes[120..128].try_into().expect("8 bytes"),
        })
    }
}

/// Parses a list of namespace identifiers, which must ascend.
///
/// # Errors
/// When the identifiers do not ascend.
pub(super) fn parse_list(bytes: &[u8]) -> Result<Vec<u32>, HostError> {
    check_length("list", bytes)?;
    let ids: Vec<u32> = bytes.chunks_exact(4).map(|id| u32_at(id, 0)).collect();
    let used = ids.iter().position(|id| *id == 0).unwrap_or(ids.len());
    if ids[..used].windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(broken(format!("the list of namespaces is {:?}", &ids[..used])));
    }
    if let Some(stray) = ids[used..].iter().find(|id| **id != 0) {
        return Err(broken(format!("the list of namespaces has {stray} after its end")));
    }
    Ok(ids[..used].to_vec())
}

fn check_length(name: &str, bytes: &[u8]) -> Result<(), HostError> {
    match bytes.len() {
        STRUCTURE_BYTES => Ok(()),
        length => Err(broken(format!("a {name} structure has {length} bytes"))),
    }
}

/// NVMe qualified name of the discovery subsystem, which lists the others.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Bytes of the discovery log's header, and of each entry.
pub(super) const ENTRY_BYTES: usize = 1024;

/// Maximum number of discovery log entries that the host reads.
const ENTRIES_MAX: u64 = 4096;

/// A discovery log entry: one path to a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// Type of the transport (TRTYPE): 3 for TCP.
    pub transport: u8,
    /// Address family (ADRFAM): 1 for IPv4, 2 for IPv6.
    pub family: u8,
    /// Type of the subsystem (SUBTYPE): 1 refers to another discovery service, 2 has namespaces, 3
    /// is this service.
    pub subsystem_type: u8,
    /// Number of the port (PORTID).
    pub port_id: u16,
    /// Identifier of the controller (CNTLID): 0xFFFF when Connect creates the controller.
    pub controller_id: u16,
    /// Maximum size of the admin submission queue (ASQSZ).
    pub admin_entries: u16,
    /// Transport service, here the TCP port (TRSVCID).
    pub service: String,
    /// NVMe qualified name of the subsystem (SUBNQN).
    pub subsystem: String,
    /// Address of the path (TRADDR).
    pub address: String,
}

/// Parses the discovery log's header. Returns its generation and the number of entries.
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

/// Parses one entry of the discovery log.
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
