//! Devices that fail under a running server: clients get right bytes or an error, and service goes
//! on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use floe_block::WriteMode;
use floe_nbd::wire::ErrorCode;
use floe_server::admin::client as admin;
use floe_server::nbd_client::{Client, ClientError};
use floe_testkit::{patiently, pattern};

use super::mood::Mood;
use crate::rig::{Rig, Setup};

const MODES: [WriteMode; 2] = [WriteMode::Through, WriteMode::Back];

/// What the tests cache, less than the cache has room for; in pieces of half a region, which two
/// threads share.
const CACHED: usize = 2 << 20;
const PIECE: usize = 32 << 10;

fn rig(mode: WriteMode, cache: &Mood, backing: &Mood) -> Rig {
    let (cache, backing) = (cache.clone(), backing.clone());
    let setup = Setup::new(mode).cache(move |memory| cache.before(memory));
    setup.backing(move |memory| backing.before(memory)).start().unwrap()
}

/// What a piece of the volume reads as; `None` for an I/O error.
fn read(client: &mut Client, piece: usize) -> Option<Vec<u8>> {
    let mut found = vec![0; PIECE];
    match client.read((piece * PIECE) as u64, &mut found) {
        Ok(()) => Some(found),
        Err(ClientError::Request(error)) => {
            assert_eq!(error.code, ErrorCode::Io);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Reads until both threads know of the device's failure.
fn degrade(rig: &Rig, client: &mut Client) {
    patiently(|| {
        (0..CACHED / PIECE).for_each(|piece| drop(read(client, piece)));
        match admin::health(&rig.admin) {
            Ok(word) => (word == "degraded").then_some(()),
            Err(error) => error.to_string().contains("requests are refused").then_some(()),
        }
    });
    assert!(rig.status().degraded);
}

#[test]
fn a_cache_device_that_fails_is_done_without_until_it_is_restored() {
    for mode in MODES {
        let (cache, backing) = (Mood::default(), Mood::default());
        let rig = rig(mode, &cache, &backing);
        let mut clients = [rig.client_on(0), rig.client_on(1)]; // one on each thread
        let mut model = pattern(1, CACHED);
        clients[0].write(0, &model, false).unwrap();
        assert!(read(&mut clients[1], 0).is_some());
        assert_eq!(admin::health(&rig.admin).unwrap(), "ok");
        cache.fail(true);
        degrade(&rig, &mut clients[0]);
        let status = rig.status();
        assert!(status.devices.cache_errors >= 16, "{status:?}");
        let quiet = cache.operations();
        let mut unread = 0;
        for piece in 0..CACHED / PIECE {
            for client in &mut clients {
                match read(client, piece) {
                    Some(found) => {
                        assert!(found == model[piece * PIECE..][..PIECE], "{mode}: stale bytes")
                    }
                    None => unread += 1,
                }
            }
        }
        match mode {
            WriteMode::Back => {
                assert_eq!(unread, 2 * CACHED / PIECE, "only the cache device has it");
                assert!(rig.status().cache.dirty_bytes > 0);
                admin::flush(&rig.admin).unwrap_err();
            }
            _ => {
                assert_eq!(unread, 0);
                assert_eq!(cache.operations(), quiet, "it is not used any more");
                admin::flush(&rig.admin).unwrap();
            }
        }
        assert!(rig.status().cache.counters.bypassed_bytes > 0);
        // What is written now can be read at once, by everyone.
        for (piece, bytes) in model.chunks_mut(PIECE).enumerate().step_by(3) {
            bytes.copy_from_slice(&pattern(100 + piece as u64, PIECE));
            clients[0].write((piece * PIECE) as u64, bytes, false).unwrap();
            assert!(read(&mut clients[1], piece).unwrap() == bytes, "{mode}");
        }
        cache.fail(false);
        admin::restore(&rig.admin).unwrap();
        assert_eq!(admin::health(&rig.admin).unwrap(), "ok");
        assert!(!rig.status().degraded);
        for _ in 0..2 {
            for (piece, bytes) in model.chunks(PIECE).enumerate() {
                assert!(
                    read(&mut clients[piece % 2], piece).unwrap() == bytes,
                    "{mode}: piece {piece}"
                );
            }
        }
        let hits = rig.status().cache.requests.read_hits;
        assert!(read(&mut clients[0], 1).is_some());
        assert_eq!(rig.status().cache.requests.read_hits, hits + 1);
        assert!(rig.end()[..CACHED] == model, "{mode}");
    }
}

/// Keeps reading, many pieces at once, until told to end; counts the answers.
fn read_on_and_on(client: &mut Client, answers: &AtomicUsize, end: &AtomicBool) {
    let ask = |client: &mut Client, piece: usize| {
        (client.submit_read((piece * PIECE) as u64, PIECE as u32).unwrap(), piece)
    };
    let mut asked: HashMap<_, _> = (0..CACHED / PIECE).map(|piece| ask(client, piece)).collect();
    while let Some(reply) = client.next_reply().unwrap() {
        let piece = asked.remove(&reply.cookie).unwrap();
        answers.fetch_add(1, SeqCst);
        if !end.load(SeqCst) {
            asked.extend([ask(client, piece)]);
        }
    }
}

#[test]
fn a_cache_device_that_fails_again_before_all_threads_use_it_is_told() {
    let (cache, backing) = (Mood::default(), Mood::default());
    let rig = rig(WriteMode::Through, &cache, &backing);
    let mut client = rig.client(); // on thread 0
    client.write(0, &pattern(1, CACHED), false).unwrap();
    cache.fail(true);
    degrade(&rig, &mut client);
    backing.keep_busy(1, &rig);
    let (answers, end) = (AtomicUsize::new(0), AtomicBool::new(false));
    let before = cache.operations();
    std::thread::scope(|scope| {
        let restoring = scope.spawn(|| admin::restore(&rig.admin));
        scope.spawn(|| read_on_and_on(&mut client, &answers, &end));
        // Thread 0 tries the device again and gives it up again, while thread 1 does nothing.
        patiently(|| (cache.operations() >= before + 16).then_some(()));
        let then = answers.load(SeqCst);
        patiently(|| (answers.load(SeqCst) >= then + 4 * CACHED / PIECE).then_some(()));
        backing.let_go();
        restoring.join().unwrap().unwrap_err();
        end.store(true, SeqCst);
    });
    assert_eq!(admin::health(&rig.admin).unwrap(), "degraded");
    assert!(rig.status().degraded);
    cache.fail(false);
    admin::restore(&rig.admin).unwrap();
    assert_eq!(admin::health(&rig.admin).unwrap(), "ok");
    assert!(rig.end()[..CACHED] == pattern(1, CACHED));
}

#[test]
fn a_backing_device_that_fails_costs_errors_and_no_bytes() {
    for mode in MODES {
        let (cache, backing) = (Mood::default(), Mood::default());
        let rig = rig(mode, &cache, &backing);
        let mut clients = [rig.client_on(0), rig.client_on(1)];
        let mut model = pattern(2, CACHED);
        clients[0].write(0, &model, false).unwrap();
        admin::flush(&rig.admin).unwrap();
        backing.fail(true);
        for piece in 0..CACHED / PIECE {
            // Cached, or else not to be had.
            if let Some(found) = read(&mut clients[piece % 2], piece) {
                assert!(found == model[piece * PIECE..][..PIECE], "{mode}");
            }
        }
        assert_eq!(read(&mut clients[0], 3 * CACHED / PIECE), None, "nothing of it is cached");
        let write = clients[1].write(0, &[7; PIECE], true);
        assert!(
            matches!(write, Err(ClientError::Request(_))),
            "{mode}: no durable write, {write:?}"
        );
        admin::flush(&rig.admin).unwrap_err();
        assert_eq!(admin::health(&rig.admin).unwrap(), "ok", "the cache device is well");
        assert!(rig.status().devices.backing_errors > 0);
        backing.fail(false);
        // A write that failed has the old bytes or the new ones.
        let found = read(&mut clients[0], 0).unwrap();
        assert!(found == model[..PIECE] || found == [7; PIECE], "{mode}");
        model[..PIECE].copy_from_slice(&pattern(3, PIECE));
        clients[0].write(0, &model[..PIECE], true).unwrap();
        for (piece, bytes) in model.chunks(PIECE).enumerate() {
            assert!(
                read(&mut clients[piece % 2], piece).unwrap() == bytes,
                "{mode}: piece {piece}"
            );
        }
        assert_eq!(read(&mut clients[0], 3 * CACHED / PIECE), Some(vec![0; PIECE]));
        admin::flush(&rig.admin).unwrap();
        assert!(rig.end()[..CACHED] == model);
    }
}
