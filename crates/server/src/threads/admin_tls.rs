//! Encryption of one admin connection over TCP. The client's first byte decides: TLS begins with a
//! handshake record, HTTP with a letter.

use std::io;

use crate::tls::{Channel, TlsConfig};

/// The first byte of TLS: the type of a record that is part of the handshake (RFC 8446, section
/// 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// The encryption of one connection.
#[derive(Debug)]
pub(super) enum Encryption {
    /// The client has sent nothing so far.
    Undecided {
        /// The certificates, for clients that ask for TLS.
        tls: Option<TlsConfig>,
        /// Others get nothing.
        required: bool,
    },
    None,
    Tls(Box<Channel>),
}

/// A client whose bytes cannot be taken.
#[derive(Debug)]
pub(super) enum Undecipherable {
    /// The client must encrypt here.
    InTheClear,
    /// The client broke TLS, or has ended it.
    Broken(io::Error),
}

impl Encryption {
    /// The text in what was received, which may be empty so far.
    pub(super) fn decrypt(&mut self, received: Vec<u8>) -> Result<Vec<u8>, Undecipherable> {
        if let Self::Undecided { tls, required } = self {
            *self = match tls {
                Some(tls) if received.first() == Some(&HANDSHAKE_RECORD) => {
                    Self::Tls(Box::new(tls.channel()))
                }
                _ if *required => return Err(Undecipherable::InTheClear),
                _ => Self::None,
            };
        }
        let Self::Tls(channel) = self else { return Ok(received) };
        channel.received(received.len(), |into| into.copy_from_slice(&received));
        let mut text = Vec::new();
        loop {
            let before = text.len();
            channel.read(&mut text).map_err(Undecipherable::Broken)?;
            if text.len() == before {
                return Ok(text);
            }
        }
    }

    /// The bytes of something that is said, with more to follow.
    pub(super) fn encrypt(&mut self, text: &[u8]) -> Vec<u8> {
        let Self::Tls(channel) = self else { return text.to_vec() };
        channel.write(text);
        self.take()
    }

    /// The bytes of the last thing that is said.
    pub(super) fn encrypt_last(&mut self, text: Vec<u8>) -> Vec<u8> {
        let Self::Tls(channel) = self else { return text };
        channel.write(&text);
        channel.close();
        self.take()
    }

    /// The bytes that TLS itself has to say.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Self::Tls(channel) = self {
            channel.take(&mut bytes);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_encryption_all_is_as_it_was_sent_unless_it_is_required() {
        let mut plain = Encryption::Undecided { tls: None, required: false };
        assert_eq!(plain.decrypt(b"GET /".to_vec()).unwrap(), b"GET /");
        assert_eq!(plain.decrypt(vec![HANDSHAKE_RECORD]).unwrap(), [HANDSHAKE_RECORD]);
        assert_eq!(plain.encrypt_last(b"HTTP".to_vec()), b"HTTP");
        assert!(plain.take().is_empty());
        let mut required = Encryption::Undecided { tls: None, required: true };
        assert!(matches!(required.decrypt(b"GET /".to_vec()), Err(Undecipherable::InTheClear)));
    }
}
