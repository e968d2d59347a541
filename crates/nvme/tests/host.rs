//! The host against controllers made of plain bytes: what it sends, and each breach it notices.
//!
//! A binary of its own, so that tests of the two sides share nothing.

use floe_testkit::nvme_host::{
    Completion, HostCommand, HostError, Payload, Queue, QueueOptions, Range, checksum,
};

const CONTROLLER_DATA: u8 = 7;
const RESPONSE: u8 = 5;
const REQUEST: u8 = 9;
const LAST: u8 = 4;
const SUCCESS: u8 = 8;

fn agreement(digests: u8, longest: u32) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    bytes[..8].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0]);
    bytes[11] = digests;
    bytes[12..16].copy_from_slice(&longest.to_le_bytes());
    bytes
}

/// A header of 24 bytes with four fields, and data.
fn pdu(kind: u8, flags: u8, id: u16, fields: (u16, u32, u32), data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 24, if data.is_empty() { 0 } else { 24 }];
    bytes.extend_from_slice(&(24 + data.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&fields.0.to_le_bytes());
    bytes.extend_from_slice(&fields.1.to_le_bytes());
    bytes.extend_from_slice(&fields.2.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(data);
    bytes
}

fn data(flags: u8, id: u16, offset: u32, data: &[u8]) -> Vec<u8> {
    pdu(CONTROLLER_DATA, flags, id, (0, offset, data.len() as u32), data)
}

fn request(id: u16, tag: u16, offset: u32, length: u32) -> Vec<u8> {
    pdu(REQUEST, 0, id, (tag, offset, length), &[])
}

fn response(id: u16, status: u16) -> Vec<u8> {
    let mut bytes = vec![RESPONSE, 0, 24, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&(status << 1).to_le_bytes());
    bytes
}

fn read(bytes: u32) -> HostCommand {
    Range { namespace: 1, first: 5, blocks: bytes / 512 }.read(bytes)
}

fn write(bytes: Vec<u8>) -> HostCommand {
    Range { namespace: 1, first: 5, blocks: bytes.len() as u32 / 512 }.write(bytes, true)
}

/// All that a queue wants to send.
fn all_output(queue: &mut Queue) -> Vec<u8> {
    let mut all = Vec::new();
    while !queue.output().is_empty() {
        let bytes = queue.output().len().min(1000);
        all.extend_from_slice(&queue.output()[..bytes]);
        queue.sent(bytes);
    }
    all
}

fn ready(options: QueueOptions) -> Queue {
    let mut queue = Queue::new(options);
    assert_eq!(all_output(&mut queue).len(), 128);
    let digests = u8::from(options.header_digest) | u8::from(options.data_digest) << 1;
    queue.receive(&agreement(digests, 4096)).expect("an agreement");
    queue
}

fn options() -> QueueOptions {
    QueueOptions { id: 1, entries: 4, in_capsule_bytes: 1024, ..QueueOptions::default() }
}

#[test]
fn the_checksum_is_that_of_the_specification() {
    assert_eq!(checksum(b"123456789"), 0xE306_9283);
    assert_eq!(checksum(&[0; 32]), 0x8A91_36AA);
}

#[test]
fn a_request_for_parameters_has_each_option_in_its_place() {
    let mut queue = Queue::new(QueueOptions {
        header_digest: true,
        data_digest: true,
        alignment: 7,
        transfers: 3,
        ..options()
    });
    let wanted = [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 7, 3, 2, 0, 0, 0];
    assert_eq!(all_output(&mut queue)[..16], wanted);
}

#[test]
fn a_short_write_is_in_its_capsule_with_digests_that_fit() {
    let mut queue = ready(QueueOptions { header_digest: true, data_digest: true, ..options() });
    let payload: Vec<u8> = (0..1024).map(|at| at as u8).collect();
    let id = queue.submit(write(payload.clone())).expect("a place");
    let sent = all_output(&mut queue);
    assert_eq!(sent.len(), 76 + 1024 + 4);
    assert_eq!(sent[..8], [4, 3, 72, 76, 0x50, 4, 0, 0]);
    assert_eq!(sent[8..12], [1, 0x40, id as u8, (id >> 8) as u8]);
    let list = [0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1];
    assert_eq!(sent[32..48], list, "the data is in the capsule");
    assert_eq!(sent[48..60], [5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0x40]);
    assert_eq!(sent[72..76], checksum(&sent[..72]).to_le_bytes());
    assert_eq!(sent[76..1100], payload);
    assert_eq!(sent[1100..], checksum(&payload).to_le_bytes());
}

#[test]
fn a_long_write_is_sent_as_the_controller_asks_in_pieces_it_takes() {
    let mut queue = ready(QueueOptions { transfers: 2, ..options() });
    let payload: Vec<u8> = (0..16_384_u32).map(|at| (at >> 6) as u8).collect();
    let id = queue.submit(write(payload.clone())).expect("a place");
    let capsule = all_output(&mut queue);
    assert_eq!((capsule.len(), capsule[47]), (72, 0x5A));
    queue.receive(&request(id, 0xABCD, 0, 6144)).expect("it may ask");
    queue.receive(&request(id, 0xABCE, 6144, 10_240)).expect("it may ask");
    let sent = all_output(&mut queue);
    let (mut rest, mut at) = (&sent[..], 0);
    let pieces = [
        (0xABCD, 4096, 0),
        (0xABCD, 2048, LAST),
        (0xABCE, 4096, 0),
        (0xABCE, 4096, 0),
        (0xABCE, 2048, LAST),
    ];
    for (tag, bytes, flags) in pieces {
        let wanted = pdu(6, flags, id, (tag, at, bytes), &payload[at as usize..][..bytes as usize]);
        assert!(rest.starts_with(&wanted), "at {at}");
        rest = &rest[wanted.len()..];
        at += bytes;
    }
    assert!(rest.is_empty());
    queue.receive(&response(id, 0)).expect("it may end");
    let Completion { status, .. } = queue.next_completion().expect("it has ended");
    assert!(status.is_success());
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn bytes_cut_anywhere_mean_the_same() {
    for cut in 0..200 {
        let mut queue = ready(QueueOptions { flow_control: false, ..options() });
        let first = queue.submit(read(1024)).expect("a place");
        let second = queue.submit(read(512)).expect("a place");
        let bytes = [
            data(0, first, 0, &[1; 512]),
            data(LAST | SUCCESS, second, 0, &[2; 512]),
            data(LAST, first, 512, &[3; 512]),
            response(first, 0),
        ]
        .concat();
        for piece in bytes.chunks(cut * 7 + 1) {
            queue.receive(piece).expect("it is as it should be");
        }
        let completions: Vec<_> = std::iter::from_fn(|| queue.next_completion()).collect();
        assert_eq!(completions.len(), 2);
        assert_eq!((completions[0].id, &completions[0].data[..]), (second, &[2; 512][..]));
        assert_eq!(completions[1].data, [[1; 512], [3; 512]].concat());
    }
}

#[test]
fn a_queue_holds_one_command_less_than_its_entries() {
    let mut queue = ready(options());
    let ids: Vec<u16> = (0..3).map(|_| queue.submit(read(512)).expect("a place")).collect();
    assert!(matches!(queue.submit(read(512)), Err(HostError::QueueFull(3))));
    queue.receive(&response(ids[1], 0x4004)).expect("a command may fail");
    let failed = queue.next_completion().expect("a completion");
    assert!(failed.status.do_not_retry() && !failed.status.is_success());
    let again = queue.submit(read(512)).expect("a place");
    assert!(!ids.contains(&again), "the id of a command that has ended is not used at once");
}

/// The bytes of a message with some replaced.
fn with(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> Vec<u8> {
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

#[test]
fn a_wrong_agreement_is_refused_by_the_name_of_its_field() {
    let good = agreement(0, 4096);
    let cases = [
        (with(good.clone(), 8, &[1]), "PFV 1"),
        (with(good.clone(), 10, &[32]), "CPDA 32"),
        (with(good.clone(), 11, &[1]), "DGST 1"),
        (with(good.clone(), 12, &4092_u32.to_le_bytes()), "MAXH2CDATA 4092"),
        (with(good.clone(), 12, &4098_u32.to_le_bytes()), "MAXH2CDATA 4098"),
        (with(good.clone(), 2, &[64]), "HLEN 64"),
        (with(good.clone(), 4, &[127]), "PLEN 127"),
        (response(0, 0), "type 0x05 comes before ICResp"),
        ([good.clone(), good].concat(), "type 0x01 is not"),
    ];
    for (bytes, words) in cases {
        let mut queue = Queue::new(options());
        let error = queue.receive(&bytes).expect_err(words).to_string();
        assert!(error.contains(words), "{error} does not name {words}");
    }
}

#[test]
fn a_breach_is_refused_by_the_name_of_its_field() {
    // Ids of a read, a write and a flush.
    let (r, w, f) = (0x1000, 0x1001, 0x1002);
    let long = [0; 1024];
    let cases: [(Vec<u8>, &str); 29] = [
        (response(0x2000, 0), "CID 0x2000"),
        (response(0x1003, 0), "CID 0x1003"),
        (with(response(f, 0), 16, &[4]), "SQHD 4 of 4"),
        (with(response(f, 0), 1, &[1]), "FLAGS 0x01"),
        (with(response(f, 0), 2, &[72]), "HLEN 72"),
        (with(response(f, 0), 4, &[28]), "PLEN 28"),
        (with(response(f, 0), 0, &[4]), "type 0x04"),
        (response(r, 0), "Read succeeded with 0 of 1024"),
        (response(w, 0), "Write succeeded with 0 of 8192"),
        (data(LAST, f, 0, &long), "Flush, which takes no data"),
        (data(LAST, w, 0, &long), "Write, which takes no data"),
        (data(LAST, 0x2000, 0, &long), "CCCID 0x2000"),
        (data(LAST, r, 512, &long[..512]), "DATAO 512"),
        (data(LAST, r, 0, &[0; 1028]), "DATAL 1028"),
        (data(LAST, r, 0, &[]), "DATAL 0"),
        (data(LAST | SUCCESS, r, 0, &long), "FLAGS 0x0c"),
        (data(LAST | 2, r, 0, &long), "FLAGS 0x06"),
        (with(data(LAST, r, 0, &long), 3, &[20]), "PDO 20"),
        (with(data(LAST, r, 0, &long), 3, &[26]), "PDO 26"),
        (with(data(LAST, r, 0, &long), 4, &2000_u32.to_le_bytes()), "PLEN 2000"),
        ([data(0, r, 0, &long), response(r, 0)].concat(), "Read succeeded with 1024 of 1024"),
        ([data(LAST, r, 0, &long[..4]), data(LAST, r, 4, &long[..4])].concat(), "FLAGS 0x04"),
        (request(0x2000, 0, 0, 8192), "CCCID 0x2000"),
        (request(r, 0, 0, 1024), "R2T for Read"),
        (request(w, 0, 4, 1024), "R2TO 4"),
        (request(w, 0, 0, 0), "R2TL 0"),
        (request(w, 0, 0, 8196), "R2TL 8196"),
        ([request(w, 0, 0, 4096), request(w, 1, 4096, 4096)].concat(), "1 R2Ts are open"),
        ([request(w, 0, 0, 8192), response(w, 0)].concat(), "Write succeeded"),
    ];
    for (bytes, words) in cases {
        let mut queue = ready(options());
        assert_eq!(queue.submit(read(1024)).expect("a place"), r);
        assert_eq!(queue.submit(write(vec![0; 8192])).expect("a place"), w);
        let flush = HostCommand::new("Flush", 0, 1, Payload::None);
        assert_eq!(queue.submit(flush).expect("a place"), f);
        let error = queue.receive(&bytes).expect_err(words).to_string();
        assert!(error.contains(words), "{error} does not name {words}");
    }
}

#[test]
fn wrong_digests_are_refused() {
    let digests = |bytes: Vec<u8>, header: u32, data: u32| {
        let length = (bytes.len() + 8) as u32;
        let bytes = with(bytes, 4, &length.to_le_bytes());
        let mut bytes = with(with(bytes, 3, &[28]), 1, &[LAST | 3]);
        let told = (checksum(&bytes[..24]) ^ header).to_le_bytes();
        let end = (checksum(&bytes[24..]) ^ data).to_le_bytes();
        bytes.splice(24..24, told);
        bytes.extend_from_slice(&end);
        bytes
    };
    for (header, wrong, words) in [(0, 0, ""), (1, 0, "header digest"), (0, 8, "data digest")] {
        let mut queue = ready(QueueOptions { header_digest: true, data_digest: true, ..options() });
        let id = queue.submit(read(512)).expect("a place");
        match queue.receive(&digests(data(LAST, id, 0, &[9; 512]), header, wrong)) {
            Ok(()) => assert_eq!(words, ""),
            Err(error) => assert!(error.to_string().contains(words) && !words.is_empty()),
        }
    }
}

#[test]
fn the_reason_of_a_controller_that_ends_the_connection_is_told() {
    let mut queue = ready(options());
    let mut end = vec![3, 0, 24, 0, 28, 0, 0, 0, 2, 0, 7, 0, 0, 0];
    end.resize(28, 0);
    let error = queue.receive(&end).expect_err("the connection ends");
    assert!(matches!(error, HostError::Terminated { status: 2, info: 7 }), "{error}");
}
