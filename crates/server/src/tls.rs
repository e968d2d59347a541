//! TLS for NBD: loads the certificates of a server and the authorities that sign its clients'
//! certificates.
//!
//! A folder holds the files under the names that qemu, nbdkit and libnbd use: `server-cert.pem`,
//! `server-key.pem`, and to check clients `ca-cert.pem` and, when there is one, `ca-crl.pem`. The
//! server speaks TLS 1.2 and 1.3, as NBD's proto.md, "TLS versions", requires. `Channel`
//! processes the bytes of one connection.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem};
use rustls::server::{ServerConfig, ServerConnection, WebPkiClientVerifier};

/// Names of the files that a TLS folder may contain.
pub(crate) const FILES: [&str; 4] =
    ["server-cert.pem", "server-key.pem", "ca-cert.pem", "ca-crl.pem"];

/// The encryption of client connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Connections are never encrypted.
    #[default]
    Off,
    /// Connections are encrypted if the client asks for it, and always if clients must show a
    /// certificate.
    On,
    /// Connections are always encrypted: a client without TLS gets no export.
    Require,
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Require => "require",
        })
    }
}

impl FromStr for TlsMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            "require" => Ok(Self::Require),
            _ => Err(format!("{text:?} is none of off, on, require")),
        }
    }
}

/// The certificates of a server, which all clones share, also after a reload.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    folder: PathBuf,
    verify_peer: bool,
    /// Configuration for new connections. A connection keeps the one that it began with.
    server: Arc<RwLock<Arc<ServerConfig>>>,
    required: bool,
}

/// An error while loading the TLS files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or its content does not match its name.
    #[error("cannot use {} for TLS: {problem}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The problem with the file.
        problem: String,
    },
    /// Certificate and key are each valid, but do not belong together.
    #[error(
        "cannot use the server's certificate and key in {} for TLS: {source}",
        folder.display()
    )]
    Pair {
        /// Folder of the files.
        folder: PathBuf,
        /// The error of rustls.
        source: rustls::Error,
    },
}

impl TlsConfig {
    /// Reads the certificates in `folder`. With `verify_peer` every client must show a certificate
    /// that `ca-cert.pem` has signed. With `required` or `verify_peer` the server answers nothing
    /// in plaintext but the request for TLS, because a client shows its certificate only in TLS.
    ///
    /// # Errors
    /// When a file is missing, is not PEM, or does not match the others.
    pub fn load(folder: &Path, verify_peer: bool, required: bool) -> Result<Self, TlsError> {
        let server = Arc::new(RwLock::new(read(folder, verify_peer)?));
        let required = required || verify_peer;
        Ok(Self { folder: folder.to_owned(), verify_peer, server, required })
    }

    /// Reads the certificates again, for new connections.
    ///
    /// # Errors
    /// As [`TlsConfig::load`]; the old certificates stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let server = read(&self.folder, self.verify_peer)?;
        *self.server.write().unwrap_or_else(PoisonError::into_inner) = server;
        Ok(())
    }

    /// Returns whether a client must use TLS.
    pub fn required(&self) -> bool {
        self.required
    }

    /// Returns whether a client must show a certificate.
    pub(crate) fn verifies_peers(&self) -> bool {
        self.verify_peer
    }

    /// Creates the server's end of a new connection.
    pub(crate) fn channel(&self) -> Channel {
        Channel::new(Arc::clone(&self.server.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Creates the TLS configuration from the files in the folder.
fn read(folder: &Path, verify_peer: bool) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&folder.join("server-cert.pem"))?;
    let key_path = folder.join("server-key.pem");
    let key = PrivateKeyDer::from_pem_file(&key_path)
        .map_err(|error| unusable(&key_path, pem_problem(&error, "private key")))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3");
    let builder = if verify_peer {
        let path = folder.join("ca-cert.pem");
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&path)? {
            roots.add(certificate).map_err(|error| unusable(&path, error.to_string()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .with_crls(revocations(&folder.join("ca-crl.pem"))?)
            .build()
            .map_err(|error| unusable(&path, error.to_string()))?;
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let server = builder
        .with_single_cert(chain, key)
        .map_err(|source| TlsError::Pair { folder: folder.to_owned(), source })?;
    Ok(Arc::new(server))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(unusable(path, "it holds no certificate".into()))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unusable(path, pem_problem(&error, "certificate"))),
    }
}

/// Reads the revocation list; empty if there is no such file.
fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    CertificateRevocationListDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(path, pem_problem(&error, "revocation list")))
}

