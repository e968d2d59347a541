//! Server side of the fixed newstyle handshake, as a state machine from received bytes to answers.
//! It ends in transmission or disconnection.
//!
//! The server greets; the client answers with flags and then negotiates options, one at a time,
//! until `GO` or `EXPORT_NAME` chooses an export or `ABORT` ends the session. Bytes may arrive in
//! any pieces: incomplete options are collected here, and no byte after the handshake is consumed.
//! Source: proto.md, "Fixed newstyle negotiation", "Option types", "Option reply types".
//!
//! Invariants: at most [`OPTION_DATA_MAX_BYTES`] are collected, and only as they arrive. Longer
//! data is skipped and not stored. Options are counted. One call answers at most one option, so
//! `out` grows by one answer. Where TLS is required, no answer before it reveals an export.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use super::export::{Export, Exports};
use super::wire::{self, client_flag, handshake_flag, option, option_reply, u32_at, u64_at};
use crate::export::{BASE_ALLOCATION, BASE_ALLOCATION_ID, selected_context};
use crate::wire::{ProtocolError, Violation, info, u16_at};

/// Longest option data that is processed, in bytes: room for the longest export name and more
/// information requests than exist.
pub const OPTION_DATA_MAX_BYTES: u32 = 16 << 10;
/// Longest option data that is skipped, in bytes; a client that announces more is dropped.
pub const OPTION_SKIP_MAX_BYTES: u32 = 1 << 20;
/// Maximum number of options that a client may send, plus [`OPTIONS_MAX_PER_EXPORT`] for each
/// export, since some clients query every export.
pub const OPTIONS_MAX: u32 = 256;
/// Additional options that a client may send for each export; see [`OPTIONS_MAX`].
pub const OPTIONS_MAX_PER_EXPORT: u32 = 8;

/// The result of a completed handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// The export that the client chose, as described at that time.
    pub export: Arc<Export>,
    /// True if reads must be answered with structured replies.
    pub structured_replies: bool,
    /// True if the client selected the metadata context `base:allocation`, and so may ask for block
    /// status.
    pub base_allocation: bool,
}

/// The admission of clients to exports, by which a server limits their number.
pub trait Admission: Debug + Send + Sync {
    /// Takes a place for one more client of an export; `None` if the export has no place left.
    fn admit(&self, export: &str) -> Option<Place>;
}

/// A client's place at an export. Dropping it leaves the place to others.
pub type Place = Box<dyn Any + Send>;

/// The refusal of a client for which its export has no place, as the client is told.
const NO_PLACE: &str = "this export has as many connections as its limit allows; try again later";

/// The TLS policy and state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// TLS is not available.
    Off,
    /// TLS is available.
    Offered,
    /// TLS is required: without it every export is refused.
    Required,
    /// TLS is in use.
    Active,
}

/// The progress of the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The input is consumed; more is needed.
    NeedMore,
    /// `out` contains a complete answer; send it before feeding the rest of the input.
    Answered,
    /// Send `out`, then start TLS. The handshake continues with the decrypted bytes; all state
    /// negotiated before is discarded.
    StartTls,
    /// The handshake is over. Send `out`; the rest of the input consists of requests.
    Transmission(Negotiated),
    /// The client ended the session. Send `out`, then hang up.
    Closed,
}

/// The state of the handshake with one client.
#[derive(Debug)]
pub struct Handshake {
    exports: Arc<Exports>,
    expect: Expect,
    /// The received bytes of the incomplete message.
    gathered: Vec<u8>,
    consumed_bytes: u64,
    /// Position in the input stream where the current message began.
    message_at: u64,
    options: u32,
    fixed_newstyle: bool,
    no_zeroes: bool,
    tls: Tls,
    structured_replies: bool,
    /// The export for which the client selected `base:allocation`.
    base_allocation_of: Option<Arc<Export>>,
    admission: Option<Arc<dyn Admission>>,
    /// The client's place at the export that it has chosen.
    place: Option<Place>,
}

#[derive(Debug, Clone, Copy)]
enum Expect {
    ClientFlags,
    OptionHeader,
    OptionData {
        option: u32,
        length: u32,
    },
    /// Option data that is skipped, and the error with which it is answered.
    Skip {
        option: u32,
        remaining: u32,
        error: u32,
        message: &'static str,
    },
    Over,
}

