//! Answers to the options that ask about an export. Source: proto.md, `NBD_OPT_INFO`,
//! `NBD_OPT_LIST`, `NBD_OPT_SET_META_CONTEXT`, "Option reply types".

use std::sync::Arc;

use super::{Expect, Handshake, Progress};
use crate::export::Export;
use crate::meta_context;
use crate::wire::{self, info, option, option_reply, u16_at, u32_at};

impl Handshake {
    /// Describes an export, and for `GO` chooses it.
    pub(super) fn info_or_go(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        self.expect = Expect::OptionHeader;
        let Some((name, requests)) = split_info(data) else {
            reply(out, option, option_reply::ERR_INVALID, &[b"malformed option data"]);
            return Progress::Answered;
        };
        let Some(export) = self.exports.find(name).cloned() else {
            reply(out, option, option_reply::ERR_UNKNOWN, &[b"no such export"]);
            return Progress::Answered;
        };
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

    /// Lists or selects metadata contexts.
    pub(super) fn meta_context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Progress {
        self.expect = Expect::OptionHeader;
        let list = option == option::LIST_META_CONTEXT;
        if !list {
            self.base_allocation_of = None; // selected anew, or not at all
        }
        let Some((name, selects)) = meta_context::selects(data, list) else {
            reply(out, option, option_reply::ERR_INVALID, &[b"malformed option data"]);
            return Progress::Answered;
        };
        let Some(export) = self.exports.find(name) else {
            reply(out, option, option_reply::ERR_UNKNOWN, &[b"no such export"]);
            return Progress::Answered;
        };
        if selects {
            let id = if list { 0 } else { meta_context::BASE_ALLOCATION_ID };
            if !list {
                self.base_allocation_of = Some(Arc::clone(export));
            }
            let name = meta_context::BASE_ALLOCATION.as_bytes();
            reply(out, option, option_reply::META_CONTEXT, &[&id.to_be_bytes(), name]);
        }
        reply(out, option, option_reply::ACK, &[]);
        Progress::Answered
    }
}

/// The name and the raw list of information requests in the data of `INFO` and `GO`.
fn split_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_at_checked(4)?;
    let (name, rest) = rest.split_at_checked(u32_at(length, 0) as usize)?;
    let (count, requests) = rest.split_at_checked(2)?;
    let complete = requests.len() == 2 * usize::from(u16_at(count, 0));
    (complete && name.len() <= wire::STRING_MAX_BYTES).then_some((name, requests))
}

/// Appends one entry of the list of exports.
pub(super) fn list_entry(out: &mut Vec<u8>, export: &Export) {
    let name = export.name.as_bytes();
    let length = (name.len() as u32).to_be_bytes();
    reply(out, option::LIST, option_reply::SERVER, &[&length, name, export.description.as_bytes()]);
}

/// Appends one reply whose data is the parts in a row.
pub(super) fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
    for number in [option, kind, length as u32] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    for part in parts {
        out.extend_from_slice(part);
    }
}
