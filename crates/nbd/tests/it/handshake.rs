//! The server's handshake, byte by byte, as proto.md writes it down.

use std::sync::{Arc, Mutex};

use floe_nbd::export::{Export, Exports};
use floe_nbd::handshake::{
    Admission, Handshake, Negotiated, OPTION_DATA_MAX_BYTES, OPTION_SKIP_MAX_BYTES, Place,
    Progress, Tls,
};
use floe_nbd::wire::{ProtocolError, Violation};

const FIXED: u32 = 1;
const FIXED_NO_ZEROES: u32 = 3;

fn exports() -> Arc<Exports> {
    let mut first = Export::new("disk", 0x1234_5000);
    first.description = "a disk".into();
    let mut second = Export::new("täpe", 4096);
    second.read_only = true;
    second.rotational = true;
    second.can_multi_conn = false;
    second.minimum_block_bytes = 512;
    second.preferred_block_bytes = 65536;
    second.maximum_block_bytes = 1 << 20;
    Arc::new(Exports::new(vec![first, second]).unwrap())
}

/// What a client sends: an option.
fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// What the server sends: a reply to an option.
fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let magic = [0x00, 0x03, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9];
    [
        &magic[..],
        &option.to_be_bytes(),
        &kind.to_be_bytes(),
        &(data.len() as u32).to_be_bytes(),
        data,
    ]
    .concat()
}

fn go_data(name: &str, requests: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(requests.len() as u16).to_be_bytes());
    requests.iter().for_each(|request| data.extend_from_slice(&request.to_be_bytes()));
    data
}

fn client(flags: u32, options: &[Vec<u8>]) -> Vec<u8> {
    [&flags.to_be_bytes()[..], &options.concat()].concat()
}

/// How a conversation ended: what was sent, how far it came, how much input was used.
type Ending = Result<(Vec<u8>, Progress, usize), ProtocolError>;

/// Feeds the pieces in turn, each to its end.
fn converse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Ending {
    let (mut handshake, mut out, mut used) = (Handshake::new(exports(), Tls::Off), Vec::new(), 0);
    for mut rest in pieces {
        loop {
            let (taken, progress) = handshake.receive(rest, &mut out)?;
            used += taken;
            rest = &rest[taken..];
            assert!(handshake.kept_bytes() <= 2 * OPTION_DATA_MAX_BYTES as usize);
            assert_eq!(handshake.consumed_bytes(), used as u64);
            match progress {
                Progress::NeedMore => {
                    assert!(rest.is_empty(), "wants more but leaves some");
                    break;
                }
                Progress::Answered => {}
                _ => return Ok((out, progress, used)),
            }
        }
    }
    Ok((out, Progress::NeedMore, used))
}

/// Checks one conversation: whole, one byte at a time, and split in two at every early place.
fn says(input: &[u8], expected: &[u8], progress: Progress) {
    let wanted = (expected.to_vec(), progress, input.len());
    assert_eq!(converse([input]).unwrap(), wanted);
    assert_eq!(converse(input.chunks(1)).unwrap(), wanted);
    for at in 0..input.len().min(200) {
        let (first, second) = input.split_at(at);
        assert_eq!(converse([first, second]).unwrap(), wanted, "split at {at}");
    }
}

fn breaks(input: &[u8], at: u64, violation: Violation) {
    let error = Err(ProtocolError { at, violation });
    assert_eq!(converse([input]), error);
    assert_eq!(converse(input.chunks(1)), error);
}

fn transmission(export: usize, structured_replies: bool) -> Progress {
    let export = Arc::clone(exports().iter().nth(export).unwrap());
    Progress::Transmission(Negotiated { export, structured_replies, base_allocation: false })
}

