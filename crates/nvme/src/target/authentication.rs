//! DH-HMAC-CHAP: a host proves that it knows its secret. If asked, the controller does too.
//!
//! ```text
//! host                                        controller
//! Send     Negotiate: hashes and groups  ──▶
//! Receive                                ◀──  Challenge: C1, S1, g^x
//! Send     Reply: R1, perhaps C2, S2, g^y ──▶
//! Receive                                ◀──  Success1: R2, if there is C2; or Failure1
//! Send     Success2, if there was C2     ──▶
//! ```
//!
//! R1 is the HMAC of C1 (hashed with g^xy, if a group was chosen), the numbers and both names, with
//! the host's key.
//!
//! Invariant: a host that has not proved its name may negotiate only once. So no host makes the
//! server compute many powers on one connection.
//!
//! Source: NVM Express Base 2.0, "DH-HMAC-CHAP Protocol".

use std::sync::{Arc, OnceLock};

use subtle::ConstantTimeEq;

use super::access::Proof;
use crate::auth::{Group, Hash};

/// The groups from which controllers choose, cheapest first. `None`, the last choice, is no group:
/// only the secret protects the exchange then.
const GROUPS: [Option<Group>; 6] = [
    Some(Group::Ffdhe2048),
    Some(Group::Ffdhe3072),
    Some(Group::Ffdhe4096),
    Some(Group::Ffdhe6144),
    Some(Group::Ffdhe8192),
    None,
];

/// The state of a connection's authentication.
#[derive(Debug)]
pub(super) struct Authentication {
    proof: Proof,
    host: String,
    subsystem: String,
    transaction: u16,
    step: AuthenticationStep,
    authenticated: bool,
    /// The host has sent a Negotiate message before.
    begun: bool,
}

/// The next message or calculation of an authentication.
#[derive(Debug)]
enum AuthenticationStep {
    /// The host sends Negotiate.
    Negotiate,
    /// No message: the public value of a challenge is being computed.
    Publish(Asked),
    /// The host fetches a challenge.
    Challenge(Asked),
    /// The host sends its reply to the challenge.
    Reply(Asked),
    /// No message: the shared value is being computed. The bytes are the host's reply.
    Share(Asked, Vec<u8>),
    /// The host fetches the result.
    Success1 { hash: Hash, response: Option<Vec<u8>> },
    /// The host confirms that the controller has proved its name.
    Success2,
    /// The host fetches the reason of the failure.
    Failed(u8),
}

/// A challenge that was sent, and the secrets of the controller that belong to it.
#[derive(Debug)]
struct Asked {
    challenge: Challenge,
    /// Secret exponent; empty without a group.
    exponent: Vec<u8>,
}

/// Error: the authentication has failed for good.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed;

impl Authentication {
    pub(super) fn new(proof: Proof, host: String, subsystem: String) -> Self {
        let step = AuthenticationStep::Negotiate;
        Self { proof, host, subsystem, transaction: 0, step, authenticated: false, begun: false }
    }

