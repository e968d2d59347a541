//! Bad records: named to the byte, or counted and passed over; and never a panic.

use crate::common::{
    BINARY, FORMATS, error, expected, given, header, lenient, open, read, requests, write,
};
use floe_trace::{OpenOptions, Trace};
use proptest::prelude::*;

#[test]
fn a_malformed_line_is_named_with_its_file_number_and_place() {
    // Format, first line, second line, error.
    let cases = [
        (
            "adaptsize",
            "1 2 3",
            "1 2",
            "line 2 at byte 6: expected a size in bytes in column 3, found nothing",
        ),
        (
            "alibaba",
            "1,R,0,512,9",
            "1,X,0,512,9",
            "line 2 at byte 12: expected R or W in column 2, found \"X\"",
        ),
        (
            "arc",
            "1 1 0 0",
            "1 0 0 0",
            "line 2 at byte 8: expected a page count from 1 to 8388608 in column 2, found \"0\"",
        ),
        (
            "arc",
            "1 1 0 0",
            "5 9000000 0 1",
            "line 2 at byte 8: expected a page count from 1 to 8388608 in column 2, found \
             \"9000000\"",
        ),
        (
            "arc",
            "1 1 0 0",
            "5 1 0 1 9",
            "line 2 at byte 8: expected the end of the line in column 5, found \"9\"",
        ),
        (
            "blkparse",
            "8,0 1 1 0.5 9 Q R 8 + 8 [x]",
            "8,0 1 1 0.5 9 Q X 8 + 8 [x]",
            "line 2 at byte 28: expected R, W, D or N with flags in column 7, found \"X\"",
        ),
        (
            "blkparse",
            "8,0 1 1 0.5 9 Q R 8 + 8 [x]",
            "8,0 1 1 0.5 9 Q R 8 +",
            "line 2 at byte 28: expected a number of sectors of at most 4 GiB in column 10, found \
             nothing",
        ),
        (
            "blkparse-issued",
            "8,0 1 1 0.5 9 D R 8 + 8 [x]",
            "sda 1 1 0.5 9 C R 8 + 8 [0]",
            "line 2 at byte 28: expected a device as major,minor in column 1, found \"sda\"",
        ),
        (
            "csv",
            "x,y",
            "1",
            "line 1 at byte 0: expected a header that names a key, or an offset and a size \
             (--columns helps), found \"x,y\"",
        ),
        (
            "fiu",
            "1 2 sh 8 8 W 6 0 56f1",
            "1 2 sh 8 8 T 6 0 56f1",
            "line 2 at byte 22: expected R or W in column 6, found \"T\"",
        ),
        (
            "cachelib",
            "x,y",
            "1",
            "line 1 at byte 0: expected a header with the columns of a kv, cdn or tectonic trace, \
             found \"x,y\"",
        ),
        (
            "disksim",
            "1.5 0 8 8 1",
            "1.x 0 8 8 1",
            "line 2 at byte 12: expected a time in ms in column 1, found \"1.x\"",
        ),
        (
            "disksim",
            "1.5 0 8 8 1",
            "1.5 0 8 8 g",
            "line 2 at byte 12: expected hexadecimal flags in column 5, found \"g\"",
        ),
        (
            "msr",
            "1,h,0,Read,0,512,1",
            "1,h,0,Trim,0,512,1",
            "line 2 at byte 19: expected Read or Write in column 4, found \"Trim\"",
        ),
        (
            "spc",
            "0,1,512,R,0.5",
            "0,1,9999999999,R,0.5",
            "line 2 at byte 14: expected a length of at most 4 GiB in column 3, found \
             \"9999999999\"",
        ),
        (
            "ssdsim",
            "1 0 8 8 1",
            "1 0 8 8 2",
            "line 2 at byte 10: expected 1 for a read or 0 for a write in column 5, found \"2\"",
        ),
        (
            "systor",
            "1.0,0.1,R,0,0,512",
            "1.0,0.1,R,0,-1,512",
            "line 2 at byte 18: expected an offset in bytes in column 5, found \"-1\"",
        ),
        (
            "tencent",
            "1,8,8,0,7",
            "1,99999999999999999999,8,0,7",
            "line 2 at byte 10: expected the first sector in column 2, found \
             \"99999999999999999999\"",
        ),
        (
            "twitter",
            "1,k,1,2,3,get,0",
            "1,k,1,2,3,\tfly\x01,0",
            "line 2 at byte 16: expected a memcached operation in column 6, found \"fly\\x01\"",
        ),
    ];
    for (format, first, second, message) in cases {
        let text = format!("{first}\n{second}\n{first}\n");
        assert_eq!(error(text.as_bytes(), &given(format)), format!("t: {message}"), "{format}");
        let mut trace = open(text.as_bytes(), &lenient(format)).unwrap();
        let good = trace.by_ref().map(Result::unwrap).count();
        let bad = if matches!(format, "cachelib" | "csv") { 3 } else { 1 };
        assert_eq!((good as u64, trace.skipped()), (3 - bad, bad), "{format}");
    }
}

