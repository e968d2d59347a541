//! The addresses on which the admin interface listens, and what clients of each may do.

use std::io::{Read, Write};
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::setup::{AdminSetup, ServeError};
use crate::admin::{Access, AdminAddress, AllowedPaths, NetworkRules, name_in};
use crate::socket_file::{BACKLOG, Permitted, SocketFile, listen_on};
use crate::tls::TlsConfig;
use floe_device::patiently;

/// The time in which a server that lives answers whether it is well.
const ANSWER: Duration = Duration::from_secs(1);

/// A listening socket of the admin interface.
#[derive(Debug)]
pub(super) struct AdminListener {
    pub(super) socket: Rc<OwnedFd>,
    /// The address, with the bound port.
    pub(super) address: AdminAddress,
    pub(super) access: Arc<Access>,
    _file: Option<SocketFile>,
}

impl AdminListener {
    /// Begins to listen.
    ///
    /// # Errors
    /// When the address cannot be bound or may not be.
    pub(super) fn bind(
        address: &AdminAddress,
        config: &AdminSetup,
        tls: Option<&TlsConfig>,
        insecure: bool,
    ) -> Result<Self, ServeError> {
        match address {
            AdminAddress::Unix(path) => Self::on_socket(address, path, config),
            AdminAddress::Tcp(text) => Self::on_tcp(text, config, tls, insecure),
        }
    }

    /// Begins to listen on the default socket, where the server shall have it beside its addresses.
    ///
    /// # Errors
    /// The reason for which it does without.
    pub(super) fn beside(config: &AdminSetup) -> Result<Option<Self>, String> {
        let Some(address) = &config.beside else { return Ok(None) };
        let AdminAddress::Unix(path) = address else { return Ok(None) };
        if is_served(path) {
            return Err(format!("another program serves {address}"));
        }
        let listener = Self::on_socket(address, path, config);
        listener.map(Some).map_err(|error| error.to_string())
    }

    fn on_socket(
        address: &AdminAddress,
        path: &Path,
        config: &AdminSetup,
    ) -> Result<Self, ServeError> {
        if let Some(folder) =
            path.parent().filter(|folder| address.is_default() && !folder.exists())
        {
            // Every permitted user has to reach the socket, also with a strict umask. A readable
            // folder does no harm.
            let made = std::fs::create_dir(folder)
                .and_then(|()| std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)));
            made.map_err(|source| ServeError::Admin { address: address.to_string(), source })?;
        }
        let permitted = config.group.map_or(Permitted::Nobody, Permitted::Group);
        let (socket, file) = listen_on(path, permitted)
            .map_err(|source| ServeError::AdminSocket { address: address.to_string(), source })?;
        // Without a group, only users that can open all of the server's files may connect.
        let paths = match (&config.paths, config.group) {
            (None, None) => AllowedPaths::All,
            _ => config.limited(),
        };
        let page = config.page.clone();
        let access = Arc::new(Access { network: None, page, paths });
        Ok(Self { socket: Rc::new(socket), address: address.clone(), access, _file: Some(file) })
    }

    fn on_tcp(
        text: &str,
        config: &AdminSetup,
        tls: Option<&TlsConfig>,
        insecure: bool,
    ) -> Result<Self, ServeError> {
        let refused = |source| ServeError::Admin { address: text.to_owned(), source };
        let addresses: Vec<_> = text.to_socket_addrs().map_err(refused)?.collect();
        // A client shows its certificate in TLS only.
        let encrypted_only = tls.is_some_and(TlsConfig::verifies_peers)
            || !insecure && addresses.iter().any(|address| !address.ip().is_loopback());
        if encrypted_only && !tls.is_some_and(TlsConfig::required) {
            return Err(ServeError::AdminExposed { address: text.to_owned() });
        }
        let in_use = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
        let listener = patiently(|| TcpListener::bind(&addresses[..]), in_use).map_err(refused)?;
        // A queue as long as that of a Unix socket: a crowd must not keep later clients out.
        rustix::net::listen(&listener, BACKLOG).map_err(|error| refused(error.into()))?;
        let bound = listener.local_addr().map_err(refused)?;
        let own_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let hosts =
            [name_in(text).to_owned(), own_name].into_iter().chain(config.hosts.iter().cloned());
        let network =
            NetworkRules { hosts: hosts.collect(), token: config.token.clone(), encrypted_only };
        let page = config.page.clone();
        let access = Arc::new(Access { network: Some(network), page, paths: config.limited() });
        let address = AdminAddress::Tcp(bound.to_string());
        Ok(Self { socket: Rc::new(listener.into()), address, access, _file: None })
    }
}

/// Returns whether a server answers on a socket. One that was just killed does not, though its
/// socket may be there for a moment: that is worth waiting for.
fn is_served(path: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        stream.read(&mut [0; 1])
    };
    ask().is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use floe_testkit::certificates;

    use super::*;

    #[test]
    fn other_machines_are_kept_out_unless_they_encrypt_or_are_asked_in() {
        let folder = certificates();
        let tls = |required| TlsConfig::load(folder.path(), false, required).unwrap();
        let bind = |tls: Option<&TlsConfig>, insecure| {
            AdminListener::bind(
                &AdminAddress::Tcp("0.0.0.0:0".into()),
                &AdminSetup::default(),
                tls,
                insecure,
            )
            .map(|listener| listener.access.encrypted_only())
            .map_err(|error| error.to_string())
        };
        for refused in [bind(None, false), bind(Some(&tls(false)), false)] {
            assert!(refused.unwrap_err().contains("without encryption"));
        }
        assert_eq!(bind(Some(&tls(true)), false), Ok(true));
        assert_eq!(bind(Some(&tls(true)), true), Ok(false));
        assert_eq!(bind(None, true), Ok(false));
        // A client that must show a certificate must encrypt, wherever it comes from.
        let verified = TlsConfig::load(folder.path(), true, false).unwrap();
        let address = AdminAddress::Tcp("127.0.0.1:0".into());
        let setup = AdminSetup::default();
        let listener = AdminListener::bind(&address, &setup, Some(&verified), true).unwrap();
        assert!(verified.required() && listener.access.encrypted_only());
    }
}
