//! The arithmetic of DH-HMAC-CHAP: secrets, hashes and Diffie-Hellman groups.
//! [`target`](crate::target) has the messages.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// A source of random numbers: fills a buffer with unpredictable bytes. Returns false when none are
/// available.
pub type Random = fn(&mut [u8]) -> bool;

/// A hash function of DH-HMAC-CHAP.
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
    /// Returns the length of the hash in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Returns the hash of some data.
    pub fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha384 => Sha384::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        }
    }

    /// Returns the HMAC of the concatenated `parts`.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
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

/// The digits of floor(2^8062 e), in hexadecimal. RFC 7919 derives the primes of its groups from
/// *e*.
const DIGITS_OF_E: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363\
    630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935\
    984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94b\
    b2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ec\
    c03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef183\
    7d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c907\
    7ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e\
    71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef\
    3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6ac7d5f42d69f6d187763cf1d\
    5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c46dc778f971ad0038\
    092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851\
    f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
    917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7\
    a9a96910b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4\
    763e4e4b94b2bbc194c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b\
    462d538cd72b03746ae77f5e62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403\
    ec9d1810c6272b045b3b71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329c\
    cff46aaa36ad004cf600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef\
    86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd70229388839d2af05e454504ac78b7582822846c0ba\
    35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e7451a8a93109703fee1c217e6c3826e52c\
    51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0a1fe3075a577e23183f81d4a\
    3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e2f741ef8c1fe86fe\
    a6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";

/// A Diffie-Hellman group of RFC 7919.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The group whose prime has 2048 bits.
    Ffdhe2048,
    /// The group whose prime has 3072 bits.
    Ffdhe3072,
    /// The group whose prime has 4096 bits.
    Ffdhe4096,
    /// The group whose prime has 6144 bits.
    Ffdhe6144,
    /// The group whose prime has 8192 bits.
    Ffdhe8192,
}

impl Group {
    /// Returns the length of a public or shared value in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }

    /// Returns the length of secret exponents in bytes: at least the size that RFC 7919 derives
    /// from the strength of the group.
    pub fn exponent_bytes(self) -> usize {
        match self {
            Self::Ffdhe2048 => 32,
            Self::Ffdhe3072 => 40,
            Self::Ffdhe4096 | Self::Ffdhe6144 => 48,
            Self::Ffdhe8192 => 56,
        }
    }

    /// Returns the public value that belongs to a secret exponent.
    pub fn public_value(self, exponent: &[u8]) -> Vec<u8> {
        self.power(&BoxedUint::from(2_u8).resize(self.bits()), exponent)
    }

    /// Returns the value that both sides share; `None` when the other side's public value is not in
    /// the group.
    pub fn shared_value(self, exponent: &[u8], public: &[u8]) -> Option<Vec<u8>> {
        let value = BoxedUint::from_be_slice(public, self.bits()).ok()?;
        let least = BoxedUint::from(2_u8).resize(self.bits());
        let most = self.prime().wrapping_sub(&least);
        (public.len() == self.bytes() && value >= least && value <= most)
            .then(|| self.power(&value, exponent))
    }

    /// Raises a value to a secret exponent in constant time: the duration depends on neither.
    fn power(self, value: &BoxedUint, exponent: &[u8]) -> Vec<u8> {
        let bits = 8 * exponent.len() as u32;
        let exponent = BoxedUint::from_be_slice(exponent, bits).expect("it is as long as that");
        let prime = Odd::new(self.prime()).expect("a large prime is odd");
        let parameters = BoxedMontyParams::new_vartime(prime);
        let power = BoxedMontyForm::new(value.clone(), &parameters).pow(&exponent);
        power.retrieve().to_be_bytes().to_vec()
    }

    fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }

    fn prime(self) -> BoxedUint {
        let x: u32 = match self {
            Self::Ffdhe2048 => 560_316,
            Self::Ffdhe3072 => 2_625_351,
            Self::Ffdhe4096 => 5_736_041,
            Self::Ffdhe6144 => 15_705_020,
            Self::Ffdhe8192 => 10_965_728,
        };
        let mut bytes = vec![0xff; self.bytes()];
        let middle = &mut bytes[8..self.bytes() - 8];
        for (byte, digits) in middle.iter_mut().zip(DIGITS_OF_E.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).expect("hexadecimal digits");
            *byte = u8::from_str_radix(digits, 16).expect("hexadecimal digits");
        }
        let mut carry = x - 1; // the last 64 bits have borrowed one
        for byte in middle.iter_mut().rev() {
            carry += u32::from(*byte);
            *byte = carry as u8;
            carry >>= 8;
        }
        BoxedUint::from_be_slice(&bytes, self.bits()).expect("it is as long as that")
    }
}