#[test]
fn a_malformed_line_of_a_table_names_its_column() {
    let cases = [
        (
            "ts,key,size",
            "x,a,1",
            "a time (--columns time-unit=… gives its unit) in column 1, found \"x\"",
        ),
        ("ts,key,size", "1,a,-1", "a size in column 3, found \"-1\""),
        ("ts,key,size", "1,,1", "a key in column 2, found nothing"),
        ("ts,key,size", "1,a", "as many columns as in the header in column 3, found nothing"),
        ("ts,key,size", "1,a,1,2,3", "the end of the line in column 4, found \"2,3\""),
        ("key;op", "a;fly", "an operation in column 2, found \"fly\""),
        (
            "size,offset",
            "1,99999999999999999999",
            "an offset in column 2, found \"99999999999999999999\"",
        ),
        (
            "size,offset",
            "4294967297,0",
            "a length of at most 4 GiB in column 1, found \"4294967297\"",
        ),
    ];
    for (header, line, message) in cases {
        let text = format!("{header}\n{line}\n");
        let place = header.len() + 1;
        let message = format!("t: line 2 at byte {place}: expected {message}");
        assert_eq!(error(text.as_bytes(), &given("csv")), message);
    }
}

#[test]
fn a_bad_line_of_a_table_settles_nothing() {
    // Neither a line of words that may name columns is another header, nor a bad time one in
    // seconds.
    let text = b"op,key\nget,a\nfly,object\nget,b\n";
    assert_eq!(
        error(text, &given("csv")),
        "t: line 3 at byte 13: expected an operation in column 1, found \"fly\""
    );
    let text = b"time,key\nnever,a\n1700000000000,b\n1700000000001,c\n";
    let mut trace = open(text, &lenient("csv")).unwrap();
    assert_eq!(
        trace.by_ref().map(|request| request.unwrap().time_ns).collect::<Vec<_>>(),
        [0, 1_000_000]
    );
    assert_eq!(trace.skipped(), 1);
}

#[test]
fn a_text_trace_cut_at_any_byte_gives_the_requests_before_and_at_most_one_error() {
    let requests = requests(3);
    for name in ["blkparse", "csv", "fiu"] {
        let whole = write(name, &requests);
        for cut in header(name).len()..whole.len() {
            let lines = whole[header(name).len()..cut].iter().filter(|&&b| b == b'\n').count();
            let wanted = &expected(name, &requests)[..lines];
            let results: Vec<_> = open(&whole[..cut], &given(name)).unwrap().collect();
            let good: Vec<_> =
                results.iter().filter_map(|result| result.as_ref().ok().copied()).collect();
            // A cut within a line's last number leaves a line.
            assert!(good.len() <= lines + 1 && good[..lines] == *wanted, "{name} at {cut}");
            assert!(results.iter().rev().skip(1).all(Result::is_ok), "{name} at {cut}");
        }
    }
}

#[test]
fn requests_before_a_bad_record_come_first_and_nothing_after() {
    let mut trace = open(b"1 1 0 0\n2 1 0 0\nx\n3 1 0 0\n", &given("arc")).unwrap();
    assert_eq!(trace.next().unwrap().unwrap().key, 1);
    assert_eq!(trace.next().unwrap().unwrap().key, 2);
    let message = "t: line 3 at byte 16: expected the first page in column 1, found \"x\"";
    assert_eq!(trace.next().unwrap().unwrap_err().to_string(), message);
    assert!(trace.next().is_none());
    assert!(trace.next().is_none());
}

#[test]
fn a_binary_trace_cut_at_any_byte_names_the_record_it_lacks() {
    let requests = requests(3);
    for (name, record_bytes) in BINARY {
        let whole = write(name, &requests);
        let head = header(name).len();
        for cut in head..=whole.len() {
            let (records, rest) = ((cut - head) / record_bytes, (cut - head) % record_bytes);
            let wanted = &expected(name, &requests)[..records];
            let mut trace = open(&whole[..cut], &lenient(name)).unwrap();
            assert_eq!(trace.by_ref().map(Result::unwrap).collect::<Vec<_>>(), wanted, "{name}");
            assert_eq!(trace.skipped(), u64::from(rest > 0), "{name}");
            if rest == 0 {
                assert_eq!(read(&whole[..cut], &given(name)).unwrap(), wanted, "{name}");
            } else {
                let (record, place) = (records + 1, head + records * record_bytes);
                let message = format!(
                    "t: record {record} at byte {place}: expected a whole record, found {rest} \
                     bytes"
                );
                assert_eq!(error(&whole[..cut], &given(name)), message, "{name}");
            }
        }
    }
}

#[test]
fn an_srt_header_without_an_end_is_an_error() {
    let cut = &header("srt")[..10];
    let message = "t: record 1 at byte 0: expected a whole record, found 10 bytes";
    assert_eq!(error(cut, &given("srt")), message);
    let endless = [b'x'; 100_000];
    let message = "t: record 1 at byte 0: expected a header of at most 64 KiB, found 0x186a0";
    assert_eq!(error(&endless, &given("srt")), message);
}

