//! The addresses and sockets on which the server listens for data clients, each with its protocol.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::{fmt, io};

use floe_device::patiently;
use floe_nbd::uri::{self, Address, Problem, Uri, UriError};
use floe_nvme::target::subsystem::Subsystem;
use floe_nvme::wire::PORT as NVME_PORT;

use crate::protocol::{Nbd, NvmeTcp, ProtocolFactory};
use crate::socket_file::{Permitted, SocketError, SocketFile, listen_on};
use crate::tls::TlsConfig;
use crate::volume_clients::VolumeClients;

/// An error while listening on an address.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be bound.
    #[error("cannot listen on {uri}: {source}")]
    Bind {
        /// URI or address of the listener.
        uri: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The Unix socket cannot be bound.
    #[error("cannot listen on {uri}: {source}")]
    Socket {
        /// URI of the listener.
        uri: String,
        /// The problem with the socket.
        source: SocketError,
    },
    /// Other machines can reach the address, and neither encryption nor `insecure` is configured.
    #[error(
        "{uri} can be reached from other machines without encryption; listen on 127.0.0.1, give \
         --tls require, or --insecure if the network is trusted"
    )]
    Exposed {
        /// URI of the listener.
        uri: String,
    },
    /// Other machines can reach the NVMe address, and hosts need not prove their names.
    #[error(
        "{address} can be reached from other machines, and hosts need no secret; listen on \
         127.0.0.1, give --nvme-secrets-file, or --insecure if the network is trusted"
    )]
    ExposedNvme {
        /// Address of the listener.
        address: String,
    },
    /// The URI requires TLS, but the server is configured without it.
    #[error(
        "cannot listen on {uri} without TLS, which it promises: give --tls require and \
         --tls-certificates DIR"
    )]
    NoTls {
        /// URI of the listener.
        uri: String,
    },
    /// The URI names an export, although the server offers all its volumes by name.
    #[error("{uri} names an export; the volume's name is set by --volume")]
    NamesExport {
        /// URI of the listener.
        uri: String,
    },
}

impl ListenError {
    fn is_in_use(&self) -> bool {
        match self {
            Self::Bind { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
            // Binding a Unix socket has waited already.
            Self::Socket { .. }
            | Self::Exposed { .. }
            | Self::ExposedNvme { .. }
            | Self::NoTls { .. }
            | Self::NamesExport { .. } => false,
        }
    }
}

/// A listening socket for data clients. Dropping it removes the file of a Unix socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: Rc<OwnedFd>,
    /// The address that clients connect to, with the port that was bound.
    pub(crate) address: ListenAddress,
    /// Creates the protocol state of each client that connects here.
    pub(crate) protocol: Arc<dyn ProtocolFactory>,
    _file: Option<SocketFile>,
}

impl Listener {
    /// Listens on an address. If it is in use, this retries for a moment, because a killed program
    /// may still hold it.
    pub(crate) fn bind(
        address: &ListenAddress,
        tls: Option<&TlsConfig>,
        insecure: bool,
        subsystem: &Arc<Subsystem>,
        clients: &VolumeClients,
    ) -> Result<Self, ListenError> {
        let attempt = || match address {
            ListenAddress::Nbd(uri) => Self::for_nbd(uri, tls, insecure, clients),
            ListenAddress::NvmeTcp(address) => Self::for_nvme(address, insecure, subsystem),
        };
        patiently(attempt, ListenError::is_in_use)
    }

    /// Creates a listener for NVMe over TCP on the socket of another listener.
    pub(crate) fn copy(
        socket: Rc<OwnedFd>,
        address: ListenAddress,
        subsystem: &Arc<Subsystem>,
    ) -> Self {
        let protocol = Arc::new(NvmeTcp::new(Arc::clone(subsystem)));
        Self { socket, address, protocol, _file: None }
    }

