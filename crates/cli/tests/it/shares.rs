//! Shares of volumes in the tiers: settings, commands, what the server shows, and restarts.

use floe_server::nbd_client::Client;
use serde_json::Value;

use crate::common::{Server, Volume, floe, floe_ok, http};

#[track_caller]
fn refused(arguments: &[&str], words: &[&str]) {
    let output = floe(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
}

#[test]
fn wrong_shares_are_refused() {
    let serve = ["serve", "--backing", "memory:4MiB", "--cache", "memory:1MiB"];
    let somewhere = ["--listen", "nbd://127.0.0.1:0", "--admin", "127.0.0.1:0"];
    for (shares, words) in [
        ("--cache-guaranteed lots", "cache-guaranteed | lots | 25%"),
        ("--cache-guaranteed 101%", "cache-guaranteed | 101%"),
        ("--cache-guaranteed 60% --cache-most 50%", "cache-guaranteed = 60% | cache-most = 50%"),
        ("--cache-guaranteed 2MiB", "cache-guaranteed | 2MiB in all | memory:1MiB | 1MiB"),
        ("--cache-guaranteed 512KiB --cache-most 10%", "512KiB | 10% | memory:1MiB"),
    ] {
        let shares: Vec<&str> = shares.split(' ').collect();
        let words: Vec<&str> = words.split(" | ").collect();
        refused(&[&serve[..], &somewhere, &shares].concat(), &words);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("floe.toml");
    let cache = folder.path().join("cache.img");
    let text = format!(
        "listen = \"nbd://127.0.0.1:0\"\nadmin = \"none\"\ncache = \"file:{},size=8MiB\"\n\
         [[volume]]\nname = \"b\"\nbacking = \"memory:4MiB\"\n\
         cache-guaranteed = \"5MiB\"\n[[volume]]\nname = \"a\"\nbacking = \"memory:4MiB\"\n",
        cache.display()
    );
    for (share, words) in [
        ("cache-guaranteed = 5", ["line 11", "cache-guaranteed"]),
        ("cache-most = \"much\"", ["line 11", "much"]),
        ("cache-guaranteed = \"2MiB\"\ncache-most = \"1MiB\"", ["line 11", "more than"]),
        ("cache-guaranteed = \"50%\"", ["in all", "\"b\" 5MiB, \"a\" 50%"]),
    ] {
        std::fs::write(&file, format!("{text}{share}\n")).expect("a file");
        refused(&["serve", "--config", file.to_str().expect("UTF-8")], &words);
        assert!(!cache.exists(), "a refused start makes nothing");
    }
    for (command, word) in [
        ("share floe", "give --guaranteed or --most"),
        ("share floe --guaranteed much", "much"),
        ("share floe --guaranteed 50% --most 10%", "more than"),
        ("add more memory:1MiB --cache-most 200%", "200%"),
        ("add more memory:1MiB --cache-guaranteed 5MiB --cache-most 1MiB", "more than"),
    ] {
        let command: Vec<&str> = ["volume"].into_iter().chain(command.split(' ')).collect();
        refused(&[&command[..], &["--admin", "127.0.0.1:1"]].concat(), &[word]);
    }
}

fn listed(server: &Server, name: &str) -> Value {
    let list = floe_ok(&["volume", "list", "--json", "--admin", &server.admin]);
    let mut volumes = list.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    volumes.find(|volume: &Value| volume["name"] == name).expect("the volume")
}

#[test]
fn shares_are_set_shown_and_lifted() {
    let volume = Volume::new(&[7; 1 << 20], "through").with(&["--cache-guaranteed", "25%"]);
    let server = volume.serve();
    let admin = ["--admin", &server.admin];
    let call = |arguments: &[&str]| floe_ok(&[arguments, &admin].concat());
    let shown = listed(&server, "floe");
    assert_eq!(shown["cache_share"]["guaranteed"], "25%");
    assert_eq!(shown["cache_share"]["most"], Value::Null);
    assert_eq!(shown["cached"][0]["guaranteed_bytes"], 1 << 20);
    assert!(call(&["status"]).contains("at least 25%"));

    let said = call(&["volume", "share", "floe", "--most", "2MiB"]);
    assert_eq!(said.trim_end(), "floe: at least 25%, at most 2MiB");
    let (_, metrics) = http(&server.admin, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for line in [
        "floe_volume_cache_bytes{volume=\"floe\",tier=\"0\"} 0",
        "floe_volume_cache_guaranteed_bytes{volume=\"floe\",tier=\"0\"} 1048576",
        "floe_volume_cache_most_bytes{volume=\"floe\",tier=\"0\"} 2097152",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
    call(&["volume", "add", "more", "memory:1MiB", "--cache-guaranteed", "50%"]);
    assert_eq!(listed(&server, "more")["cache_share"]["guaranteed"], "50%");
    let more = ["volume", "share", "more", "--guaranteed", "80%"];
    let output = floe(&[&more[..], &admin].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("in all"), "{said}");
    let none = ["volume", "share", "floe", "--guaranteed", "none", "--most", "none"];
    assert_eq!(call(&none).trim_end(), "floe: no share");
    assert_eq!(call(&more).trim_end(), "more: at least 80%");
    server.end();
}

/// The blocks of a kept cache are counted when it is opened again.
#[test]
fn a_share_holds_for_what_an_earlier_server_has_cached() {
    const PIECE: usize = 16 << 10;
    let volume = Volume::new(&[7; 4 << 20], "back").with(&["--cache-guaranteed", "50%"]);
    let read = |server: &Server| {
        let mut client = Client::connect(&server.unix.parse().expect("a URI")).expect("a server");
        for piece in 0..64 {
            client.read(piece << 16, &mut [0; PIECE]).expect("it can be read");
        }
    };
    // Free places in groups of its own count, too.
    let uses_its_blocks = |server: &Server| {
        let used = listed(server, "floe")["cached"][0]["used_bytes"].as_u64().expect("bytes");
        assert!((1 << 20..1 << 21).contains(&used), "{used}");
    };
    let server = volume.serve();
    read(&server);
    uses_its_blocks(&server);
    server.end();
    let server = volume.serve();
    uses_its_blocks(&server);
    floe_ok(&["volume", "add", "scan", "memory:64MiB", "--admin", &server.admin]);
    let uri = server.tcp.rsplit_once('/').map_or(server.tcp.as_str(), |(server, _)| server);
    let mut scan = Client::connect(&format!("{uri}/scan").parse().expect("a URI")).expect("it");
    for piece in 0..1024 {
        scan.read(piece << 16, &mut [0; 64 << 10]).expect("it can be read");
    }
    drop(scan);
    uses_its_blocks(&server);
    read(&server);
    let floe = listed(&server, "floe");
    assert_eq!((&floe["read_requests"], &floe["read_hits"]), (&64.into(), &64.into()));
    server.end();
}