#[test]
fn binary_records_that_break_their_promise_are_named_or_skipped() {
    let good = write("vscsi", &requests(4));
    let mut bytes = good.clone();
    bytes[32 + 15] = 7;
    let message =
        "t: record 2 at byte 32: expected a command with version 0x100 (vSCSI 1), found 0x700";
    assert_eq!(error(&bytes, &given("vscsi")), message);
    let mut trace = open(&bytes, &lenient("vscsi")).unwrap();
    assert_eq!((trace.by_ref().filter(Result::is_ok).count(), trace.skipped()), (3, 1));

    let mut bytes = write("srt", &requests(4));
    let second = header("srt").len() + 56;
    bytes[second..second + 4].copy_from_slice(&[0, 0, 0, 9]);
    let message =
        format!("t: record 2 at byte {second}: expected a record of 48 to 4096 bytes, found 0x9");
    assert_eq!(error(&bytes, &given("srt")), message);
    // Past a lost length nothing can be told apart any more.
    let mut trace = open(&bytes, &lenient("srt")).unwrap();
    assert_eq!((trace.by_ref().filter(Result::is_ok).count(), trace.skipped()), (1, 1));
}

#[test]
fn an_endless_line_is_one_bad_line_wherever_the_window_ends() {
    for length in [65_537, 262_143, 262_144, 262_145, 1_000_000] {
        let mut text = b"1 1 0 0\n".to_vec();
        text.extend(vec![b'7'; length]);
        text.extend(b"\n2 1 0 0\n");
        let message = error(&text, &given("arc"));
        assert!(
            message.starts_with("t: line 2 at byte 8: expected a line of at most 64 KiB"),
            "{message}"
        );
        let mut trace = open(&text, &lenient("arc")).unwrap();
        let keys: Vec<_> = trace.by_ref().map(|request| request.unwrap().key).collect();
        assert_eq!((keys, trace.skipped()), (vec![1, 2], 1), "{length}");
    }
}

#[test]
fn only_formats_with_lengths_can_be_read_as_blocks() {
    for name in FORMATS {
        let options = OpenOptions { as_blocks: true, ..given(name) };
        let result = open(b"", &options);
        match crate::common::format(name).kind() {
            floe_trace::Kind::Block => assert!(result.is_ok(), "{name}"),
            _ if name == "arc" => assert!(result.is_ok()),
            _ => assert_eq!(
                result.unwrap_err().to_string(),
                format!("t: format {name} cannot be read as block I/O")
            ),
        }
    }
}

/// Reads what there is, keeping every promise a request makes.
fn exhaust(bytes: &[u8], options: &OpenOptions) {
    let Ok(trace) = Trace::from_reader("t", std::io::Cursor::new(bytes.to_vec()), options) else {
        return;
    };
    let kind = trace.kind();
    let mut stats = floe_trace::Stats::new(kind);
    for request in trace.take(10_000) {
        let Ok(request) = request else { break };
        if kind == floe_trace::Kind::Block {
            assert!(request.bytes <= floe_trace::BLOCK_REQUEST_BYTES_MAX);
            assert!(request.key + request.bytes <= i64::MAX as u64);
        }
        stats.add(&request);
    }
    let info = stats.info("t", "any");
    assert!(info.reads + info.writes <= info.requests && info.unique <= info.touches);
}

fn exhaust_as_everything(bytes: &[u8]) {
    exhaust(bytes, &OpenOptions::default());
    for name in FORMATS {
        for skip_bad in [false, true] {
            for as_blocks in [false, true] {
                exhaust(bytes, &OpenOptions { skip_bad, as_blocks, ..given(name) });
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        exhaust_as_everything(&bytes);
    }

    #[test]
    fn random_bytes_that_claim_to_be_compressed_never_panic(
        which in 0..4usize,
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let magic: [&[u8]; 4] =
            [b"\x1f\x8b\x08", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"BZh91AY&SY"];
        exhaust(&[magic[which], &bytes].concat(), &OpenOptions::default());
    }

    #[test]
    fn random_text_never_panics(text in "[0-9RWx,. \n-]{0,300}") {
        exhaust_as_everything(text.as_bytes());
    }

    #[test]
    fn random_numbers_in_columns_never_panic(
        rows in prop::collection::vec(prop::collection::vec(any::<u64>(), 1..8), 1..20),
        separator in prop::sample::select(vec![" ", ","]),
        shift in 0..60u32,
    ) {
        let row = |row: &Vec<u64>| {
            let cells: Vec<_> = row.iter().map(|n| (n >> shift).to_string()).collect();
            cells.join(separator)
        };
        let text = rows.iter().map(row).collect::<Vec<_>>().join("\n");
        exhaust_as_everything(text.as_bytes());
    }

    #[test]
    fn a_good_trace_with_damage_never_panics(
        which in 0..FORMATS.len(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..10),
    ) {
        let mut bytes = write(FORMATS[which], &requests(30));
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        exhaust_as_everything(&bytes);
    }
}