#[test]
fn the_server_greets_with_fixed_newstyle_and_no_zeroes() {
    assert_eq!(&Handshake::greeting(), b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn export_name_is_answered_with_size_flags_and_zeroes() {
    let answer = [&[0, 0, 0, 0, 0x12, 0x34, 0x50, 0, 0x0d, 0x6d][..], &[0; 124]].concat();
    says(&client(FIXED, &[option(1, b"disk")]), &answer, transmission(0, false));
}

#[test]
fn export_name_leaves_the_zeroes_out_when_asked_to() {
    let answer = [0, 0, 0, 0, 0, 0, 0x10, 0, 0x04, 0x1f];
    says(
        &client(FIXED_NO_ZEROES, &[option(1, "täpe".as_bytes())]),
        &answer,
        transmission(1, false),
    );
}

#[test]
fn a_client_without_fixed_newstyle_may_send_export_name_only() {
    let answer = [&[0, 0, 0, 0, 0x12, 0x34, 0x50, 0, 0x0d, 0x6d][..], &[0; 124]].concat();
    says(&client(0, &[option(1, b"")]), &answer, transmission(0, false));
    breaks(&client(0, &[option(3, b"")]), 4, Violation::NotFixedNewstyle(3));
}

#[test]
fn export_name_of_an_unknown_export_ends_the_session() {
    breaks(&client(FIXED, &[option(1, b"nope")]), 4, Violation::UnknownExport("nope".into()));
    let long = client(FIXED, &[option(3, b""), option(1, &[b'x'; 4097])]);
    breaks(&long, 20, Violation::OptionTooLong { option: 1, length: 4097, max: 4096 });
}

#[test]
fn abort_is_acknowledged_and_ends_the_session() {
    says(&client(FIXED, &[option(2, b"")]), &reply(2, 1, b""), Progress::Closed);
}

#[test]
fn abort_with_data_is_acknowledged_without_reading_it() {
    let ending = converse([&client(FIXED, &[option(2, b"bye")])[..]]).unwrap();
    assert_eq!(ending, (reply(2, 1, b""), Progress::Closed, 20));
}

#[test]
fn list_names_and_describes_every_export() {
    let expected = [
        reply(3, 2, b"\x00\x00\x00\x04diska disk"),
        reply(3, 2, b"\x00\x00\x00\x05t\xc3\xa4pe"),
        reply(3, 1, b""),
    ];
    says(&client(FIXED, &[option(3, b"")]), &expected.concat(), Progress::NeedMore);
}

#[test]
fn options_that_take_no_data_refuse_it() {
    let input = client(FIXED, &[option(3, b"x"), option(8, b"yz")]);
    let message = b"this option takes no data";
    let expected = [reply(3, 0x8000_0003, message), reply(8, 0x8000_0003, message)];
    says(&input, &expected.concat(), Progress::NeedMore);
}

#[test]
fn go_tells_size_and_flags_and_starts_transmission() {
    let size_and_flags = [0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x50, 0, 0x0d, 0x6d];
    let expected = [reply(7, 3, &size_and_flags), reply(7, 1, b"")].concat();
    says(&client(FIXED, &[option(7, &go_data("disk", &[]))]), &expected, transmission(0, false));
    says(&client(FIXED, &[option(7, &go_data("", &[]))]), &expected, transmission(0, false));
}

#[test]
fn go_tells_name_description_and_block_sizes_on_request() {
    let expected = [
        reply(8, 1, b""),
        reply(7, 3, &[0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x50, 0, 0x0d, 0xed]),
        reply(7, 3, b"\x00\x01disk"),
        reply(7, 3, b"\x00\x02a disk"),
        reply(7, 3, b"\x00\x03\x00\x00\x00\x01\x00\x00\x10\x00\x02\x00\x00\x00"),
        reply(7, 1, b""),
    ];
    let options = [option(8, b""), option(7, &go_data("disk", &[3, 2, 1, 3, 77, 0]))];
    says(&client(FIXED_NO_ZEROES, &options), &expected.concat(), transmission(0, true));
}

#[test]
fn info_describes_without_starting_transmission() {
    let expected = [
        reply(6, 3, &[0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0x04, 0x1f]),
        reply(6, 3, b"\x00\x03\x00\x00\x02\x00\x00\x01\x00\x00\x00\x10\x00\x00"),
        reply(6, 1, b""),
    ];
    let input = client(FIXED, &[option(6, &go_data("täpe", &[2, 3]))]);
    says(&input, &expected.concat(), Progress::NeedMore);
}

#[test]
fn an_unknown_export_is_refused_and_the_client_may_try_another() {
    let options = [
        option(6, &go_data("x", &[])),
        option(7, &go_data("y", &[])),
        option(7, &go_data("disk", &[])),
    ];
    let expected = [
        reply(6, 0x8000_0006, b"no such export"),
        reply(7, 0x8000_0006, b"no such export"),
        reply(7, 3, &[0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x50, 0, 0x0d, 0x6d]),
        reply(7, 1, b""),
    ];
    says(&client(FIXED, &options), &expected.concat(), transmission(0, false));
}

#[test]
fn malformed_option_data_is_invalid() {
    let long_name = go_data(&"n".repeat(4097), &[]);
    let bad: [&[u8]; 6] = [
        b"",
        b"\0\0\0",
        b"\0\0\0\x05disk\0\0",
        b"\0\0\0\x04disk\0\x02\0\x01",
        b"\xff\xff\xff\xffdisk",
        &long_name,
    ];
    for data in bad {
        let expected = reply(7, 0x8000_0003, b"malformed option data");
        says(&client(FIXED, &[option(7, data)]), &expected, Progress::NeedMore);
    }
}

#[test]
fn what_is_not_supported_is_said_so_and_skipped() {
    let early = b"metadata contexts need structured replies";
    let known = [option(5, b""), option(9, b"query"), option(10, &[7; 300]), option(11, b"")];
    let unknown = [option(4, b""), option(99, b"?")];
    let expected = [
        reply(5, 0x8000_0002, b"TLS is turned off"),
        reply(9, 0x8000_0003, early),
        reply(10, 0x8000_0003, early),
        reply(11, 0x8000_0001, b"option not supported"),
        reply(4, 0x8000_0001, b"option not supported"),
        reply(99, 0x8000_0001, b"option not supported"),
    ];
    says(
        &client(FIXED, &[known.concat(), unknown.concat()]),
        &expected.concat(),
        Progress::NeedMore,
    );
}

#[test]
fn too_much_option_data_is_skipped_and_far_too_much_ends_the_session() {
    let big = vec![0; OPTION_DATA_MAX_BYTES as usize + 1];
    let input = client(FIXED, &[option(7, &big), option(2, b"")]);
    let expected = [reply(7, 0x8000_0009, b"too much option data"), reply(2, 1, b"")].concat();
    says(&input, &expected, Progress::Closed);

    let (length, max) = (OPTION_SKIP_MAX_BYTES + 1, OPTION_SKIP_MAX_BYTES);
    let mut header = option(99, b"");
    header[12..].copy_from_slice(&length.to_be_bytes());
    breaks(&client(FIXED, &[header]), 4, Violation::OptionTooLong { option: 99, length, max });
}

#[test]
fn endless_haggling_ends_the_session() {
    let input = client(FIXED, &vec![option(8, b""); 300]);
    breaks(&input, 4 + 16 * 272, Violation::TooManyOptions(256 + 2 * 8));
}

#[test]
fn random_options_mean_the_same_in_pieces_and_keep_little() {
    for seed in 0..2000u64 {
        let mut state = seed;
        let mut below = |end: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let mut input = client(FIXED, &[]);
        for _ in 0..1 + below(8) {
            let most = [8, 40, 300, 5000][below(4) as usize];
            let mut data = go_data("disk", &[3, 1]);
            data.resize(below(most) as usize, 0);
            for _ in 0..below(3) {
                if let Some(byte) = data.get_mut(below(most) as usize) {
                    *byte = below(256) as u8;
                }
            }
            input.extend_from_slice(&option(below(13) as u32, &data));
        }
        input.truncate(input.len() - below(30) as usize % input.len());
        let whole = converse([&input[..]]);
        assert_eq!(converse(input.chunks(1)), whole, "seed {seed}");
        assert_eq!(converse(input.chunks(1 + below(50) as usize)), whole, "seed {seed}");
        assert!(whole.is_err() || whole.unwrap().0.len() < 4096, "seed {seed}: too much was sent");
    }
}

#[test]
fn wrong_flags_and_magic_numbers_end_the_session() {
    breaks(&client(5, &[]), 0, Violation::ClientFlags(5));
    let input = [&FIXED.to_be_bytes()[..], &option(8, b""), b"IHAVENOT00000000"].concat();
    breaks(&input, 20, Violation::OptionMagic(u64::from_be_bytes(*b"IHAVENOT")));
    let line = "bad option magic 0x49484156454e4f54, in the message at byte 20 from the client";
    assert_eq!(converse([&input[..]]).unwrap_err().to_string(), line);
}

#[test]
fn requests_that_follow_go_are_left_to_the_transmission_phase() {
    let handshake = client(FIXED, &[option(7, &go_data("disk", &[]))]);
    let input = [&handshake[..], b"requests"].concat();
    let (_, progress, used) = converse([&input[..]]).unwrap();
    assert_eq!((progress, used), (transmission(0, false), handshake.len()));
}

#[test]
fn exports_that_break_the_rules_cannot_be_offered() {
    let broken = |change: fn(&mut Export)| {
        let mut export = Export::new("e", 4096);
        change(&mut export);
        Exports::new(vec![export]).unwrap_err().to_string()
    };
    assert!(broken(|e| e.name = "x".repeat(4097)).contains("longer than 4096"));
    assert!(broken(|e| e.description = "\0".into()).contains("NUL"));
    assert!(broken(|e| e.size_bytes = 1 << 63).contains("2^63"));
    assert!(broken(|e| e.minimum_block_bytes = 3).contains("minimum"));
    assert!(broken(|e| e.preferred_block_bytes = 256).contains("preferred"));
    assert!(broken(|e| e.maximum_block_bytes = 2048).contains("maximum"));
    let twice = Exports::new(vec![Export::new("e", 1), Export::new("e", 2)]).unwrap_err();
    assert_eq!(twice.to_string(), r#"cannot offer export "e": its name is taken twice"#);
    assert!(Exports::new(vec![]).unwrap().find(b"").is_none());
}

/// An admission that has room for a number of clients, all of whom stay.
#[derive(Debug)]
struct Room(Mutex<u32>);

impl Admission for Room {
    fn admit(&self, export: &str) -> Option<Place> {
        assert_eq!(export, "disk");
        let mut room = self.0.lock().unwrap();
        *room = room.checked_sub(1)?;
        Some(Box::new(()))
    }
}

#[test]
fn an_export_without_room_is_described_and_listed_but_refused() {
    let text = b"this export has as many connections as its limit allows; try again later";
    for room in 0..=1 {
        let mut handshake = Handshake::new(exports(), Tls::Off);
        handshake.admit_by(Arc::new(Room(Mutex::new(room))));
        let ask = |handshake: &mut Handshake, input: &[u8]| {
            let mut out = Vec::new();
            handshake.receive(input, &mut out).map(|(used, progress)| {
                assert_eq!(used, input.len());
                (out, progress)
            })
        };
        let [info, go] = [6, 7].map(|number| option(number, &go_data("", &[])));
        let (described, progress) =
            ask(&mut handshake, &[&client(FIXED, &[])[..], &info].concat()).unwrap();
        assert_eq!(progress, Progress::Answered);
        assert!(described.ends_with(&reply(6, 1, b"")), "an acknowledgement");
        let (answer, progress) = ask(&mut handshake, &go).unwrap();
        if room > 0 {
            assert_eq!(progress, transmission(0, false));
            assert!(handshake.take_place().is_some());
            continue;
        }
        assert_eq!((answer, progress), (reply(7, 1 << 31 | 2, text), Progress::Answered));
        assert!(handshake.take_place().is_none());
        let error = ask(&mut handshake, &option(1, b"disk")).unwrap_err();
        assert_eq!(error.violation, Violation::NoPlace("disk".into()));
    }
}
