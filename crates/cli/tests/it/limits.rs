//! Limits of a volume's requests: settings, commands, and what the server shows.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use floe_server::ClientName;
use floe_server::nbd_client::Client;
use serde_json::Value;

use crate::common::{Volume, floe, floe_ok, http};

#[track_caller]
fn refused(arguments: &[&str], words: &[&str]) {
    let output = floe(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
}

#[test]
fn wrong_limits_are_refused() {
    let serve = ["serve", "--backing", "memory:4MiB", "--cache", "memory:1MiB"];
    let somewhere = ["--listen", "nbd://127.0.0.1:0", "--admin", "127.0.0.1:0"];
    for (limits, words) in [
        ("--requests-per-second 0", "requests-per-second | 0 | between 1 and"),
        ("--requests-per-second many", "--requests-per-second | 'many'"),
        ("--bytes-per-second 4095", "bytes-per-second = 4095 | 4KiB"),
        ("--bytes-per-second lots", "bytes-per-second | lots | 64KiB"),
        ("--bytes-per-second 0", "bytes-per-second | 0"),
        ("--limit-burst 1s", "limit-burst | requests-per-second"),
        ("--requests-per-second 5 --limit-burst 0s", "limit-burst = 0ms | 1ms | 1h | 100ms"),
        ("--requests-per-second 5 --limit-burst 2h", "limit-burst | 1ms | 1h"),
        ("--requests-per-second 5 --limit-burst soon", "limit-burst | soon | 500ms"),
        ("--client-requests-per-second 0", "client-requests-per-second | 0 | between 1 and"),
        ("--client-bytes-per-second 4095", "client-bytes-per-second = 4095 | 4KiB"),
        ("--connections 0", "connections | 0 | between 1 and 65536"),
        ("--connections 5 --limit-burst 1s", "limit-burst | requests-per-second"),
        ("--connections many", "--connections | 'many'"),
        ("--weight 0", "weight | 0 | between 1 and 1000"),
        ("--weight 1001", "weight | 1001 | between 1 and 1000"),
        ("--weight heavy", "--weight | 'heavy'"),
        ("--client pictures", "client | \"pictures\" names no client | host | user:UID"),
        ("--client 10.0.0.1/8", "client | 10.0.0.1/8 has bits behind its prefix | 10.0.0.0/8"),
        ("--client 2001:db8::5", "client | can choose the last 64 bits | 2001:db8::/64"),
        ("--client loopback,weight=0", "client | loopback: weight = 0 | between 1 and 1000"),
        ("--client loopback,weight=1001", "client | loopback: weight = 1001 | between 1 and 1000"),
        ("--client loopback,speed=5", "client | loopback: \"speed=5\" | weight=N"),
        ("--client user:5,weight=5 --client user:5", "clients names user:5 twice"),
        ("--client 10.0.0.5 --client ::ffff:10.0.0.5,weight=5", "clients names 10.0.0.5 twice"),
        (
            "--client others,requests-per-second=5 --client-requests-per-second 5",
            "clients names others | leave out others",
        ),
        ("--client loopback,weight=5 --limit-burst 1s", "limit-burst | requests-per-second"),
        ("--total-requests-per-second 0", "total-requests-per-second | 0 | between 1 and"),
        ("--total-bytes-per-second 4095", "total-bytes-per-second = 4095 | 4KiB"),
        ("--total-burst 1s", "total-burst | total-requests-per-second"),
        ("--total-requests-per-second 5 --total-burst 2h", "total-burst = 7200000ms | 1ms | 1h"),
    ] {
        let limits: Vec<&str> = limits.split(' ').collect();
        let words: Vec<&str> = words.split(" | ").collect();
        refused(&[&serve[..], &somewhere, &limits].concat(), &words);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("floe.toml");
    let text = "cache = \"memory:1MiB\"\n[[volume]]\nname = \"a\"\nbacking = \"memory:4MiB\"\n";
    for (limits, words) in [
        ("requests-per-second = 0", ["line 5", "requests-per-second"]),
        ("requests-per-second = \"5\"", ["line 5", "quotation marks"]),
        ("bytes-per-second = 5", ["line 5", "bytes-per-second"]),
        ("requests-per-second = 5\nattach = \"ublk\"", ["line 5", "attached"]),
        ("bytes-per-second = \"1MiB\"\nattach = \"ublk\"", ["line 5", "attached"]),
        ("client-bytes-per-second = \"1MiB\"\nattach = \"ublk\"", ["line 5", "attached"]),
        ("clients = [\"user:5\"]\nattach = \"ublk\"", ["line 5", "attached"]),
        ("clients = [\"user:x\"]", ["line 5", "user:1000"]),
        ("clients = [\"user:1\", \"user:1\"]", ["line 5", "user:1 twice"]),
        ("connections = 3\nattach = \"ublk\"", ["line 5", "attached"]),
        ("connections = 65537", ["line 5", "65536"]),
        ("weight = 1001", ["line 5", "between 1 and 1000"]),
        ("weight = 100\nattach = \"ublk\"", ["line 5", "attached"]),
    ] {
        std::fs::write(&file, format!("{text}{limits}\n")).expect("a file");
        refused(&["serve", "--config", file.to_str().expect("UTF-8")], &words);
    }
    for (limits, words) in [
        ("total-requests-per-second = 0", ["line 1", "total-requests-per-second"]),
        ("total-bytes-per-second = 5", ["line 1", "total-bytes-per-second"]),
        ("total-burst = \"5s\"", ["line 1", "total-burst needs"]),
    ] {
        std::fs::write(&file, format!("{limits}\n{text}")).expect("a file");
        refused(&["serve", "--config", file.to_str().expect("UTF-8")], &words);
    }
    let attached = format!("total-requests-per-second = 5\n{text}attach = \"ublk\"\n");
    std::fs::write(&file, attached).expect("a file");
    let words = ["line 1", "total-requests-per-second does not apply to attached volumes"];
    refused(&["serve", "--config", file.to_str().expect("UTF-8")], &words);
    for (command, word) in [
        ("limit", "give --total-requests-per-second"),
        ("limit --total-requests-per-second many", "from 1 to 1000000000, such as 5000"),
        ("limit --total-requests-per-second 0", "between 1 and"),
        ("limit --total-bytes-per-second 512", "less than 4KiB; write for example 100MiB"),
        ("limit --total-requests-per-second 5 --total-burst 0s", "total-burst = 0ms"),
    ] {
        let command: Vec<&str> = command.split(' ').collect();
        refused(&[&command[..], &["--admin", "127.0.0.1:1"]].concat(), &[word]);
    }
    for (command, word) in [
        ("limit floe", "give --requests-per-second"),
        ("limit floe --weight 0", "weight = 0 is not between 1 and 1000"),
        ("limit floe --weight none", "'none'"),
        ("add more memory:1MiB --weight 1001", "weight = 1001 is not between 1 and 1000"),
        ("limit floe --requests-per-second many", "from 1 to 1000000000, such as 5000"),
        ("limit floe --bytes-per-second 0", "at least 4KiB, such as 100MiB"),
        ("limit floe --requests-per-second 0", "between 1 and"),
        ("limit floe --bytes-per-second 512", "less than 4KiB; write for example 100MiB"),
        ("add more memory:1MiB --limit-burst 2h --requests-per-second 1", "1h"),
        ("add more memory:1MiB --limit-burst soon", "soon"),
        ("limit floe --client-requests-per-second 0", "between 1 and"),
        ("limit floe --client-bytes-per-second 512", "less than 4KiB; write for example 100MiB"),
        ("limit floe --client pictures", "names no client"),
        ("limit floe --client loopback,weight=0", "loopback: weight = 0 is not between 1 and"),
        ("limit floe --client loopback,none --client loopback", "--client names loopback twice"),
        ("limit floe --client loopback,weight=5,none", "names no client"),
        ("add more memory:1MiB --client 10.0.0.0/33", "0 to 32 bits"),
        ("limit floe --connections 0", "between 1 and 65536"),
        ("limit floe --connections few", "from 1 to 65536, such as 20"),
        ("add more memory:1MiB --connections 65537", "between 1 and 65536"),
    ] {
        let command: Vec<&str> = ["volume"].into_iter().chain(command.split(' ')).collect();
        refused(&[&command[..], &["--admin", "127.0.0.1:1"]].concat(), &[word]);
    }
}

#[test]
fn limits_are_set_shown_and_lifted() {
    let settings = ["--requests-per-second", "5000", "--limit-burst", "1s"];
    let volume = Volume::new(&[7; 1 << 20], "through").with(&settings);
    let server = volume.serve();
    let admin = ["--admin", &server.admin];
    let call = |arguments: &[&str]| floe_ok(&[arguments, &admin].concat());
    let shown = |name: &str| -> Value {
        let list = call(&["volume", "list", "--json"]);
        let mut volumes = list.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        volumes.find(|volume: &Value| volume["name"] == name).expect("the volume")
    };
    let limit = &shown("floe")["limit"];
    assert_eq!(limit["requests_per_second"], 5000);
    assert_eq!(
        (&limit["bytes_per_second"], &limit["limit_burst_ms"]),
        (&Value::Null, &1000.into())
    );
    assert!(call(&["status"]).contains("5000 requests/s"));

    let said = call(&["volume", "limit", "floe", "--bytes-per-second", "1MiB"]);
    assert_eq!(said.trim_end(), "floe: 5000 requests/s, 1MiB/s, bursts of 1s");
    let (_, metrics) = http(&server.admin, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for line in [
        "floe_volume_limit_requests_per_second{volume=\"floe\"} 5000",
        "floe_volume_limit_bytes_per_second{volume=\"floe\"} 1048576",
        "floe_volume_delayed_requests_total{volume=\"floe\"} 0",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}");
    }
    let each = ["--client-requests-per-second", "50", "--client-bytes-per-second", "64KiB"];
    let said = call(&[&["volume", "limit", "floe"][..], &each].concat());
    assert_eq!(
        said.trim_end(),
        "floe: 5000 requests/s, 1MiB/s, 50 requests/s of each client, 64KiB/s of each client, \
         bursts of 1s"
    );
    let (_, metrics) = http(&server.admin, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for line in [
        "floe_volume_limit_client_requests_per_second{volume=\"floe\"} 50",
        "floe_volume_limit_client_bytes_per_second{volume=\"floe\"} 65536",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}");
    }
    let named = ["--client", "10.0.0.0/8,bytes-per-second=1MiB,weight=300", "--client", "user:7"];
    let said = call(&[&["volume", "limit", "floe"][..], &named].concat());
    let words = "1MiB/s of 10.0.0.0/8, weight 300 of 10.0.0.0/8, no limit of user:7, bursts of 1s";
    assert!(said.trim_end().ends_with(words), "{said}");
    assert!(call(&["status"]).contains("weight 300 of 10.0.0.0/8"));
    let list = call(&["volume", "list"]);
    let line = list.lines().find(|line| line.trim_start().starts_with("user:7"));
    assert!(line.is_some_and(|line| line.contains("0 (0.0 s)")), "{list}");
    let client = &shown("floe")["limit"]["clients"]["10.0.0.0/8"];
    assert_eq!((&client["bytes_per_second"], &client["weight"]), (&1_048_576.into(), &300.into()));
    let (_, metrics) = http(&server.admin, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for line in [
        "floe_volume_client_limit_requests_per_second{volume=\"floe\",client=\"10.0.0.0/8\"} 0",
        "floe_volume_client_limit_bytes_per_second{volume=\"floe\",client=\"10.0.0.0/8\"} 1048576",
        "floe_volume_client_weight{volume=\"floe\",client=\"user:7\"} 100",
        "floe_volume_client_requests_total{volume=\"floe\",client=\"user:7\"} 0",
        "floe_volume_client_delayed_seconds_total{volume=\"floe\",client=\"user:7\"} 0",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}");
    }
    let named = ["--client", "10.0.0.0/8,none", "--client", "user:7,none"];
    let said = call(&[&["volume", "limit", "floe"][..], &named].concat());
    assert!(!said.contains("10.0.0.0/8") && !said.contains("user:7"), "{said}");
    let each = ["--client-requests-per-second", "none", "--client-bytes-per-second", "none"];
    call(&[&["volume", "limit", "floe"][..], &each].concat());
    call(&["volume", "add", "more", "memory:1MiB", "--requests-per-second", "7"]);
    assert_eq!(shown("more")["limit"]["requests_per_second"], 7);
    let lifted = ["--requests-per-second", "none", "--bytes-per-second", "none"];
    let said = call(&[&["volume", "limit", "floe"][..], &lifted].concat());
    assert_eq!(said.trim_end(), "floe: no limit");
    let output =
        floe(&[&["volume", "limit", "nothing", "--limit-burst", "5s"][..], &admin].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("no volume"), "{said}");
    server.end();
}

#[test]
fn limits_of_the_server_and_weights_are_set_shown_and_lifted() {
    let settings = ["--total-requests-per-second", "50000", "--total-burst", "1s", "--weight", "7"];
    let volume = Volume::new(&[7; 1 << 20], "through").with(&settings);
    let server = volume.serve();
    let admin = ["--admin", &server.admin];
    let call = |arguments: &[&str]| floe_ok(&[arguments, &admin].concat());
    let status = || -> Value { serde_json::from_str(&call(&["status", "--json"])).expect("JSON") };
    let shown = status();
    let total = &shown["total_limit"];
    assert_eq!(total["total_requests_per_second"], 50_000);
    assert_eq!(total["total_bytes_per_second"], Value::Null);
    assert_eq!(total["total_burst_ms"], 1000);
    assert_eq!(shown["volumes"][0]["limit"]["weight"], 7);
    let text = call(&["status"]);
    let line = "all volumes together: at most 50000 requests/s, bursts of 1s";
    assert!(text.contains(line) && text.contains("weight 7"), "{text}");

    let said = call(&["limit", "--total-bytes-per-second", "64MiB"]);
    assert_eq!(said.trim_end(), "all volumes: 50000 requests/s, 64MiB/s, bursts of 1s");
    let said = call(&["volume", "limit", "floe", "--weight", "300"]);
    assert_eq!(said.trim_end(), "floe: weight 300");
    assert!(call(&["volume", "list"]).contains("weight 300"));
    let (_, metrics) = http(&server.admin, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for line in [
        "floe_limit_requests_per_second 50000",
        "floe_limit_bytes_per_second 67108864",
        "floe_volume_weight{volume=\"floe\"} 300",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}");
    }
    call(&["volume", "add", "more", "memory:1MiB", "--weight", "9"]);
    assert!(call(&["volume", "list"]).contains("weight 9"));
    let lifted = ["--total-requests-per-second", "none", "--total-bytes-per-second", "none"];
    let said = call(&[&["limit"][..], &lifted, &["--json"]].concat());
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["total_requests_per_second"], Value::Null);
    let said = call(&["volume", "limit", "floe", "--weight", "100"]);
    assert_eq!(said.trim_end(), "floe: no limit");
    server.end();
}

#[test]
fn a_limit_of_connections_is_set_shown_and_lifted_and_disconnects_nobody() {
    let volume = Volume::new(&[7; 1 << 20], "through").with(&["--connections", "2"]);
    let server = volume.serve();
    let admin = ["--admin", &server.admin];
    let call = |arguments: &[&str]| floe_ok(&[arguments, &admin].concat());
    let uri = server.tcp.parse().expect("a URI");
    let connect = || Client::connect(&uri);
    let clients = [connect().expect("a place"), connect().expect("a place")];
    let error = connect().expect_err("no place").to_string();
    assert!(error.contains("as many connections as its limit allows; try again later"), "{error}");
    let listed = call(&["volume", "list"]);
    for word in ["connections", "refused", "1 client"] {
        assert!(listed.contains(word), "{listed}");
    }
    let said = call(&["volume", "limit", "floe", "--connections", "1"]);
    assert_eq!(said.trim_end(), "floe: 1 connection; its clients (2 nbd) stay connected");
    let said = call(&["volume", "limit", "floe", "--connections", "1", "--json"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&said["limit"]["connections"], &said["connections"]), (&1.into(), &2.into()));
    assert_eq!(said["refused_connections"], 1);
    let (_, metrics) = http(&server.admin, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for line in [
        "floe_volume_limit_connections{volume=\"floe\"} 1",
        "floe_volume_connections_refused_total{volume=\"floe\"} 1",
        "floe_volume_connections{volume=\"floe\"} 2",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}");
    }
    let said = call(&["volume", "limit", "floe", "--connections", "none"]);
    assert_eq!(said.trim_end(), "floe: no limit");
    for (client, shown) in [("user:7", "no limit of user:7"), ("user:7,weight=9", "weight 9 of")] {
        call(&["volume", "limit", "floe", "--client", client]);
        let listed = call(&["volume", "list"]);
        assert!(listed.contains(shown), "{listed}");
    }
    drop((clients, connect().expect("a place")));
    server.end();
}

#[test]
fn names_of_the_settings_hold_after_an_upgrade() {
    let user = std::fs::metadata("/proc/self").expect("this process").uid();
    let slow = format!("user:{user},requests-per-second=1");
    let settings = ["--client", &slow, "--client", "others,weight=300"];
    let volume = Volume::new(&[7; 1 << 20], "through").with(&settings);
    let server = volume.serve();
    let admin = ["--admin", &server.admin];
    let read_twice = || {
        let begun = Instant::now();
        let uri = server.unix.parse().expect("a URI");
        let mut client = Client::connect(&uri).expect("a client");
        let mut reads = [0, 4096].map(|at| client.submit_read(at, 4096).expect("a read"));
        let mut replies = [(); 2].map(|()| client.next_reply().expect("a reply").expect("one"));
        reads.sort_unstable();
        replies.sort_unstable_by_key(|reply| reply.cookie);
        assert_eq!(replies.map(|reply| reply.cookie), reads);
        assert!(begun.elapsed() > Duration::from_millis(800), "one read a second");
    };
    read_twice();
    floe_ok(&[&["volume", "limit", "floe", "--client", "loopback,weight=5"][..], &admin].concat());
    assert_eq!(server.status().volumes[0].limit.clients.iter().count(), 3);
    floe_ok(&[&["upgrade"][..], &admin].concat());

    let volume = &server.status().volumes[0];
    let clients = volume.limit.clients.to_string();
    assert_eq!(clients, format!("{slow} others,weight=300"), "the change has ended");
    assert!(volume.client_use.values().all(|counts| counts.requests == 0));
    read_twice();
    let counts = server.status().volumes[0].client_use[&ClientName::User(user)];
    assert_eq!((counts.requests, counts.bytes), (2, 8192));
}
