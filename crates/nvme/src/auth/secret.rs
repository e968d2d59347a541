//! Secrets of hosts and controllers, in the form that `nvme gen-dhchap-key` writes.
//!
//! `DHHC-1:01:BASE64:` has the hash function by which the secret is transformed (00 for none), and
//! the secret with a CRC-32 behind it.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::hash::Hash;

/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 4;

/// A secret that two sides share.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    /// The function that makes the key of a name out of it; the secret itself is the key without.
    transformation: Option<Hash>,
}

/// A text that is no secret. It is not repeated, because it may nearly be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It has another form.
    #[error("a secret has the form DHHC-1:HH:BASE64: as nvme gen-dhchap-key prints it")]
    Form,
    /// The length is not allowed.
    #[error("a secret has 32, 48 or 64 bytes, not {0}")]
    Length(usize),
    /// The checksum differs.
    #[error("the checksum of the secret is wrong: some character of it has changed")]
    Checksum,
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let fields = text.strip_prefix("DHHC-1:").and_then(|rest| rest.split_once(':'));
        let (hash, secret) = fields.ok_or(SecretError::Form)?;
        let transformation = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Form),
        };
        let secret = secret.strip_suffix(':').unwrap_or(secret);
        let mut key = BASE64.decode(secret).map_err(|_| SecretError::Form)?;
        let length = key.len().saturating_sub(CHECKSUM_BYTES);
        if ![32, 48, 64].contains(&length) {
            return Err(SecretError::Length(length));
        }
        let told = key.split_off(length);
        if told != checksum(&key) {
            return Err(SecretError::Checksum);
        }
        Ok(Self { key, transformation })
    }
}

impl Secret {
    /// Makes a secret out of 32, 48 or 64 bytes.
    ///
    /// # Errors
    /// When it has another length.
    pub fn new(key: &[u8], transformation: Option<Hash>) -> Result<Self, SecretError> {
        match key.len() {
            32 | 48 | 64 => Ok(Self { key: key.to_vec(), transformation }),
            length => Err(SecretError::Length(length)),
        }
    }

    /// Returns the form that is written.
    pub fn to_text(&self) -> String {
        let number = match self.transformation {
            None => 0,
            Some(Hash::Sha256) => 1,
            Some(Hash::Sha384) => 2,
            Some(Hash::Sha512) => 3,
        };
        let bytes = [&self.key[..], &checksum(&self.key)].concat();
        format!("DHHC-1:{number:02}:{}:", BASE64.encode(bytes))
    }

    /// Returns the key for the side with this name.
    pub(crate) fn key_of(&self, nqn: &str) -> Vec<u8> {
        match self.transformation {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

/// A secret is not shown.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("transformation", &self.transformation)
            .finish_non_exhaustive()
    }
}

fn checksum(key: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, key);
    (checksum as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `nvme gen-dhchap-key`.
    const MADE: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn a_secret_of_nvme_cli_is_read_and_written() {
        let secret: Secret = MADE.parse().unwrap();
        assert_eq!(secret.to_text(), MADE);
        let bytes: Vec<u8> = (0..32).collect();
        assert_eq!(secret, Secret::new(&bytes, None).unwrap());
        assert_eq!(secret.key_of("nqn.2026-11.io.example:h"), bytes);
        assert!(!format!("{secret:?}").contains("key"));
    }

    #[test]
    fn every_length_and_transformation_is_read() {
        for length in [32, 48, 64] {
            for hash in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
                let secret = Secret::new(&vec![0x5c; length], hash).unwrap();
                assert_eq!(secret.to_text().parse(), Ok(secret.clone()));
                let (one, two) = (secret.key_of("one"), secret.key_of("two"));
                assert_eq!(one.len(), hash.map_or(length, Hash::bytes));
                assert_eq!(one == two, hash.is_none(), "the key depends on the name");
            }
        }
    }

    #[test]
    fn texts_that_are_no_secrets_are_refused() {
        let short = format!("DHHC-1:00:{}:", BASE64.encode([7; 20]));
        let changed = MADE.replacen("AAEC", "AAED", 1);
        for (text, error) in [
            ("", SecretError::Form),
            ("secret", SecretError::Form),
            ("DHHC-1:04:AAEC:", SecretError::Form),
            ("DHHC-1:00", SecretError::Form),
            ("DHHC-1:00:%%%%:", SecretError::Form),
            (short.as_str(), SecretError::Length(16)),
            (changed.as_str(), SecretError::Checksum),
        ] {
            assert_eq!(text.parse::<Secret>(), Err(error), "{text}");
        }
    }
}
