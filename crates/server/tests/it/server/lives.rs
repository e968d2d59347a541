//! Volumes that live and die at random, side by side, in a server of one, two or three threads,
//! while others flush and look on. Each is compared with a plain array, and its file at each of its
//! deaths.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use floe_block::WriteMode;
use floe_server::admin::client::{self as admin, AdminError};
use floe_server::nbd_client::Client;
use floe_testkit::{Random, pattern};

use super::volumes::{in_file, resize_to};
use crate::rig::{Rig, Setup};

const LIVES: usize = 3;
const DEATHS: usize = 3;
const UNIT: usize = 512;

/// Does something again as long as another volume is in the way; `None` when the server has begun
/// to end.
fn in_turn<T: std::fmt::Debug>(mut ask: impl FnMut() -> Result<T, AdminError>) -> Option<T> {
    loop {
        match ask() {
            Ok(done) => return Some(done),
            Err(AdminError::Refused { problem, .. }) if problem.starts_with("another volume") => {}
            Err(AdminError::Failed { problem, .. }) if problem == "the server is ending" => {
                return None;
            }
            Err(AdminError::Unreachable { .. } | AdminError::Strange { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Some writes, zeroings and reads, many at once and none in the way of another; false when the
/// server breaks off. What was under way then is either there or not: such units are noted.
fn work(client: &mut Client, bytes: &mut [u8], random: &mut Random, unsure: &mut [bool]) -> bool {
    let (mut at, mut reads, mut changes) = (0, Vec::new(), Vec::new());
    let mut well = true;
    while well && at < bytes.len() {
        let most = [3, 20, 100, 600][random.below(4)];
        let len = ((1 + random.below(most)) * UNIT).min(bytes.len() - at);
        let (offset, range) = (at as u64, at..at + len);
        at += len;
        let asked = match random.below(8) {
            0..3 => {
                let new = pattern(random.next(), len);
                client
                    .submit_write(offset, &new, random.below(10) == 0)
                    .map(|it| changes.push((it, range, new)))
            }
            3 => client
                .submit_write_zeroes(offset, len as u32, random.below(2) == 0)
                .map(|it| changes.push((it, range, vec![0; len]))),
            4..6 => client.submit_read(offset, len as u32).map(|it| reads.push((it, range))),
            _ => Ok(()),
        };
        well = asked.is_ok();
    }
    while well {
        match client.next_reply() {
            Ok(Some(reply)) => {
                reply.outcome.unwrap();
                if let Some(read) = reads.iter().position(|(cookie, _)| *cookie == reply.cookie) {
                    let (_, range) = reads.swap_remove(read);
                    assert!(reply.data == bytes[range], "a read found something else");
                } else {
                    let change =
                        changes.iter().position(|(cookie, ..)| *cookie == reply.cookie).unwrap();
                    let (_, range, new) = changes.swap_remove(change);
                    bytes[range].copy_from_slice(&new);
                }
            }
            Ok(None) => return true,
            Err(_) => well = false,
        }
    }
    for (_, range, _) in changes {
        unsure[range.start / UNIT..range.end / UNIT].fill(true);
    }
    false
}

/// That a file has what it should have, as far as that is known.
fn verify(path: &Path, bytes: &mut Vec<u8>, unsure: &mut [bool]) {
    let found = std::fs::read(path).unwrap();
    assert_eq!(found.len(), bytes.len());
    for (at, unit) in found.chunks(UNIT).enumerate() {
        assert!(
            unsure[at] || unit == &bytes[at * UNIT..][..unit.len()],
            "{}: unit {at}",
            path.display()
        );
    }
    *bytes = found;
    unsure.fill(false);
}

/// A volume that comes, is used, grows, goes, and comes again.
fn live(rig: &Rig, name: &str, path: &Path, random: &mut Random) {
    let mut bytes = vec![0; UNIT * (1000 + random.below(3000))];
    let mut unsure = vec![false; bytes.len() / UNIT];
    for death in 0..DEATHS {
        let volume = in_file(name, path, (death == 0).then_some(bytes.len()));
        if in_turn(|| admin::add_volume(&rig.admin, &volume)).is_none() {
            return;
        }
        for _ in 0..1 + random.below(3) {
            let Ok(mut client) = rig.client_of(name) else { break };
            let mut goes_on = true;
            for _ in 0..random.below(4) {
                goes_on = goes_on && work(&mut client, &mut bytes, random, &mut unsure);
            }
            if goes_on && random.below(2) == 0 {
                let ends_within_page = !bytes.len().is_multiple_of(4096);
                // From the end of a sector.
                let more = UNIT * (8 - bytes.len() / UNIT % 8 + 8 * random.below(50));
                bytes.resize(bytes.len() + more, 0);
                unsure.resize(bytes.len() / UNIT, false);
                // Growing a file from within a page changes that page in the page cache. If a
                // direct write meets it before it is written, Linux fails the next flush of the
                // file, the server's and this test's: so nothing of the volume may be dirty then.
                if ends_within_page && in_turn(|| admin::flush(&rig.admin)).is_none() {
                    break;
                }
                let file = OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(bytes.len() as u64).unwrap();
                file.sync_data().unwrap();
                if in_turn(|| admin::resize_volume(&rig.admin, name, &resize_to(bytes.len())))
                    .is_none()
                {
                    break;
                }
                work(&mut client, &mut bytes, random, &mut unsure);
            }
        }
        // Some requests are under way when it goes.
        let leaving = rig.client_of(name).ok();
        let removed = std::thread::scope(|scope| {
            let at_work = leaving.map(|mut client| {
                let (bytes, unsure, mut random) = (&mut bytes, &mut unsure, Random(random.next()));
                scope.spawn(move || while work(&mut client, bytes, &mut random, unsure) {})
            });
            let removed = in_turn(|| admin::remove_volume(&rig.admin, name, true));
            if let Some(at_work) = at_work {
                at_work.join().unwrap();
            }
            removed
        });
        if removed.is_none() {
            return;
        }
        verify(path, &mut bytes, &mut unsure);
    }
}

fn lives(threads: usize, mode: WriteMode, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let rig = Setup::new(mode).threads(threads).start().unwrap();
    let (living, over) = (AtomicUsize::new(LIVES), AtomicBool::new(false));
    let mut bytes = vec![0; 4 << 20];
    let mut unsure = vec![false; bytes.len() / UNIT];
    std::thread::scope(|scope| {
        let lives: Vec<_> = (0..LIVES)
            .map(|number| {
                let (rig, living) = (&rig, &living);
                let path = folder.path().join(number.to_string());
                scope.spawn(move || {
                    live(
                        rig,
                        &format!("life {number}"),
                        &path,
                        &mut Random(seed * 10 + number as u64),
                    );
                    living.fetch_sub(1, SeqCst);
                })
            })
            .collect();
        let (rig, over, bytes, unsure) = (&rig, &over, &mut bytes, &mut unsure);
        scope.spawn(move || {
            let (mut client, mut random) = (rig.client(), Random(seed));
            while !over.load(SeqCst) && work(&mut client, bytes, &mut random, unsure) {}
        });
        scope.spawn(move || {
            while !over.load(SeqCst) {
                in_turn(|| admin::flush(&rig.admin));
                in_turn(|| admin::status(&rig.admin));
            }
        });
        // Half of the servers end in the middle of it.
        let enough = if seed.is_multiple_of(2) { 0 } else { LIVES - 1 };
        while living.load(SeqCst) > enough && !lives.iter().all(|life| life.is_finished()) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        over.store(true, SeqCst);
        rig.tell_to_end();
    });
    let (result, found) = rig.join();
    result.unwrap();
    for (at, unit) in bytes.chunks(UNIT).enumerate() {
        assert!(
            unsure[at] || unit == &found[at * UNIT..][..UNIT],
            "unit {at} of the volume that stays"
        );
    }
}

#[test]
fn volumes_that_live_and_die_at_random_lose_nothing() {
    for threads in 1..=3 {
        for mode in [WriteMode::Back, WriteMode::Through] {
            for seed in 0..2 {
                lives(threads, mode, 100 * threads as u64 + 10 * mode as u64 + seed);
            }
        }
    }
}
