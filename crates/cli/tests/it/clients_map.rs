//! Clients that ask which parts of a volume are holes and copy the rest, and clients of several
//! volumes.

use crate::common::{SETUPS, Server, Volume, assert_same, text};
use floe_server::nbd_client::Client;
use floe_testkit::{is_installed, is_zero, pattern, run};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;

const MIB: usize = 1 << 20;

fn connect(uri: &str) -> Client {
    Client::connect(&uri.parse().expect("the URI is good")).expect("the server answers")
}

/// A run of bytes of a volume, as nbdinfo prints it.
#[derive(Debug, Deserialize)]
struct Extent {
    offset: usize,
    length: usize,
    #[serde(rename = "type")]
    flags: u32,
}

const HOLE: u32 = 1;
const ZERO: u32 = 2;

fn map_of(uri: &str, size: usize) -> Vec<Extent> {
    let map: Vec<Extent> =
        serde_json::from_str(&run("nbdinfo", &["--map", "--json", uri])).expect("a map");
    let mut at = 0;
    for extent in &map {
        assert_eq!(extent.offset, at, "the map leaves nothing out: {map:?}");
        at += extent.length;
    }
    assert_eq!(at, size);
    map
}

fn zeros_in(map: &[Extent]) -> usize {
    map.iter().filter(|extent| extent.flags & ZERO != 0).map(|extent| extent.length).sum()
}

/// A sparse volume: the first of every four megabytes holds data.
fn sparse(megabytes: usize, volume: &Volume) -> Vec<u8> {
    let mut content = vec![0; megabytes * MIB];
    let file = std::fs::File::create(volume.path("backing.img")).expect("a volume");
    file.set_len(content.len() as u64).expect("a length");
    for at in (0..megabytes).step_by(4).map(|megabyte| megabyte * MIB) {
        content[at..at + MIB].copy_from_slice(&pattern(at as u64 + 1, MIB));
        std::os::unix::fs::FileExt::write_all_at(&file, &content[at..at + MIB], at as u64)
            .expect("a write");
    }
    content
}

#[test]
fn maps_never_take_data_for_a_hole_and_copies_by_them_are_whole() {
    if !is_installed(&["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    for (mode, threads) in SETUPS {
        let volume = Volume::new(&[], mode).on(threads);
        let volume = if mode == "back" { volume.with(&["--flush-interval", "1h"]) } else { volume };
        let mut content = sparse(32, &volume);
        let server = volume.serve();
        let map = map_of(&server.unix, content.len());
        assert!(zeros_in(&map) >= 20 * MIB, "holes are seen after write {mode}: {map:?}");
        let mut random = StdRng::seed_from_u64(51);
        let mut client = connect(&server.unix);
        for _ in 0..60 {
            let length = random.random_range(1..100_000);
            let at = random.random_range(0..content.len() - length);
            let range = at..at + length;
            match random.random_range(0..4) {
                0 | 1 => {
                    content[range.clone()].copy_from_slice(&pattern(at as u64, length));
                    client
                        .write(at as u64, &content[range], random.random_ratio(1, 8))
                        .expect("a write");
                }
                2 => {
                    content[range].fill(0);
                    let may_unmap = random.random();
                    client.write_zeroes(at as u64, length as u32, may_unmap).expect("zeroes");
                }
                _ => {
                    let mut found = vec![0; length];
                    client.read(at as u64, &mut found).expect("a read");
                    assert_same("what was read", &found, &content[range]);
                }
            }
        }
        // Not flushed: with write-back, much of it is nowhere but in the cache.
        let map = map_of(&server.tcp, content.len());
        for extent in map.iter().filter(|extent| extent.flags & (HOLE | ZERO) != 0) {
            let found = &content[extent.offset..extent.offset + extent.length];
            assert!(is_zero(found), "{extent:?} holds data after write {mode} on {threads}");
        }
        let (copy, image) = (volume.path("copy"), volume.path("image"));
        run("nbdcopy", &["--connections=4", &server.tcp, text(&copy)]);
        assert_same("the copy by the map", &std::fs::read(&copy).expect("a copy"), &content);
        run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &server.unix, text(&image)]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", text(&copy), text(&image)]);
        drop(client);
        server.drain_and_end();
        assert_same(
            &format!("the backing device after write {mode} on {threads}"),
            &volume.backing(),
            &content,
        );
    }
}

