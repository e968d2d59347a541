//! Mistakes of operators and failures that they meet: one line that names what, and how to go on.

use std::process::Command;

use floe_testkit::{is_installed, pattern, wait_until};

use crate::common::{Server, Volume, floe, floe_ok, text};
use crate::kept::{MIB, NEVER, connect};

/// The exit code of a command, and its one line on standard error.
#[track_caller]
fn failed(arguments: &[&str]) -> (i32, String) {
    let output = floe(arguments);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    (output.status.code().expect("an exit code"), said)
}

#[test]
fn names_that_a_persistent_cache_cannot_record_are_refused_at_once() {
    let (long, longest) = ("n".repeat(65), "n".repeat(64));
    let volume = Volume::new(&pattern(1, MIB), "back");
    let line = Volume::new(&pattern(1, MIB), "back").with(&["--volume", &long]);
    let words: Vec<String> = line.command_line();
    let (code, said) = failed(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(code == 2 && said.contains("has 65 bytes") && said.contains("at most 64"), "{said}");
    assert!(!line.path("cache.img").exists(), "a refusal makes a file");
    let server = volume.serve();
    let add = |name: &str| {
        let output = floe(&["volume", "add", name, "memory:1MiB", "--admin", &server.admin]);
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (code, said) = add(&long);
    assert!(said.contains("has 65 bytes") && said.contains("at most 64"), "{said}");
    assert_eq!((code, add(&longest).0), (Some(2), Some(0)));
    server.end();
    // Where nothing outlives the server, a name may be longer, until a persistent tier comes.
    let volatile = Volume::new(&pattern(1, MIB), "back").with(&["--volatile", "--volume", &long]);
    let server = volatile.serve();
    let tier = format!("file:{},size=4MiB", text(&volatile.path("tier.img")));
    let (code, said) = failed(&["tier", "add", &tier, "--admin", &server.admin]);
    assert!(code == 2 && said.contains("has 65 bytes"), "{code}: {said}");
    assert!(!volatile.path("tier.img").exists(), "a refusal makes a file");
    server.end();
}

#[test]
fn dirty_data_cannot_be_exported_where_there_is_no_cache() {
    let volume = Volume::new(&pattern(1, MIB), "back");
    let (empty, backing) = (volume.path("empty.img"), volume.path("backing.img"));
    std::fs::write(&empty, vec![0; MIB]).expect("a file");
    let backing = format!("file:{}", text(&backing));
    let (code, said) = failed(&["export-dirty", text(&empty), "--backing", &backing]);
    assert!(said.contains(text(&empty)) && said.contains("no Floe cache"), "{said}");
    assert_eq!(code, 1);
}

/// A server of two volumes, the second of which fails as a file says.
fn with_a_failing_volume(volume: &Volume) -> Server {
    let server = volume.serve();
    let bad = volume.path("bad.img");
    std::fs::write(&bad, pattern(3, MIB)).expect("a volume");
    let spec = format!("file:{},faults={}", text(&bad), text(&volume.path("faults")));
    floe_ok(&["volume", "add", "second one", &spec, "--admin", &server.admin]);
    server
}

#[test]
fn a_failed_command_names_the_volume() {
    let volume = Volume::new(&pattern(1, MIB), "back").with(&NEVER);
    let server = with_a_failing_volume(&volume);
    let uri = format!("nbd+unix:///second%20one?socket={}", text(&volume.path("nbd.sock")));
    let mut client =
        floe_server::nbd_client::Client::connect(&uri.parse().expect("a URI")).expect("a client");
    client.write(0, &pattern(4, 8192), false).expect("a write");
    connect(&server).write(0, &pattern(5, 8192), false).expect("a write");
    std::fs::write(volume.path("faults"), "all EIO\n").expect("rules");
    let before = server.log().lines().count();
    for command in [
        &["flush"][..],
        &["volume", "warm", "second one"],
        &["volume", "evict", "second one"],
        &["volume", "evict", "second one", "--range", "0..4KiB"],
    ] {
        let (code, said) = failed(&[command, &["--admin", &server.admin]].concat());
        assert_eq!(code, 1, "{command:?}: {said}");
        let wanted = "volume \"second one\": input/output error; the log of the server names";
        assert!(said.contains(wanted), "{command:?}: {said}");
    }
    let said = || server.log().lines().skip(before).map(str::to_owned).collect::<Vec<_>>();
    let is_of_client = |line: &&String| line.contains("a request of an admin client failed");
    wait_until("four lines in the log", || said().iter().filter(is_of_client).count() == 4);
    let said = said();
    assert!(said.iter().filter(is_of_client).all(|line| line.contains(" INFO ")), "{said:?}");
    assert!(said.iter().all(|line| !line.contains("cannot answer")), "{said:?}");
    std::fs::write(volume.path("faults"), "").expect("no rules");
    server.drain_and_end();
}

#[test]
fn lists_fit_a_terminal_and_keep_their_lines_in_a_pipe() {
    if !is_installed(&["script"]) {
        return;
    }
    let name = "n".repeat(60);
    let volume = Volume::new(&pattern(1, MIB), "back").with(&["--volume", &name]);
    let tier = format!("file:{},size=4MiB", text(&volume.path(&"t".repeat(60))));
    let server = volume.serve();
    floe_ok(&["tier", "add", &tier, "--admin", &server.admin]);
    for (list, long) in [("volume list", &*name), ("tier list", &*tier)] {
        let words: Vec<&str> = list.split(' ').chain(["--admin", &server.admin]).collect();
        let piped = floe_ok(&words);
        assert!(piped.lines().any(|line| line.contains(long)), "{piped}");
        assert!(piped.lines().any(|line| line.chars().count() > 80), "{piped}");
        let command = format!("{} {}", env!("CARGO_BIN_EXE_floe"), words.join(" "));
        let output = Command::new("script").args(["-qec", &command, "/dev/null"]).output();
        let shown = String::from_utf8(output.expect("it runs").stdout).expect("text");
        let widest = shown.lines().map(|line| line.trim_end().chars().count()).max();
        assert!(widest.is_some_and(|widest| widest > 60 && widest <= 80), "{shown}");
        let all: String = shown.split_whitespace().collect();
        assert!(all.matches(&long[..1]).count() >= long.matches(&long[..1]).count(), "{shown}");
    }
    server.end();
}
