//! The compact form gives back what was put in, and says so when it cannot.

use std::collections::HashSet;
use std::io::Cursor;

use floe_trace::{
    CompactOptions, CompactTrace, CompactWriter, DenseKeys, Error, Header, Info, Kind, NEVER, Op,
    OpenOptions, Request, Trace,
};
use proptest::prelude::*;

const PLAIN: CompactOptions = CompactOptions { zstd_level: None, next_accesses: false };
const ZSTD: CompactOptions = CompactOptions { zstd_level: Some(3), next_accesses: false };

fn write(kind: Kind, requests: &[Request], options: CompactOptions) -> (Header, Vec<u8>) {
    let mut writer = CompactWriter::new(Cursor::new(Vec::new()), kind, options).unwrap();
    requests.iter().for_each(|request| writer.push(request).unwrap());
    let (header, out) = writer.finish().unwrap();
    (header, out.into_inner())
}

fn open(bytes: &[u8]) -> Result<Trace, Error> {
    Trace::from_reader("t", Cursor::new(bytes.to_vec()), &OpenOptions::default())
}

fn read(bytes: &[u8]) -> Result<Vec<Request>, Error> {
    open(bytes)?.collect()
}

/// A file, since the fast way opens files.
fn fast(bytes: &[u8]) -> Result<(DenseKeys, Vec<u32>), Error> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    CompactTrace::open(file.path())?.into_dense_with_next()
}

fn requests(text: &str) -> Vec<Request> {
    let trace = Trace::open_source(text, &OpenOptions::default()).unwrap();
    trace.map(Result::unwrap).collect()
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Delete)]
}

/// Small and large numbers alike.
fn any_number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(number, shift)| number >> shift)
}

fn any_request() -> impl Strategy<Value = Request> {
    (any_number(), any_number(), any_number(), any::<u32>(), any_op())
        .prop_map(|(time_ns, key, bytes, volume, op)| Request { time_ns, key, bytes, volume, op })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_requests_in_are_the_same_requests_out(
        mut requests in prop::collection::vec(any_request(), 0..100),
        repeat in 1..100usize,
        zstd in any::<bool>(),
        kind in prop::sample::select(vec![Kind::Block, Kind::Object, Kind::Key]),
    ) {
        if kind == Kind::Block {
            requests.iter_mut().for_each(|r| (r.key, r.bytes) = (r.key >> 2, r.bytes & 0xf_ffff));
        }
        let requests = requests.repeat(repeat);
        let (header, bytes) = write(kind, &requests, if zstd { ZSTD } else { PLAIN });
        let mut trace = open(&bytes).unwrap();
        prop_assert_eq!((trace.format().name(), trace.kind()), ("floe", kind));
        let found: Vec<_> = trace.by_ref().collect::<Result<_, _>>().unwrap();
        prop_assert!(found == requests);
        let info = Info::of(&mut open(&bytes).unwrap()).unwrap();
        // A key that is only deleted has a number, and is not touched.
        let keys: HashSet<u64> = requests.iter().map(|request| request.key).collect();
        let distinct = if kind == Kind::Block { info.unique } else { keys.len() as u64 };
        prop_assert_eq!(
            (header.requests, header.reads, header.writes, header.distinct, header.footprint_bytes),
            (info.requests, info.reads, info.writes, distinct, info.footprint_bytes)
        );
        if kind != Kind::Block {
            let dense = DenseKeys::from_keys(requests.iter().map(|request| request.key)).unwrap();
            let next = dense.next_accesses().unwrap();
            prop_assert!(fast(&bytes).unwrap() == (dense, next));
        }
    }

    #[test]
    fn random_bytes_behind_the_magic_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [b"\x89FLOE\r\n\x1a\x01\0".to_vec(), bytes].concat();
        prop_assert!(read(&bytes).is_err());
        prop_assert!(fast(&bytes).is_err());
    }

    #[test]
    fn any_damaged_byte_is_an_error_and_never_a_panic(
        place in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let options = CompactOptions { next_accesses: true, ..PLAIN };
        let requests = requests("zipf:keys=900,requests=6000,read=60%");
        let (_, mut bytes) = write(Kind::Key, &requests, options);
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        prop_assert!(read(&bytes).is_err(), "byte {}", place);
        prop_assert!(fast(&bytes).is_err(), "byte {}", place);
        let format = Some("floe".parse().unwrap());
        let lenient = OpenOptions { skip_bad: true, format, ..OpenOptions::default() };
        let mut trace = Trace::from_reader("t", Cursor::new(bytes), &lenient).unwrap();
        prop_assert!(trace.by_ref().all(|request| request.is_ok()));
        prop_assert_eq!(trace.skipped(), 1);
    }
}

