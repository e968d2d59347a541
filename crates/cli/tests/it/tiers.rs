//! Tiers that stand on each other: the program with several cache devices between its clients and a
//! volume.

use crate::common::{Server, Volume, assert_same, floe_ok, text};
use floe_server::nbd_client::Client;
use floe_testkit::pattern;

const MIB: usize = 1 << 20;

/// Long enough for nothing to be written back by itself within a test.
const NEVER: &str = "1h";

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("the URI is good")).expect("the server answers")
}

fn read(client: &mut Client, offset: usize, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    client.read(offset as u64, &mut data).expect("a read");
    data
}

/// A command line that speaks of tiers only, with the volume's devices.
fn without_cache(volume: &Volume, tiers: &[&str]) -> Vec<String> {
    let line = volume.command_line();
    let mut words = line.iter();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if ["--cache", "--cache-size", "--block-sizes", "--write"].contains(&word.as_str()) {
            words.next();
        } else {
            kept.push(word.clone());
        }
    }
    for tier in tiers {
        let folder = volume.path("");
        kept.extend(["--tier".to_owned(), tier.replace("FOLDER/", text(&folder))]);
    }
    kept
}

fn serve(volume: &Volume, line: &[String]) -> Server {
    Server::run(&line.iter().map(String::as_str).collect::<Vec<_>>(), volume.path("floe.log"))
}

#[test]
fn two_tiers_serve_what_was_written_and_a_flush_brings_it_to_the_volume() {
    for threads in ["1", "2"] {
        for (upper, lower) in [("through", "through"), ("back", "back"), ("through", "back")] {
            let mut content = pattern(1, 24 * MIB + 512);
            let volume = Volume::new(&content, "through").on(threads);
            let (upper, lower) = (
                format!("memory:4MiB,block-sizes=4KiB+64KiB,write={upper}"),
                format!("memory:16MiB,write={lower}"),
            );
            let server = serve(&volume, &without_cache(&volume, &[&upper, &lower]));
            let mut client = connect(&server);
            for round in 0..3 {
                for at in (0..content.len() - MIB).step_by(2 * MIB + 300) {
                    let piece = pattern((round * 100 + at) as u64, 200_000);
                    client.write(at as u64, &piece, false).expect("a write");
                    content[at..][..piece.len()].copy_from_slice(&piece);
                }
                let found = read(&mut client, 0, content.len());
                assert_same(&format!("{upper} above {lower}, {threads} threads"), &found, &content);
            }
            client.flush().expect("a flush");
            assert_same("the volume after a flush", &volume.backing(), &content);
            let status = server.status();
            assert_eq!(status.tiers.len(), 2);
            assert!(status.tiers.iter().all(|tier| tier.dirty_bytes == 0), "{:?}", status.tiers);
            assert!(
                status.tiers[1].read_requests > 0 && status.tiers[1].cache_read_bytes > 0,
                "{:?}",
                status.tiers
            );
            client.disconnect().expect("a goodbye");
            server.end();
            assert_same("the volume at the end", &volume.backing(), &content);
        }
    }
}

