//! The tier in memory of a running server: who answers from it, and what becomes of writes that
//! only it has.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use floe_block::{MemoryWrite, WriteMode};
use floe_device::MemoryDevice;
use floe_nbd::wire::ErrorCode;
use floe_server::ServeError;
use floe_server::admin::client as admin;
use floe_server::nbd_client::{Client, ClientError};
use floe_server::status::{MemoryStatus, Status};
use floe_testkit::{Random, patiently, pattern};

use super::mood::Mood;
use super::volumes::in_file;
use crate::rig::{Gate, Rig, Setup, Wrapped};

const MODES: [WriteMode; 4] =
    [WriteMode::Pass, WriteMode::Through, WriteMode::Around, WriteMode::Back];
const PAGE: usize = 4096;

/// What a test writes, less than half of what each of four shards may hold.
const WRITTEN: usize = 60 * PAGE;

fn rig(mode: WriteMode, write: MemoryWrite, backing: &Mood) -> Rig {
    let backing = backing.clone();
    let setup = Setup::new(mode).memory(Some(write));
    setup.backing(move |memory| backing.before(memory)).start().unwrap()
}

fn memory(rig: &Rig) -> MemoryStatus {
    rig.status().memory.expect("there is a tier in memory")
}

fn read(client: &mut Client, at: usize, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    client.read(at as u64, &mut found).unwrap();
    found
}

#[track_caller]
fn is_eio<T: std::fmt::Debug>(result: Result<T, ClientError>) {
    assert!(
        matches!(&result, Err(ClientError::Request(error)) if error.code == ErrorCode::Io),
        "{result:?}"
    );
}

#[test]
fn what_was_read_is_answered_on_the_thread_that_is_asked_without_any_device() {
    for mode in MODES {
        let mood = Mood::default();
        let rig = rig(mode, MemoryWrite::Through, &mood);
        let mut clients = [rig.client_on(0), rig.client_on(1)]; // one on each thread
        for page in 0..100 {
            read(&mut clients[page % 2], page * 20_000, 5000);
        }
        let said =
            |status: &Status| status.threads.iter().map(|thread| thread.messages).sum::<u64>();
        let (before, operations) = (rig.status(), mood.operations());
        for page in 0..100 {
            for client in &mut clients {
                read(client, page * 20_000 + 100, 4900);
            }
        }
        let (after, hits) = (rig.status(), memory(&rig));
        assert_eq!((said(&after), mood.operations()), (said(&before), operations), "{mode}");
        assert_eq!(
            after.cache.counters.cache_read_bytes, before.cache.counters.cache_read_bytes,
            "{mode}"
        );
        assert_eq!((hits.read_hits, hits.read_bytes), (200, 200 * 4900), "{mode}");
        assert_eq!(after.cache.requests.read_hits, before.cache.requests.read_hits + 200, "{mode}");
        assert_eq!(hits.page_bytes % PAGE as u64, 0);
        assert!(
            hits.page_bytes >= 200 * PAGE as u64 && hits.page_bytes < hits.size_bytes,
            "{hits:?}"
        );
        // Half of it there is not enough.
        read(&mut clients[0], 20_000 - PAGE, 2 * PAGE);
        assert_eq!(memory(&rig).read_hits, 200);
        drop(clients);
        rig.end();
    }
}

#[test]
fn a_read_after_a_write_finds_it_on_every_thread() {
    for (mode, write) in MODES
        .into_iter()
        .flat_map(|mode| [MemoryWrite::Through, MemoryWrite::Back].map(|write| (mode, write)))
    {
        let rig = rig(mode, write, &Mood::default());
        let mut clients: Vec<_> = (0..4).map(|number| rig.client_on(number)).collect();
        let mut model = vec![0; WRITTEN];
        for round in 0..200 {
            let len = [1, 512, PAGE, 3 * PAGE + 7][round % 4];
            let at = (round * 7919) % (WRITTEN - len);
            let bytes = &mut model[at..at + len];
            match round % 5 {
                4 => {
                    bytes.fill(0);
                    clients[round % 4].write_zeroes(at as u64, len as u32, true).unwrap();
                }
                fua => {
                    bytes.copy_from_slice(&pattern(round as u64, len));
                    clients[round % 4].write(at as u64, bytes, fua == 3).unwrap();
                }
            }
            for client in &mut clients {
                let from = at.saturating_sub(600);
                let found = read(client, from, len + 600);
                assert!(found == model[from..from + len + 600], "{mode}, {write}: round {round}");
            }
        }
        drop(clients);
        assert!(rig.end()[..WRITTEN] == model, "{mode}, {write}");
    }
}

