//! Volumes that come, go and grow while a server of one, two or three threads has clients.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use floe_block::WriteMode;
use floe_device::MemoryDevice;
use floe_nbd::wire::ErrorCode;
use floe_nbd::wire::command;
use floe_server::admin::client::{self as admin, AdminError};
use floe_server::admin::{LimitChange, NewVolume, Resize, ShareChange};
use floe_server::nbd_client::ClientError;
use floe_testkit::{patiently, pattern};

use super::mood::Mood;
use crate::rig::{Gate, MEMORIES, Rig, Setup, Wrapped, drained, header};

const SIZE: usize = 3 << 20;

/// A volume in a file, of a size if it is to be made.
pub(crate) fn in_file(name: &str, path: &Path, size: Option<usize>) -> NewVolume {
    let size = size.map_or(String::new(), |size| format!(",size={size}"));
    let backing = format!("file:{}{size}", path.display());
    NewVolume {
        name: name.into(),
        backing,
        read_only: false,
        holds_cache: false,
        nvme_block_bytes: None,
        description: String::new(),
        limit: LimitChange::default(),
        share: ShareChange::default(),
    }
}

pub(crate) fn resize_to(bytes: usize) -> Resize {
    Resize { size_bytes: Some(bytes as u64) }
}

pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, AdminError>, why: &str) {
    match result {
        Err(AdminError::Refused { problem, .. }) => assert!(problem.contains(why), "{problem}"),
        other => panic!("{other:?}, not {why:?}"),
    }
}

fn names(rig: &Rig) -> Vec<String> {
    admin::volumes(&rig.admin).unwrap().into_iter().map(|volume| volume.name).collect()
}

/// A server with a second volume, `slow`, behind a gate.
fn gated(mode: WriteMode, threads: usize) -> (Rig, Gate, MemoryDevice) {
    let (gate, memory) = (Gate::default(), MemoryDevice::new(SIZE as u64));
    let slow = Wrapped::source(memory.clone(), {
        let gate = gate.clone();
        move |memory| gate.before(memory)
    });
    (Setup::new(mode).threads(threads).volume("slow", slow).start().unwrap(), gate, memory)
}

fn content(memory: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    memory.read_at(0, &mut bytes);
    bytes
}

#[test]
fn what_cannot_be_added_changes_nothing() {
    for threads in 1..=3 {
        let rig = Setup::new(WriteMode::Back).threads(threads).start().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let add = |volume: &NewVolume| admin::add_volume(&rig.admin, volume);
        let bad =
            |backing: &str| NewVolume { backing: backing.into(), ..in_file("new", &path, None) };
        refused(add(&bad("memory:4MiB,colour=red")), "backing");
        refused(add(&in_file("new", &path, None)), "disk");
        refused(add(&in_file("floe", &path, Some(SIZE))), "already");
        let long = "n".repeat(5000);
        refused(add(&in_file(&long, &path, Some(SIZE))), "longer");
        admin::add_volume(&rig.admin, &in_file("new", &path, Some(SIZE))).unwrap();
        refused(add(&in_file("other", &path, None)), "disk"); // one file, one volume
        assert_eq!(names(&rig), ["floe", "new"]);
        refused(admin::remove_volume(&rig.admin, "nothing", true), "no volume");
        refused(admin::resize_volume(&rig.admin, "nothing", &resize_to(SIZE)), "no volume");
        assert!(rig.client_of("other").is_err());
        rig.end();
    }
}

