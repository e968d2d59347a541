//! Certificates for tests of TLS.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A folder with the certificates of a server on localhost, and of a client, of one authority.
pub fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let keep = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate for its own issuer if both have one name.
    params.distinguished_name.push(DnType::CommonName, "authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    keep("ca-cert.pem", authority.pem());
    for who in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate =
            CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        keep(&format!("{who}-cert.pem"), certificate.pem());
        keep(&format!("{who}-key.pem"), key.serialize_pem());
    }
    folder
}