#[test]
fn volumes_do_not_find_each_others_pages_and_one_that_is_read_only_is_read_from_memory() {
    for write in [MemoryWrite::Through, MemoryWrite::Back] {
        let pictures = MemoryDevice::new(1 << 20);
        pictures.write_at(0, &pattern(9, WRITTEN));
        let source = Wrapped::source(pictures, |memory| Box::new(memory));
        let mut setup =
            Setup::new(WriteMode::Through).memory(Some(write)).volume("pictures", source);
        setup.volumes[1].read_only = true;
        let rig = setup.start().unwrap();
        let mut floe = [rig.client_of("floe").unwrap(), rig.client_of("floe").unwrap()];
        let mut pictures = [rig.client_of("pictures").unwrap(), rig.client_of("pictures").unwrap()];
        for client in &mut pictures {
            assert!(read(client, 0, WRITTEN) == pattern(9, WRITTEN));
        }
        let bytes = pattern(10, WRITTEN);
        floe[0].write(0, &bytes, false).unwrap();
        let hits = memory(&rig).read_hits;
        for (floe, pictures) in floe.iter_mut().zip(&mut pictures) {
            assert!(read(floe, 0, WRITTEN) == bytes);
            assert!(read(pictures, 0, WRITTEN) == pattern(9, WRITTEN));
        }
        assert!(memory(&rig).read_hits >= hits + 2);
        assert!(pictures[0].write(0, &[1; PAGE], false).is_err());
        assert!(read(&mut pictures[0], 0, WRITTEN) == pattern(9, WRITTEN));
        drop((floe, pictures));
        assert!(rig.end()[..WRITTEN] == bytes);
    }
}

#[test]
fn a_volume_that_comes_in_the_place_of_another_has_none_of_its_pages() {
    for write in [MemoryWrite::Through, MemoryWrite::Back] {
        let rig = Setup::new(WriteMode::Pass).memory(Some(write)).start().unwrap();
        let folder = tempfile::tempdir().unwrap();
        for round in 1..=3u8 {
            let path = folder.path().join(format!("disk{round}"));
            std::fs::write(&path, vec![round; WRITTEN]).unwrap();
            admin::add_volume(&rig.admin, &in_file("disk", &path, None)).unwrap();
            let mut clients = [rig.client_of("disk").unwrap(), rig.client_of("disk").unwrap()];
            for client in &mut clients {
                assert!(read(client, 0, WRITTEN) == vec![round; WRITTEN], "{write}, round {round}");
            }
            clients[0].write(0, &[100 + round; PAGE], false).unwrap();
            admin::remove_volume(&rig.admin, "disk", true).unwrap();
            assert!(
                std::fs::read(&path).unwrap()[..PAGE] == [100 + round; PAGE],
                "{write}: it was flushed"
            );
        }
        rig.end();
    }
}

#[test]
fn writes_are_held_in_memory_until_a_flush_and_durable_ones_are_not() {
    for mode in MODES {
        let mood = Mood::default();
        let rig = rig(mode, MemoryWrite::Back, &mood);
        let mut client = rig.client();
        let bytes = pattern(1, WRITTEN);
        let quiet = mood.operations();
        for (at, page) in bytes.chunks(PAGE).enumerate() {
            client.write((at * PAGE) as u64, page, false).unwrap();
        }
        assert_eq!(
            (memory(&rig).dirty_bytes, mood.operations()),
            (WRITTEN as u64, quiet),
            "{mode}"
        );
        assert_eq!(rig.status().cache.counters.cache_write_bytes, 0, "{mode}");
        client.write(0, &[9; PAGE], true).unwrap();
        assert_eq!(
            memory(&rig).dirty_bytes,
            (WRITTEN - PAGE) as u64,
            "{mode}: it has replaced what was held"
        );
        assert!(mood.operations() > quiet);
        client.flush().unwrap();
        assert_eq!((memory(&rig).dirty_bytes, rig.status().cache.dirty_bytes), (0, 0), "{mode}");
        let (result, volume) = {
            drop(client);
            rig.tell_to_end();
            rig.join()
        };
        result.unwrap();
        assert!(volume[..PAGE] == [9; PAGE] && volume[PAGE..WRITTEN] == bytes[PAGE..], "{mode}");
    }
}

#[test]
fn what_memory_has_no_room_for_goes_below_and_is_not_lost() {
    for mode in MODES {
        let rig = rig(mode, MemoryWrite::Back, &Mood::default());
        let mut clients = [rig.client_on(0), rig.client_on(1)];
        let bytes = pattern(2, 32 << 20); // four times what it is given
        for (at, piece) in bytes.chunks(10_000).enumerate() {
            clients[at % 2].write(10_000 * at as u64, piece, false).unwrap();
        }
        let hits = memory(&rig);
        assert!(hits.dirty_bytes <= hits.size_bytes / 4 && hits.pages_evicted > 0, "{hits:?}");
        assert!(read(&mut clients[0], 0, bytes.len()) == bytes, "{mode}");
        drop(clients);
        assert!(rig.end()[..bytes.len()] == bytes, "{mode}");
    }
}