#[test]
fn a_volume_goes_with_all_its_bytes_and_comes_back_while_others_are_used() {
    for threads in 1..=3 {
        for mode in [WriteMode::Through, WriteMode::Back] {
            let rig = Setup::new(mode).threads(threads).start().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("disk");
            let mut other = rig.client();
            other.write(0, &pattern(9, 500_000), false).unwrap();
            let mut bytes = vec![0; SIZE];
            for round in 0..4 {
                let volume = in_file("comes and goes/é", &path, (round == 0).then_some(SIZE));
                admin::add_volume(&rig.admin, &volume).unwrap();
                let mut clients: Vec<_> =
                    (0..4).map(|_| rig.client_of(&volume.name).unwrap()).collect();
                let mut found = vec![0; SIZE];
                clients[round].read(0, &mut found).unwrap();
                assert!(found == bytes, "{mode}, {threads} threads, round {round}");
                for (number, client) in clients.iter_mut().enumerate() {
                    let at = number * 700_000 + round * 1000;
                    bytes[at..at + 600_000]
                        .copy_from_slice(&pattern((round * 4 + number) as u64, 600_000));
                    client.write(at as u64, &bytes[at..at + 600_000], false).unwrap();
                }
                admin::remove_volume(&rig.admin, &volume.name, true).unwrap();
                assert!(
                    std::fs::read(&path).unwrap() == bytes,
                    "{mode}, {threads} threads, round {round}"
                );
                for client in &mut clients {
                    client.read(0, &mut [0; 10]).unwrap_err();
                }
                assert!(rig.client_of(&volume.name).is_err());
                assert_eq!(
                    rig.status().cache.dirty_bytes > 0,
                    mode == WriteMode::Back,
                    "the other one's"
                );
                let mut found = vec![0; 500_000];
                other.read(0, &mut found).unwrap();
                assert!(found == pattern(9, 500_000));
            }
            assert!(rig.end()[..500_000] == pattern(9, 500_000));
        }
    }
}

#[test]
fn a_volume_that_cannot_be_flushed_stays_and_serves() {
    for threads in 1..=3 {
        let (mood, memory) = (Mood::default(), MemoryDevice::new(SIZE as u64));
        let source = Wrapped::source(memory.clone(), {
            let mood = mood.clone();
            move |memory| mood.before(memory)
        });
        let rig =
            Setup::new(WriteMode::Back).threads(threads).volume("ill", source).start().unwrap();
        let data = pattern(4, 900_000);
        let mut client = rig.client_of("ill").unwrap();
        client.write(4096, &data, false).unwrap();
        for only_flushes in [false, true] {
            mood.fail(!only_flushes);
            mood.fail_flushes(only_flushes);
            let error = admin::remove_volume(&rig.admin, "ill", true).unwrap_err().to_string();
            assert!(error.contains("the volume stays"), "{error}");
            assert_eq!(names(&rig), ["floe", "ill"]);
            client.read(4096, &mut [0; 10]).unwrap_err(); // has been sent away
            client = rig.client_of("ill").unwrap();
            let mut found = vec![0; data.len()];
            client.read(4096, &mut found).unwrap();
            assert!(found == data);
        }
        mood.fail_flushes(false);
        admin::remove_volume(&rig.admin, "ill", true).unwrap();
        assert!(content(&memory)[4096..][..data.len()] == data);
        assert_eq!(names(&rig), ["floe"]);
        rig.end();
    }
}

#[test]
fn a_client_that_reads_no_replies_keeps_no_volume() {
    for threads in 1..=3 {
        let mut setup = Setup::new(WriteMode::Back).threads(threads);
        setup.config.limits.farewell_time = Duration::from_millis(50);
        let rig = setup.start().unwrap();
        let mut deaf: Vec<_> = (0..3).map(|_| rig.raw()).collect();
        for deaf in &mut deaf {
            for cookie in 0..64 {
                deaf.write_all(&header(command::READ, cookie, 0, 4 << 20)).unwrap();
            }
        }
        rig.wait_for(|status| status.cache.requests.reads >= 3);
        admin::remove_volume(&rig.admin, "floe", true).unwrap();
        deaf.iter_mut().for_each(|deaf| drop(drained(deaf)));
        rig.wait_for(|status| status.connections == 0 && status.volumes.is_empty());
        rig.end();
    }
}

