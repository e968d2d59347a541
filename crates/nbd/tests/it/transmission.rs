//! Requests, their checks, and the replies to them, byte by byte.

use std::sync::Arc;

use floe_nbd::export::Export;
use floe_nbd::handshake::Negotiated;
use floe_nbd::transmission::{MESSAGE_MAX_BYTES, ReplyHeader};
use floe_nbd::transmission::{NbdCommand, Request, check, parse};
use floe_nbd::wire::{ErrorCode, NbdError, Violation};

const SIZE: u64 = 1 << 20;

fn request(command: NbdCommand, flags: u16, offset: u64, length: u32) -> Request {
    Request { cookie: 0x0102_0304_0506_0708, command, flags, offset, length }
}

fn outcome(request: &Request, export: &Export) -> Result<(), ErrorCode> {
    check(request, &agreed(export, true)).map_err(|error| error.code)
}

fn agreed(export: &Export, structured_replies: bool) -> Negotiated {
    Negotiated {
        export: Arc::new(export.clone()),
        structured_replies,
        base_allocation: structured_replies,
    }
}

#[test]
fn a_request_is_parsed_field_by_field() {
    let mut header = *b"\x25\x60\x95\x13\0\x05\0\x01abcdefgh\0\0\0\x01\0\0\x02\0\0\0\x10\0";
    let cookie = u64::from_be_bytes(*b"abcdefgh");
    let expected = Request {
        cookie,
        command: NbdCommand::Write,
        flags: 5,
        offset: 0x1_0000_0200,
        length: 4096,
    };
    assert_eq!(parse(&header), Ok(expected));
    let commands = [
        (0, NbdCommand::Read),
        (2, NbdCommand::Disconnect),
        (3, NbdCommand::Flush),
        (4, NbdCommand::Trim),
        (5, NbdCommand::Cache),
        (6, NbdCommand::WriteZeroes),
        (7, NbdCommand::BlockStatus),
        (8, NbdCommand::Unknown(8)),
        (0xffff, NbdCommand::Unknown(0xffff)),
    ];
    for (number, command) in commands {
        header[6..8].copy_from_slice(&u16::to_be_bytes(number));
        assert_eq!(parse(&header).unwrap().command, command);
    }
    header[0] = 0x24;
    assert_eq!(parse(&header), Err(Violation::RequestMagic(0x2460_9513)));
}

#[test]
fn requests_inside_the_export_pass() {
    let export = Export::new("e", SIZE);
    for command in [NbdCommand::Read, NbdCommand::Write, NbdCommand::Trim, NbdCommand::WriteZeroes]
    {
        for flags in [0, 1] {
            assert_eq!(outcome(&request(command, flags, 0, SIZE as u32), &export), Ok(()));
            assert_eq!(outcome(&request(command, flags, SIZE - 1, 1), &export), Ok(()));
            assert_eq!(
                outcome(&request(command, flags, SIZE, 0), &export),
                Ok(()),
                "nothing, at the end"
            );
        }
    }
    assert_eq!(outcome(&request(NbdCommand::Flush, 1, 0, 0), &export), Ok(()));
    assert_eq!(outcome(&request(NbdCommand::Read, 4, 0, 1), &export), Ok(()));
    assert_eq!(outcome(&request(NbdCommand::WriteZeroes, 3, 0, 1), &export), Ok(()));
    assert_eq!(outcome(&request(NbdCommand::Disconnect, 0, 0, 0), &export), Ok(()));
}

#[test]
fn past_the_end_is_no_space_for_writes_and_invalid_for_the_rest() {
    let export = Export::new("e", SIZE);
    let outside = [
        (SIZE, 1),
        (SIZE - 1, 2),
        (SIZE + 1, 0),
        (u64::MAX, 0),
        (u64::MAX, 1),
        (u64::MAX - 1, 4096),
    ];
    for (offset, length) in outside {
        for (command, code) in [
            (NbdCommand::Read, ErrorCode::Invalid),
            (NbdCommand::Trim, ErrorCode::Invalid),
            (NbdCommand::Write, ErrorCode::NoSpace),
            (NbdCommand::WriteZeroes, ErrorCode::NoSpace),
        ] {
            assert_eq!(outcome(&request(command, 0, offset, length), &export), Err(code));
        }
    }
}

