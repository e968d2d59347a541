//! Client side of the handshake: structured replies if wanted, then `GO`, or `EXPORT_NAME` with
//! older servers.
//!
//! Source: proto.md, "Fixed newstyle negotiation", "Option types". The server's answers are
//! bounded: an option reply longer than [`REPLY_MAX_BYTES`] and more than [`REPLIES_MAX`] replies
//! to one option are refused.

use super::{ClientError, Info, Transport};
use crate::wire::{
    self, client_flag, handshake_flag, info, option, option_reply, u16_at, u32_at, u64_at,
};

const REPLY_MAX_BYTES: u32 = 16 << 10;
const REPLIES_MAX: usize = 64;

/// Haggles until the export is granted; for clients with a driver of their own.
///
/// # Errors
/// When the connection fails, or the server does not grant the export.
pub fn negotiate(
    transport: &mut impl Transport,
    export: &str,
    structured: bool,
) -> Result<Info, ClientError> {
    let greeting: [u8; wire::GREETING_BYTES] = transport.receive_array()?;
    if u64_at(&greeting, 0) != wire::SERVER_MAGIC {
        return broken("it does not greet as an NBD server");
    }
    if u64_at(&greeting, 8) != wire::OPTION_MAGIC {
        return broken("it speaks only the old style of negotiation");
    }
    let offered = u16_at(&greeting, 16);
    let fixed = offered & handshake_flag::FIXED_NEWSTYLE != 0;
    let no_zeroes = offered & handshake_flag::NO_ZEROES != 0;
    let mut flags = 0;
    if fixed {
        flags |= client_flag::FIXED_NEWSTYLE;
    }
    if no_zeroes {
        flags |= client_flag::NO_ZEROES;
    }
    transport.send_all(&flags.to_be_bytes())?;

    let mut granted = Info {
        size_bytes: 0,
        flags: 0,
        minimum_block_bytes: 1,
        preferred_block_bytes: 4096,
        maximum_block_bytes: 32 << 20,
        structured_replies: false,
    };
    if fixed {
        if structured {
            send_option(transport, option::STRUCTURED_REPLY, &[])?;
            let (kind, _) = reply(transport, option::STRUCTURED_REPLY)?;
            granted.structured_replies = kind == option_reply::ACK;
        }
        if go(transport, export, &mut granted)? {
            return Ok(granted);
        }
    }
    send_option(transport, option::EXPORT_NAME, export.as_bytes())?;
    let answer: [u8; 10] = transport.receive_array().map_err(|error| match error {
        // The only way a server can refuse this option.
        ClientError::HungUp => refused(export, "it hung up"),
        other => other,
    })?;
    (granted.size_bytes, granted.flags) = (u64_at(&answer, 0), u16_at(&answer, 8));
    if !no_zeroes {
        let _: [u8; wire::EXPORT_NAME_ZEROES_BYTES] = transport.receive_array()?;
    }
    Ok(granted)
}

/// Asks for the export with `GO`; `false` when the server does not know that option.
fn go(
    transport: &mut impl Transport,
    export: &str,
    granted: &mut Info,
) -> Result<bool, ClientError> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(export.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    send_option(transport, option::GO, &data)?;
    let mut described = false;
    for _ in 0..REPLIES_MAX {
        let (kind, data) = reply(transport, option::GO)?;
        match kind {
            option_reply::ACK if described => return Ok(true),
            option_reply::ACK => return broken("it granted the export without telling its size"),
            option_reply::ERR_UNSUP => return Ok(false),
            option_reply::INFO if data.len() < 2 => {
                return broken("an information reply is too short");
            }
            option_reply::INFO => match (u16_at(&data, 0), data.len()) {
                (info::EXPORT, 12) => {
                    (granted.size_bytes, granted.flags) = (u64_at(&data, 2), u16_at(&data, 10));
                    described = true;
                }
                (info::BLOCK_SIZE, 14) => {
                    granted.minimum_block_bytes = u32_at(&data, 2);
                    granted.preferred_block_bytes = u32_at(&data, 6);
                    granted.maximum_block_bytes = u32_at(&data, 10);
                    if granted.maximum_block_bytes == 0 {
                        return broken("its maximum block size is 0");
                    }
                }
                (info::EXPORT | info::BLOCK_SIZE, _) => {
                    return broken("an information reply has a wrong length");
                }
                _ => {}
            },
            kind if kind & option_reply::ERROR_BIT != 0 => {
                let name = match kind {
                    option_reply::ERR_UNKNOWN => "no such export".to_owned(),
                    option_reply::ERR_TLS_REQD => "it insists on TLS".to_owned(),
                    option_reply::ERR_POLICY => "forbidden".to_owned(),
                    option_reply::ERR_SHUTDOWN => "it is shutting down".to_owned(),
                    other => format!("error {other:#x}"),
                };
                let message = String::from_utf8_lossy(&data);
                let reason = if data.is_empty() { name } else { format!("{name} ({message})") };
                return Err(refused(export, &reason));
            }
            kind => return broken(&format!("reply type {kind} to GO")),
        }
    }
    broken("too many replies to GO")
}

fn send_option(
    transport: &mut impl Transport,
    option: u32,
    data: &[u8],
) -> Result<(), ClientError> {
    let mut message = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    message.extend_from_slice(&option.to_be_bytes());
    message.extend_from_slice(&(data.len() as u32).to_be_bytes());
    message.extend_from_slice(data);
    transport.send_all(&message)
}

/// Receives one reply to an option: its type and data.
fn reply(transport: &mut impl Transport, option: u32) -> Result<(u32, Vec<u8>), ClientError> {
    let header: [u8; wire::OPTION_REPLY_HEADER_BYTES] = transport.receive_array()?;
    let (kind, length) = (u32_at(&header, 12), u32_at(&header, 16));
    if u64_at(&header, 0) != wire::OPTION_REPLY_MAGIC {
        return broken("an option reply has a bad magic number");
    }
    if u32_at(&header, 8) != option {
        return broken("an option reply is for another option");
    }
    if length > REPLY_MAX_BYTES {
        return broken("an option reply is too long");
    }
    let mut data = vec![0; length as usize];
    transport.receive_exact(&mut data)?;
    Ok((kind, data))
}

fn broken<T>(what: &str) -> Result<T, ClientError> {
    Err(ClientError::Protocol(what.to_owned()))
}

fn refused(export: &str, reason: &str) -> ClientError {
    ClientError::Refused { export: export.to_owned(), reason: reason.to_owned() }
}
