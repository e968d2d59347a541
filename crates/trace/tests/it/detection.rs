//! Formats are recognised from content, compression from the first bytes, and what is unclear is
//! asked.

use std::io::Write;

use crate::common::{FORMATS, expected, open, read, requests, write};
use floe_trace::{ErrorKind, Format, Kind, OpenOptions, Trace, formats_table};

const ALL: &str = "adaptsize, alibaba, arc, blkparse, blkparse-issued, cachelib, csv, disksim, \
                   ssdsim, fiu, floe, be32, be64, le32, le64, msr, oracleGeneral, plain, spc, \
                   srt, systor, tencent, twitter, vscsi";

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
            // Few keys say little about the width they were written with.
            if count == 10 && name.ends_with(['2', '4']) {
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
        "fiu",
        "msr",
        "spc",
        "systor",
        "tencent",
    ] {
        let mut bytes = write(name, &requests(20));
        bytes.extend(b"what is this?\n");
        bytes.extend(write(name, &requests(20)));
        assert_eq!(detected(&bytes), name);
    }
}

#[test]
fn keys_of_equal_bytes_are_told_apart_by_the_files_name_or_not_at_all() {
    let mut state = 1u64;
    let hashes: Vec<u8> = (0..2000)
        .flat_map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state ^ state >> 29).to_be_bytes()
        })
        .collect();
    assert_eq!(
        detected(&hashes),
        format!("t: could be be64 or le64; say which with --format, one of {ALL}")
    );
    let pages = write("be32", &requests(5000));
    assert_eq!(
        detected(&pages),
        format!("t: could be be32 or le32; say which with --format, one of {ALL}")
    );
    for (name, format) in [("a/corda_vault", "be64"), ("x.le64", "le64")] {
        let trace =
            Trace::from_reader(name, std::io::Cursor::new(hashes.clone()), &OpenOptions::default());
        assert_eq!(trace.unwrap().format().name(), format);
    }
}

#[test]
fn text_in_several_columns_is_not_taken_for_plain_keys() {
    for text in ["a b\nc d\n", "1 2\n3 4\n", "x,y\nz,w\n", "{\"time\": 1}\n"] {
        let unknown = "t: not recognised as a trace; say what it is with --format, one of";
        assert_eq!(detected(text.as_bytes()), format!("{unknown} {ALL}"));
    }
    assert_eq!(detected(b"1 2 0 0\n3 4 0 1\n"), "arc");
    assert_eq!(detected(b"17\nobject:9\n17\n"), "plain");
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
            for compressed in [compress(&bytes), members] {
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
