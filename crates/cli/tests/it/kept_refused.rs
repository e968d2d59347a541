//! A persistent cache: the volumes, settings and devices with which it is refused.

use crate::common::{Server, Volume, assert_same, floe};
use crate::kept::{MIB, NEVER, read, refusal, used, write};
use floe_testkit::pattern;

#[test]
fn a_cache_of_another_volume_is_refused() {
    let (volume, _) = used(true);
    let said = refusal(&volume, &["--volume", "other"]);
    assert!(said.contains("belongs to volume \"floe\", not to \"other\""), "{said}");
    let said = refusal(&volume, &["--volume", "other", "--initialise"]);
    assert!(
        said.contains("would lose 65536 bytes (64KiB)") && said.contains("--discard-dirty"),
        "{said}"
    );
    let volume = volume.with(&["--volume", "other", "--initialise", "--discard-dirty"]);
    let server = volume.serve();
    assert!(
        server.log().contains("65536 bytes (64KiB) of dirty data of the old cache"),
        "{}",
        server.log()
    );
    assert_same("the volume", &read(&server, 0, 4 * MIB), &pattern(1, 4 * MIB));
    server.end();
}

#[test]
fn another_file_in_the_volumes_place_is_refused_until_it_is_accepted() {
    for (dirty, keep) in [(false, false), (true, false), (true, true)] {
        let (volume, content) = used(dirty);
        let other = pattern(6, 4 * MIB);
        std::fs::write(volume.path("other"), &other).expect("another volume");
        std::fs::rename(volume.path("other"), volume.path("backing.img")).expect("in its place");
        let said = refusal(&volume, &[]);
        assert!(
            said.contains("it is another file than before") && said.contains("--accept-backing"),
            "{said}"
        );
        assert_eq!(said.contains("65536 bytes (64KiB)"), dirty, "{said}");
        if dirty {
            let said = refusal(&volume, &["--accept-backing"]);
            assert!(said.contains("--keep-dirty") && said.contains("--discard-dirty"), "{said}");
        }
        let mut settings = vec!["--accept-backing"];
        settings.extend(dirty.then_some(if keep { "--keep-dirty" } else { "--discard-dirty" }));
        let volume = volume.with(&settings);
        let server = volume.serve();
        let mut expected = other;
        if keep {
            expected[MIB..][..64 << 10].copy_from_slice(&content[MIB..][..64 << 10]);
        }
        assert_same("the volume", &read(&server, 0, 4 * MIB), &expected);
        server.end();
    }
}

#[test]
fn a_volume_changed_behind_the_cache_is_refused() {
    for at in [4096, 4 * MIB - 1] {
        let (volume, mut content) = used(false);
        content[at] ^= 1;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(volume.path("backing.img"))
            .expect("the volume");
        std::os::unix::fs::FileExt::write_all_at(&file, &content[at..][..1], at as u64)
            .expect("a change");
        let said = refusal(&volume, &[]);
        assert!(said.contains("changed while no server ran"), "{said}");
        let volume = volume.with(&["--accept-backing"]);
        let server = volume.serve();
        assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        server.end();
    }
}

#[test]
fn an_accepted_volume_is_read_anew_also_where_no_change_was_noticed() {
    // Few of the sectors in the cache are compared at a start, and hardly all of these.
    for at in [MIB + (300 << 10), 2 * MIB + (36 << 10), 3 * MIB + (700 << 10)] {
        for dirty in [false, true] {
            let mut content = pattern(1, 4 * MIB);
            let volume = Volume::new(&content, "back").with(&NEVER);
            let server = volume.serve();
            assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
            let piece = pattern(2, 64 << 10);
            write(&server, MIB, &piece, true);
            content[MIB..][..piece.len()].copy_from_slice(&piece);
            if dirty {
                server.end()
            } else {
                server.drain_and_end()
            }

            content[at] ^= 1;
            let file = std::fs::OpenOptions::new().write(true).open(volume.path("backing.img"));
            let file = file.expect("the volume");
            std::os::unix::fs::FileExt::write_all_at(&file, &content[at..][..1], at as u64)
                .expect("a change");
            let mut settings = vec!["--accept-backing"];
            settings.extend(dirty.then_some("--keep-dirty")); // in case the change is noticed
            let volume = volume.with(&settings);
            let server = volume.serve();
            assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
            server.end();
        }
    }
}

#[test]
fn a_volume_of_another_size_is_refused() {
    let (volume, content) = used(true);
    let resize = |bytes: usize| {
        let file = std::fs::OpenOptions::new().write(true).open(volume.path("backing.img"));
        file.and_then(|file| file.set_len(bytes as u64)).expect("another size");
    };
    resize(5 * MIB);
    let said = refusal(&volume, &[]);
    assert!(said.contains("it had 4194304 bytes (4MiB) and has 5242880 bytes (5MiB)"), "{said}");
    resize(3 * MIB);
    let said = refusal(&volume, &["--accept-backing", "--keep-dirty"]);
    assert!(said.contains("has shrunk"), "{said}");
    resize(4 * MIB);
    let volume = volume.with(&["--accept-backing", "--keep-dirty"]);
    let server = volume.serve();
    assert_same("what was dirty", &read(&server, MIB, 64 << 10), &content[MIB..][..64 << 10]);
    server.end();
}

