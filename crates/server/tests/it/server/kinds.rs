//! Rarer requests end to end, over a file with holes: block status, prefetch, fast zeroing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use floe_block::WriteMode;
use floe_device::{Role, Spec};
use floe_nbd::wire::{SIMPLE_REPLY_MAGIC, command, command_flag, option, state};
use floe_testkit::pattern;

use crate::rig::{Rig, Setup, header, simple_reply};

const MODES: [WriteMode; 2] = [WriteMode::Through, WriteMode::Back];
const SIZE: u64 = 8 << 20;
const HOLE: u32 = state::HOLE | state::ZERO;

/// A server with a volume in a file that has data in its second MiB and nothing else.
fn holey(mode: WriteMode, threads: usize, path: &Path) -> Rig {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(SIZE).unwrap();
    file.write_all_at(&pattern(1, 1 << 20), 1 << 20).unwrap();
    file.sync_all().unwrap();
    let spec: Spec = format!("file:{}", path.display()).parse().unwrap();
    let source = spec.prepare(Role::Backing { read_only: false }).unwrap();
    Setup::new(mode).threads(threads).volume("holey", Arc::new(source)).start().unwrap()
}

/// A connection with structured replies and the context `base:allocation`.
fn with_context(rig: &Rig) -> TcpStream {
    let mut stream = rig.stranger();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let contexts = [string("holey"), vec![0, 0, 0, 1], string("base:allocation")].concat();
    let go = [string("holey"), vec![0, 0]].concat();
    for (option, data) in
        [(option::STRUCTURED_REPLY, vec![]), (option::SET_META_CONTEXT, contexts), (option::GO, go)]
    {
        stream.write_all(b"IHAVEOPT").unwrap();
        stream.write_all(&option.to_be_bytes()).unwrap();
        stream.write_all(&(data.len() as u32).to_be_bytes()).unwrap();
        stream.write_all(&data).unwrap();
        loop {
            let mut reply = [0; 20];
            stream.read_exact(&mut reply).unwrap();
            let [kind, length] =
                [12, 16].map(|at| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap()));
            stream.read_exact(&mut vec![0; length as usize]).unwrap();
            assert!(kind < 1 << 31, "option {option} is refused");
            if kind == 1 {
                break;
            }
        }
    }
    stream
}

/// The extents of a range: bytes and state, neighbours alike put together.
fn extents(stream: &mut TcpStream, mut at: u64, end: u64) -> Vec<(u64, u32)> {
    let mut extents: Vec<(u64, u32)> = Vec::new();
    while at < end {
        stream.write_all(&header(command::BLOCK_STATUS, 5, at, (end - at) as u32)).unwrap();
        let mut chunk = [0; 20];
        stream.read_exact(&mut chunk).unwrap();
        assert_eq!(chunk[4..8], [0, 1, 0, 5], "one chunk of extents, and the last");
        let mut payload = vec![0; u32::from_be_bytes(chunk[16..].try_into().unwrap()) as usize];
        stream.read_exact(&mut payload).unwrap();
        for extent in payload[4..].chunks(8) {
            let [bytes, state] =
                [0, 4].map(|at| u32::from_be_bytes(extent[at..at + 4].try_into().unwrap()));
            at += u64::from(bytes);
            match extents.last_mut() {
                Some(last) if last.1 == state => last.0 += u64::from(bytes),
                _ => extents.push((u64::from(bytes), state)),
            }
        }
    }
    extents
}

/// The error code of a reply without data, 0 for none.
fn error_code(stream: &mut TcpStream) -> u32 {
    let mut head = [0; 16];
    stream.read_exact(&mut head).unwrap();
    if head[..4] == SIMPLE_REPLY_MAGIC.to_be_bytes() {
        return u32::from_be_bytes(head[4..8].try_into().unwrap());
    }
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut payload = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut payload).unwrap();
    payload.get(..4).map_or(0, |code| u32::from_be_bytes(code.try_into().unwrap()))
}

