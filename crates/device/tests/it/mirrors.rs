//! Mirrors: halves that leave, return, and are told apart.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{SECTOR, read, run, slice, thread};
use crate::devices::{SIZE, check, steps};
use crate::nbd::Place;
use crate::nbd::relay::Relay;
use floe_device::{
    Action, Completion, Damage, Judge, MirrorStatus, OpenError, Operation, Role, Source, Spec,
};
use proptest::prelude::*;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a half before its data.
const HEAD: u64 = 1 << 20;

fn prepare(folder: &Path, halves: &str, bytes: u64) -> Result<Source, OpenError> {
    prepare_unjudged(folder, halves, bytes).inspect(judge_nothing)
}

fn judge_nothing(source: &Source) {
    let (ring, pool) = thread();
    source.open(&ring, &pool).expect("it opens").set_judge(None);
}

/// Opens a mirror that waits for a judge of what it copies.
fn prepare_unjudged(folder: &Path, halves: &str, bytes: u64) -> Result<Source, OpenError> {
    prepare_timed(folder, halves, bytes, "20s")
}

/// Opens a mirror whose halves leave when they have not answered for so long.
fn prepare_timed(
    folder: &Path,
    halves: &str,
    bytes: u64,
    timeout: &str,
) -> Result<Source, OpenError> {
    let witness = folder.join("state");
    let text = format!("mirror:{halves},timeout={timeout},witness={}", witness.display());
    text.parse::<Spec>().expect("a mirror").prepare(Role::Cache { size: bytes })
}

fn files(folder: &Path) -> String {
    format!("{0}/one+{0}/two", folder.display())
}

fn await_status(source: &Source, what: &str, is: impl Fn(&MirrorStatus) -> bool) -> MirrorStatus {
    let begun = Instant::now();
    loop {
        let status = source.mirror_status().expect("it is a mirror");
        if is(&status) {
            return status;
        }
        assert!(begun.elapsed() < PATIENCE, "not {what}: {status:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Compares the data of two halves.
fn assert_equal(one: &Path, other: &Path) {
    let data = |half| std::fs::read(half).unwrap().split_off(HEAD as usize);
    assert!(data(one) == data(other), "the halves differ");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_mirror_of_two_files_is_an_array_of_bytes(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let source = prepare(folder.path(), &files(folder.path()), SIZE).unwrap();
        let (ring, pool) = thread();
        let mut device = source.open(&ring, &pool).unwrap();
        check(&ring, &pool, &mut *device, &steps);
        drop(device);
        drop(source);
        assert_equal(&folder.path().join("one"), &folder.path().join("two"));
    }
}

/// Writes a byte over some sectors.
fn fill(source: &Source, sector: u64, sectors: usize, byte: u8) {
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).expect("it opens");
    let from = slice(&pool, &vec![byte; sectors * SECTOR]);
    run(&ring, &mut *device, sector * SECTOR as u64, Action::Write { from, durable: false })
        .expect("it writes");
    run(&ring, &mut *device, 0, Action::Flush).expect("it flushes");
}

/// Returns the byte that some sectors hold.
fn held(source: &Source, sector: u64, sectors: usize) -> u8 {
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).expect("it opens");
    let bytes = read(&ring, &pool, &mut *device, sector * SECTOR as u64, sectors * SECTOR);
    let bytes = bytes.expect("it reads");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one byte everywhere");
    bytes[0]
}

const DATA: u64 = 16 << 20;

#[test]
fn data_outlive_the_program_and_swapped_halves_are_told_by_their_headers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let source = prepare(path, &files(path), DATA).unwrap();
    fill(&source, 7, 3, 0xA5);
    assert!(!source.mirror_status().unwrap().is_degraded());
    drop(source);
    let swapped = format!("{0}/two+{0}/one", path.display());
    let source = prepare(path, &swapped, DATA).unwrap();
    assert_eq!(held(&source, 7, 3), 0xA5);
    fill(&source, 8, 1, 0x5A);
    drop(source);
    let source = prepare(path, &files(path), DATA).unwrap();
    assert_eq!((held(&source, 7, 1), held(&source, 8, 1)), (0xA5, 0x5A));
}

