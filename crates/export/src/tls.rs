//! TLS for NBD: which certificates a server shows, and whose it asks for.
//!
//! A folder holds the files under the names that qemu, nbdkit and libnbd use: `server-cert.pem`,
//! `server-key.pem`, and to check clients `ca-cert.pem` and, when there is one, `ca-crl.pem`. TLS
//! 1.2 and 1.3 are spoken, as proto.md, "TLS versions", asks. What happens to the bytes of one
//! connection is in `channel`.

mod channel;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem};
use rustls::server::{ServerConfig, WebPkiClientVerifier};

pub(crate) use channel::Channel;

/// Whether connections are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Never.
    #[default]
    Off,
    /// When the client asks for it.
    On,
    /// Always: a client that does not ask for it gets nothing.
    Require,
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

/// The certificates of a server, and whether its clients must use them. Clones share them, also
/// when they are read again.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    folder: PathBuf,
    verify_peer: bool,
    /// Connections begin with it from now on; each keeps the one it has begun with.
    server: Arc<RwLock<Arc<ServerConfig>>>,
    required: bool,
}

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not what its name says.
    #[error("cannot use {} for TLS: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Certificate and key, each good by itself, make no server.
    #[error(
        "cannot use the server's certificate and key in {} for TLS: {source}",
        folder.display()
    )]
    Pair {
        /// Where they are.
        folder: PathBuf,
        /// What rustls said.
        source: rustls::Error,
    },
}

impl TlsConfig {
    /// Reads the certificates in `folder`. With `verify_peer` every client must show a certificate
    /// that `ca-cert.pem` has signed; with `required` nothing but the request for TLS is answered
    /// in the clear.
    ///
    /// # Errors
    /// When a file is missing, is not PEM, or does not fit the others.
    pub fn load(folder: &Path, verify_peer: bool, required: bool) -> Result<Self, TlsError> {
        let server = Arc::new(RwLock::new(read(folder, verify_peer)?));
        Ok(Self { folder: folder.to_owned(), verify_peer, server, required })
    }

    /// Reads the folder again, for connections that begin from now on.
    ///
    /// # Errors
    /// As of [`TlsConfig::load`]; all stays as it was.
    pub fn reload(&self) -> Result<(), TlsError> {
        let server = read(&self.folder, self.verify_peer)?;
        *self.server.write().unwrap_or_else(PoisonError::into_inner) = server;
        Ok(())
    }

    /// Whether a client must use TLS.
    pub fn required(&self) -> bool {
        self.required
    }

    /// A server's end of one connection, before its first byte.
    pub(crate) fn channel(&self) -> Channel {
        Channel::new(Arc::clone(&self.server.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The server's end of TLS, from the files in the folder.
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

/// The certificates that are no longer good; none when nobody keeps such a list.
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
        other => format!("it is no PEM file: {other}"),
    }
}
