//! The host's side of DH-HMAC-CHAP: the host proves its name and may ask the controller for a
//! proof.
//!
//! Source: NVMe Base Specification 2.0, section 8.13 "NVMe In-band Authentication".

use super::command::{HostCommand, HostError, Payload, Transport, broken, fabrics, u16_at, u32_at};
use super::connection::Connection;
use floe_nvme::auth::{Group, Hash, Random, Secret};

/// Security protocol of NVMe authentication (SECP).
const SECURITY_PROTOCOL: u8 = 0xE9;
/// Maximum length of a message that the host accepts: enough for the largest group.
const TAKEN_BYTES: u32 = 4096;
/// Identifier of DH-HMAC-CHAP (AUTHID).
const PROTOCOL_ID: u8 = 0x01;

/// AUTH_TYPE and AUTH_ID of the Negotiate message.
const NEGOTIATE: [u8; 2] = [0x00, 0x00];
const CHALLENGE: [u8; 2] = [0x01, 0x01];
const REPLY: [u8; 2] = [0x01, 0x02];
const SUCCESS1: [u8; 2] = [0x01, 0x03];
const SUCCESS2: [u8; 2] = [0x01, 0x04];
const FAILURE2: [u8; 2] = [0x00, 0xF0];
const FAILURE1: [u8; 2] = [0x00, 0xF1];

/// The secrets of a host, and the algorithms that it offers to a controller that asks for
/// authentication.
#[derive(Debug, Clone)]
pub struct Authentication {
    /// Secret of the host.
    pub secret: Secret,
    /// Secret of the controller, if the controller must authenticate too.
    pub controller_secret: Option<Secret>,
    /// Offered hash functions, the preferred one first.
    pub hashes: Vec<Hash>,
    /// Offered Diffie-Hellman groups; `None` is an exchange without a group.
    pub groups: Vec<Option<Group>>,
    /// Source of random bytes for challenges and secret exponents.
    pub random: Random,
}

impl Authentication {
    /// Creates an authentication that offers all hash functions and groups.
    pub fn new(secret: Secret, controller_secret: Option<Secret>, random: Random) -> Self {
        let groups = [
            Group::Ffdhe2048,
            Group::Ffdhe3072,
            Group::Ffdhe4096,
            Group::Ffdhe6144,
            Group::Ffdhe8192,
        ];
        Self {
            secret,
            controller_secret,
            hashes: vec![Hash::Sha256, Hash::Sha384, Hash::Sha512],
            groups: std::iter::once(None).chain(groups.map(Some)).collect(),
            random,
        }
    }
}