#[test]
fn what_is_allocated_is_told_with_what_only_the_cache_has() {
    for mode in MODES {
        for threads in 1..=3 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("disk");
            let rig = holey(mode, threads, &path);
            let mut asking = with_context(&rig);
            let mib = 1 << 20;
            assert_eq!(extents(&mut asking, 0, SIZE), [(mib, HOLE), (mib, 0), (6 * mib, HOLE)]);
            let mut client = rig.client_of("holey").unwrap();
            // A sector and two halves, and many regions.
            client.write(10_000, &[1; 5000], false).unwrap();
            client.write(4 * mib, &pattern(2, 600 << 10), false).unwrap();
            assert_eq!(rig.status().cache.dirty_bytes > 0, mode == WriteMode::Back);
            let map = [
                (8192, HOLE),
                (8192, 0),
                (mib - 16384, HOLE),
                (mib, 0),
                (2 * mib, HOLE),
                (600 << 10, 0),
                (4 * mib - (600 << 10), HOLE),
            ];
            assert_eq!(extents(&mut asking, 0, SIZE), map, "{mode}, {threads} threads");
            assert_eq!(extents(&mut asking, 8192 + 512, 8192 + 1024), [(512, 0)]);
            floe_server::admin::client::flush(&rig.admin).unwrap();
            assert_eq!(extents(&mut asking, 0, SIZE), map, "the file has it now");
            client.trim(4 * mib, 600 << 10).unwrap();
            floe_server::admin::client::flush(&rig.admin).unwrap();
            assert_eq!(
                extents(&mut asking, 2 * mib, SIZE),
                [(6 * mib, HOLE)],
                "{mode}, {threads} threads"
            );
            rig.end();
            let blocks = std::fs::metadata(&path).unwrap().blocks();
            assert!(blocks * 512 < 2 << 20, "{blocks} blocks");
        }
    }
}

#[test]
fn what_was_prefetched_is_a_hit() {
    for mode in MODES {
        for threads in 1..=3 {
            let folder = tempfile::tempdir().unwrap();
            let rig = holey(mode, threads, &folder.path().join("disk"));
            let mut client = rig.client_of("holey").unwrap();
            let mut raw = rig.raw(); // of the first volume
            raw.write_all(&header(command::CACHE, 1, 500_000, 1 << 20)).unwrap();
            assert_eq!(simple_reply(&mut raw), (0, 1));
            let mut other = rig.client();
            other.read(500_000, &mut vec![0; 1 << 20]).unwrap();
            assert_eq!(rig.status().cache.requests.read_hits, 1, "{mode}, {threads} threads");
            other.read(1_500_000, &mut vec![0; 1 << 20]).unwrap();
            assert_eq!(rig.status().cache.requests.read_hits, 1);
            client.read(0, &mut [0; 512]).unwrap();
            assert_eq!(rig.status().cache.requests.read_hits, 1, "another volume");
            rig.end();
        }
    }
}

#[test]
fn zeroing_is_fast_or_refused_and_reads_as_zeros() {
    for mode in MODES {
        for threads in 1..=3 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("disk");
            let rig = holey(mode, threads, &path);
            let mut raw = with_context(&rig);
            let mut client = rig.client_of("holey").unwrap();
            let mut bytes = vec![0; SIZE as usize];
            bytes[1 << 20..2 << 20].copy_from_slice(&pattern(1, 1 << 20));
            client.write(3 << 20, &[9; 1 << 20], false).unwrap();
            bytes[3 << 20..4 << 20].fill(9);
            for (offset, length, flags) in [
                (1 << 20, 300_000, command_flag::FAST_ZERO),
                ((1 << 20) + 700_001, 900, command_flag::FAST_ZERO),
                (3 << 20, 1 << 20, command_flag::FAST_ZERO | command_flag::NO_HOLE),
                ((3 << 20) - 5000, 10_000, command_flag::FAST_ZERO | command_flag::FUA),
            ] {
                let mut request = header(command::WRITE_ZEROES, 7, offset as u64, length as u32);
                request[4..6].copy_from_slice(&flags.to_be_bytes());
                raw.write_all(&request).unwrap();
                let code = error_code(&mut raw);
                if code == 0 {
                    bytes[offset..offset + length].fill(0);
                } else {
                    // What is refused may have been done in part: a client writes zeros then.
                    assert_eq!(code, 95, "ENOTSUP and nothing else");
                    client.write(offset as u64, &vec![0; length], false).unwrap();
                    bytes[offset..offset + length].fill(0);
                }
                let mut found = vec![0; bytes.len()];
                client.read(0, &mut found).unwrap();
                assert!(found == bytes, "{mode}, {threads} threads, {length} bytes at {offset}");
            }
            rig.end();
            assert!(std::fs::read(&path).unwrap() == bytes);
        }
    }
}
