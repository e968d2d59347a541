//! Hash functions, and message authentication codes made from them.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// A hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// Returns the length of its results in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Returns the hash of some data.
    pub(crate) fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha384 => Sha384::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        }
    }

    /// Returns the HMAC of data that is in parts.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        fn code<M: Mac + hmac::digest::KeyInit>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
            let mac = <M as Mac>::new_from_slice(key).expect("a key may have any length");
            parts
                .iter()
                .fold(mac, |mac, part| mac.chain_update(part))
                .finalize()
                .into_bytes()
                .to_vec()
        }
        match self {
            Self::Sha256 => code::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => code::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => code::<Hmac<Sha512>>(key, parts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2.
    #[test]
    fn codes_are_those_of_the_standard() {
        for (hash, begin) in [
            (Hash::Sha256, [0x5b, 0xdc, 0xc1, 0x46]),
            (Hash::Sha384, [0xaf, 0x45, 0xd2, 0xe3]),
            (Hash::Sha512, [0x16, 0x4b, 0x7a, 0x7b]),
        ] {
            let code = hash.hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"]);
            assert_eq!((code.len(), &code[..4]), (hash.bytes(), &begin[..]));
            assert_eq!(hash.digest(b"").len(), hash.bytes());
        }
    }
}