impl Handshake {
    /// Creates a handshake that offers these exports. The driver sends [`Handshake::greeting`]
    /// first.
    pub fn new(exports: Arc<Exports>, tls: Tls) -> Self {
        Self {
            exports,
            expect: Expect::ClientFlags,
            gathered: Vec::new(),
            consumed_bytes: 0,
            message_at: 0,
            options: 0,
            fixed_newstyle: false,
            no_zeroes: false,
            tls,
            structured_replies: false,
            base_allocation_of: None,
            admission: None,
            place: None,
        }
    }

    /// Limits the clients of each export by this admission. Without it there is no limit.
    pub fn admit_by(&mut self, admission: Arc<dyn Admission>) {
        self.admission = Some(admission);
    }

    /// Returns the client's place at the export that it has chosen, if an admission limits clients.
    pub fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    /// Takes a place at an export. Returns false if it has none left.
    fn is_admitted(&mut self, export: &Export) -> bool {
        let Some(admission) = &self.admission else { return true };
        self.place = admission.admit(&export.name);
        self.place.is_some()
    }

    /// Replaces the list of offered exports.
    pub fn exports_changed(&mut self, exports: &Arc<Exports>) {
        self.exports = Arc::clone(exports);
    }

    /// Returns the first bytes that a server sends.
    pub fn greeting() -> [u8; wire::GREETING_BYTES] {
        let mut greeting = [0; wire::GREETING_BYTES];
        greeting[..8].copy_from_slice(&wire::SERVER_MAGIC.to_be_bytes());
        greeting[8..16].copy_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        greeting[16..].copy_from_slice(&flags.to_be_bytes());
        greeting
    }