#[test]
fn a_volume_that_became_read_only_cannot_take_what_is_dirty() {
    let (volume, _) = used(true);
    let said = refusal(&volume, &["--read-only"]);
    assert!(said.contains("is read-only now"), "{said}");
}

#[test]
fn a_cache_serves_as_it_was_made_or_not_at_all() {
    let (volume, _) = used(true);
    let line = volume.command_line().join(" ").replace("4KiB,16KiB,64KiB", "4KiB,16KiB");
    let output = floe(&line.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("block-sizes = 4KiB,16KiB,64KiB, not 4KiB,16KiB"), "{said}");
    let said = refusal(&volume, &["--shards", "3"]);
    assert!(said.contains("made with shards = ") && said.contains("not 3"), "{said}");
    let said = refusal(&volume, &["--threads", "64"]);
    assert!(said.contains(", which 64 threads cannot share"), "{said}");
}

#[test]
fn data_that_is_not_floes_is_left_alone() {
    let volume = Volume::new(&pattern(7, 4 * MIB), "back");
    for at in [0, 1080, 65600, 4 * MIB - 5] {
        let mut bytes = vec![0; 4 * MIB];
        bytes[at] = 0x53;
        std::fs::write(volume.path("cache.img"), &bytes).expect("somebody's data");
        let said = refusal(&volume, &[]);
        assert!(said.contains("not a Floe cache") && said.contains("--initialise"), "{said}");
    }
    let volume = volume.with(&["--initialise"]);
    volume.serve().end();
}

#[test]
fn a_damaged_cache_is_refused_and_says_where() {
    let (volume, _) = used(true);
    let mut bytes = std::fs::read(volume.path("cache.img")).expect("the cache");
    bytes[16] = 9;
    bytes[(32 << 10) + 100] ^= 1;
    std::fs::write(volume.path("cache.img"), &bytes).expect("damage");
    let said = refusal(&volume, &[]);
    assert!(
        said.contains("no copy of the superblock is intact") && said.contains("floe check"),
        "{said}"
    );
    let said = refusal(&volume, &["--initialise"]);
    assert!(said.contains("an unknown number of bytes"), "{said}");
    let volume = volume.with(&["--initialise", "--discard-dirty"]);
    volume.serve().end();
}

#[test]
fn a_kept_cache_is_not_overwritten_by_a_volatile_one() {
    let (volume, _) = used(true);
    let said = refusal(&volume, &["--volatile"]);
    assert!(said.contains("persistent cache with 65536 bytes (64KiB)"), "{said}");
}

/// What a volatile cache leaves is no one's, whatever it looks like; what came on its device after
/// it is somebody's.
#[test]
fn a_volatile_cache_spares_what_is_not_floes() {
    let content = pattern(20, 4 * MIB);
    let volume = Volume::new(&content, "back").with(&["--volatile"]);
    let attempt = |more: &[&str]| {
        let mut line = volume.command_line();
        line.extend(more.iter().map(|&word| word.to_owned()));
        Server::attempt(
            &line.iter().map(String::as_str).collect::<Vec<_>>(),
            volume.path("floe.log"),
        )
    };
    std::fs::write(volume.path("cache.img"), pattern(21, 4 * MIB)).expect("somebody's data");
    let said = attempt(&[]).err().expect("it is refused");
    assert!(
        said.contains("data that is not a Floe cache") && said.contains("--initialise"),
        "{said}"
    );
    assert!(
        std::fs::read(volume.path("cache.img")).expect("the file") == pattern(21, 4 * MIB),
        "it is as it was"
    );
    attempt(&["--initialise"]).expect("it may be overwritten").end();
    for _ in 0..2 {
        let server = attempt(&[]).expect("its own leavings are in nobody's way");
        for _ in 0..2 {
            assert_same("the volume", &read(&server, 0, 4 * MIB), &content);
        }
        write(&server, MIB, &content[MIB..2 * MIB], true);
        server.kill(&volume);
    }
    // Somebody makes a file system there.
    let mut bytes = std::fs::read(volume.path("cache.img")).expect("the file");
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(volume.path("cache.img"), &bytes).expect("a file system");
    let said = attempt(&[]).err().expect("it is refused");
    assert!(said.contains("--initialise"), "{said}");
    bytes[1080..1082].copy_from_slice(&[0, 0]);
    std::fs::write(volume.path("cache.img"), &bytes).expect("no file system");
    attempt(&[]).expect("it is as before").end();
}
