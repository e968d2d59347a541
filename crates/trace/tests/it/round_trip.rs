//! What is written in a format is read back from it, however the bytes arrive.

use crate::common::{
    FORMATS, Trickle, any_request, encode, expected, format, given, header, open, read, requests,
    write,
};
use floe_trace::{Format, Kind, Op, OpenOptions, Request, Trace};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_format_reads_back_what_was_written(
        requests in prop::collection::vec(any_request(), 0..40),
    ) {
        for name in FORMATS {
            let bytes = write(name, &requests);
            let read = read(&bytes, &given(name)).unwrap();
            prop_assert_eq!(read, expected(name, &requests), "{}", name);
        }
    }
}

#[test]
fn every_format_of_the_registry_is_tested() {
    // The compact form, whose writer is not only a test's, has tests of its own.
    let mut names: Vec<_> =
        Format::all().map(|format| format.name()).filter(|&name| name != "floe").collect();
    names.sort_by_key(|name| name.to_lowercase());
    assert_eq!(names, FORMATS);
}

#[test]
fn a_trace_longer_than_the_window_is_read_whole() {
    let requests = requests(60_000);
    for name in FORMATS {
        let bytes = write(name, &requests);
        assert!(read(&bytes, &given(name)).unwrap() == expected(name, &requests), "{name}");
    }
}

#[test]
fn bytes_that_trickle_in_one_by_one_make_the_same_requests() {
    let requests = requests(300);
    for name in FORMATS {
        let bytes = write(name, &requests);
        let trickle = Trickle(std::io::Cursor::new(bytes));
        let trace = Trace::from_reader("t", trickle, &given(name)).unwrap();
        let found: Vec<_> = trace.map(Result::unwrap).collect();
        assert_eq!(found, expected(name, &requests), "{name}");
    }
}

#[test]
fn a_last_line_needs_no_end_and_lines_may_end_as_on_windows() {
    let requests = requests(20);
    for name in FORMATS
        .into_iter()
        .filter(|name| !crate::common::BINARY.iter().any(|(binary, _)| binary == name))
    {
        let text = String::from_utf8(write(name, &requests)).unwrap();
        let found = read(text.trim_end().as_bytes(), &given(name)).unwrap();
        assert_eq!(found, expected(name, &requests), "{name}");
        let windows = format!("\r\n# a comment\r\n{}", text.replace('\n', "\r\n"));
        assert_eq!(
            read(windows.as_bytes(), &given(name)).unwrap(),
            expected(name, &requests),
            "{name}"
        );
    }
}

#[test]
fn files_put_one_after_the_other_may_repeat_their_header() {
    let requests = requests(10);
    for name in ["systor", "cachelib", "csv"] {
        let bytes = write(name, &requests).repeat(2);
        let mut twice = expected(name, &requests);
        twice.extend(twice.clone());
        assert_eq!(read(&bytes, &given(name)).unwrap(), twice, "{name}");
    }
}

#[test]
fn times_before_the_first_are_zero_rather_than_huge() {
    let mut requests = requests(3);
    requests[0].time_ns += 10_000_000_000;
    for name in FORMATS.into_iter().filter(|name| format(name).kind() != Kind::Key) {
        let found = read(&write(name, &requests), &given(name)).unwrap();
        assert_eq!(
            found.iter().map(|request| request.time_ns).collect::<Vec<_>>(),
            [0, 0, 0],
            "{name}"
        );
    }
}

#[test]
fn a_line_of_arc_is_many_keys_or_one_read() {
    let text = b"100 3 0 0\n7 1 0 1\n";
    let keys: Vec<_> =
        read(text, &given("arc")).unwrap().iter().map(|request| request.key).collect();
    assert_eq!(keys, [100, 101, 102, 7]);
    let as_blocks = OpenOptions { as_blocks: true, ..given("arc") };
    let mut trace = open(text, &as_blocks).unwrap();
    assert_eq!(trace.kind(), Kind::Block);
    let read = |key, bytes| Request { time_ns: 0, key, bytes, volume: 0, op: Op::Read };
    assert_eq!(trace.next().unwrap().unwrap(), read(51_200, 1536));
    assert_eq!(trace.next().unwrap().unwrap(), read(3584, 512));
    assert!(trace.next().is_none());
}