#[test]
fn a_half_that_was_away_gets_what_changed_and_is_never_served_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let source = prepare(path, &files(path), DATA).unwrap();
    fill(&source, 0, 16, 1);
    drop(source);
    let (one, away) = (path.join("one"), path.join("away"));
    std::fs::rename(&one, &away).unwrap();
    let source = prepare(path, &files(path), DATA).unwrap();
    let status = await_status(&source, "degraded", |status| status.halves[0].state == "out");
    assert!(status.is_degraded() && status.halves[0].error.is_some(), "{status:?}");
    fill(&source, 4, 4, 2);
    let degraded = source.mirror_status().unwrap().generation;
    drop(source);
    // The stale half alone.
    let two = path.join("two");
    std::fs::rename(&two, path.join("gone")).unwrap();
    std::fs::rename(&away, &one).unwrap();
    let error = prepare(path, &files(path), DATA).expect_err("it is stale").to_string();
    assert!(error.contains("bring back") && error.contains("two"), "{error}");
    assert!(!two.exists(), "no new half is made of one that is away");
    // Both again, the stale one first.
    std::fs::rename(path.join("gone"), &two).unwrap();
    let source = prepare(path, &files(path), DATA).unwrap();
    assert_eq!((held(&source, 0, 4), held(&source, 4, 4)), (1, 2));
    let status = await_status(&source, "whole", |status| !status.is_degraded());
    assert!(status.generation > degraded, "{status:?}");
    assert_eq!((held(&source, 0, 4), held(&source, 4, 4)), (1, 2));
    drop(source);
    assert_equal(&one, &two);
}

#[test]
fn an_old_copy_of_a_half_is_never_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let source = prepare(path, &files(path), DATA).unwrap();
    fill(&source, 0, 16, 1);
    // A write does not wait for the generation of a start to reach the witness.
    await_status(&source, "generation 2", |status| status.generation == 2);
    drop(source);
    let [one, two, copy, gone] = ["one", "two", "copy", "gone"].map(|name| path.join(name));
    std::fs::copy(&one, &copy).unwrap();
    let source = prepare(path, &files(path), DATA).unwrap();
    fill(&source, 0, 16, 2);
    await_status(&source, "generation 3", |status| status.generation == 3);
    drop(source);
    std::fs::copy(&copy, &one).unwrap();
    // Alone.
    std::fs::rename(&two, &gone).unwrap();
    let error = prepare(path, &files(path), DATA).expect_err("it is old").to_string();
    assert!(error.contains("bring back"), "{error}");
    // With the other one it is overwritten.
    std::fs::rename(&gone, &two).unwrap();
    let source = prepare(path, &files(path), DATA).unwrap();
    assert_eq!(held(&source, 0, 16), 2);
    await_status(&source, "whole", |status| !status.is_degraded());
    drop(source);
    std::fs::remove_file(&two).unwrap();
    let source = prepare(path, &files(path), DATA).unwrap();
    assert_eq!(held(&source, 0, 16), 2);
}

#[test]
fn an_old_copy_of_a_half_that_was_away_gets_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let [one, copy] = ["one", "copy"].map(|name| path.join(name));
    drop(prepare(path, &files(path), DATA).unwrap());
    std::fs::copy(&one, &copy).unwrap();
    let source = prepare(path, &files(path), DATA).unwrap();
    fill(&source, 0, 16, 1);
    drop(source);
    std::fs::remove_file(&one).unwrap();
    let source = prepare(path, &files(path), DATA).unwrap();
    await_status(&source, "degraded", |status| status.halves[0].state == "out");
    std::fs::rename(&copy, &one).unwrap();
    await_status(&source, "whole", |status| !status.is_degraded());
    drop(source);
    assert_equal(&one, &path.join("two"));
}