#[test]
fn changes_to_a_read_only_export_are_not_permitted() {
    let mut export = Export::new("e", SIZE);
    export.read_only = true;
    for command in [NbdCommand::Write, NbdCommand::Trim, NbdCommand::WriteZeroes] {
        assert_eq!(outcome(&request(command, 0, 0, 4096), &export), Err(ErrorCode::Perm));
    }
    assert_eq!(outcome(&request(NbdCommand::Read, 0, 0, 4096), &export), Ok(()));
    assert_eq!(outcome(&request(NbdCommand::Flush, 0, 0, 0), &export), Ok(()));
}

#[test]
fn unknown_commands_and_flags_are_invalid() {
    let export = Export::new("e", SIZE);
    let bad = [
        (NbdCommand::Unknown(8), 0),
        (NbdCommand::Cache, 2),
        (NbdCommand::BlockStatus, 2),
        (NbdCommand::Read, 2),
        (NbdCommand::Read, 8),
        (NbdCommand::Read, 0x8000),
        (NbdCommand::Write, 2),
        (NbdCommand::Write, 4),
        (NbdCommand::Trim, 2),
        (NbdCommand::WriteZeroes, 4),
        (NbdCommand::Write, 16),
        (NbdCommand::Flush, 4),
    ];
    for (command, flags) in bad {
        assert_eq!(outcome(&request(command, flags, 0, 0), &export), Err(ErrorCode::Invalid));
    }
    let unfragmented = request(NbdCommand::Read, 4, 0, 1);
    assert_eq!(
        check(&unfragmented, &agreed(&export, false)).unwrap_err().code,
        ErrorCode::Invalid,
        "DF was not offered"
    );
    assert_eq!(outcome(&request(NbdCommand::Flush, 0, 0, 1), &export), Err(ErrorCode::Invalid));
    assert_eq!(outcome(&request(NbdCommand::Flush, 0, 1, 0), &export), Err(ErrorCode::Invalid));
}

#[test]
fn lengths_over_the_maximum_are_invalid_where_they_carry_payload() {
    let export = Export::new("e", 1 << 40);
    let max = export.maximum_block_bytes;
    for command in [NbdCommand::Read, NbdCommand::Write] {
        assert_eq!(outcome(&request(command, 0, 0, max), &export), Ok(()));
        assert_eq!(outcome(&request(command, 0, 0, max + 1), &export), Err(ErrorCode::Invalid));
    }
    assert_eq!(outcome(&request(NbdCommand::Trim, 0, 0, u32::MAX), &export), Ok(()));
    assert_eq!(outcome(&request(NbdCommand::WriteZeroes, 0, 0, u32::MAX), &export), Ok(()));
}

#[test]
fn requests_must_be_aligned_to_the_minimum_block() {
    let mut export = Export::new("e", SIZE);
    export.minimum_block_bytes = 512;
    for (offset, length) in [(1, 512), (512, 100), (511, 1)] {
        assert_eq!(
            outcome(&request(NbdCommand::Read, 0, offset, length), &export),
            Err(ErrorCode::Invalid)
        );
    }
    assert_eq!(outcome(&request(NbdCommand::Write, 0, 512, 1024), &export), Ok(()));
}