#[test]
fn vscsi_version_2_is_read_and_other_commands_passed_over() {
    let record = |command: u16, sector: u64, time_us: u64| {
        let mut out = Vec::new();
        out.extend(command.to_le_bytes());
        out.extend(0x200u16.to_le_bytes());
        out.extend([1u32.to_le_bytes(), 8192u32.to_le_bytes(), 1u32.to_le_bytes()].concat());
        out.extend([sector.to_le_bytes(), time_us.to_le_bytes(), 40u64.to_le_bytes()].concat());
        out
    };
    let (read_16, synchronize, write_10) = (0x88, 0x35, 0x2a);
    let bytes =
        [record(read_16, 8, 5), record(synchronize, 0, 6), record(write_10, 16, 7)].concat();
    let found = read(&bytes, &OpenOptions::default()).unwrap();
    assert_eq!(
        found,
        [
            Request { time_ns: 0, key: 4096, bytes: 8192, volume: 0, op: Op::Read },
            Request { time_ns: 2000, key: 8192, bytes: 8192, volume: 0, op: Op::Write },
        ]
    );
}

#[test]
fn commands_without_data_and_separators_are_no_requests() {
    let systor = b"Timestamp,Response,IOType,LUN,Offset,Size\n1.5,,,3,,\n2.0,0.1,W,3,512,512\n";
    let found = read(systor, &given("systor")).unwrap();
    assert_eq!(found, [Request { time_ns: 0, key: 512, bytes: 512, volume: 3, op: Op::Write }]);
    let keys: Vec<_> =
        read(b"1\n*\n\n2\n", &given("plain")).unwrap().iter().map(|r| r.key).collect();
    assert_eq!(keys, [1, 2]);
    let mut empty = Vec::new();
    encode("oracleGeneral", &Request { bytes: 0, ..requests(1)[0] }, &mut empty);
    assert_eq!(read(&empty, &given("oracleGeneral")).unwrap(), []);
}

#[test]
fn disksim_flags_are_hexadecimal_and_bit_0_reads() {
    let ops: Vec<_> = read(b"1.5 0 8 8 1b\n2.5 0 8 8 1a\n", &given("disksim")).unwrap();
    assert_eq!((ops[0].op, ops[1].op, ops[1].time_ns), (Op::Read, Op::Write, 1_000_000));
}

#[test]
fn spc_passes_over_optional_fields_and_takes_either_case() {
    let found = read(b"1, 20, 4096, r, 0.5, x, y\n", &given("spc")).unwrap();
    assert_eq!(found, [Request { time_ns: 0, key: 10_240, bytes: 4096, volume: 1, op: Op::Read }]);
}

#[test]
fn hosts_and_disks_of_msr_are_numbered_as_they_appear() {
    let line = |host: &str, disk: u32| format!("128166372000000000,{host},{disk},Read,0,512,1\n");
    let text =
        [line("web", 2), line("hm", 0), line("web", 0), line("hm", 0), line("web", 2)].concat();
    let volumes: Vec<_> =
        read(text.as_bytes(), &given("msr")).unwrap().iter().map(|r| r.volume).collect();
    assert_eq!(volumes, [0, 1, 2, 1, 0]);
}