#[test]
fn tiers_that_are_kept_go_on_where_they_were_after_a_kill() {
    // The first ends with the server, the second is kept; then both are; then both are with one
    // between them that is not.
    let first = "file:FOLDER/first.img,size=4MiB,write=back,shards=4,block-sizes=4KiB+16KiB";
    let second = "file:FOLDER/second.img,size=16MiB,write=back,shards=4,block-sizes=4KiB+64KiB";
    let volatile = format!("{first},volatile");
    for tiers in
        [&[&*volatile, second][..], &[first, second], &[first, "memory:8MiB,write=back", second]]
    {
        let mut content = pattern(2, 24 * MIB);
        let volume = Volume::new(&content, "back").with(&["--flush-interval", NEVER]);
        let before = volume.backing();
        for (round, threads) in ["2", "1", "3"].into_iter().enumerate() {
            let mut line = without_cache(&volume, tiers);
            line.extend(["--threads", threads].map(str::to_owned));
            let server = serve(&volume, &line);
            let mut client = connect(&server);
            assert_same(
                "what the last server was told",
                &read(&mut client, 0, 6 * MIB),
                &content[..6 * MIB],
            );
            let status = server.status();
            let kept: Vec<bool> =
                status.tiers.iter().map(|tier| tier.session == Some(round as u64 + 1)).collect();
            let wanted: Vec<bool> = tiers
                .iter()
                .map(|tier| tier.contains("file:") && !tier.contains("volatile"))
                .collect();
            assert_eq!(kept, wanted);
            let last = status.tiers.last().expect("there are tiers");
            assert!(
                round == 0 || last.dirty_bytes > 0 || status.cache.dirty_bytes > 0,
                "{status:?}"
            );
            let piece = pattern(10 + round as u64, 3 * MIB);
            let at = round * MIB + 12_345;
            client.write(at as u64, &piece, false).expect("a write");
            content[at..][..piece.len()].copy_from_slice(&piece);
            client.flush().expect("a flush");
            assert_same(
                "the volume, which only gets what has to go",
                &volume.backing()[12 * MIB..],
                &before[12 * MIB..],
            );
            drop(server); // kills it
        }
        let server = serve(&volume, &without_cache(&volume, tiers));
        assert_same("all of it", &read(&mut connect(&server), 0, content.len()), &content);
        floe_ok(&["flush", "--admin", &server.admin]);
        assert_same("the volume after a drain", &volume.backing(), &content);
        assert!(server.status().tiers.iter().all(|tier| tier.dirty_bytes == 0));
        server.end();
    }
}

#[test]
fn fussycache_over_dram_keeps_dirty_pages_and_fetches_what_is_popular() {
    const PAGE: usize = 4096;
    // Tuned by what is measured, and as published, which does the same each time.
    for (fussy, fetches) in [("fussy:tune=1", false), ("fussy:warm-up=200", true)] {
        for threads in ["1", "2"] {
            let mut content = pattern(1, 16 * MIB);
            let volume =
                Volume::new(&content, "through").on(threads).with(&["--flush-interval", NEVER]);
            let tier = format!("memory:1MiB,write=back,volatile,admit={fussy},block-sizes=4KiB");
            let server = serve(&volume, &without_cache(&volume, &[&tier]));
            let mut client = connect(&server);
            // Pages that are used once, and after the warm-up some that are used again and again.
            for (turn, once) in (0..2000u64).zip((0..content.len() / PAGE).cycle()) {
                let page = if turn < 400 || turn % 2 == 0 {
                    once
                } else {
                    3000 + (turn / 2 % 50) as usize
                };
                if turn % 5 == 0 {
                    let (at, piece) = (page * PAGE + 100, pattern(turn, 3000));
                    client.write(at as u64, &piece, false).expect("a write");
                    content[at..][..piece.len()].copy_from_slice(&piece);
                } else {
                    let at = page * PAGE;
                    assert_same("a page", &read(&mut client, at, PAGE), &content[at..][..PAGE]);
                }
            }
            let status = server.status();
            let admission = status.admission.as_ref().expect("there is one");
            assert!(admission.offered_blocks > 500 && status.cache.dirty_bytes > 0, "{status:?}");
            assert!(!fetches || admission.ordered_blocks > 0, "{status:?}");
            client.flush().expect("a flush");
            assert_eq!(server.status().cache.dirty_bytes, 0);
            assert_same("the volume", &volume.backing(), &content);
            for at in (0..content.len()).step_by(MIB) {
                assert_same("what is read", &read(&mut client, at, MIB), &content[at..][..MIB]);
            }
            server.end();
        }
    }
}

#[test]
fn tiers_are_printed_as_settings_and_served_from_them() {
    let volume = Volume::new(&pattern(3, MIB), "back")
        .with(&["--tier", "memory:8MiB,write=back,block-sizes=4KiB+64KiB"]);
    let mut line = volume.command_line();
    line.push("--print-config".to_owned());
    let printed = floe_ok(&line.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(printed.contains("[[tier]]\ncache = \"memory:8MiB\""), "{printed}");
    let file = volume.path("floe.toml");
    std::fs::write(&file, &printed).expect("a file");
    assert_eq!(floe_ok(&["serve", "--config", text(&file), "--print-config"]), printed);
    let server = Server::run(&["serve", "--config", text(&file)], volume.path("floe.log"));
    assert_eq!(server.status().tiers.len(), 2);
    let table = floe_ok(&["status", "--admin", &server.admin]);
    assert!(table.contains("from below"), "{table}");
    server.end();
}