#[test]
fn a_volume_grows_under_its_clients() {
    for (threads, memory) in (1..=3).flat_map(|threads| MEMORIES.map(|memory| (threads, memory))) {
        let rig = Setup::new(WriteMode::Back).threads(threads).memory(memory).start().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        admin::add_volume(&rig.admin, &in_file("grows", &path, Some(SIZE))).unwrap();
        let mut clients: Vec<_> = (0..3).map(|_| rig.client_of("grows").unwrap()).collect();
        let resize = |bytes| admin::resize_volume(&rig.admin, "grows", &resize_to(bytes));
        let invalid = |result: Result<(), ClientError>| match result {
            Err(ClientError::Request(error)) => {
                assert!(matches!(error.code, ErrorCode::Invalid | ErrorCode::NoSpace), "{error:?}");
            }
            other => panic!("{other:?}"),
        };
        let mut bytes = pattern(8, SIZE);
        clients[0].write(0, &bytes, false).unwrap();
        let mut size = SIZE;
        for (round, more) in [512, 4096, 1 << 20, 77 * 512].into_iter().enumerate() {
            refused(resize(size + more), "enlarge it first");
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len((size + more) as u64).unwrap();
            refused(resize(size - 512), "not shrink");
            refused(resize(size + 5), "512");
            for client in &mut clients {
                // Past the client's own check, the server has the last word.
                client.submit_write(size as u64, &[1; 512], false).unwrap();
                invalid(
                    client.next_reply().unwrap().unwrap().outcome.map_err(ClientError::Request),
                );
            }
            let told = match round % 2 {
                0 => resize(size + more).unwrap(),
                _ => admin::resize_volume(&rig.admin, "grows", &Resize::default()).unwrap(),
            };
            assert_eq!(told.bytes, (size + more) as u64);
            let new = pattern(round as u64, more);
            clients[round % 3].submit_write(size as u64, &new, false).unwrap();
            clients[round % 3].next_reply().unwrap().unwrap().outcome.unwrap();
            bytes.extend(new);
            size += more;
            for client in &mut clients {
                client.submit_read(0, size as u32).unwrap();
                let reply = client.next_reply().unwrap().unwrap();
                reply.outcome.unwrap();
                assert!(reply.data == bytes, "{threads} threads, round {round}");
            }
            assert_eq!(rig.client_of("grows").unwrap().info().size_bytes, size as u64);
        }
        rig.end();
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
}

#[test]
fn one_volume_changes_at_a_time() {
    for threads in 1..=3 {
        let (rig, gate, memory) = gated(WriteMode::Back, threads);
        rig.client_of("slow").unwrap().write(0, &pattern(2, 200_000), false).unwrap();
        gate.shut();
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| admin::remove_volume(&rig.admin, "slow", true));
            gate.wait_for(1);
            let memory = |name: &str| NewVolume {
                backing: "memory:1MiB".into(),
                ..in_file(name, Path::new(""), None)
            };
            let busy = "another volume is being";
            refused(admin::add_volume(&rig.admin, &memory("new")), busy);
            refused(admin::add_volume(&rig.admin, &memory("slow")), "already");
            refused(admin::remove_volume(&rig.admin, "floe", true), busy);
            refused(admin::remove_volume(&rig.admin, "slow", true), "is being removed");
            refused(admin::resize_volume(&rig.admin, "floe", &resize_to(SIZE)), busy);
            assert_eq!(names(&rig), ["floe"]);
            gate.open();
            removing.join().unwrap().unwrap();
            admin::add_volume(&rig.admin, &memory("slow")).unwrap();
        });
        assert!(content(&memory)[..200_000] == pattern(2, 200_000));
        assert_eq!(names(&rig), ["floe", "slow"]);
        rig.end();
    }
}

#[test]
fn two_sizes_at_once_leave_one_that_all_threads_agree_on() {
    let (mood, folder) = (Mood::default(), tempfile::tempdir().unwrap());
    let setup = Setup::new(WriteMode::Through).threads(2);
    let rig = setup.backing({
        let mood = mood.clone();
        move |memory| mood.before(memory)
    });
    let rig = rig.start().unwrap();
    let path = folder.path().join("disk");
    admin::add_volume(&rig.admin, &in_file("grows", &path, Some(SIZE))).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * SIZE as u64).unwrap();
    mood.keep_busy(1, &rig);
    let sizes: Vec<_> = std::thread::scope(|scope| {
        let resizing: Vec<_> = [3 * SIZE, 2 * SIZE, 3 * SIZE, 2 * SIZE]
            .into_iter()
            .map(|size| {
                let address = &rig.admin;
                scope.spawn(move || admin::resize_volume(address, "grows", &resize_to(size)))
            })
            .collect();
        // All but one are refused at once, or none is before the thread is let go.
        patiently(|| (resizing.iter().filter(|one| one.is_finished()).count() == 3).then_some(()));
        mood.let_go();
        resizing
            .into_iter()
            .filter_map(|one| one.join().unwrap().ok())
            .map(|told| told.bytes)
            .collect()
    });
    let [size] = sizes[..] else { panic!("{sizes:?}") };
    let mut clients = [rig.client_of("grows").unwrap(), rig.client_of("grows").unwrap()];
    let data = pattern(5, size as usize);
    clients[0].write(0, &data, false).unwrap();
    let mut found = vec![0; data.len()];
    clients[1].read(0, &mut found).unwrap();
    assert!(found == data);
    rig.end();
}