#[test]
fn a_flush_that_fails_says_so_and_everything_stays_in_memory() {
    for mode in MODES {
        let mood = Mood::default();
        let rig = rig(mode, MemoryWrite::Back, &mood);
        let mut clients = [rig.client_on(0), rig.client_on(1)];
        let bytes = pattern(3, WRITTEN);
        clients[0].write(0, &bytes, false).unwrap();
        mood.fail(true);
        for _ in 0..2 {
            is_eio(clients[1].flush());
            let held = memory(&rig).dirty_bytes + rig.status().cache.dirty_bytes;
            assert_eq!(held, WRITTEN as u64, "{mode}");
            for client in &mut clients {
                assert!(read(client, 0, WRITTEN) == bytes, "{mode}: what was written is read");
            }
        }
        is_eio(clients[0].write(0, &[1; PAGE], true));
        mood.fail(false);
        clients[1].flush().unwrap();
        assert_eq!(memory(&rig).dirty_bytes + rig.status().cache.dirty_bytes, 0, "{mode}");
        drop(clients);
        let volume = rig.end();
        // A write that failed has the old bytes or the new ones.
        assert!(volume[..PAGE] == bytes[..PAGE] || volume[..PAGE] == [1; PAGE], "{mode}");
        assert!(volume[PAGE..WRITTEN] == bytes[PAGE..], "{mode}");
    }
}

#[test]
fn an_end_that_cannot_write_what_memory_has_says_what_is_lost() {
    let mood = Mood::default();
    let rig = rig(WriteMode::Through, MemoryWrite::Back, &mood);
    rig.client().write(0, &pattern(4, WRITTEN), false).unwrap();
    mood.fail(true);
    rig.tell_to_end();
    let (result, _) = rig.join();
    let Err(error @ ServeError::LastFlush { .. }) = result else { panic!("{result:?}") };
    assert!(error.to_string().contains(&format!("{WRITTEN} bytes were in memory only")), "{error}");
}

#[test]
fn what_is_trimmed_or_zeroed_is_held_no_longer() {
    for mode in MODES {
        let rig = rig(mode, MemoryWrite::Back, &Mood::default());
        let mut clients = [rig.client_on(0), rig.client_on(1)];
        let mut bytes = pattern(5, WRITTEN);
        clients[0].write(0, &bytes, false).unwrap();
        clients[1].write_zeroes(100, 3 * PAGE as u32, true).unwrap();
        bytes[100..100 + 3 * PAGE].fill(0);
        clients[1].trim(10 * PAGE as u64, 5 * PAGE as u32).unwrap();
        bytes[10 * PAGE..15 * PAGE].fill(0); // what a memory device makes of it
        for client in &mut clients {
            assert!(read(client, 0, WRITTEN) == bytes, "{mode}");
        }
        // Two whole pages were zeroed below; the two it covers in part were written in memory.
        assert_eq!(memory(&rig).dirty_bytes, (WRITTEN - 7 * PAGE) as u64, "{mode}");
        drop(clients);
        assert!(rig.end()[..WRITTEN] == bytes, "{mode}");
    }
}

#[test]
fn a_write_is_answered_while_what_it_wants_to_reach_stands_still() {
    let gate = Gate::default();
    let setup = Setup::new(WriteMode::Through).memory(Some(MemoryWrite::Back)).backing({
        let gate = gate.clone();
        move |memory| gate.before(memory)
    });
    let rig = setup.start().unwrap();
    let mut client = rig.client();
    gate.shut();
    client.write(0, &[5; PAGE], false).unwrap();
    assert!(read(&mut client, 0, PAGE) == [5; PAGE]);
    client.submit_flush().unwrap();
    gate.wait_for(1); // it sinks
    // Who reads it meanwhile finds it, who writes it waits.
    assert!(read(&mut rig.client_on(1), 0, PAGE) == [5; PAGE]);
    let mut other = rig.client_on(1);
    other.submit_write(0, &[6; PAGE], false).unwrap();
    gate.open();
    client.next_reply().unwrap().unwrap().outcome.unwrap();
    other.next_reply().unwrap().unwrap().outcome.unwrap();
    assert!(read(&mut client, 0, PAGE) == [6; PAGE]);
    drop((client, other));
    assert!(rig.end()[..PAGE] == [6; PAGE]);
}