#[test]
fn a_trace_cut_at_any_byte_is_an_error_after_the_requests_before_the_cut() {
    let requests = requests("loop:keys=7,requests=9000");
    let options = CompactOptions { next_accesses: true, ..PLAIN };
    let (_, bytes) = write(Kind::Key, &requests, options);
    for cut in (1..200).chain(200..bytes.len()).step_by(7).chain(bytes.len() - 30..bytes.len()) {
        let format =
            OpenOptions { format: Some("floe".parse().unwrap()), ..OpenOptions::default() };
        let trace = Trace::from_reader("t", Cursor::new(bytes[..cut].to_vec()), &format).unwrap();
        let found: Vec<_> = trace.collect();
        let (last, before) = found.split_last().unwrap();
        let message = last.as_ref().expect_err("a cut").to_string();
        assert!(
            message.contains("expected a whole section, and more until the end, found"),
            "{message}"
        );
        assert!(
            before.iter().zip(&requests).all(|(found, request)| found.as_ref().unwrap() == request)
        );
        assert!(fast(&bytes[..cut]).is_err(), "{cut}");
    }
}

#[test]
fn bytes_behind_the_end_are_an_error() {
    let (_, mut bytes) = write(Kind::Key, &requests("loop:keys=7,requests=9"), PLAIN);
    let length = bytes.len();
    bytes.push(0);
    let message =
        format!("t: section 4 at byte {length}: expected nothing behind the end, found 0x1");
    assert_eq!(read(&bytes).unwrap_err().to_string(), message);
}

#[test]
fn an_unfinished_file_is_not_a_trace() {
    let mut out = Cursor::new(Vec::new());
    let mut writer = CompactWriter::new(&mut out, Kind::Key, PLAIN).unwrap();
    requests("loop:keys=7,requests=9000").iter().for_each(|request| writer.push(request).unwrap());
    drop(writer);
    assert!(!out.get_ref().is_empty());
    assert!(open(out.get_ref()).is_err_and(|error| error.to_string().contains("not recognised")));
}

#[test]
fn next_accesses_are_stored_as_they_are_computed() {
    let requests = requests("zipf:keys=3000,requests=20000");
    for zstd_level in [None, Some(1)] {
        let options = CompactOptions { next_accesses: true, zstd_level };
        let (header, bytes) = write(Kind::Key, &requests, options);
        assert!(header.next_accesses && header.dense);
        let (dense, next) = fast(&bytes).unwrap();
        assert_eq!(Some(&next), dense.next_accesses().as_ref());
        for (index, &key) in dense.keys.iter().enumerate() {
            let rest = dense.keys[index + 1..].iter().position(|&other| other == key);
            assert_eq!(next[index], rest.map_or(NEVER, |distance| (index + 1 + distance) as u32));
            if index > 500 {
                break;
            }
        }
        assert!(read(&bytes).unwrap() == requests);
    }
}

#[test]
fn batches_of_keys_are_the_whole() {
    let requests = requests("zipf:keys=3000,requests=20000");
    let (header, bytes) = write(Kind::Key, &requests, ZSTD);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let mut trace = CompactTrace::open(file.path()).unwrap();
    assert_eq!(trace.header(), &header);
    let mut keys = Vec::new();
    while let Some(batch) = trace.next_keys().unwrap() {
        assert!(!batch.is_empty());
        keys.extend_from_slice(batch);
    }
    assert!(trace.next_keys().unwrap().is_none());
    assert_eq!(keys, CompactTrace::open(file.path()).unwrap().into_dense().unwrap().keys);
    let path = file.path().to_str().unwrap();
    assert_eq!(DenseKeys::load(path, &OpenOptions::default()).unwrap().keys, keys);
    assert_eq!(keys.iter().max().map(|&key| u64::from(key) + 1), Some(header.distinct));
}

#[test]
fn block_traces_have_no_dense_keys_but_those_of_their_blocks() {
    let requests = requests("uniform:keys=50,requests=300,block=8KiB");
    let (header, bytes) = write(Kind::Block, &requests, PLAIN);
    assert!(!header.dense);
    let error = fast(&bytes).unwrap_err().to_string();
    assert!(error.ends_with(": has disk addresses, not dense keys"), "{error}");
    let dense = DenseKeys::read(&mut open(&bytes).unwrap()).unwrap();
    assert_eq!((dense.keys.len(), dense.distinct), (600, 100));
    let next = CompactOptions { next_accesses: true, ..PLAIN };
    assert!(CompactWriter::new(Cursor::new(Vec::new()), Kind::Block, next).is_err());
}

#[test]
fn keys_are_numbered_as_they_appear_and_apart_by_volume() {
    let dense = DenseKeys::from_keys([9, 7, 9, u64::MAX, 8, 7, 0]).unwrap();
    assert_eq!((dense.keys, dense.distinct), (vec![0, 1, 0, 2, 3, 1, 4], 5));
    let mut numbering = floe_trace::Numbering::new();
    assert_eq!(
        [numbering.number(1, 5), numbering.number(2, 5), numbering.number(1, 5)]
            .map(Option::unwrap),
        [0, 1, 0]
    );
}

#[test]
fn a_key_trace_takes_few_bytes_a_request() {
    let requests = requests("zipf:keys=60000,requests=1000000");
    let (header, bytes) = write(Kind::Key, &requests, PLAIN);
    let limit = 2.1 * header.requests as f64 + 8.1 * header.distinct as f64;
    assert!((bytes.len() as f64) < limit, "{}", bytes.len());
}