#[test]
fn several_volumes_are_listed_apart_and_one_may_be_for_reading_only() {
    if !is_installed(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"]) {
        return;
    }
    for threads in ["1", "2"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let contents = [pattern(52, 12 * MIB), pattern(53, 5 * MIB + 512), pattern(54, 8 * MIB)];
        let names = ["pictures", "with space", "frozen"];
        let mut config = format!(
            "cache = \"file:{}\"\ncache-size = \"4MiB\"\nblock-sizes = \"4KiB,64KiB\"\nwrite = \
             \"back\"\nthreads = {threads}\nlisten = [\"nbd+unix:///?socket={}\", \
             \"nbd://127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\n",
            path("cache.img").display(),
            path("nbd.sock").display()
        );
        for (content, name) in contents.iter().zip(names) {
            std::fs::write(path(name), content).expect("a volume");
            let backing = path(name).display().to_string();
            config += &format!("[[volume]]\nname = \"{name}\"\nbacking = \"file:{backing}\"\n");
            config += &format!("read-only = {}\n", name == "frozen");
        }
        std::fs::write(path("floe.toml"), config).expect("a configuration");
        let server = Server::run(&["serve", "--config", text(&path("floe.toml"))], path("log"));

        let uri = |name: &str| {
            let name = name.replace(' ', "%20");
            format!("nbd+unix:///{name}?socket={}", path("nbd.sock").display())
        };
        let listed = run("nbdinfo", &["--list", "--json", &uri("")]);
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("nbdinfo prints JSON");
        for ((export, name), content) in
            listed["exports"].as_array().expect("a list").iter().zip(names).zip(&contents)
        {
            assert_eq!(export["export-name"], name);
            assert_eq!(export["export-size"], content.len());
            assert_eq!(export["is_read_only"], name == "frozen");
        }
        assert_eq!(listed["exports"].as_array().expect("a list").len(), names.len());

        // All are used at once, through a cache that holds none of them whole.
        let fresh = pattern(55, 12 * MIB);
        std::fs::write(path("fresh"), &fresh).expect("a source");
        std::thread::scope(|scope| {
            scope.spawn(|| run("nbdcopy", &["--flush", text(&path("fresh")), &uri(names[0])]));
            for (name, content) in names.iter().zip(&contents).skip(1) {
                let (from, copy) = (uri(name), path(&format!("copy of {name}")));
                scope.spawn(move || {
                    run("nbdcopy", &[&from, text(&copy)]);
                    assert_same("the copy", &std::fs::read(copy).expect("a copy"), content);
                });
            }
        });
        run("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 2M", &uri("with space")]);
        run(
            "qemu-img",
            &["compare", "-f", "raw", "-F", "raw", &uri("frozen"), text(&path("frozen"))],
        );
        let mut client = connect(&uri("frozen"));
        client.write(0, &[1; 4096], false).expect_err("a write to a volume for reading only");
        client.trim(0, 4096).expect_err("a trim of a volume for reading only");
        drop(client);
        let mut second = contents[1].clone();
        second[MIB..3 * MIB].fill(7);
        for (name, content) in names.iter().zip([&fresh, &second, &contents[2]]) {
            let copy = path(&format!("last copy of {name}"));
            run("nbdcopy", &[&uri(name), text(&copy)]);
            assert_same(name, &std::fs::read(copy).expect("a copy"), content);
        }
        server.end();
    }
}