    /// Returns whether the host has proved its name.
    pub(super) fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Accepts a message from the host and returns the calculation that it needs, if any. Nothing
    /// else may be called before [`Authentication::calculated`] has received the result.
    ///
    /// # Errors
    /// When the host gives up.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<Option<Calculation>, Failed> {
        let step =
            std::mem::replace(&mut self.step, AuthenticationStep::Failed(explanation::MESSAGE));
        let Some((kind, id, transaction)) = head(message) else {
            self.step = AuthenticationStep::Failed(explanation::PAYLOAD);
            return Ok(None);
        };
        let is_known = transaction == self.transaction;
        let next = match (kind, id, step) {
            (kind::COMMON, id::FAILURE2, _) => return Err(Failed),
            (kind::COMMON, id::NEGOTIATE, _) if self.authenticated || !self.begun => {
                self.begun = true;
                self.transaction = transaction;
                self.negotiate(message)
            }
            (kind::CHAP, id::REPLY, AuthenticationStep::Reply(asked)) if is_known => {
                match asked.challenge.group {
                    Some(_) => Ok(AuthenticationStep::Share(asked, message.to_vec())),
                    None => self.check(message, &asked, None),
                }
            }
            (kind::CHAP, id::SUCCESS2, AuthenticationStep::Success2) if is_known => {
                self.authenticated = true;
                Ok(AuthenticationStep::Negotiate)
            }
            _ => Err(explanation::MESSAGE),
        };
        self.step = next.unwrap_or_else(AuthenticationStep::Failed);
        Ok(self.calculation())
    }

    /// Returns the calculation that the authentication waits for.
    fn calculation(&self) -> Option<Calculation> {
        match &self.step {
            AuthenticationStep::Publish(asked) => {
                Some(Calculation::new(asked.challenge.group?, &asked.exponent, None))
            }
            AuthenticationStep::Share(asked, message) => {
                let public = Reply::parse(message, &asked.challenge).map(|reply| reply.public);
                let public = public.unwrap_or_default(); // an empty one is none of the group
                Some(Calculation::new(asked.challenge.group?, &asked.exponent, Some(public)))
            }
            _ => None,
        }
    }

    /// Continues the authentication with the result of a calculation.
    pub(super) fn calculated(&mut self, result: Option<&[u8]>) {
        let step =
            std::mem::replace(&mut self.step, AuthenticationStep::Failed(explanation::MESSAGE));
        let next = match (step, result) {
            (AuthenticationStep::Publish(mut asked), Some(public)) => {
                asked.challenge.public = public.to_vec();
                Ok(AuthenticationStep::Challenge(asked))
            }
            (AuthenticationStep::Share(asked, message), Some(shared)) => {
                self.check(&message, &asked, Some(shared))
            }
            _ => Err(explanation::PAYLOAD),
        };
        self.step = next.unwrap_or_else(AuthenticationStep::Failed);
    }

    /// Returns the message that the host fetches; `None` when it is longer than `most`. A message
    /// that reports a failure is the last.
    pub(super) fn receive(&mut self, most: usize) -> Option<(Vec<u8>, Result<(), Failed>)> {
        let transaction = self.transaction;
        let bytes = match &self.step {
            AuthenticationStep::Challenge(asked) => asked.challenge.to_bytes(transaction),
            AuthenticationStep::Success1 { hash, response } => {
                success(transaction, *hash, response.as_deref())
            }
            AuthenticationStep::Failed(explanation) => failure(transaction, *explanation),
            AuthenticationStep::Negotiate
            | AuthenticationStep::Publish(_)
            | AuthenticationStep::Reply(_)
            | AuthenticationStep::Share(..)
            | AuthenticationStep::Success2 => failure(transaction, explanation::MESSAGE),
        };
        if bytes.len() > most {
            return None;
        }
        let next = match std::mem::replace(
            &mut self.step,
            AuthenticationStep::Failed(explanation::MESSAGE),
        ) {
            AuthenticationStep::Challenge(asked) => AuthenticationStep::Reply(asked),
            AuthenticationStep::Success1 { response: Some(_), .. } => AuthenticationStep::Success2,
            AuthenticationStep::Success1 { response: None, .. } => {
                self.authenticated = true;
                AuthenticationStep::Negotiate
            }
            _ => return Some((bytes, Err(Failed))),
        };
        self.step = next;
        Some((bytes, Ok(())))
    }

    /// Chooses a hash and a group from the host's offer and creates a challenge.
    fn negotiate(&self, message: &[u8]) -> Result<AuthenticationStep, u8> {
        let offer = Offer::parse(message)?;
        let hash = offer.hashes().next().ok_or(explanation::HASH)?;
        let group = GROUPS.into_iter().find(|group| offer.groups().any(|it| it == *group));
        let group = group.ok_or(explanation::GROUP)?;
        let mut value = vec![0; hash.bytes()];
        let mut number = [0; 4];
        let mut exponent = vec![0; group.map_or(0, Group::exponent_bytes)];
        let buffers = [&mut value[..], &mut number[..], &mut exponent[..]];
        if !buffers.into_iter().all(self.proof.random) {
            return Err(explanation::FAILED);
        }
        let number = u32::from_le_bytes(number).max(1);
        let challenge = Challenge { hash, group, number, value, public: Vec::new() };
        let asked = Asked { challenge, exponent };
        Ok(if group.is_some() {
            AuthenticationStep::Publish(asked)
        } else {
            AuthenticationStep::Challenge(asked)
        })
    }

    /// Checks a reply to a challenge. With a group, `shared` is the value that both sides share.
    fn check(
        &self,
        message: &[u8],
        asked: &Asked,
        shared: Option<&[u8]>,
    ) -> Result<AuthenticationStep, u8> {
        let challenge = &asked.challenge;
        let hash = challenge.hash;
        let reply = Reply::parse(message, challenge).ok_or(explanation::PAYLOAD)?;
        let shared = shared.map(|shared| hash.digest(shared));
        let response = |key: &[u8], value: &[u8], number: u32, role: &str, names: [&str; 2]| {
            let value = match &shared {
                Some(shared) => hash.hmac(shared, &[value]),
                None => value.to_vec(),
            };
            let (number, transaction) = (number.to_le_bytes(), self.transaction.to_le_bytes());
            let [own, other] = names.map(str::as_bytes);
            let not_concatenated = [0];
            hash.hmac(
                key,
                &[
                    &value,
                    &number,
                    &transaction,
                    &not_concatenated,
                    role.as_bytes(),
                    own,
                    &[0],
                    other,
                ],
            )
        };
        let (host, subsystem) = (self.host.as_str(), self.subsystem.as_str());
        let key = self.proof.secrets.host.key_of(host);
        let wanted =
            response(&key, &challenge.value, challenge.number, "HostHost", [host, subsystem]);
        if !bool::from(wanted.ct_eq(reply.response)) {
            return Err(explanation::FAILED);
        }
        let Some(value) = reply.challenge else {
            return Ok(AuthenticationStep::Success1 { hash, response: None });
        };
        let secret = self.proof.secrets.controller.as_ref().ok_or(explanation::FAILED)?;
        let key = secret.key_of(subsystem);
        let response = response(&key, value, reply.number, "Controller", [subsystem, host]);
        Ok(AuthenticationStep::Success1 { hash, response: Some(response) })
    }
}