    /// Returns the bound address of an NVMe over TCP listener; `None` for NBD.
    pub(crate) fn nvme_address(&self) -> Option<SocketAddr> {
        let ListenAddress::NvmeTcp(_) = self.address else { return None };
        rustix::net::getsockname(&*self.socket).ok()?.try_into().ok()
    }

    fn for_nvme(
        address: &NvmeAddress,
        insecure: bool,
        subsystem: &Arc<Subsystem>,
    ) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind { uri: address.to_string(), source };
        let NvmeAddress { host, port } = address;
        let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs().map_err(failed)?.collect();
        let is_open = !insecure && !subsystem.asks_for_proof();
        if is_open && addresses.iter().any(|address| !address.ip().is_loopback()) {
            return Err(ListenError::ExposedNvme { address: address.to_string() });
        }
        let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        Ok(Self {
            socket: Rc::new(listener.into()),
            address: ListenAddress::NvmeTcp(NvmeAddress { host: host.clone(), port }),
            protocol: Arc::new(NvmeTcp::new(Arc::clone(subsystem))),
            _file: None,
        })
    }

    fn for_nbd(
        uri: &Uri,
        tls: Option<&TlsConfig>,
        insecure: bool,
        clients: &VolumeClients,
    ) -> Result<Self, ListenError> {
        let encrypted = tls.is_some_and(TlsConfig::required);
        if uri.tls && !encrypted {
            return Err(ListenError::NoTls { uri: uri.to_string() });
        }
        if !uri.export.is_empty() {
            return Err(ListenError::NamesExport { uri: uri.to_string() });
        }
        let failed = |source| ListenError::Bind { uri: uri.to_string(), source };
        match &uri.address {
            Address::Tcp { host, port } => {
                let addresses: Vec<_> =
                    (host.as_str(), *port).to_socket_addrs().map_err(failed)?.collect();
                if !insecure
                    && !encrypted
                    && addresses.iter().any(|address| !address.ip().is_loopback())
                {
                    return Err(ListenError::Exposed { uri: uri.to_string() });
                }
                let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
                let port = listener.local_addr().map_err(failed)?.port();
                let address = Address::Tcp { host: host.clone(), port };
                let uri = Uri { address, tls: encrypted, ..uri.clone() };
                Ok(Self {
                    socket: Rc::new(listener.into()),
                    address: ListenAddress::Nbd(uri),
                    protocol: Arc::new(Nbd::new(clients)),
                    _file: None,
                })
            }
            Address::Unix(path) => {
                let failed = |source| ListenError::Socket { uri: uri.to_string(), source };
                let (socket, file) = listen_on(path, Permitted::ByUmask).map_err(failed)?;
                let uri = Uri { tls: encrypted, ..uri.clone() };
                Ok(Self {
                    socket: Rc::new(socket),
                    address: ListenAddress::Nbd(uri),
                    protocol: Arc::new(Nbd::new(clients)),
                    _file: Some(file),
                })
            }
        }
    }
}

/// The scheme of NVMe over TCP addresses.
const NVME_SCHEME: &str = "nvme-tcp://";

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A URI for NBD clients.
    Nbd(Uri),
    /// An address for NVMe over TCP hosts.
    NvmeTcp(NvmeAddress),
}

/// An address of the form `nvme-tcp://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmeAddress {
    /// Host name, IPv4 address or IPv6 address (without brackets).
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// An error while parsing an address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListenAddressError {
    /// The text is no valid NBD URI.
    #[error(transparent)]
    Nbd(#[from] UriError),
    /// The text is no valid address of NVMe over TCP.
    #[error("{text:?} is not a usable address: {problem}; write nvme-tcp://HOST:PORT")]
    Nvme {
        /// The text that was parsed.
        text: String,
        /// The problem with the text.
        problem: String,
    },
}

impl ListenAddress {
    /// Returns whether clients of the address speak NVMe over TCP.
    pub(crate) fn is_nvme(&self) -> bool {
        matches!(self, Self::NvmeTcp(_))
    }

    /// Returns the path of a Unix socket; `None` for other addresses.
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
    use std::collections::BTreeMap;
    use std::sync::RwLock;