#[test]
fn the_end_may_come_while_a_volume_goes() {
    for threads in 1..=3 {
        let (rig, gate, memory) = gated(WriteMode::Back, threads);
        let mut client = rig.client_of("slow").unwrap();
        client.write(0, &pattern(2, 200_000), false).unwrap();
        gate.shut();
        client.submit_read(1 << 20, 1000).unwrap();
        gate.wait_for(1);
        let address = rig.admin.clone();
        let removing = std::thread::spawn(move || admin::remove_volume(&address, "slow", true));
        patiently(|| (names(&rig) == ["floe"]).then_some(()));
        rig.tell_to_end();
        gate.open();
        client.next_reply().unwrap().unwrap().outcome.unwrap();
        rig.join().0.unwrap();
        removing.join().unwrap().unwrap();
        assert!(content(&memory)[..200_000] == pattern(2, 200_000));
    }
}

#[test]
fn the_end_may_come_while_a_volume_comes_or_grows() {
    let folder = tempfile::tempdir().unwrap();
    for (number, grows) in [false, true, false, true].into_iter().enumerate() {
        let mood = Mood::default();
        let setup = Setup::new(WriteMode::Back).threads(2 + number / 2);
        let rig = setup.backing({
            let mood = mood.clone();
            move |memory| mood.before(memory)
        });
        let rig = rig.start().unwrap();
        rig.client().write(0, &pattern(1, 300_000), false).unwrap();
        let path = folder.path().join(number.to_string());
        let volume = in_file("new", &path, Some(SIZE));
        if grows {
            admin::add_volume(&rig.admin, &volume).unwrap();
            OpenOptions::new().write(true).open(&path).unwrap().set_len(2 * SIZE as u64).unwrap();
        }
        mood.keep_busy(1, &rig);
        let address = rig.admin.clone();
        let changing = std::thread::spawn(move || match grows {
            true => admin::resize_volume(&address, "new", &Resize::default()),
            false => admin::add_volume(&address, &volume),
        });
        patiently(|| path.exists().then_some(())); // has been asked for
        rig.tell_to_end();
        mood.let_go();
        let (result, bytes) = rig.join();
        result.unwrap();
        assert!(bytes[..300_000] == pattern(1, 300_000));
        // Whichever was first.
        match changing.join().unwrap() {
            Ok(volume) => {
                assert_eq!(volume.bytes, if grows { 2 * SIZE as u64 } else { SIZE as u64 })
            }
            Err(AdminError::Failed { problem, .. }) => assert_eq!(problem, "the server is ending"),
            Err(AdminError::Unreachable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_volume_that_clients_use_goes_only_by_force() {
    for threads in 1..=2 {
        let (rig, gate, _) = gated(WriteMode::Back, threads);
        gate.open();
        let mut clients = [rig.client_of("slow").unwrap(), rig.client_of("slow").unwrap()];
        let other = rig.client_of("floe").unwrap();
        refused(
            admin::remove_volume(&rig.admin, "slow", false),
            "2 clients use volume \"slow\" (2 nbd); --force",
        );
        for client in &mut clients {
            client.write(0, &[threads as u8; 4096], false).unwrap();
        }
        let [one, _] = clients;
        drop(one);
        admin::remove_volume(&rig.admin, "slow", true).unwrap();
        assert_eq!(names(&rig), ["floe"]);
        refused(admin::remove_volume(&rig.admin, "floe", false), "1 client uses");
        drop(other);
        rig.end();
    }
}
