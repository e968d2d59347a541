//! The messages of DH-HMAC-CHAP, as a controller reads and writes them.

use crate::auth::{Group, Hash};

/// Types of messages.
pub(super) mod kind {
    pub(in super::super) const COMMON: u8 = 0;
    pub(in super::super) const CHAP: u8 = 1;
}

/// Messages of a type.
pub(super) mod id {
    pub(in super::super) const NEGOTIATE: u8 = 0;
    pub(super) const CHALLENGE: u8 = 1;
    pub(in super::super) const REPLY: u8 = 2;
    pub(super) const SUCCESS1: u8 = 3;
    pub(in super::super) const SUCCESS2: u8 = 4;
    pub(in super::super) const FAILURE2: u8 = 0xf0;
    pub(super) const FAILURE1: u8 = 0xf1;
}

/// Explanations of a failure.
pub(super) mod explanation {
    /// The authentication failed.
    pub(in super::super) const FAILED: u8 = 1;
    /// The protocol of authentication is not usable.
    pub(super) const PROTOCOL: u8 = 2;
    /// A secure channel is asked for.
    pub(super) const CHANNEL: u8 = 3;
    /// No hash function is usable.
    pub(in super::super) const HASH: u8 = 4;
    /// No group is usable.
    pub(in super::super) const GROUP: u8 = 5;
    /// The content of a message is wrong.
    pub(in super::super) const PAYLOAD: u8 = 6;
    /// A message does not belong here.
    pub(in super::super) const MESSAGE: u8 = 7;
}

const HEADER_BYTES: usize = 16;
/// The descriptor of a protocol that a host offers.
const DESCRIPTOR_BYTES: usize = 64;
/// The identifier of DH-HMAC-CHAP among protocols.
const DH_HMAC_CHAP: u8 = 1;
/// Most hashes of an offer, and most groups.
const LIST_MAX: usize = 30;

/// Reads the type of a message, the message, and its transaction.
pub(super) fn head(message: &[u8]) -> Option<(u8, u8, u16)> {
    let &[kind, id, _, _, low, high, ..] = message else { return None };
    Some((kind, id, u16::from_le_bytes([low, high])))
}

/// A host's offer of hashes and groups.
pub(super) struct Offer<'a> {
    hashes: &'a [u8],
    groups: &'a [u8],
}

impl<'a> Offer<'a> {
    /// Reads a Negotiate message; an error is an explanation.
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, u8> {
        let &[_, _, _, _, _, _, channel, protocols, ..] = message else {
            return Err(explanation::PAYLOAD);
        };
        if channel != 0 {
            return Err(explanation::CHANNEL);
        }
        let descriptors = message[8..].get(..usize::from(protocols) * DESCRIPTOR_BYTES);
        let mut descriptors =
            descriptors.ok_or(explanation::PAYLOAD)?.chunks_exact(DESCRIPTOR_BYTES);
        let descriptor = descriptors.find(|descriptor| descriptor[0] == DH_HMAC_CHAP);
        let descriptor = descriptor.ok_or(explanation::PROTOCOL)?;
        let (hashes, groups) = (usize::from(descriptor[2]), usize::from(descriptor[3]));
        if hashes > LIST_MAX || groups > LIST_MAX {
            return Err(explanation::PAYLOAD);
        }
        let lists = &descriptor[4..];
        Ok(Self { hashes: &lists[..hashes], groups: &lists[LIST_MAX..LIST_MAX + groups] })
    }

    /// The hashes that are known here, in the host's order.
    pub(super) fn hashes(&self) -> impl Iterator<Item = Hash> {
        self.hashes.iter().filter_map(|number| match number {
            1 => Some(Hash::Sha256),
            2 => Some(Hash::Sha384),
            3 => Some(Hash::Sha512),
            _ => None,
        })
    }

    /// The groups that are known here; `None` is no group.
    pub(super) fn groups(&self) -> impl Iterator<Item = Option<Group>> {
        self.groups.iter().filter_map(|number| match number {
            0 => Some(None),
            1 => Some(Some(Group::Ffdhe2048)),
            2 => Some(Some(Group::Ffdhe3072)),
            3 => Some(Some(Group::Ffdhe4096)),
            4 => Some(Some(Group::Ffdhe6144)),
            5 => Some(Some(Group::Ffdhe8192)),
            _ => None,
        })
    }
}

/// A controller's challenge.
#[derive(Debug)]
pub(super) struct Challenge {
    pub(super) hash: Hash,
    pub(super) group: Option<Group>,
    pub(super) number: u32,
    pub(super) value: Vec<u8>,
    /// The public value; empty without a group.
    pub(super) public: Vec<u8>,
}

impl Challenge {
    pub(super) fn to_bytes(&self, transaction: u16) -> Vec<u8> {
        let hash = match self.hash {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
            Hash::Sha512 => 3,
        };
        let group = match self.group {
            None => 0,
            Some(Group::Ffdhe2048) => 1,
            Some(Group::Ffdhe3072) => 2,
            Some(Group::Ffdhe4096) => 3,
            Some(Group::Ffdhe6144) => 4,
            Some(Group::Ffdhe8192) => 5,
        };
        let mut bytes = header(kind::CHAP, id::CHALLENGE, transaction);
        bytes[6] = self.value.len() as u8;
        (bytes[8], bytes[9]) = (hash, group);
        bytes[10..12].copy_from_slice(&(self.public.len() as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        [&bytes[..], &self.value, &self.public].concat()
    }
}

/// A host's reply to a challenge.
pub(super) struct Reply<'a> {
    pub(super) response: &'a [u8],
    /// The host's own challenge to the controller.
    pub(super) challenge: Option<&'a [u8]>,
    pub(super) number: u32,
    pub(super) public: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Reads a Reply message; `None` when it does not fit the challenge.
    pub(super) fn parse(message: &'a [u8], challenge: &Challenge) -> Option<Self> {
        let (header, rest) = message.split_first_chunk::<HEADER_BYTES>()?;
        let (length, is_challenge) = (usize::from(header[6]), header[8] & 1 != 0);
        let public_bytes = usize::from(u16::from_le_bytes([header[10], header[11]]));
        let number = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
        if length != challenge.hash.bytes() || public_bytes != challenge.public.len() {
            return None;
        }
        let (response, rest) = rest.split_at_checked(length)?;
        let (value, rest) = rest.split_at_checked(length)?;
        let public = rest.get(..public_bytes)?;
        Some(Self { response, challenge: is_challenge.then_some(value), number, public })
    }
}

/// Makes a Success1 message.
pub(super) fn success(transaction: u16, hash: Hash, response: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = header(kind::CHAP, id::SUCCESS1, transaction).to_vec();
    bytes[6] = hash.bytes() as u8;
    bytes[8] = u8::from(response.is_some());
    bytes.extend_from_slice(response.unwrap_or(&[]));
    bytes.resize(HEADER_BYTES + hash.bytes(), 0);
    bytes
}

/// Makes a Failure1 message.
pub(super) fn failure(transaction: u16, explanation: u8) -> Vec<u8> {
    const AUTHENTICATION_FAILED: u8 = 1;
    let mut bytes = header(kind::COMMON, id::FAILURE1, transaction).to_vec();
    (bytes[6], bytes[7]) = (AUTHENTICATION_FAILED, explanation);
    bytes
}

fn header(kind: u8, id: u8, transaction: u16) -> [u8; HEADER_BYTES] {
    let [low, high] = transaction.to_le_bytes();
    let mut bytes = [0; HEADER_BYTES];
    bytes[..6].copy_from_slice(&[kind, id, 0, 0, low, high]);
    bytes
}
