//! Metadata contexts in the handshake, as proto.md writes them down.

use std::sync::Arc;

use floe_nbd::export::{Export, Exports};
use floe_nbd::handshake::{Handshake, Progress, Tls};

const LIST: u32 = 9;
const SET: u32 = 10;

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn ask(kind: u32, export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(export);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    option(kind, &data)
}

fn go(export: &str) -> Vec<u8> {
    option(7, &[string(export), vec![0, 0]].concat())
}

/// What the server answers to each option: its kind and data. And whether `base:allocation` was
/// agreed on in the end.
fn answers(options: &[Vec<u8>]) -> (Vec<(u32, Vec<u8>)>, Option<bool>) {
    let exports = vec![Export::new("disk", 4096), Export::new("other", 4096)];
    let mut handshake = Handshake::new(Arc::new(Exports::new(exports).unwrap()), Tls::Off);
    let input = [vec![0, 0, 0, 3], options.concat()].concat();
    let (mut rest, mut out, mut agreed) = (&input[..], Vec::new(), None);
    while !rest.is_empty() && agreed.is_none() {
        let (used, progress) = handshake.receive(rest, &mut out).unwrap();
        rest = &rest[used..];
        if let Progress::Transmission(negotiated) = progress {
            agreed = Some(negotiated.base_allocation);
        }
    }
    let mut replies = Vec::new();
    let mut at = 0;
    while out[at..].starts_with(&[0, 3, 0xe8, 0x89]) {
        let number = |from: usize| u32::from_be_bytes(out[from..from + 4].try_into().unwrap());
        let length = number(at + 16) as usize;
        replies.push((number(at + 12), out[at + 20..at + 20 + length].to_vec()));
        at += 20 + length;
    }
    (replies, agreed)
}

fn context(id: u8) -> (u32, Vec<u8>) {
    (4, [&[0, 0, 0, id][..], b"base:allocation"].concat())
}

const ACK: (u32, Vec<u8>) = (1, Vec::new());

/// The answers to one option after structured replies were agreed on.
fn answer(request: Vec<u8>) -> Vec<(u32, Vec<u8>)> {
    let (mut replies, _) = answers(&[option(8, b""), request]);
    assert_eq!(replies.remove(0), ACK);
    replies
}

#[test]
fn a_listing_knows_its_one_context_by_name_by_namespace_and_without_a_query() {
    for queries in
        [&[][..], &["base:"], &["base:allocation"], &["x-a:b", "base:", "base:allocation"]]
    {
        assert_eq!(answer(ask(LIST, "disk", queries)), [context(0), ACK], "{queries:?}");
    }
    for queries in [&["base:other"][..], &["qemu:dirty-bitmap:x"], &["base:allocation:"]] {
        assert_eq!(answer(ask(LIST, "", queries)), [ACK], "{queries:?}");
    }
}

#[test]
fn a_selection_takes_full_names_only() {
    assert_eq!(answer(ask(SET, "disk", &["x-a:b", "base:allocation"])), [context(1), ACK]);
    for queries in [&[][..], &["base:"], &["x-a:b"]] {
        assert_eq!(answer(ask(SET, "disk", queries)), [ACK], "{queries:?}");
    }
}

#[test]
fn malformed_queries_and_unknown_exports_are_told_apart() {
    let kind = |request: Vec<u8>| answer(request)[0].0;
    assert_eq!(kind(ask(SET, "nope", &["base:allocation"])), 0x8000_0006);
    assert_eq!(kind(ask(SET, "disk", &["allocation"])), 0x8000_0003);
    assert_eq!(kind(option(LIST, b"")), 0x8000_0003);
    let good = ask(LIST, "disk", &["base:"]);
    assert_eq!(kind(option(LIST, &good[16..good.len() - 1])), 0x8000_0003);
    assert_eq!(kind(option(LIST, &[&good[16..], b"x"].concat())), 0x8000_0003);
    assert_eq!(kind(option(LIST, &[string("disk"), vec![0xff; 4]].concat())), 0x8000_0003);
    assert_eq!(kind(option(SET, &vec![0; 20_000])), 0x8000_0009);
    assert_eq!(answers(&[ask(SET, "disk", &["base:allocation"])]).0[0].0, 0x8000_0003, "too early");
}

#[test]
fn a_selection_holds_for_its_export_until_the_next() {
    let select = |export| ask(SET, export, &["base:allocation"]);
    let structured = option(8, b"");
    let agreed =
        |options: &[Vec<u8>]| answers(&[std::slice::from_ref(&structured), options].concat()).1;
    assert_eq!(agreed(&[select("disk"), go("disk")]), Some(true));
    assert_eq!(agreed(&[select("disk"), go("")]), Some(true), "the default export is that one");
    assert_eq!(agreed(&[select("disk"), option(1, b"disk")]), Some(true));
    assert_eq!(agreed(&[select("disk"), go("other")]), Some(false));
    assert_eq!(agreed(&[select("disk"), select("other"), go("disk")]), Some(false));
    assert_eq!(agreed(&[select("disk"), ask(SET, "disk", &[]), go("disk")]), Some(false));
    assert_eq!(
        agreed(&[select("disk"), ask(SET, "nope", &["base:allocation"]), go("disk")]),
        Some(false)
    );
    assert_eq!(agreed(&[go("disk")]), Some(false));
}
