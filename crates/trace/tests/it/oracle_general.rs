//! What is written in the format oracleGeneral is read as the same requests, each with the number
//! of its object's next one.

use std::path::Path;

use floe_trace::{DenseKeys, Error, NEVER, Op, OpenOptions, Request, Trace};

/// Writes a source in the format oracleGeneral, and returns the file's records: time in seconds,
/// object, bytes and next request.
fn converted(
    source: &str,
    level: Option<i32>,
    to: &Path,
) -> Result<Vec<(u32, u64, u32, i64)>, Error> {
    let mut trace = Trace::open_source(source, &OpenOptions::default()).unwrap();
    let summary = floe_trace::convert_to_oracle_general(&mut trace, to, level, || {})?;
    let mut bytes = std::fs::read(to).unwrap();
    if level.is_some() {
        bytes = zstd::decode_all(&bytes[..]).unwrap();
    }
    let (records, rest) = bytes.as_chunks::<24>();
    assert!(rest.is_empty() && records.len() as u64 == summary.requests);
    let record = |record: &[u8; 24]| {
        (
            u32::from_le_bytes(record[..4].try_into().unwrap()),
            u64::from_le_bytes(record[4..12].try_into().unwrap()),
            u32::from_le_bytes(record[12..16].try_into().unwrap()),
            i64::from_le_bytes(record[16..].try_into().unwrap()),
        )
    };
    Ok(records.iter().map(record).collect())
}

fn text(folder: &Path, lines: &str) -> String {
    let file = folder.join("in.csv");
    std::fs::write(&file, lines).unwrap();
    file.display().to_string()
}

#[test]
fn objects_keep_names_sizes_and_times_and_get_their_next_request_counted_from_one() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("out.oracleGeneral.bin");
    let source = text(
        folder.path(),
        "time,key,size,op\n100,7,10,get\n101,9,20,set\n102,7,0,get\n103,7,10,delete\n\
         105,7,30,get\n",
    );
    let records = converted(&source, None, &to).unwrap();
    let expected = [(0, 7, 10, 3), (1, 9, 20, -1), (2, 7, 1, 4), (5, 7, 30, -1)];
    assert_eq!(records, expected, "a deletion is no request, and no size is one byte");
    // It is recognised.
    let trace = Trace::open(&to, &OpenOptions::default()).unwrap();
    assert_eq!(trace.format().name(), "oracleGeneral");
    let read: Vec<Request> = trace.map(Result::unwrap).collect();
    let keys: Vec<u64> = read.iter().map(|request| request.key).collect();
    assert_eq!(keys, [7, 9, 7, 7]);
    assert!(read.iter().all(|request| request.op == Op::Read));
}

#[test]
fn compressed_it_has_the_next_accesses_that_belady_computes() {
    let folder = tempfile::tempdir().unwrap();
    let source = "zipf:keys=500,requests=20000,seed=5";
    let to = folder.path().join("out.oracleGeneral.zst");
    let records = converted(source, Some(3), &to).unwrap();
    let options = OpenOptions::default();
    let dense = DenseKeys::read(&mut Trace::open_source(source, &options).unwrap()).unwrap();
    let next = dense.next_accesses().unwrap();
    let expected = |&next: &u32| if next == NEVER { -1 } else { i64::from(next) + 1 };
    assert!(records.iter().map(|record| record.3).eq(next.iter().map(expected)));
    assert_eq!(DenseKeys::load(to.to_str().unwrap(), &options).unwrap(), dense);
}

#[test]
fn disk_io_becomes_its_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let source = text(
        folder.path(),
        "time,volume,offset,size,op\n0,1,4096,8192,read\n1,2,4096,4096,write\n2,1,8192,1,read\n",
    );
    let records = converted(&source, None, &folder.path().join("out")).unwrap();
    let expected = [(0, 0, 4096, -1), (0, 1, 4096, 4), (1, 2, 4096, -1), (2, 1, 4096, -1)];
    assert_eq!(records, expected);
}

#[test]
fn a_size_of_more_than_32_bits_is_refused_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("out");
    let source = text(folder.path(), "time,key,size\n0,1,4294967296\n1,2,10\n");
    let error = converted(&source, None, &to).unwrap_err().to_string();
    assert!(error.contains("a size of 4294967296 does not fit into oracleGeneral"), "{error}");
    let names = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 1, "the source alone");
}