/// Bytes of the checksum that ends a secret's text form.
const CHECKSUM_BYTES: usize = 4;

/// A DH-HMAC-CHAP secret that host and controller share.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    /// Hash that turns the secret and a side's name into that side's key. Without one the secret
    /// itself is the key.
    transformation: Option<Hash>,
}

/// Reason why a text is not a valid secret. The text is not repeated in the error, because it may
/// be a real secret with a typing error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The text does not have the form `DHHC-1:…:…:`.
    #[error("a secret has the form DHHC-1:HH:BASE64: as nvme gen-dhchap-key prints it")]
    Form,
    /// The secret has a length that is not allowed.
    #[error("a secret has 32, 48 or 64 bytes, not {0}")]
    Length(usize),
    /// The checksum in the text does not match the secret.
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
    /// Creates a secret from 32, 48 or 64 bytes.
    ///
    /// # Errors
    /// When the key has another length.
    pub fn new(key: &[u8], transformation: Option<Hash>) -> Result<Self, SecretError> {
        match key.len() {
            32 | 48 | 64 => Ok(Self { key: key.to_vec(), transformation }),
            length => Err(SecretError::Length(length)),
        }
    }

    /// Returns the text form of the secret, `DHHC-1:…:…:`.
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

    /// Returns the key that the side named `nqn` uses.
    pub fn key_of(&self, nqn: &str) -> Vec<u8> {
        match self.transformation {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

/// Hides the secret: debug output shows everything but the key.
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
mod hash_tests {
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

#[cfg(test)]
mod group_tests {
    use super::*;

    const ALL: [Group; 5] =
        [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192];

    #[test]
    fn primes_are_those_of_the_standard() {
        for (group, end) in ALL.into_iter().zip([
            0x886b_4238_6128_5c97,
            0x25e4_1d2b_66c6_2e37,
            0xc68a_007e_5e65_5f6a,
            0xa40e_329c_d0e4_0e65,
            0xd68c_8bb7_c5c6_424c_u64,
        ]) {
            let prime = group.prime().to_be_bytes();
            assert_eq!(prime.len(), group.bytes());
            assert_eq!(prime[..16], 0xffff_ffff_ffff_ffff_adf8_5458_a2bb_4a9a_u128.to_be_bytes());
            let end = (u128::from(end) << 64 | u128::from(u64::MAX)).to_be_bytes();
            assert_eq!(prime[group.bytes() - 16..], end, "{group:?}");
        }
    }

    #[test]
    fn both_sides_share_a_value() {
        for group in ALL {
            let exponent = |seed: u8| vec![seed; group.exponent_bytes()];
            let (one, two) = (exponent(0x35), exponent(0xc1));
            let shared = group.shared_value(&one, &group.public_value(&two)).unwrap();
            assert_eq!(shared.len(), group.bytes());
            assert_eq!(Some(shared), group.shared_value(&two, &group.public_value(&one)));
        }
    }

    #[test]
    fn values_outside_of_the_group_are_refused() {
        let group = Group::Ffdhe2048;
        let exponent = [7; 32];
        let number = |low: u8| [vec![0; group.bytes() - 1], vec![low]].concat();
        let prime = group.prime().to_be_bytes();
        let mut before = prime.to_vec();
        *before.last_mut().unwrap() -= 1;
        let long = [vec![0], number(2)].concat();
        for bad in [number(0), number(1), before.clone(), prime.to_vec(), long, vec![9; 255]] {
            assert_eq!(group.shared_value(&exponent, &bad), None);
        }
        assert_eq!(group.shared_value(&[1], &number(2)), Some(number(2)));
        assert_eq!(group.shared_value(&[5], &number(2)), Some(number(32)));
        *before.last_mut().unwrap() -= 1;
        assert_eq!(group.shared_value(&[2], &before), Some(number(4)));
    }
}

#[cfg(test)]
mod secret_tests {
    use super::*;

    /// A secret made by `nvme gen-dhchap-key`.
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