#[test]
fn what_is_held_goes_below_by_the_clock() {
    let mut setup = Setup::new(WriteMode::Through).memory(Some(MemoryWrite::Back));
    setup.config.flush_interval = std::time::Duration::from_millis(20);
    let rig = setup.start().unwrap();
    let mut client = rig.client();
    client.write(0, &[5; PAGE], false).unwrap();
    patiently(|| (memory(&rig).dirty_bytes == 0).then_some(()));
    admin::flush(&rig.admin).unwrap();
    drop(client);
    assert!(rig.end()[..PAGE] == [5; PAGE]);
}

#[test]
fn a_cache_device_that_fails_takes_nothing_with_it_that_memory_holds() {
    for mode in [WriteMode::Through, WriteMode::Back] {
        let cache = Mood::default();
        let setup = Setup::new(mode).memory(Some(MemoryWrite::Back)).cache({
            let cache = cache.clone();
            move |memory| cache.before(memory)
        });
        let rig = setup.start().unwrap();
        let mut clients = [rig.client_on(0), rig.client_on(1)];
        let bytes = pattern(6, WRITTEN);
        clients[0].write(0, &pattern(7, WRITTEN), false).unwrap();
        read(&mut clients[1], 0, 2 * WRITTEN);
        cache.fail(true);
        clients[0].write(0, &bytes, false).unwrap();
        clients[1].flush().unwrap();
        for client in &mut clients {
            assert!(read(client, 0, WRITTEN) == bytes, "{mode}");
        }
        drop(clients);
        assert!(rig.end()[..WRITTEN] == bytes, "{mode}");
    }
}

/// Clients of all threads read what one client of each thread writes again and again, pages whole
/// and in part, while pages come and go: a read never finds less than what was answered before it
/// was sent, nor two versions in one sector.
#[test]
fn a_read_never_finds_older_than_what_was_answered_before_on_any_thread() {
    const PAGES: usize = 8;
    const WRITES: u64 = 600;
    let writes = [MemoryWrite::Through, MemoryWrite::Back];
    let plain = MODES.into_iter().flat_map(|mode| writes.map(|write| (mode, write, None)));
    let frozen = [0.7, 1.0]
        .into_iter()
        .flat_map(|ratio| writes.map(|write| (WriteMode::Through, write, Some(ratio))));
    let setups = plain.chain(frozen);
    for (mode, write, frozen) in setups {
        let setup = Setup::new(mode);
        let setup = match frozen {
            Some(ratio) => setup.frozen_memory(write, ratio),
            None => setup.memory(Some(write)),
        };
        let rig = setup.start().unwrap();
        // Frozen, and thawed again, several times.
        let is_enough = || memory(&rig).freezing.is_none_or(|freezing| freezing.constructed >= 5);
        let (answered, over): ([AtomicU64; 2 * PAGES], _) =
            (Default::default(), AtomicBool::new(false));
        let place = |page: usize| page * 20 * PAGE; // of all shards
        let write_on = |mut client: Client, writer: usize| {
            for version in (1..).take_while(|version| *version <= WRITES || !is_enough()) {
                let page = 2 * (version as usize % PAGES) + writer;
                let bytes = version.to_le_bytes().repeat(PAGE / 8);
                match version % 7 {
                    // In three parts, of which only the first and the last have to be the same for
                    // a reader.
                    0 => [0..512, 512..3000, 3000..PAGE].into_iter().for_each(|part| {
                        client
                            .write((place(page) + part.start) as u64, &bytes[part], false)
                            .unwrap();
                    }),
                    at => client.write(place(page) as u64, &bytes, at == 3).unwrap(),
                }
                answered[page].store(version, SeqCst);
                if version % 50 == 0 {
                    client.flush().unwrap();
                }
            }
        };
        let read_on = |mut client: Client, mut random: Random| {
            while !over.load(SeqCst) {
                let page = random.below(2 * PAGES);
                let least = answered[page].load(SeqCst);
                let found = read(&mut client, place(page), PAGE);
                for part in [&found[..512], &found[512..3000], &found[3000..]] {
                    let words =
                        part.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                    let versions: Vec<u64> = words.collect();
                    assert!(
                        versions.iter().all(|version| *version == versions[0]),
                        "{mode}, {write}: torn"
                    );
                    assert!(versions[0] >= least, "{mode}, {write}: {} after {least}", versions[0]);
                }
                // others want memory, too
                read(&mut client, (2 * PAGES * 20 + random.below(4000)) * PAGE, PAGE);
            }
        };
        let (write_on, read_on) = (&write_on, &read_on);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|number| {
                    let client = rig.client_on(number);
                    scope.spawn(move || read_on(client, Random(number as u64)))
                })
                .collect();
            let writers = [0, 1].map(|writer| {
                let client = rig.client_on(writer);
                scope.spawn(move || write_on(client, writer))
            });
            let written = writers.map(|writer| writer.join());
            over.store(true, SeqCst);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            written.into_iter().for_each(|writer| writer.unwrap());
        });
        rig.end();
    }
}