#[test]
fn simple_replies_are_sixteen_bytes() {
    let read = request(NbdCommand::Read, 0, 4096, 512);
    let header = ReplyHeader::success(&read, false);
    assert_eq!(header.as_bytes(), b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
    assert_eq!(header.payload_bytes(), 512);
    for structured in [false, true] {
        let header = ReplyHeader::success(&request(NbdCommand::Write, 0, 4096, 512), structured);
        assert_eq!(header.as_bytes(), b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(header.payload_bytes(), 0);
    }
    let header = ReplyHeader::failure(&read, &NbdError::new(ErrorCode::Io, "hidden"), false);
    assert_eq!(header.as_bytes(), b"\x67\x44\x66\x98\0\0\0\x05\x01\x02\x03\x04\x05\x06\x07\x08");
    assert_eq!(header.payload_bytes(), 0);
}

#[test]
fn a_structured_read_is_one_last_chunk_of_data() {
    let header = ReplyHeader::success(&request(NbdCommand::Read, 4, 0x1000, 0x200), true);
    let chunk = b"\x66\x8e\x33\xef\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x02\x08";
    assert_eq!(header.as_bytes(), [&chunk[..], b"\0\0\0\0\0\0\x10\0"].concat());
    assert_eq!(header.payload_bytes(), 0x200);
}

#[test]
fn a_structured_read_of_nothing_has_no_data_chunk() {
    let header = ReplyHeader::success(&request(NbdCommand::Read, 0, 0x1000, 0), true);
    assert_eq!(
        header.as_bytes(),
        b"\x66\x8e\x33\xef\0\x01\0\0\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0"
    );
    assert_eq!(header.payload_bytes(), 0);
}

#[test]
fn a_structured_failure_carries_code_and_message() {
    let error = NbdError::new(ErrorCode::NoSpace, "full");
    let header = ReplyHeader::failure(&request(NbdCommand::Write, 0, 0, 1), &error, true);
    let chunk = b"\x66\x8e\x33\xef\0\x01\x80\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x0a";
    assert_eq!(header.as_bytes(), [&chunk[..], b"\0\0\0\x1c\0\x04full"].concat());
    assert_eq!(header.payload_bytes(), 0);
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let even = NbdError::new(ErrorCode::Io, "ääääääääääääääääääääääääääääääääääääääääääääää");
    let odd = NbdError::new(ErrorCode::Io, "xääääääääääääääääääääääääääääääääääääääääääääää");
    for (error, length) in [(even, MESSAGE_MAX_BYTES), (odd, MESSAGE_MAX_BYTES - 1)] {
        let header = ReplyHeader::failure(&request(NbdCommand::Read, 0, 0, 1), &error, true);
        assert_eq!(header.as_bytes()[24..26], [0, length as u8]);
        assert_eq!(&header.as_bytes()[26..], &error.message.as_bytes()[..length]);
        assert!(std::str::from_utf8(&header.as_bytes()[26..]).is_ok());
    }
}

#[test]
fn system_errors_become_protocol_codes() {
    let code = |number| NbdError::from(&std::io::Error::from_raw_os_error(number)).code;
    assert_eq!(code(libc::EROFS), ErrorCode::Perm);
    assert_eq!(code(libc::EDQUOT), ErrorCode::NoSpace);
    assert_eq!(code(libc::EFBIG), ErrorCode::NoSpace);
    assert_eq!(code(libc::ENOMEM), ErrorCode::NoMemory);
    assert_eq!(code(libc::EINVAL), ErrorCode::Invalid);
    assert_eq!(code(libc::ENXIO), ErrorCode::Io);
    for known in [1, 5, 12, 22, 28, 75, 95, 108] {
        assert_eq!(ErrorCode::from_number(known).number(), known);
    }
    assert_eq!(
        ErrorCode::from_number(4711),
        ErrorCode::Invalid,
        "an unknown code counts as invalid"
    );
}

#[test]
fn a_block_status_is_for_those_who_selected_a_context_and_of_some_bytes() {
    let export = Export::new("e", SIZE);
    assert_eq!(outcome(&request(NbdCommand::BlockStatus, 8, 0, SIZE as u32), &export), Ok(()));
    assert_eq!(
        outcome(&request(NbdCommand::BlockStatus, 0, 0, 0), &export),
        Err(ErrorCode::Invalid)
    );
    assert_eq!(
        outcome(&request(NbdCommand::BlockStatus, 0, SIZE, 1), &export),
        Err(ErrorCode::Invalid)
    );
    let unselected = agreed(&export, false);
    assert!(check(&request(NbdCommand::BlockStatus, 0, 0, 1), &unselected).is_err());
}

#[test]
fn what_changes_nothing_is_served_by_a_read_only_export() {
    let export = Export { read_only: true, ..Export::new("e", SIZE) };
    for command in [NbdCommand::Read, NbdCommand::Cache, NbdCommand::BlockStatus] {
        assert_eq!(outcome(&request(command, 0, 0, 4096), &export), Ok(()));
    }
    assert_eq!(
        outcome(&request(NbdCommand::WriteZeroes, 16, 0, 4096), &export),
        Err(ErrorCode::Perm)
    );
}

#[test]
fn a_block_status_is_one_chunk_with_its_context() {
    let asked = request(NbdCommand::BlockStatus, 0, 0, 4096);
    let header = ReplyHeader::block_status(&asked, 16);
    let expected =
        b"\x66\x8e\x33\xef\0\x01\0\x05\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x14\0\0\0\x01";
    assert_eq!((header.as_bytes(), header.payload_bytes()), (&expected[..], 16));
}