/// Authenticates a queue whose Connect asked for it. `host` and `subsystem` are the names to prove.
pub(super) fn authenticate<T: Transport>(
    connection: &mut Connection<T>,
    own: &Authentication,
    [host, subsystem]: [&str; 2],
) -> Result<(), HostError> {
    let mut seed = [0; 6];
    fill(own, &mut seed)?;
    let transaction = u16_at(&seed, 4);
    send(connection, negotiate(own, transaction))?;

    let challenge = receive(connection, CHALLENGE, transaction)?;
    let hash = *own
        .hashes
        .iter()
        .find(|&&hash| hash_id(hash) == challenge[8])
        .ok_or_else(|| broken(format!("AUTH_Challenge has HashID {}", challenge[8])))?;
    let group = *own
        .groups
        .iter()
        .find(|&&group| group_id(group) == challenge[9])
        .ok_or_else(|| broken(format!("AUTH_Challenge has DHgID {}", challenge[9])))?;
    let length = hash.bytes();
    let public_bytes = usize::from(u16_at(&challenge, 10));
    if usize::from(challenge[6]) != length || public_bytes != group.map_or(0, Group::bytes) {
        return Err(broken(format!("AUTH_Challenge has HL {}", challenge[6])));
    }
    let s1 = u32_at(&challenge, 12);
    let (c1, rest) = challenge[16..].split_at(length);
    let (public, shared) = match group {
        None => (Vec::new(), None),
        Some(group) => {
            let mut exponent = vec![0; group.exponent_bytes()];
            fill(own, &mut exponent)?;
            let shared = group.shared_value(&exponent, &rest[..public_bytes]);
            let shared = shared.ok_or_else(|| broken("AUTH_Challenge has a wrong DH value"))?;
            (group.public_value(&exponent), Some(hash.digest(&shared)))
        }
    };
    // The response of a side: RA = HMAC(K, Ca || S || T_ID || SC_C || role || NQN || 00h || NQN).
    let response = |key: Vec<u8>, c: &[u8], s: u32, role: &str, first: &str, second: &str| {
        let augmented = shared.as_ref().map(|shared| hash.hmac(shared, &[c]));
        let mut text = augmented.unwrap_or_else(|| c.to_vec());
        text.extend_from_slice(&s.to_le_bytes());
        text.extend_from_slice(&transaction.to_le_bytes());
        text.push(0);
        text.extend_from_slice(role.as_bytes());
        text.extend_from_slice(first.as_bytes());
        text.push(0);
        text.extend_from_slice(second.as_bytes());
        hash.hmac(&key, &[&text])
    };
    let proof = response(own.secret.key_of(host), c1, s1, "HostHost", host, subsystem);
    let mut c2 = vec![0; length];
    let mut s2 = 0;
    if own.controller_secret.is_some() {
        fill(own, &mut c2)?;
        s2 = u32_at(&seed, 0) | 1;
    }
    let mut reply = header(REPLY, transaction);
    reply[6] = length as u8;
    reply[8] = own.controller_secret.is_some().into();
    reply[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
    reply[12..16].copy_from_slice(&s2.to_le_bytes());
    reply.extend([proof, c2.clone(), public].concat());
    send(connection, reply)?;

    let success = receive(connection, SUCCESS1, transaction)?;
    if usize::from(success[6]) != length {
        return Err(broken(format!("AUTH_Success1 has HL {}", success[6])));
    }
    let Some(secret) = &own.controller_secret else { return Ok(()) };
    let wanted = response(secret.key_of(subsystem), &c2, s2, "Controller", subsystem, host);
    if success[8] & 1 == 0 || success[16..16 + length] != wanted {
        let mut failure = header(FAILURE2, transaction);
        (failure[6], failure[7]) = (1, 1);
        send(connection, failure)?;
        return Err(HostError::WrongController);
    }
    send(connection, header(SUCCESS2, transaction))
}

fn fill(own: &Authentication, bytes: &mut [u8]) -> Result<(), HostError> {
    let filled = (own.random)(bytes);
    filled.then_some(()).ok_or_else(|| std::io::Error::other("no random numbers").into())
}

fn hash_id(hash: Hash) -> u8 {
    match hash {
        Hash::Sha256 => 0x01,
        Hash::Sha384 => 0x02,
        Hash::Sha512 => 0x03,
    }
}

fn group_id(group: Option<Group>) -> u8 {
    match group {
        None => 0x00,
        Some(Group::Ffdhe2048) => 0x01,
        Some(Group::Ffdhe3072) => 0x02,
        Some(Group::Ffdhe4096) => 0x03,
        Some(Group::Ffdhe6144) => 0x04,
        Some(Group::Ffdhe8192) => 0x05,
    }
}

/// Returns the first 16 bytes of a message.
fn header([kind, id]: [u8; 2], transaction: u16) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    (bytes[0], bytes[1]) = (kind, id);
    bytes[4..6].copy_from_slice(&transaction.to_le_bytes());
    bytes
}

fn negotiate(own: &Authentication, transaction: u16) -> Vec<u8> {
    let mut message = header(NEGOTIATE, transaction);
    message.resize(8 + 64, 0);
    message[7] = 1; // NAPD
    message[8] = PROTOCOL_ID;
    (message[10], message[11]) = (own.hashes.len() as u8, own.groups.len() as u8);
    for (at, hash) in own.hashes.iter().enumerate() {
        message[12 + at] = hash_id(*hash);
    }
    for (at, group) in own.groups.iter().enumerate() {
        message[42 + at] = group_id(*group);
    }
    message
}

fn send<T: Transport>(connection: &mut Connection<T>, message: Vec<u8>) -> Result<(), HostError> {
    let length = message.len() as u32;
    let payload = Payload::ToController(message);
    let command =
        HostCommand::fabrics("Authentication Send", fabrics::AUTHENTICATION_SEND, payload)
            .bytes(41, &[1, 1, SECURITY_PROTOCOL])
            .dword(11, length);
    connection.call(command).map(drop)
}

fn receive<T: Transport>(
    connection: &mut Connection<T>,
    wanted: [u8; 2],
    transaction: u16,
) -> Result<Vec<u8>, HostError> {
    let payload = Payload::FromController(TAKEN_BYTES);
    let command =
        HostCommand::fabrics("Authentication Receive", fabrics::AUTHENTICATION_RECEIVE, payload)
            .bytes(41, &[1, 1, SECURITY_PROTOCOL])
            .dword(11, TAKEN_BYTES);
    let message = connection.call(command)?.data;
    if message[..2] == FAILURE1 {
        return Err(HostError::NotAuthenticated(message[7]));
    }
    if message[..2] != wanted || u16_at(&message, 4) != transaction {
        return Err(broken(format!("an unexpected AUTH message: {:02x?}", &message[..6])));
    }
    Ok(message)
}