/// Classes of authentication messages.
mod kind {
    pub(in crate::target) const COMMON: u8 = 0;
    pub(in crate::target) const CHAP: u8 = 1;
}

/// Identifiers of messages within their class.
mod id {
    pub(in crate::target) const NEGOTIATE: u8 = 0;
    pub(crate) const CHALLENGE: u8 = 1;
    pub(in crate::target) const REPLY: u8 = 2;
    pub(crate) const SUCCESS1: u8 = 3;
    pub(in crate::target) const SUCCESS2: u8 = 4;
    pub(in crate::target) const FAILURE2: u8 = 0xf0;
    pub(crate) const FAILURE1: u8 = 0xf1;
}

/// Reason codes of a failed authentication.
mod explanation {
    /// The host's proof is wrong.
    pub(in crate::target) const FAILED: u8 = 1;
    /// The host offers no authentication protocol that is supported.
    pub(crate) const PROTOCOL: u8 = 2;
    /// The host asks for a secure channel, which is not supported.
    pub(crate) const CHANNEL: u8 = 3;
    /// The host offers no hash function that is supported.
    pub(in crate::target) const HASH: u8 = 4;
    /// The host offers no group that is supported.
    pub(in crate::target) const GROUP: u8 = 5;
    /// The content of a message is malformed.
    pub(in crate::target) const PAYLOAD: u8 = 6;
    /// The message is not expected at this point of the exchange.
    pub(in crate::target) const MESSAGE: u8 = 7;
}