#[test]
fn the_three_cachelib_traces_are_told_apart_by_their_headers() {
    let kv = "op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n10,abc,3,\
              GET_LEASE,5,100,1,0,7,8\n12,abc,3,DELETE,1,0,0,0,7,8\n";
    let cdn = "timestamp,cacheKey,OpType,objectSize,responseSize,responseHeaderSize,rangeStart,\
               rangeEnd,TTL,SamplingRate\n5,a/b.mp4,1,900,50,9,-1,-1,60,0.001\n6,a/c.mp4,1,-1,50,\
               9,-1,-1,60,0.001\n";
    let tectonic = "op_time,block_id,block_id_size,io_size,io_offset,user_name,user_namespace,\
                    op_name,op_count,host_name,rs_shard_id\n9,aa-bb,40,4096,0,1,2,getChunkData.\
                    Permanent,1,3,4\n9,aa-bb,40,8192,0,1,2,putChunk.NotInitialized,1,3,4\n";
    let told = |text: &str| -> Vec<_> {
        let found = read(text.as_bytes(), &OpenOptions::default()).unwrap();
        found.iter().map(|request| (request.time_ns, request.bytes, request.op)).collect()
    };
    let mut five_and_one = vec![(0, 103, Op::Read); 5];
    five_and_one.push((2_000_000_000, 3, Op::Delete));
    assert_eq!(told(kv), five_and_one);
    assert_eq!(told(cdn), [(0, 900, Op::Read), (1_000_000_000, 50, Op::Read)]);
    assert_eq!(told(tectonic), [(0, 4096, Op::Read), (0, 8192, Op::Write)]);
}

#[test]
fn an_srt_header_is_no_record() {
    assert_eq!(read(header("srt"), &given("srt")).unwrap(), []);
}

#[test]
fn blkparse_counts_each_request_once_and_passes_over_what_moves_no_data() {
    let text = b"
  8,0    3        1     0.000000000   697  A   W 223490 + 8 <- (8,1) 223427
  8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]
  8,0    3        3     0.000003000   697  G   W 223490 + 8 [kjournald]
  8,0    3        4     0.000004000   697  P   N [kjournald]
  8,0    3        0     0.000004500     0  m   N cfq697S / insert_request
  8,0    3        5     0.000005000   697  I   W 223490 + 8 (    1200) [kjournald]
  8,0    3        6     0.000006000   697 UT   N [kjournald] 1
  8,0    3        7     0.000007000   697  D   W 223490 + 8 (    2000) [kjournald]
  8,0    3        8     0.000008829   697  Q FWS [kworker/0:1H]
  8,0    3        9     0.000009000   697  Q   R 36 (12 00 00 00 24 00 ..) [hald-probe-stora]
  8,16   1        1     0.000010000   700  Q  RA 16 + 256 [my process]
  8,0    3       10     0.000011829   697  Q  DS 4096 + 8 [fstrim]
  8,0    3       11     0.000012829   697  Q WFSM 0 + 8 [jbd2/sda1-8]
  8,0    3       12     0.000020000     0  C   W 223490 + 8 [0]
CPU0 (8,0):
 Reads Queued:           1,      128KiB\t Writes Queued:           2,        8KiB
 PC Reads Queued:        1,        0KiB\t PC Writes Queued:        0,        0KiB
 Read depth:             1        \t Write depth:             1
 IO unplugs:             0        \t Timer unplugs:           1

Total (8,0):
 Reads Queued:           1,      128KiB\t Writes Queued:           2,        8KiB

Throughput (R/W): 0KiB/s / 62KiB/s
Events (8,0): 14 entries
Skips: 0 forward (0 -   0.0%)
";
    let found = |format: &str| read(text, &given(format)).unwrap();
    let request = |time_ns, sector: u64, sectors: u64, volume, op| Request {
        time_ns,
        key: sector * 512,
        bytes: sectors * 512,
        volume,
        op,
    };
    let queued = [
        request(0, 223_490, 8, 0, Op::Write),
        request(8171, 16, 256, 1, Op::Read),
        request(10_000, 4096, 8, 0, Op::Delete),
        request(11_000, 0, 8, 0, Op::Write),
    ];
    assert_eq!(found("blkparse"), queued);
    assert_eq!(found("blkparse-issued"), [request(0, 223_490, 8, 0, Op::Write)]);
    assert_eq!(open(text, &OpenOptions::default()).unwrap().format().name(), "blkparse");
}

#[test]
fn the_digest_of_fiu_is_optional_and_disks_are_numbered_as_they_appear() {
    let text = b"89968195792462 20782 gzip 283193184 8 W 6 0 56f11b711d91a065a2b6458eca924523\n\
                 89968195801462 20782 gzip 8 16 R 8 1\n";
    let found = read(text, &OpenOptions::default()).unwrap();
    assert_eq!(
        found,
        [
            Request { time_ns: 0, key: 283_193_184 * 512, bytes: 4096, volume: 0, op: Op::Write },
            Request { time_ns: 9000, key: 4096, bytes: 8192, volume: 1, op: Op::Read },
        ]
    );
}

