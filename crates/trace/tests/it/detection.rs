//! Formats are recognised from content, compression from the first bytes, and what is unclear is
//! asked.

use std::io::Write;

use crate::common::{BINARY, FORMATS, expected, open, read, requests, write};
use floe_trace::{ErrorKind, Format, Kind, OpenOptions, Trace, formats_table};

const ALL: &str = "adaptsize, address, alibaba, arc, blkparse, blkparse-issued, cachelib, csv, \
                   disksim, ssdsim, fio, fiu, floe, ibm, be32, be64, le32, le64, msr, \
                   oracleGeneral, plain, prompts, spc, srt, systor, tencent, twitter, vscsi, \
                   wikibench, wikipedia";

fn detected(bytes: &[u8]) -> String {
    match open(bytes, &OpenOptions::default()) {
        Ok(trace) => trace.format().name().to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_format_is_recognised_by_content_alone() {
    for name in FORMATS {
        for count in [10, 5000] {
            // Any bytes could be integers.
            if name.ends_with("32") || name.ends_with("64") {
                continue;
            }
            let mut requests = requests(count);
            if crate::common::format(name).kind() == Kind::Key {
                requests.iter_mut().for_each(|request| request.key /= 4096);
            }
            assert_eq!(detected(&write(name, &requests)), name);
        }
    }
}

#[test]
fn one_bad_line_does_not_hide_a_format() {
    for name in [
        "adaptsize",
        "alibaba",
        "arc",
        "blkparse",
        "cachelib",
        "csv",
        "disksim",
        "fio",
        "fiu",
        "ibm",
        "msr",
        "spc",
        "systor",
        "tencent",
        "wikibench",
        "wikipedia",
    ] {
        let mut bytes = write(name, &requests(20));
        bytes.extend(b"what is this?\n");
        let again = write(name, &requests(20));
        bytes.extend(&again[crate::common::header(name).len()..]);
        assert_eq!(detected(&bytes), name);
    }
}

fn named(name: &str, bytes: &[u8]) -> Result<Trace, floe_trace::Error> {
    Trace::from_reader(name, std::io::Cursor::new(bytes.to_vec()), &OpenOptions::default())
}

#[test]
fn integers_are_told_by_the_files_name_or_not_at_all() {
    let keys = write("be32", &requests(5000));
    let says = detected(&keys);
    assert!(says.starts_with("t: not recognised as a trace; "), "{says}");
    assert!(says.contains("be32, be64, le32 and le64 fit any bytes"), "{says}");
    assert!(says.ends_with(&format!("say what it is with --format, one of {ALL}")), "{says}");
    for (name, format) in [
        ("a/corda_vault", "be64"),
        ("x.le64", "le64"),
        ("cache2k_orm-busy.trace.xz", "be32"),
        ("keys.le32.zst", "le32"),
    ] {
        assert_eq!(named(name, &keys).unwrap().format().name(), format);
    }
    // A word of its own, and of the file rather than of its folder.
    for name in ["sample32.bin", "profile32", "le32/keys", "x.trace"] {
        assert!(named(name, &keys).is_err(), "{name}");
    }
}

fn general(records: &[(u32, u64, u32, i64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for &(time_s, key, bytes, next) in records {
        out.extend(time_s.to_le_bytes());
        out.extend(key.to_le_bytes());
        out.extend(bytes.to_le_bytes());
        out.extend(next.to_le_bytes());
    }
    out
}

#[test]
fn a_step_back_in_time_is_counted_and_hides_no_format() {
    let bytes = general(&[(9, 1, 10, 3), (8, 2, 10, -1), (7, 3, 5, -1), (12, 1, 10, -1)]);
    let mut trace = open(&bytes, &OpenOptions::default()).unwrap();
    assert_eq!(trace.format().name(), "oracleGeneral");
    let info = floe_trace::Info::of(&mut trace).unwrap();
    assert_eq!((info.requests, info.unique, info.seconds), (4, 3, 3.0));
    assert_eq!(info.backward_times, 2);
    let mut back = requests(20);
    back[7].time_ns = back[3].time_ns;
    for name in FORMATS {
        let info = floe_trace::Info::of(
            &mut open(&write(name, &back), &crate::common::given(name)).unwrap(),
        );
        let has_times =
            !matches!(name, "address" | "arc" | "be32" | "be64" | "le32" | "le64" | "plain");
        assert_eq!(info.unwrap().backward_times, u64::from(has_times), "{name}");
    }
}

#[test]
fn a_binary_trace_that_breaks_off_its_format_is_refused_with_the_record() {
    let mut records = vec![(1, 2, 512, -1); 50];
    records[20].3 = 3;
    let says = detected(&general(&records));
    let reason = "not oracleGeneral because of record 21 at byte 480: expected a next use ahead, \
                  or none (-1), found 0x3";
    assert!(says.contains(reason), "{says}");
    assert_eq!(named("w.oracleGeneral.bin", &general(&records)).unwrap().count(), 50);
    let mut vscsi = write("vscsi", &requests(9));
    for record in 3..9 {
        vscsi[record * 32 + 15] = 7;
    }
    let says = detected(&vscsi);
    assert!(
        says.contains("not vscsi because of record 4 at byte 96: expected a command"),
        "{says}"
    );
}

#[test]
fn what_is_no_trace_is_named_and_never_read_as_integers() {
    let mut tar = vec![0u8; 10240];
    tar[..5].copy_from_slice(b"a.bin");
    tar[257..262].copy_from_slice(b"ustar");
    let mut old_tar = vec![0u8; 1024];
    old_tar[..5].copy_from_slice(b"a.bin");
    let sum = old_tar[..5].iter().map(|&b| u64::from(b)).sum::<u64>() + 8 * 32;
    old_tar[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let blktrace = [&0x6561_7407u32.to_le_bytes()[..], &[1; 44]].concat().repeat(9);
    let blktrace_big = [&0x6561_7407u32.to_be_bytes()[..], &[1; 44]].concat().repeat(9);
    let utf_16: Vec<u8> = "\u{feff}1,2\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (bytes, word) in [
        (&tar[..], "archive (tar)"),
        (&old_tar, "archive (tar)"),
        (&blktrace, "blkparse -i"),
        (&blktrace_big, "blkparse -i"),
        (b"PK\x03\x04 and so on", "zip"),
        (b"PAR1 and so on", "Parquet"),
        (&utf_16, "UTF-16"),
    ] {
        for name in ["t", "keys.le32", "cache2k_x.trace"] {
            let says = named(name, bytes).unwrap_err().to_string();
            assert!(says.contains(word), "{says}");
        }
    }
}

#[test]
fn a_refusal_names_the_nearest_format_and_the_line_that_spoils_it() {
    let mut text = "7,R,0,512,1\n".repeat(3);
    text += &"7,X,0,512,1\n".repeat(20);
    let says = detected(text.as_bytes());
    let reason =
        "not alibaba because of line 4 at byte 36: expected R or W in column 2, found \"X\"";
    assert!(says.contains(reason), "{says}");
    assert!(says.contains("--columns time=1,key=2,size=3 names columns by number"), "{says}");
}

#[test]
fn text_in_several_columns_is_not_taken_for_plain_keys() {
    for text in ["a b\nc d\n", "1 2\n3 4\n", "x,y\nz,w\n", "{\"time\": 1}\n"] {
        let says = detected(text.as_bytes());
        assert!(says.starts_with("t: not recognised as a trace"), "{says}");
        assert!(says.ends_with(&format!("; say what it is with --format, one of {ALL}")), "{says}");
    }
    assert_eq!(detected(b"1 2 0 0\n3 4 0 1\n"), "arc");
    assert_eq!(detected(b"17\nobject:9\n17\n"), "plain");
}

#[test]
fn a_byte_order_mark_changes_nothing_in_any_text() {
    let requests = requests(20);
    for name in FORMATS.into_iter().filter(|name| !BINARY.iter().any(|(it, _)| it == name)) {
        let text = [b"\xef\xbb\xbf", &write(name, &requests)[..]].concat();
        assert_eq!(detected(&text), if name == "address" { "address" } else { name });
        assert_eq!(
            read(&text, &OpenOptions::default()).unwrap(),
            expected(name, &requests),
            "{name}"
        );
    }
    let keys = read(b"\xef\xbb\xbfa\nb\na\n\xef\xbb\xbfb\n", &OpenOptions::default()).unwrap();
    assert_eq!((keys[0].key, keys[1].key), (keys[2].key, keys[3].key));
    assert_eq!(detected(b"\xef\xbb\xbf"), "t: is empty");
}

#[test]
fn other_layouts_of_a_format_are_recognised() {
    for (text, format, count) in [
        ("4619\t540675535\t57724\t1.92E-4\n4620\t-5\t57\t1.9E-4\n", "wikipedia", 2),
        (
            "relative_unix\thashed_path_query\timage_type\tresponse_size\ttime_firstbyte\n\
          0\t833946053\tjpeg\t9665\t1.85E-4\n",
            "wikipedia",
            1,
        ),
        ("929840891 1190146243.303 http://en.wikipedia.org/wiki/A -\n", "wikibench", 1),
        (
            "5 REST.GET.OBJECT 39d177fb735ac5df 528 0 527\n6 REST.HEAD.OBJECT 1 9\n\
          7 REST.DELETE.OBJECT 39d177fb735ac5df\n",
            "ibm",
            2,
        ),
        (
            "fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda read 0 4096\n\
          /dev/sda wait 500 0\n/dev/sda trim 4096 4096\n/dev/sda datasync 0 0\n\
          /dev/sda close\n",
            "fio",
            2,
        ),
        ("==7== Lackey\nI  04000000,3\n L 1ffefff,8\n S 1ffefff,8\n M 0421,4\n", "address", 4),
        ("0 7fffed80\n1 7fffed84\n2 400a\n", "address", 3),
        ("0x7f1c: R 0x7ffe10\n0x7f20: W 0x7ffe18\n", "address", 2),
        ("version,time,op,size,lbn\n1,5,2a,512,42\n1,5,28,512,42\n1,6,35,0,0\n", "csv", 2),
        ("key,op,size,op_count,key_size\nk,GET,0,3,20\nk,SET,80,1,20\n", "cachelib", 4),
        ("# made by a tool\nkey,size\na,5\n", "csv", 1),
        ("# time, key, size\ntime,key,size\n1,a,5\n", "csv", 1),
        ("Trace of server 3\ntime,key,size\n1,a,5\n", "csv", 1),
        ("time key size\n1 a 5\n", "csv", 1),
        (
            "time,offset,size,op\n1,0,512,RS\n1,0,512,WFS\n1,0,512,FLUSH\n1,0,512,Put\n1,0,512,1\n",
            "csv",
            4,
        ),
    ] {
        assert_eq!(detected(text.as_bytes()), format, "{text}");
        assert_eq!(read(text.as_bytes(), &OpenOptions::default()).unwrap().len(), count, "{text}");
    }
}

#[test]
fn a_table_is_known_by_its_header_unless_a_format_knows_the_very_header() {
    for text in [
        "key;op\na;get\n",
        "\u{feff}key,size\r\na,1\r\n",
        "#ts\tid\tsize\n1\tx\t9\n",
        "\"LBA\",\"Length\"\n8,4096\n",
        "Timestamp_us,Volume,Offset (bytes),Size,rw\n5,a,0,512,W\n",
    ] {
        assert_eq!(detected(text.as_bytes()), "csv", "{text}");
    }
    let msr = b"Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n1,h,0,Read,0,512,1\n";
    let systor = b"Timestamp,Response,IOType,LUN,Offset,Size\n1.5,0.1,W,3,512,512\n";
    assert_eq!((detected(msr), detected(systor)), ("msr".into(), "systor".into()));
    // One word may as well be a key.
    assert_eq!(detected(b"key\na\nb\n"), "plain");
}

#[test]
fn whole_milliseconds_are_nanoseconds_unless_the_format_is_given() {
    let text = b"0 0 8 8 1\n5 0 16 8 0\n";
    assert_eq!(detected(text), "ssdsim");
    assert_eq!(read(text, &crate::common::given("ssdsim")).unwrap()[1].time_ns, 5);
    assert_eq!(read(text, &crate::common::given("disksim")).unwrap()[1].time_ns, 5_000_000);
}

#[test]
fn an_empty_file_is_empty_unless_its_format_is_given() {
    assert_eq!(detected(b""), "t: is empty");
    for name in FORMATS {
        assert_eq!(read(b"", &crate::common::given(name)).unwrap(), []);
    }
}

#[test]
fn names_of_formats_parse_in_any_case_and_wrong_ones_list_the_right_ones() {
    assert_eq!("ORACLEGENERAL".parse::<Format>().unwrap().to_string(), "oracleGeneral");
    let error = "lru".parse::<Format>().unwrap_err();
    assert_eq!(error.to_string(), format!("no trace format is called \"lru\"; there are {ALL}"));
    for format in Format::all() {
        assert_eq!(format.name().parse(), Ok(format));
        assert!(formats_table().contains(&format!("| {format} |")));
    }
}

type Compressor = fn(&[u8]) -> Vec<u8>;

const COMPRESSORS: [(&str, Compressor); 4] = [
    ("gz", |bytes| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }),
    ("xz", |bytes| {
        let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }),
    ("zst", |bytes| zstd::encode_all(bytes, 1).unwrap()),
    ("bz2", |bytes| {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }),
];

#[test]
fn compressed_traces_read_as_they_are_whatever_their_name_and_to_the_last_member() {
    let requests = requests(3000);
    for name in ["msr", "vscsi", "cachelib"] {
        let bytes = write(name, &requests);
        for (extension, compress) in COMPRESSORS {
            let mut members = compress(&bytes[..bytes.len() / 3]);
            members.extend(compress(&bytes[bytes.len() / 3..]));
            // Tapes and block devices leave zeros behind a file.
            let padded = match extension {
                "xz" => compress(&bytes),
                _ => [&members[..], &[0; 100_000]].concat(),
            };
            for compressed in [compress(&bytes), members, padded] {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("trace");
                std::fs::write(&path, &compressed).unwrap();
                let mut trace = Trace::open(&path, &OpenOptions::default()).unwrap();
                assert_eq!(trace.format().name(), name, "{extension}");
                let progress = trace.progress();
                let found: Vec<_> = trace.by_ref().map(Result::unwrap).collect();
                assert!(found == expected(name, &requests), "{name}.{extension}");
                assert_eq!(progress.bytes_read(), compressed.len() as u64);
                assert_eq!(progress.total_bytes(), Some(compressed.len() as u64));
            }
        }
    }
}

#[test]
fn a_cut_off_compressed_file_is_an_error_after_the_requests_before_the_cut() {
    let bytes = write("msr", &requests(20_000));
    for (extension, compress) in COMPRESSORS {
        let compressed = compress(&bytes);
        let cut = &compressed[..compressed.len() * 9 / 10];
        let results: Vec<_> = open(cut, &crate::common::given("msr")).unwrap().collect();
        let (last, before) = results.split_last().unwrap();
        let error = last.as_ref().expect_err(extension);
        assert!(matches!(error.kind(), ErrorKind::Read { .. }), "{extension}: {error}");
        assert!(before.len() > 1000 && before.iter().all(Result::is_ok), "{extension}");
    }
}

#[test]
fn a_missing_file_is_one_line() {
    let error = Trace::open("/no/such/trace", &OpenOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/no/such/trace: cannot open: No such file or directory (os error 2)"
    );
    let folder = tempfile::tempdir().unwrap();
    assert!(Trace::open(folder.path(), &OpenOptions::default()).is_err());
}

#[test]
fn prompts_of_language_models_are_read_block_by_block() {
    let mooncake =
        br#"{"timestamp": 500, "input_length": 1030, "output_length": 3, "hash_ids": [0, 7, 9]}
{"timestamp": 3500, "input_length": 500, "output_length": 52, "hash_ids": [0]}
"#;
    let bailian = br#"{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "hash_ids": [0, 7, 9]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 3.5, "type": "text", "turn": 2, "hash_ids": [0]}
"#;
    for bytes in [&mooncake[..], bailian] {
        let trace = open(bytes, &OpenOptions::default()).unwrap();
        assert_eq!((trace.format().name(), trace.kind()), ("prompts", Kind::Key));
        let found = read(bytes, &OpenOptions::default()).unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.time_ns, it.key, it.volume)).collect();
        let second = 3_000_000_000;
        assert_eq!(found, [(0, 0, 0), (0, 7, 0), (0, 9, 0), (second, 0, 1)]);
    }
    let broken = detected(b"{\"hash_ids\": [1]}\n{\"hash_ids\": [1, -2]}\n");
    assert!(broken.contains("a JSON object with `hash_ids`"), "{broken}");
}