const HEADER_BYTES: usize = 16;
/// Bytes of the descriptor of an authentication protocol in a Negotiate message.
const DESCRIPTOR_BYTES: usize = 64;
/// Identifier of the protocol DH-HMAC-CHAP.
const DH_HMAC_CHAP: u8 = 1;
/// Maximum number of hashes, and of groups, in an offer.
const LIST_MAX: usize = 30;

/// Returns the class, the identifier and the transaction of a message.
fn head(message: &[u8]) -> Option<(u8, u8, u16)> {
    let &[kind, id, _, _, low, high, ..] = message else { return None };
    Some((kind, id, u16::from_le_bytes([low, high])))
}

/// A host's offer of hashes and groups (Negotiate).
struct Offer<'a> {
    hashes: &'a [u8],
    groups: &'a [u8],
}

impl<'a> Offer<'a> {
    /// Parses a Negotiate message. An error is a code of [`explanation`].
    fn parse(message: &'a [u8]) -> Result<Self, u8> {
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

    /// Returns the offered hashes that are supported, in the host's order.
    fn hashes(&self) -> impl Iterator<Item = Hash> {
        self.hashes.iter().filter_map(|number| match number {
            1 => Some(Hash::Sha256),
            2 => Some(Hash::Sha384),
            3 => Some(Hash::Sha512),
            _ => None,
        })
    }

    /// Returns the offered groups that are supported; `None` is no group.
    fn groups(&self) -> impl Iterator<Item = Option<Group>> {
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
struct Challenge {
    hash: Hash,
    group: Option<Group>,
    number: u32,
    value: Vec<u8>,
    /// Public value of the controller; empty without a group.
    public: Vec<u8>,
}

impl Challenge {
    fn to_bytes(&self, transaction: u16) -> Vec<u8> {
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
struct Reply<'a> {
    response: &'a [u8],
    /// The host's own challenge to the controller, if it sends one.
    challenge: Option<&'a [u8]>,
    number: u32,
    public: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Parses a Reply message; `None` when the message does not fit the challenge.
    fn parse(message: &'a [u8], challenge: &Challenge) -> Option<Self> {
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

/// Builds a Success1 message.
fn success(transaction: u16, hash: Hash, response: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = header(kind::CHAP, id::SUCCESS1, transaction).to_vec();
    bytes[6] = hash.bytes() as u8;
    bytes[8] = u8::from(response.is_some());
    bytes.extend_from_slice(response.unwrap_or(&[]));
    bytes.resize(HEADER_BYTES + hash.bytes(), 0);
    bytes
}

/// Builds a Failure1 message.
fn failure(transaction: u16, explanation: u8) -> Vec<u8> {
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

/// A modular exponentiation that a connection needs. Clones share the result.
#[derive(Debug, Clone)]
pub struct Calculation(Arc<Power>);

#[derive(Debug)]
struct Power {
    group: Group,
    exponent: Vec<u8>,
    /// Base of the power: the host's public value; `None` for the group's generator.
    public: Option<Vec<u8>>,
    /// Result of the calculation. The inner `None` means that the public value is not in the group.
    result: OnceLock<Option<Vec<u8>>>,
}

impl Calculation {
    pub(super) fn new(group: Group, exponent: &[u8], public: Option<&[u8]>) -> Self {
        let (exponent, public) = (exponent.to_vec(), public.map(<[u8]>::to_vec));
        Self(Arc::new(Power { group, exponent, public, result: OnceLock::new() }))
    }

    /// Computes the power on the calling thread. The connection picks up the result when it is
    /// advanced next.
    pub fn run(&self) {
        let Power { group, exponent, public, result } = &*self.0;
        result.get_or_init(|| match public {
            None => Some(group.public_value(exponent)),
            Some(public) => group.shared_value(exponent, public),
        });
    }

    /// Returns a relative cost that grows with the time of the calculation.
    pub fn cost(&self) -> usize {
        self.0.group.bytes()
    }

    /// Returns whether both are clones of one calculation.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether the calculation has been run.
    pub fn is_done(&self) -> bool {
        self.result().is_some()
    }

    pub(super) fn result(&self) -> Option<&Option<Vec<u8>>> {
        self.0.result.get()
    }
}