#[test]
fn a_tables_header_says_what_its_columns_are() {
    let told = |text: &str| {
        let trace = open(text.as_bytes(), &OpenOptions::default()).unwrap();
        let kind = trace.kind();
        let rows = trace.map(Result::unwrap).map(|r| (r.time_ns, r.key, r.bytes, r.volume, r.op));
        (kind, rows.collect::<Vec<_>>())
    };
    assert_eq!(
        told("device\tlba\tsectors\top\ttimestamp_ms\nsdb\t8\t8\tREAD\t5\nsda\t16\t1\ttrim\t7.5\n"),
        (Kind::Block, vec![(0, 4096, 4096, 0, Op::Read), (2_500_000, 8192, 512, 1, Op::Delete)])
    );
    // An id says less than an offset.
    assert_eq!(
        told("id,offset,length\n1,512,1024\n"),
        (Kind::Block, vec![(0, 512, 1024, 0, Op::Read)])
    );
    let quoted = "key;bytes;other\n\"7\";10;\"a;b\"\n8;11;\n";
    assert_eq!(
        told(quoted),
        (Kind::Object, vec![(0, 7, 10, 0, Op::Read), (0, 8, 11, 0, Op::Read)])
    );
    assert_eq!(told("op,obj_id\nset,3\n"), (Kind::Key, vec![(0, 3, 1, 0, Op::Write)]));
    for (first, second) in [
        ("1700000000", "1700000001"),
        ("1700000000000", "1700000001000"),
        ("1700000000000000", "1700000001000000"),
        ("133500000000000000", "133500000010000000"),
        ("1700000000000000000", "1700000001000000000"),
    ] {
        let (_, rows) = told(&format!("time,key\n{first},1\n{second},1\n"));
        assert_eq!(rows[1].0, 1_000_000_000, "{first}");
    }
}

#[test]
fn columns_can_be_named_where_the_header_does_not_tell() {
    let columns =
        |text: &str| OpenOptions { columns: Some(text.parse().unwrap()), ..OpenOptions::default() };
    let text = b"when,what,kb,how\n10,7,2,put\n15,8,1,get\n";
    let found =
        read(text, &columns("time=when,time-unit=us,key=what,size=KB,size-unit=1024,op=how"))
            .unwrap();
    assert_eq!(
        found,
        [
            Request { time_ns: 0, key: 7, bytes: 2048, volume: 0, op: Op::Write },
            Request { time_ns: 5000, key: 8, bytes: 1024, volume: 0, op: Op::Read },
        ]
    );
    let both = b"key,offset,size\n1,2,3\n";
    assert_eq!(open(both, &columns("size=size")).unwrap().kind(), Kind::Object);
    let found = read(both, &columns("offset=offset,offset-unit=4096")).unwrap();
    assert_eq!((found[0].key, found[0].bytes), (8192, 3));

    let message = "t: line 1 at byte 0: expected a header that names a key, or an offset and a \
                   size (--columns helps), found \"key,offset,size\"";
    assert_eq!(crate::common::error(both, &columns("key=obj")), message);
    let arc = OpenOptions { format: Some(format("arc")), ..columns("key=key") };
    assert_eq!(
        open(both, &arc).unwrap_err().to_string(),
        "t: format arc has no columns to name; csv has"
    );
    for (text, message) in [
        (
            "name=x",
            "there is no \"name\" to set; there are time, key, offset, size, op, volume, \
             time-unit, offset-unit, size-unit",
        ),
        ("key=", "key: expected the name of a column, found \"\""),
        ("time-unit=d", "time-unit: expected s, ms, us, 100ns or ns, found \"d\""),
        ("size-unit=0", "size-unit: expected a number of bytes, found \"0\""),
        (
            "key=a,offset=b",
            "key and offset exclude each other: a key makes objects, an offset disk I/O",
        ),
    ] {
        assert_eq!(text.parse::<floe_trace::Columns>().unwrap_err().to_string(), message);
    }
}