#[test]
fn halves_of_other_mirrors_and_other_data_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    drop(prepare(path, &files(path), DATA).unwrap());
    let mixed = |one: &str, other: &str| {
        let halves = format!("{0}/{one}+{0}/{other}", path.display());
        prepare(path, &halves, DATA).expect_err(&halves).to_string()
    };
    let others = format!("{0}/three+{0}/four", path.display());
    drop(prepare(path, &others, DATA).unwrap());
    assert!(mixed("one", "three").contains("three is a half of another mirror"));
    std::fs::copy(path.join("one"), path.join("copy")).unwrap();
    assert!(mixed("one", "copy").contains("copy is half 0 of the mirror, as"));
    let data = |name: &str| std::fs::write(path.join(name), vec![1; 17 << 20]).unwrap();
    data("data");
    data("more");
    let error = mixed("data", "more");
    assert!(error.contains("it holds data; overwrite its first MiB with zeros"), "{error}");
    let error = mixed("one", "data");
    assert!(
        error.contains("data holds data that is not a half of a mirror; to use it,"),
        "{error}"
    );
    let error = prepare(path, &files(path), DATA / 2).expect_err("another size").to_string();
    assert!(error.contains("belongs to a mirror of 2 halves of 16777216 bytes"), "{error}");
    let folder = path.join("none");
    let error = prepare(&folder, &files(&folder), DATA).expect_err("no folder").to_string();
    assert!(error.contains("none/one is needed to make the mirror: cannot create"), "{error}");
}

/// Finds sectors wrong that do not have one byte everywhere, or not the one that was stored.
#[derive(Debug)]
struct OneByte(u8);

impl Judge for OneByte {
    fn damage(&self, _: u64, bytes: &[u8]) -> Vec<Damage> {
        let sectors = bytes.chunks(SECTOR).enumerate();
        let wrong = sectors.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != self.0));
        wrong.map(|(at, _)| Damage { range: at * SECTOR..(at + 1) * SECTOR, exact: true }).collect()
    }
}

/// Flips a bit of a half's data.
fn flip(half: &Path, byte: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(half).unwrap();
    let mut found = [0];
    file.read_exact_at(&mut found, HEAD + byte).unwrap();
    file.write_all_at(&[found[0] ^ 4], HEAD + byte).unwrap();
}

/// Returns whether a copy of a sector has one byte everywhere.
fn copy_is(source: &Source, copy: usize, sector: u64, byte: u8) -> bool {
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).expect("it opens");
    let into = pool.allocate(SECTOR).whole();
    let (offset, action) = (sector * SECTOR as u64, Action::Read(into.clone()));
    device.read_copy(copy, Operation { token: 0, offset, action });
    let mut done: Vec<Completion> = Vec::new();
    while done.is_empty() {
        device.poll(&mut done);
        if done.is_empty() {
            ring.wait(Some(Duration::from_millis(1))).unwrap();
        }
    }
    done.pop().unwrap().result.expect("it reads");
    into.to_vec().iter().all(|found| *found == byte)
}

