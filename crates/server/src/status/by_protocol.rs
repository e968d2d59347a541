//! Clients counted by the protocol that they speak.

use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::protocol::ProtocolName;

/// Numbers of clients, by their protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByProtocol {
    /// Clients that speak NBD.
    pub nbd: u64,
    /// Clients that speak NVMe over TCP.
    pub nvme_tcp: u64,
}

impl ByProtocol {
    /// Counts one client more.
    pub(crate) fn count(&mut self, protocol: ProtocolName) {
        match protocol {
            ProtocolName::Nbd => self.nbd += 1,
            ProtocolName::NvmeTcp => self.nvme_tcp += 1,
        }
    }

    /// Returns the number of clients of all protocols.
    pub fn total(&self) -> u64 {
        self.nbd + self.nvme_tcp
    }
}

impl AddAssign<&Self> for ByProtocol {
    fn add_assign(&mut self, other: &Self) {
        self.nbd += other.nbd;
        self.nvme_tcp += other.nvme_tcp;
    }
}

/// The protocols that clients speak, each with the number of clients; `0` without clients.
impl fmt::Display for ByProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [(self.nbd, "nbd"), (self.nvme_tcp, "nvme-tcp")];
        let present = counts.iter().filter(|(count, _)| *count > 0);
        let texts: Vec<String> = present.map(|(count, name)| format!("{count} {name}")).collect();
        f.write_str(if texts.is_empty() { "0" } else { "" })?;
        f.write_str(&texts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_without_clients_are_not_named() {
        for (nbd, nvme_tcp, shown) in
            [(0, 0, "0"), (2, 0, "2 nbd"), (0, 1, "1 nvme-tcp"), (1, 3, "1 nbd, 3 nvme-tcp")]
        {
            assert_eq!(ByProtocol { nbd, nvme_tcp }.to_string(), shown);
        }
    }
}
