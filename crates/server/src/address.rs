//! The addresses on which the server listens for clients, each with its protocol.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use floe_nbd::uri::{self, Address, Problem, Uri, UriError};
use floe_nvme::wire::PORT as NVME_PORT;

/// The scheme of NVMe over TCP.
const NVME_SCHEME: &str = "nvme-tcp://";

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// For clients that speak NBD.
    Nbd(Uri),
    /// For hosts that speak NVMe over TCP.
    NvmeTcp(NvmeAddress),
}

/// An address of NVMe over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmeAddress {
    /// Name, IPv4 address or IPv6 address (without brackets).
    pub host: String,
    /// Port.
    pub port: u16,
}

/// A text that is no address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenAddressError {
    /// It is no NBD URI.
    #[error(transparent)]
    Nbd(#[from] UriError),
    /// It is no address of NVMe over TCP.
    #[error("{text:?} is not a usable address: {problem}; write nvme-tcp://HOST:PORT")]
    Nvme {
        /// The text.
        text: String,
        /// The problem found.
        problem: String,
    },
}

impl ListenAddress {
    /// Returns whether its clients speak NVMe over TCP.
    pub(crate) fn is_nvme(&self) -> bool {
        matches!(self, Self::NvmeTcp(_))
    }

    /// Returns the Unix socket that it is.
    pub(crate) fn socket(&self) -> Option<&Path> {
        match self {
            Self::Nbd(Uri { address: Address::Unix(path), .. }) => Some(path),
            _ => None,
        }
    }
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        let Some(rest) = text.strip_prefix(NVME_SCHEME) else {
            return Ok(Self::Nbd(text.parse()?));
        };
        let failed = |problem: String| ListenAddressError::Nvme { text: text.to_owned(), problem };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) =
            uri::authority(authority).map_err(|problem: Problem| failed(problem.to_string()))?;
        Ok(Self::NvmeTcp(NvmeAddress { host, port: port.unwrap_or(NVME_PORT) }))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nbd(uri) => uri.fmt(f),
            Self::NvmeTcp(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for NvmeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "{NVME_SCHEME}[{host}]:{port}")
        } else {
            write!(f, "{NVME_SCHEME}{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_protocol() {
        for (text, shown) in [
            ("nvme-tcp://127.0.0.1:4420", "nvme-tcp://127.0.0.1:4420"),
            ("nvme-tcp://127.0.0.1/", "nvme-tcp://127.0.0.1:4420"),
            ("nvme-tcp://[::1]:8009", "nvme-tcp://[::1]:8009"),
            ("nbd://127.0.0.1", "nbd://127.0.0.1/"),
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), shown);
        }
        for bad in ["nvme-tcp://", "nvme-tcp://h:x", "nvme-tcp://h/disk", "nvme://h", "h:4420"] {
            assert!(bad.parse::<ListenAddress>().is_err(), "{bad}");
        }
    }
}