#[test]
fn a_damaged_half_never_replaces_an_intact_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let (one, two) = (path.join("one"), path.join("two"));
    let source = prepare_unjudged(path, &files(path), DATA).unwrap();
    fill(&source, 0, 1024, 7);
    drop(source);
    // Both are in regions that are marked still: the halves may differ there.
    flip(&one, 5 * SECTOR as u64 + 10);
    flip(&two, 300 * SECTOR as u64 + 10);
    let source = prepare_unjudged(path, &files(path), DATA).unwrap();
    let halves = |sector| [0, 1].map(|copy| copy_is(&source, copy, sector, 7));
    assert_eq!((halves(5), halves(300), halves(6)), ([false, true], [true, false], [true; 2]));
    let set_judge = |source: &Source| {
        let (ring, pool) = thread();
        source.open(&ring, &pool).unwrap().set_judge(Some(Arc::new(OneByte(7))));
    };
    set_judge(&source);
    await_status(&source, "equal", |status| status.resync_bytes == 0);
    assert_eq!((halves(5), halves(300)), ([true; 2], [true; 2]));
    let mended = |source: &Source| {
        let halves = source.mirror_status().unwrap().halves;
        halves.iter().map(|half| half.mended_bytes).collect::<Vec<u64>>()
    };
    assert_eq!(mended(&source), vec![SECTOR as u64, 0]);
    drop(source);
    // A half that returns has the only intact copy.
    std::fs::rename(&two, path.join("away")).unwrap();
    let source = prepare_unjudged(path, &files(path), DATA).unwrap();
    set_judge(&source);
    await_status(&source, "without it", |status| status.halves[1].state == "out");
    fill(&source, 1, 1, 7);
    drop(source);
    flip(&one, 5 * SECTOR as u64 + 10);
    std::fs::rename(path.join("away"), &two).unwrap();
    let source = prepare_unjudged(path, &files(path), DATA).unwrap();
    set_judge(&source);
    await_status(&source, "whole", |status| !status.is_degraded() && status.resync_bytes == 0);
    assert_eq!([0, 1].map(|copy| copy_is(&source, copy, 5, 7)), [true; 2]);
    assert_eq!(mended(&source), vec![SECTOR as u64, 0]);
}

#[test]
fn without_a_witness_all_halves_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let open = || {
        let text = format!("mirror:{}", files(path));
        text.parse::<Spec>().unwrap().prepare(Role::Backing { read_only: false })
    };
    let source = prepare(path, &files(path), DATA).unwrap();
    await_status(&source, "of the next generation", |status| status.generation == 2);
    // Its mark is in a header that says that the witness has the generation.
    fill(&source, 0, 1, 1);
    drop(source);
    assert_eq!(open().unwrap().size_bytes(), DATA);
    std::fs::remove_file(path.join("one")).unwrap();
    let error = open().expect_err("a half is away").to_string();
    assert!(error.contains("no witness tells") && error.contains("one is not there"), "{error}");
}

#[test]
fn a_mirror_whose_witness_cannot_be_told_of_it_is_degraded() {
    let folder = tempfile::tempdir().unwrap();
    let (path, state) = (folder.path(), folder.path().join("state"));
    let source = prepare(path, &files(path), DATA).unwrap();
    await_status(&source, "of the next generation", |status| status.generation == 2);
    fill(&source, 0, 1, 1);
    assert!(!source.mirror_status().unwrap().is_degraded());
    drop(source);
    std::fs::rename(&state, path.join("away")).unwrap();
    std::fs::write(&state, "no folder").unwrap();
    let source = prepare(path, &files(path), DATA).unwrap();
    let status = await_status(&source, "degraded", MirrorStatus::is_degraded);
    assert!(status.witness_error.is_some(), "{status:?}");
    assert!(status.halves.iter().all(|half| half.state == "in-sync"), "{status:?}");
    std::fs::remove_file(&state).unwrap();
    std::fs::rename(path.join("away"), &state).unwrap();
    await_status(&source, "well again", |status| !status.is_degraded());
}