    /// Consumes bytes from the client and appends at most one answer to `out`. Returns the number
    /// of bytes consumed and the progress. Call it again with the rest until it needs more; once
    /// the handshake is over, it consumes no more bytes.
    ///
    /// # Errors
    /// When the client violated a rule that cannot be answered; drop the connection.
    pub fn receive(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Progress), ProtocolError> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let (taken, complete) = self.gather(rest);
            used += taken;
            self.consumed_bytes += taken as u64;
            if !complete {
                return Ok((used, Progress::NeedMore));
            }
            let message = std::mem::take(&mut self.gathered);
            let progress = self
                .message(&message, out)
                .map_err(|violation| ProtocolError { at: self.message_at, violation })?;
            self.gathered = message; // keeps its allocation
            self.gathered.clear();
            if matches!(self.expect, Expect::OptionHeader) {
                self.message_at = self.consumed_bytes;
            }
            if let Some(progress) = progress {
                return Ok((used, progress));
            }
        }
    }

    /// Returns the number of bytes consumed so far.
    pub fn consumed_bytes(&self) -> u64 {
        self.consumed_bytes
    }

    /// Returns the number of bytes kept between calls; never more than twice
    /// [`OPTION_DATA_MAX_BYTES`].
    pub fn kept_bytes(&self) -> usize {
        self.gathered.capacity()
    }

    /// Returns the position at which the current message began, and whether part of it has arrived.
    pub(crate) fn message_in_progress(&self) -> (u64, bool) {
        (self.message_at, self.consumed_bytes > self.message_at)
    }

    /// Collects bytes that the expected message still lacks. Returns the number of bytes consumed,
    /// and whether the message is complete.
    fn gather(&mut self, input: &[u8]) -> (usize, bool) {
        let wanted = match &mut self.expect {
            Expect::ClientFlags => wire::CLIENT_FLAGS_BYTES,
            Expect::OptionHeader => wire::OPTION_HEADER_BYTES,
            Expect::OptionData { length, .. } => *length as usize,
            Expect::Skip { remaining, .. } => {
                let skipped = input.len().min(*remaining as usize);
                *remaining -= skipped as u32;
                return (skipped, *remaining == 0);
            }
            Expect::Over => return (0, false),
        };
        let taken = input.len().min(wanted - self.gathered.len());
        self.gathered.extend_from_slice(&input[..taken]);
        (taken, self.gathered.len() == wanted)
    }

    /// Handles a complete message; `None` if its answer depends on the next one.
    fn message(
        &mut self,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Progress>, Violation> {
        match self.expect {
            Expect::ClientFlags => {
                let flags = u32_at(message, 0);
                if flags & !(client_flag::FIXED_NEWSTYLE | client_flag::NO_ZEROES) != 0 {
                    return Err(Violation::ClientFlags(flags));
                }
                self.fixed_newstyle = flags & client_flag::FIXED_NEWSTYLE != 0;
                self.no_zeroes = flags & client_flag::NO_ZEROES != 0;
                self.expect = Expect::OptionHeader;
                Ok(None)
            }
            Expect::OptionHeader => self.option_header(message, out),
            Expect::OptionData { option: option::EXPORT_NAME, .. } => {
                self.export_name(message, out).map(Some)
            }
            Expect::OptionData { option: option @ (option::INFO | option::GO), .. } => {
                Ok(Some(self.info_or_go(option, message, out)))
            }
            Expect::OptionData { option, .. } => Ok(Some(self.meta_context(option, message, out))),
            Expect::Skip { option, error, message, .. } => {
                self.expect = Expect::OptionHeader;
                reply(out, option, error, &[message.as_bytes()]);
                Ok(Some(Progress::Answered))
            }
            Expect::Over => Ok(Some(Progress::NeedMore)),
        }
    }

    fn option_header(
        &mut self,
        header: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Progress>, Violation> {
        let (magic, option, length) = (u64_at(header, 0), u32_at(header, 8), u32_at(header, 12));
        if magic != wire::OPTION_MAGIC {
            return Err(Violation::OptionMagic(magic));
        }
        if !self.fixed_newstyle && option != option::EXPORT_NAME {
            return Err(Violation::NotFixedNewstyle(option));
        }
        self.options += 1;
        let options_max = OPTIONS_MAX + OPTIONS_MAX_PER_EXPORT * self.exports.len() as u32;
        if self.options > options_max {
            return Err(Violation::TooManyOptions(options_max));
        }
        let clear = self.tls == Tls::Required;
        if clear && option == option::EXPORT_NAME {
            return Err(Violation::TlsRequired);
        }
        let max = match option {
            option::EXPORT_NAME => wire::STRING_MAX_BYTES as u32, // cannot be refused politely
            _ => OPTION_SKIP_MAX_BYTES,
        };
        if length > max && option != option::ABORT {
            return Err(Violation::OptionTooLong { option, length, max });
        }
        let skip = |error, message| Expect::Skip { option, remaining: length, error, message };
        self.expect = match option {
            option::ABORT => {
                reply(out, option, option_reply::ACK, &[]);
                self.expect = Expect::Over;
                return Ok(Some(Progress::Closed));
            }
            option::STARTTLS if length > 0 => {
                skip(option_reply::ERR_INVALID, "this option takes no data")
            }
            option::STARTTLS => match self.tls {
                Tls::Off => skip(option_reply::ERR_POLICY, "TLS is turned off"),
                Tls::Active => skip(option_reply::ERR_INVALID, "TLS is in use already"),
                Tls::Offered | Tls::Required => {
                    self.tls = Tls::Active;
                    self.structured_replies = false;
                    self.base_allocation_of = None;
                    self.expect = Expect::OptionHeader;
                    reply(out, option, option_reply::ACK, &[]);
                    return Ok(Some(Progress::StartTls));
                }
            },
            _ if clear => skip(option_reply::ERR_TLS_REQD, "this server requires TLS"),
            option::LIST | option::STRUCTURED_REPLY if length == 0 => {
                if option == option::LIST {
                    for export in self.exports.iter() {
                        list_entry(out, export);
                    }
                } else {
                    self.structured_replies = true;
                }
                reply(out, option, option_reply::ACK, &[]);
                return Ok(Some(Progress::Answered));
            }
            option::LIST | option::STRUCTURED_REPLY => {
                skip(option_reply::ERR_INVALID, "this option takes no data")
            }
            option::EXPORT_NAME => Expect::OptionData { option, length },
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT if !self.structured_replies => {
                self.base_allocation_of = None;
                skip(option_reply::ERR_INVALID, "metadata contexts need structured replies")
            }
            option::INFO | option::GO | option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                if length <= OPTION_DATA_MAX_BYTES {
                    Expect::OptionData { option, length }
                } else {
                    skip(option_reply::ERR_TOO_BIG, "too much option data")
                }
            }
            _ => skip(option_reply::ERR_UNSUP, "option not supported"),
        };
        Ok(None)
    }

    fn export_name(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<Progress, Violation> {
        let Some(export) = self.exports.find(name).cloned() else {
            return Err(Violation::UnknownExport(
                String::from_utf8_lossy(name).chars().take(64).collect(),
            ));
        };
        if !self.is_admitted(&export) {
            return Err(Violation::NoPlace(export.name.chars().take(64).collect()));
        }
        out.extend_from_slice(&export.size_bytes.to_be_bytes());
        out.extend_from_slice(&export.transmission_flags(self.structured_replies).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; wire::EXPORT_NAME_ZEROES_BYTES]);
        }
        Ok(self.transmission(export))
    }

    fn transmission(&mut self, export: Arc<Export>) -> Progress {
        self.expect = Expect::Over;
        // A context selected for one export says nothing of another.
        let base_allocation =
            self.base_allocation_of.take().is_some_and(|of| of.name == export.name);
        Progress::Transmission(Negotiated {
            export,
            structured_replies: self.structured_replies,
            base_allocation,
        })
    }

    /// Answers `INFO` or `GO` with a description of the export; `GO` also chooses it.
    fn info_or_go(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        self.expect = Expect::OptionHeader;
        let Some((name, requests)) = split_info(data) else {
            reply(out, option, option_reply::ERR_INVALID, &[b"malformed option data"]);
            return Progress::Answered;
        };
        let Some(export) = self.exports.find(name).cloned() else {
            reply(out, option, option_reply::ERR_UNKNOWN, &[b"no such export"]);
            return Progress::Answered;
        };
        if option == option::GO && !self.is_admitted(&export) {
            reply(out, option, option_reply::ERR_POLICY, &[NO_PLACE.as_bytes()]);
            return Progress::Answered;
        }
        let wanted = |kind: u16| requests.chunks_exact(2).any(|request| u16_at(request, 0) == kind);
        let mut tell = |kind: u16, parts: [&[u8]; 3]| {
            let [a, b, c] = parts;
            reply(out, option, option_reply::INFO, &[&kind.to_be_bytes(), a, b, c]);
        };
        let flags = export.transmission_flags(self.structured_replies);
        tell(info::EXPORT, [&export.size_bytes.to_be_bytes(), &flags.to_be_bytes(), &[]]);
        if wanted(info::NAME) {
            tell(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if wanted(info::DESCRIPTION) && !export.description.is_empty() {
            tell(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        if wanted(info::BLOCK_SIZE) {
            let sizes = [
                export.minimum_block_bytes,
                export.preferred_block_bytes,
                export.maximum_block_bytes,
            ]
            .map(u32::to_be_bytes);
            tell(info::BLOCK_SIZE, [&sizes[0], &sizes[1], &sizes[2]]);
        }
        reply(out, option, option_reply::ACK, &[]);
        if option == option::GO { self.transmission(export) } else { Progress::Answered }
    }

    /// Answers a request to list or select metadata contexts.
    fn meta_context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        self.expect = Expect::OptionHeader;
        let list = option == option::LIST_META_CONTEXT;
        if !list {
            self.base_allocation_of = None; // selected anew, or not at all
        }
        let Some((name, selects)) = selected_context(data, list) else {
            reply(out, option, option_reply::ERR_INVALID, &[b"malformed option data"]);
            return Progress::Answered;
        };
        let Some(export) = self.exports.find(name) else {
            reply(out, option, option_reply::ERR_UNKNOWN, &[b"no such export"]);
            return Progress::Answered;
        };
        if selects {
            let id = if list { 0 } else { BASE_ALLOCATION_ID };
            if !list {
                self.base_allocation_of = Some(Arc::clone(export));
            }
            let name = BASE_ALLOCATION.as_bytes();
            reply(out, option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), name]);
        }
        reply(out, option, option_reply::ACK, &[]);
        Progress::Answered
    }
}

/// Splits the data of `INFO` and `GO` into the export's name and the raw list of information
/// requests.
fn split_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_at_checked(4)?;
    let (name, rest) = rest.split_at_checked(u32_at(length, 0) as usize)?;
    let (count, requests) = rest.split_at_checked(2)?;
    let complete = requests.len() == 2 * usize::from(u16_at(count, 0));
    (complete && name.len() <= wire::STRING_MAX_BYTES).then_some((name, requests))
}

/// Appends one entry of the list of exports to `out`.
fn list_entry(out: &mut Vec<u8>, export: &Export) {
    let name = export.name.as_bytes();
    let length = (name.len() as u32).to_be_bytes();
    reply(out, option::LIST, option_reply::SERVER, &[&length, name, export.description.as_bytes()]);
}

/// Appends one option reply to `out`, whose data is the concatenated parts.
fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
    for number in [option, kind, length as u32] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    for part in parts {
        out.extend_from_slice(part);
    }
}