    use floe_nvme::target::access::AccessRules;

    use super::*;

    fn bind(uri: &str) -> Result<Listener, ListenError> {
        bind_with(uri, None, false)
    }

    fn bind_with(
        uri: &str,
        tls: Option<&TlsConfig>,
        insecure: bool,
    ) -> Result<Listener, ListenError> {
        let subsystem = Arc::new(Subsystem::new("nqn.2026-11.io.example:a", "1").unwrap());
        Listener::bind(&uri.parse().unwrap(), tls, insecure, &subsystem, &VolumeClients::default())
    }

    #[test]
    fn the_uri_to_connect_to_has_the_bound_port() {
        let listener = bind("nbd://127.0.0.1:0").unwrap();
        let ListenAddress::Nbd(Uri { address: Address::Tcp { port, .. }, .. }) = listener.address
        else {
            panic!("{:?}", listener.address)
        };
        assert_ne!(port, 0);
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    #[test]
    fn an_address_in_use_is_tried_again_and_nothing_else_is() {
        let mut tries = 0;
        let mut attempt = |fails: &'static str| {
            tries += 1;
            if tries % 3 == 0 { Ok(tries) } else { Err(fails) }
        };
        assert_eq!(patiently(|| attempt("in use"), |error| *error == "in use"), Ok(3));
        assert_eq!(
            patiently(|| attempt("no such host"), |error| *error == "in use"),
            Err("no such host")
        );
    }

    #[test]
    fn other_machines_are_kept_out_unless_they_are_asked_in() {
        let error = bind("nbd://0.0.0.0:0").unwrap_err().to_string();
        assert!(
            error.starts_with("nbd://0.0.0.0:0/ can be reached from other machines"),
            "{error}"
        );
        assert!(bind_with("nbd://0.0.0.0:0", None, true).is_ok());
        // TLS of NBD does not protect it.
        let error = bind_with("nvme-tcp://0.0.0.0:0", Some(&tls(true)), false).unwrap_err();
        assert!(matches!(error, ListenError::ExposedNvme { .. }), "{error}");
        assert!(bind_with("nvme-tcp://0.0.0.0:0", None, true).is_ok());
        let rules = AccessRules::default().with_secrets(BTreeMap::new(), |_| true);
        let subsystem = Subsystem::new("nqn.2026-11.io.example:a", "1").unwrap();
        let subsystem = Arc::new(subsystem.with_access(Arc::new(RwLock::new(rules))));
        let address = "nvme-tcp://0.0.0.0:0".parse().unwrap();
        let clients = VolumeClients::default();
        let bound = Listener::bind(&address, None, false, &subsystem, &clients);
        assert!(bound.is_ok(), "hosts need secrets");
    }

    #[test]
    fn what_promises_tls_is_not_served_without() {
        let error = bind("nbds://127.0.0.1:0").unwrap_err().to_string();
        assert!(error.contains("--tls require"), "{error}");
        let encrypted = bind_with("nbds://0.0.0.0:0", Some(&tls(true)), false).unwrap();
        let address = encrypted.address.to_string();
        assert!(address.starts_with("nbds://0.0.0.0:"), "{address}");
        let error = bind_with("nbd://0.0.0.0:0", Some(&tls(false)), false).unwrap_err();
        assert!(
            matches!(error, ListenError::Exposed { .. }),
            "a client may still do without: {error}"
        );
    }

    fn tls(required: bool) -> TlsConfig {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("server-cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("server-key.pem"), made.signing_key.serialize_pem())
            .unwrap();
        TlsConfig::load(folder.path(), false, required).unwrap()
    }

    #[test]
    fn a_socket_that_is_served_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("floe.sock");
        let uri = format!("nbd+unix:///?socket={}", path.display());
        let listener = bind(&uri).unwrap();
        assert!(bind(&uri).unwrap_err().to_string().contains("another program serves"));
        drop(listener);
        assert!(!path.exists());
    }
}

#[cfg(test)]
mod address_tests {
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