#[test]
fn a_mirror_of_a_file_and_an_export_is_an_array_of_bytes() {
    let place = Place::new();
    let Some(_server) = place.qemu(SIZE.next_multiple_of(512) + HEAD, &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let halves = format!("{}/one+{}", folder.path().display(), place.text());
    let config = ProptestConfig::with_cases(1);
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let conforms = runner.run(&steps(), |steps| {
        let source = prepare(folder.path(), &halves, SIZE).unwrap();
        let (ring, pool) = thread();
        check(&ring, &pool, &mut *source.open(&ring, &pool).unwrap(), &steps);
        Ok(())
    });
    conforms.unwrap();
}

/// Writes and reads with versions until it is told to end. Returns the last version.
fn work(source: &Source, thread_number: u64, ends: &AtomicBool) -> u64 {
    const SECTORS: u64 = 64;
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).expect("it opens");
    let at = |version: u64| (thread_number * 1024 + version * 7 % SECTORS * 16) * SECTOR as u64;
    let mut version: u64 = 0;
    while !ends.load(Ordering::SeqCst) {
        version += 1;
        let bytes: Vec<u8> = (0..SECTOR / 8).flat_map(|_| version.to_le_bytes()).collect();
        let action =
            Action::Write { from: slice(&pool, &bytes), durable: version.is_multiple_of(5) };
        run(&ring, &mut *device, at(version), action).expect("it writes");
        let found = read(&ring, &pool, &mut *device, at(version), SECTOR).expect("it reads");
        assert!(found == bytes, "version {version} is not there");
    }
    for version in version.saturating_sub(SECTORS - 1).max(1)..=version {
        let found = read(&ring, &pool, &mut *device, at(version), SECTOR).expect("it reads");
        assert_eq!(found[..8], version.to_le_bytes(), "the last of all");
    }
    version
}

#[test]
fn clients_notice_nothing_of_a_half_that_goes_hangs_and_comes_back() {
    const ROUNDS: usize = 4;
    let place = Place::new();
    let Some(_server) = place.qemu(DATA + HEAD, &["--shared=9"]) else { return };
    let relay = Relay::start(place.path("socket"));
    let folder = tempfile::tempdir().unwrap();
    let halves = format!("{}/one+{}", folder.path().display(), relay.text());
    let source = prepare_timed(folder.path(), &halves, DATA, "5s").unwrap();
    judge_nothing(&source);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|number| {
                let (source, ends) = (&source, &ends);
                scope.spawn(move || work(source, number, ends))
            })
            .collect();
        let is_whole = |status: &MirrorStatus| !status.is_degraded();
        for round in 0..ROUNDS {
            match round % 2 {
                0 => relay.cut(true),
                _ => relay.hang(true),
            }
            let status = await_status(&source, "degraded", |status| !is_whole(status));
            assert_eq!(status.halves[0].state, "in-sync", "{status:?}");
            relay.hang(false);
            relay.cut(false);
            await_status(&source, "whole", is_whole);
        }
        ends.store(true, Ordering::SeqCst);
        for worker in workers {
            assert!(worker.join().expect("no error") > 0);
        }
    });
    drop(source);
    assert_equal(&folder.path().join("one"), Path::new(&place.path("disk")));
}

#[test]
fn mirrors_are_read_as_written_and_mistakes_are_named() {
    for text in [
        "mirror:file:/dev/nvme0n1+nbd://peer:10810/mirror",
        "mirror:file:/a+nbd+unix:///b?socket=/s,size=1GiB,timeout=3s,resync=10MiB,witness=/w",
    ] {
        let spec: Spec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert_eq!((spec.paths().len(), spec.is_remote()), (1, true));
    }
    let refused = |text: &str| text.parse::<Spec>().unwrap_err().to_string();
    assert!(refused("mirror:/a").contains("names 1 halves; a mirror has 2 to 8"));
    assert!(refused("mirror:/a+/a").contains("twice"));
    assert!(refused("mirror:/a+memory:1MiB").contains("halves are files, disks and exports"));
    assert!(refused("mirror:/a+").contains("cannot be a half"));
    assert!(refused("mirror:/a+/b,chunk=4KiB").contains("there are size=SIZE, timeout=TIME"));
    assert!(refused("mirror:/a+/b,witness=").contains("\"witness\" in"));
    assert!(refused("mirror:/a+/b,resync=1MiB,resync=2MiB").contains("twice"));
}
