//! DH-HMAC-CHAP: a host proves that it has its secret, and the controller does if it is asked to.
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
//! Invariant: a host that has not proved its name negotiates once, so that nobody makes the server
//! compute many powers on one connection.
//!
//! Source: NVM Express Base 2.0, "DH-HMAC-CHAP Protocol".

mod message;

use subtle::ConstantTimeEq;

use self::message::{Challenge, Offer, Reply, explanation, id, kind};
use super::access::Proof;
use super::calculation::Calculation;
use crate::auth::{Group, Hash};

/// The groups that controllers choose from, the cheapest first. `None` is no group: then only the
/// secret protects the exchange. It is the last choice.
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
    step: Step,
    authenticated: bool,
    /// The host has negotiated before.
    begun: bool,
}

/// The next message.
#[derive(Debug)]
enum Step {
    /// The host begins.
    Negotiate,
    /// None: the public value of a challenge is computed.
    Publish(Asked),
    /// The host fetches a challenge.
    Challenge(Asked),
    /// The host answers the challenge.
    Reply(Asked),
    /// None: the value that both sides share is computed, for this reply of the host.
    Share(Asked, Vec<u8>),
    /// The host fetches the result.
    Success1 { hash: Hash, response: Option<Vec<u8>> },
    /// The host confirms that the controller has proved its name.
    Success2,
    /// The host fetches the reason.
    Failed(u8),
}

/// A challenge, and what only the controller knows of it.
#[derive(Debug)]
struct Asked {
    challenge: Challenge,
    /// The secret exponent; empty without a group.
    exponent: Vec<u8>,
}

/// The authentication has failed for good.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed;

impl Authentication {
    pub(super) fn new(proof: Proof, host: String, subsystem: String) -> Self {
        let step = Step::Negotiate;
        Self { proof, host, subsystem, transaction: 0, step, authenticated: false, begun: false }
    }

    /// Returns whether the host has proved its name.
    pub(super) fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Takes a message of the host. Nothing else may be called before the calculation that it
    /// needs is passed to [`Authentication::calculated`].
    ///
    /// # Errors
    /// When the host gives up.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<Option<Calculation>, Failed> {
        let step = std::mem::replace(&mut self.step, Step::Failed(explanation::MESSAGE));
        let Some((kind, id, transaction)) = message::head(message) else {
            self.step = Step::Failed(explanation::PAYLOAD);
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
            (kind::CHAP, id::REPLY, Step::Reply(asked)) if is_known => {
                match asked.challenge.group {
                    Some(_) => Ok(Step::Share(asked, message.to_vec())),
                    None => self.check(message, &asked, None),
                }
            }
            (kind::CHAP, id::SUCCESS2, Step::Success2) if is_known => {
                self.authenticated = true;
                Ok(Step::Negotiate)
            }
            _ => Err(explanation::MESSAGE),
        };
        self.step = next.unwrap_or_else(Step::Failed);
        Ok(self.calculation())
    }

    /// Returns the calculation without which it cannot go on.
    fn calculation(&self) -> Option<Calculation> {
        match &self.step {
            Step::Publish(asked) => {
                Some(Calculation::new(asked.challenge.group?, &asked.exponent, None))
            }
            Step::Share(asked, message) => {
                let public = Reply::parse(message, &asked.challenge).map(|reply| reply.public);
                let public = public.unwrap_or_default(); // an empty one is none of the group
                Some(Calculation::new(asked.challenge.group?, &asked.exponent, Some(public)))
            }
            _ => None,
        }
    }

    /// Goes on with the result of a calculation.
    pub(super) fn calculated(&mut self, result: Option<&[u8]>) {
        let step = std::mem::replace(&mut self.step, Step::Failed(explanation::MESSAGE));
        let next = match (step, result) {
            (Step::Publish(mut asked), Some(public)) => {
                asked.challenge.public = public.to_vec();
                Ok(Step::Challenge(asked))
            }
            (Step::Share(asked, message), Some(shared)) => {
                self.check(&message, &asked, Some(shared))
            }
            _ => Err(explanation::PAYLOAD),
        };
        self.step = next.unwrap_or_else(Step::Failed);
    }

    /// Returns the message that the host fetches; `None` when it is longer than `most`. A message
    /// that tells of a failure is the last.
    pub(super) fn receive(&mut self, most: usize) -> Option<(Vec<u8>, Result<(), Failed>)> {
        let transaction = self.transaction;
        let bytes = match &self.step {
            Step::Challenge(asked) => asked.challenge.to_bytes(transaction),
            Step::Success1 { hash, response } => {
                message::success(transaction, *hash, response.as_deref())
            }
            Step::Failed(explanation) => message::failure(transaction, *explanation),
            Step::Negotiate
            | Step::Publish(_)
            | Step::Reply(_)
            | Step::Share(..)
            | Step::Success2 => message::failure(transaction, explanation::MESSAGE),
        };
        if bytes.len() > most {
            return None;
        }
        let next = match std::mem::replace(&mut self.step, Step::Failed(explanation::MESSAGE)) {
            Step::Challenge(asked) => Step::Reply(asked),
            Step::Success1 { response: Some(_), .. } => Step::Success2,
            Step::Success1 { response: None, .. } => {
                self.authenticated = true;
                Step::Negotiate
            }
            _ => return Some((bytes, Err(Failed))),
        };
        self.step = next;
        Some((bytes, Ok(())))
    }

    /// Chooses from what a host offers, and makes a challenge.
    fn negotiate(&self, message: &[u8]) -> Result<Step, u8> {
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
        Ok(if group.is_some() { Step::Publish(asked) } else { Step::Challenge(asked) })
    }

    /// Checks a reply to a challenge, with the value that both sides share where there is a group.
    fn check(&self, message: &[u8], asked: &Asked, shared: Option<&[u8]>) -> Result<Step, u8> {
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
            return Ok(Step::Success1 { hash, response: None });
        };
        let secret = self.proof.secrets.controller.as_ref().ok_or(explanation::FAILED)?;
        let key = secret.key_of(subsystem);
        let response = response(&key, value, reply.number, "Controller", [subsystem, host]);
        Ok(Step::Success1 { hash, response: Some(response) })
    }
}