fn unusable(path: &Path, problem: String) -> TlsError {
    TlsError::File { path: path.to_owned(), problem }
}

fn pem_problem(error: &pem::Error, what: &str) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => format!("it holds no {what}"),
        other => format!("it is not a PEM file: {other}"),
    }
}

/// Maximum number of bytes given to rustls at once. It keeps at most 16 KiB of plaintext, and
/// accepts no more bytes until that is read.
const FEED_BYTES: usize = 4 << 10;

/// The server's end of one encrypted connection.
///
/// Bytes from the socket go into `Channel::received` and come out of `Channel::read`. Bytes to send
/// go into `Channel::write` and come out of `Channel::take`. rustls decrypts record by record.
///
/// Invariants: unread bytes are at most those of one receive, and the plaintext of one record or a
/// few more. Unsent bytes are those given to `Channel::write` since the last `Channel::take`, and
/// handshake messages.
pub(crate) struct Channel {
    tls: ServerConnection,
    /// Received bytes that rustls has not taken yet.
    encrypted: Vec<u8>,
    fed: usize,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("waiting_bytes", &(self.encrypted.len() - self.fed))
            .finish_non_exhaustive()
    }
}

impl Channel {
    fn new(config: Arc<ServerConfig>) -> Self {
        let mut tls = ServerConnection::new(config).expect("a server's configuration is complete");
        tls.set_buffer_limit(None); // the session writes a bounded piece at a time
        Self { tls, encrypted: Vec::new(), fed: 0 }
    }

    /// Adds bytes received from the socket, once [`Channel::read`] has returned all earlier ones.
    pub(crate) fn received(&mut self, bytes: usize, copy: impl FnOnce(&mut [u8])) {
        debug_assert_eq!(self.fed, self.encrypted.len(), "all that came before is read");
        self.fed = 0;
        self.encrypted.clear();
        self.encrypted.resize(bytes, 0);
        copy(&mut self.encrypted);
    }

    /// Appends decrypted bytes to `plain`, one record or a few more at a time; none if more must be
    /// received.
    ///
    /// # Errors
    /// When the client violated TLS, or closed it: [`io::ErrorKind::UnexpectedEof`]. An alert may
    /// wait to be sent.
    pub(crate) fn read(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            let ready = state.plaintext_bytes_to_read();
            if ready > 0 {
                let begun = plain.len();
                plain.resize(begun + ready, 0);
                return self.tls.reader().read_exact(&mut plain[begun..]);
            }
            if state.peer_has_closed() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let end = self.encrypted.len().min(self.fed + FEED_BYTES);
            let mut more = &self.encrypted[self.fed..end];
            if more.is_empty() {
                self.encrypted.clear();
                self.encrypted.shrink_to(FEED_BYTES); // an idle client holds no more
                self.fed = 0;
                return Ok(());
            }
            self.fed += self.tls.read_tls(&mut more)?;
        }
    }

    /// Encrypts bytes to be sent.
    pub(crate) fn write(&mut self, plain: &[u8]) {
        self.tls.writer().write_all(plain).expect("rustls has no limit set, and writes to memory");
    }

    /// Returns whether bytes wait to be sent.
    pub(crate) fn wants_send(&self) -> bool {
        self.tls.wants_write()
    }

    /// Appends all encrypted bytes that wait to be sent.
    pub(crate) fn take(&mut self, encrypted: &mut Vec<u8>) {
        while self.tls.wants_write() {
            self.tls.write_tls(encrypted).expect("memory takes all");
        }
    }

    /// Queues the close notification; nothing may be written afterwards.
    pub(crate) fn close(&mut self) {
        self.tls.send_close_notify();
    }
}
