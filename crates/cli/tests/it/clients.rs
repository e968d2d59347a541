//! The program as a whole, used by programs other people wrote: nbdinfo, nbdcopy, qemu-io, qemu-img
//! and fio.
//!
//! Every volume is larger than its cache, so that blocks come and go, and is compared byte by byte
//! in the end with what was written to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::common::{SETUPS, Server, Volume, assert_same, floe, floe_ok, http, text, wait_for};
use floe_server::nbd_client::Client;
use floe_testkit::{is_installed, pattern, run, wait_until};

const MIB: usize = 1 << 20;

/// Long enough for nothing to be written back by itself within a test.
const NEVER: [&str; 2] = ["--flush-interval", "1h"];

fn connect(uri: &str) -> Client {
    Client::connect(&uri.parse().expect("the URI is good")).expect("the server answers")
}

fn qemu_io(uri: &str, commands: &[&str]) {
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(uri);
    let said = run("qemu-io", &arguments);
    assert!(!said.contains("failed"), "{said}");
}

#[test]
fn nbdinfo_sees_the_volume_and_what_it_can_do() {
    if !is_installed(&["nbdinfo"]) {
        return;
    }
    let volume = Volume::new(&pattern(1, 5 * MIB + 512), "through").with(&["--volume", "pictures"]);
    let server = volume.serve();
    for uri in [&server.unix, &server.tcp] {
        let json: serde_json::Value =
            serde_json::from_str(&run("nbdinfo", &["--json", uri])).expect("nbdinfo prints JSON");
        assert_eq!(json["protocol"], "newstyle-fixed");
        assert_eq!(json["structured"], true);
        let export = &json["exports"][0];
        assert_eq!(export["export-name"], "pictures");
        assert_eq!(export["export-size"], 5 * MIB + 512);
        assert_eq!(export["is_read_only"], false);
        for ability in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"] {
            assert_eq!(export[ability], true, "{ability}");
        }
    }
}

#[test]
fn nbdinfo_lists_the_volume() {
    if !is_installed(&["nbdinfo"]) {
        return;
    }
    let volume = Volume::new(&pattern(2, MIB), "through").with(&["--volume", "pictures"]);
    let server = volume.serve();
    for uri in [&server.unix, &server.tcp] {
        let json = run("nbdinfo", &["--list", "--json", &uri.replace("/pictures", "/")]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("nbdinfo prints JSON");
        let exports = json["exports"].as_array().expect("a list");
        assert_eq!(exports.len(), 1);
        assert_eq!(exports[0]["export-name"], "pictures");
        assert_eq!(exports[0]["export-size"], MIB);
    }
}

#[test]
fn nbdcopy_both_ways_keeps_every_byte_in_every_mode() {
    if !is_installed(&["nbdcopy"]) {
        return;
    }
    for (mode, threads) in SETUPS {
        let (before, after) = (pattern(3, 12 * MIB), pattern(4, 12 * MIB));
        let volume = Volume::new(&before, mode).on(threads);
        let (source, target) = (volume.path("source"), volume.path("target"));
        std::fs::write(&source, &after).expect("a source");
        let server = volume.serve();
        run("nbdcopy", &[&server.unix, text(&target)]);
        assert_same("the copy of the volume", &std::fs::read(&target).expect("a copy"), &before);
        run("nbdcopy", &["--flush", text(&source), &server.tcp]);
        run("nbdcopy", &[&server.unix, text(&target)]);
        assert_same("the copy of the new volume", &std::fs::read(&target).expect("a copy"), &after);
        server.drain_and_end();
        assert_same(
            &format!("the backing device after write {mode} on {threads}"),
            &volume.backing(),
            &after,
        );
    }
}

#[test]
fn qemu_io_reads_back_what_it_wrote_zeroed_and_discarded() {
    if !is_installed(&["qemu-io"]) {
        return;
    }
    for (mode, threads) in SETUPS {
        let volume = Volume::new(&vec![0x11; 8 * MIB], mode).on(threads);
        let server = volume.serve();
        let writes = [
            "write -P 0xaa 0 64k",
            "write -P 0xab 1000 5001",    // within sectors, across several
            "write -P 0xac 65535 3",      // three bytes across a block's border
            "write -f -P 0xad 4194303 2", // made durable at once
            "aio_write -P 0xae 1M 300k",  // several at a time
            "aio_write -P 0xaf 1400k 300k",
            "aio_flush",
            "write -z 2M 256k",
            "write -z -u 2500k 4k",
            "write -z 3000001 777",
            "write -P 0xb0 5M 1M",
            "discard 5M 512k",
            "write -P 0xb1 8388607 1", // the last byte
            "flush",
        ];
        qemu_io(&server.unix, &writes);
        let reads = [
            "read -P 0xaa 0 1000",
            "read -P 0xab 1000 5001",
            "read -P 0xaa 6001 59534",
            "read -P 0xac 65535 3",
            "read -P 0x11 65538 100k",
            "read -P 0x11 4194302 1",
            "read -P 0xad 4194303 2",
            "read -P 0x11 4194305 1000",
            "read -P 0xae 1M 300k",
            "read -P 0xaf 1400k 300k",
            "read -P 0 2M 256k",
            "read -P 0x11 2359296 100",
            "read -P 0 2500k 4k",
            "read -P 0x11 3000000 1",
            "read -P 0 3000001 777",
            "read -P 0x11 3000778 1",
            "read 5M 512k", // a discarded range may hold anything
            "read -P 0xb0 5632k 512k",
            "read -P 0x11 6M 1000k",
            "read -P 0xb1 8388607 1",
        ];
        qemu_io(&server.tcp, &reads);
        qemu_io(&server.unix, &reads);
        server.end();
        let server = volume.serve();
        qemu_io(&server.unix, &reads);
        server.end();
    }
}

#[test]
fn qemu_img_converts_to_and_from_the_volume() {
    if !is_installed(&["qemu-img"]) {
        return;
    }
    for (mode, threads) in SETUPS {
        let volume = Volume::new(&pattern(5, 6 * MIB), mode).on(threads);
        let (source, target) = (volume.path("source.qcow2"), volume.path("target.qcow2"));
        let mut image = pattern(6, 6 * MIB);
        image[MIB..3 * MIB].fill(0);
        std::fs::write(volume.path("image"), &image).expect("an image");
        run(
            "qemu-img",
            &["convert", "-f", "raw", "-O", "qcow2", text(&volume.path("image")), text(&source)],
        );
        let server = volume.serve();
        run(
            "qemu-img",
            &["convert", "-n", "-f", "qcow2", "-O", "raw", text(&source), &server.unix],
        );
        run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", text(&source), &server.tcp]);
        run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &server.tcp, text(&target)]);
        run("qemu-img", &["compare", "-f", "qcow2", "-F", "qcow2", text(&source), text(&target)]);
        server.drain_and_end();
        assert_same(
            &format!("the backing device after write {mode} on {threads}"),
            &volume.backing(),
            &image,
        );
    }
}

#[test]
fn fio_verifies_what_two_connections_wrote_at_random() {
    if !is_installed(&["fio"]) {
        return;
    }
    for (mode, threads) in SETUPS {
        let volume = Volume::new(&pattern(7, 16 * MIB), mode).on(threads);
        let server = volume.serve();
        for (name, sizes, uri) in [
            ("sectors", "--bs=4k", &server.unix),
            ("unaligned", "--bs=1536", &server.tcp),
            ("mixed", "--bssplit=512/20:4k/30:20k/30:128k/20", &server.unix),
        ] {
            run(
                "fio",
                &[
                    &format!("--name={name}"),
                    "--ioengine=nbd",
                    &format!("--uri={uri}"),
                    "--rw=randrw",
                    sizes,
                    "--iodepth=16",
                    "--numjobs=2",
                    "--size=8m",
                    "--offset_increment=8m",
                    "--verify=crc32c",
                    "--verify_fatal=1",
                    "--verify_state_save=0",
                    "--randseed=1",
                ],
            );
        }
        wait_until("the end of fio's connections", || server.status().connections == 0);
        let status = server.status();
        assert_eq!(status.cache.requests.errors, 0, "after write {mode} on {threads}");
        // it did come here
        assert!(
            status.cache.requests.write_bytes.min(status.cache.requests.read_bytes) > 16 << 20,
            "{status:?}"
        );
        server.end();
    }
}

#[test]
fn a_signal_brings_what_a_volatile_cache_has_to_the_backing_device() {
    let (before, after) = (pattern(8, 6 * MIB), pattern(9, 6 * MIB));
    let volume = Volume::new(&before, "back").with(&NEVER).with(&["--volatile"]);
    let server = volume.serve();
    let mut client = connect(&server.unix);
    for (at, piece) in after.chunks(100_000).enumerate() {
        client.write(100_000 * at as u64, piece, false).expect("a write");
    }
    client.disconnect().expect("a goodbye");
    let dirty_bytes = server.status().cache.dirty_bytes;
    assert!((1..=4 * MIB as u64).contains(&dirty_bytes), "{dirty_bytes} bytes are dirty");
    server.end();
    assert_same("the backing device", &volume.backing(), &after);
}

#[test]
fn a_flush_leaves_nothing_dirty_and_goes_on_serving() {
    let volume = Volume::new(&pattern(10, 6 * MIB), "back").with(&NEVER);
    let server = volume.serve();
    let mut client = connect(&server.unix);
    // well below what a part of so small a cache keeps before it begins to clean by itself
    let piece = pattern(11, 200_000);
    client.write(12_345, &piece, false).expect("a write");
    assert!(server.status().cache.dirty_bytes >= piece.len() as u64);
    assert_eq!(floe_ok(&["flush", "--admin", &server.admin]), "");
    assert_eq!(server.status().cache.dirty_bytes, 0);
    assert_same(
        "the range on the backing device",
        &volume.backing()[12_345..][..piece.len()],
        &piece,
    );
    let mut back = vec![0; piece.len()];
    client.read(12_345, &mut back).expect("a read");
    assert_same("the range", &back, &piece);
}

#[test]
fn a_clients_flush_makes_its_writes_safe_below_a_volatile_cache() {
    let volume = Volume::new(&pattern(12, 6 * MIB), "back").with(&NEVER).with(&["--volatile"]);
    let server = volume.serve();
    let mut client = connect(&server.tcp);
    let piece = pattern(13, 70_000);
    client.write(3_000_000, &piece, false).expect("a write");
    client.flush().expect("a flush");
    client.write(5_000_000, &piece, true).expect("a durable write");
    let backing = volume.backing();
    assert_same("the flushed range", &backing[3_000_000..][..70_000], &piece);
    assert_same("the durable range", &backing[5_000_000..][..70_000], &piece);
}

#[test]
fn stop_empties_a_volatile_cache_and_ends_the_server() {
    let volume = Volume::new(&pattern(14, 6 * MIB), "back").with(&NEVER).with(&["--volatile"]);
    let mut server = volume.serve();
    let mut client = connect(&server.unix);
    let piece = pattern(15, 300_001);
    client.write(777, &piece, false).expect("a write");
    assert_eq!(floe_ok(&["stop", "--admin", &server.admin]), "");
    server.has_ended_well();
    assert_same("the backing device", &volume.backing()[777..][..300_001], &piece);
    assert!(!volume.path("nbd.sock").exists(), "the socket is left behind");
    let output = floe(&["status", "--admin", &server.admin]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
}

#[test]
fn the_status_adds_up() {
    for (mode, threads) in SETUPS {
        let volume = Volume::new(&pattern(16, 8 * MIB), mode).on(threads);
        let volume = if mode == "back" { volume.with(&NEVER) } else { volume };
        let server = volume.serve();
        let idle = server.status();
        assert_eq!(
            (idle.cache.requests.reads, idle.cache.requests.writes, idle.connections),
            (0, 0, 0)
        );
        let mut client = connect(&server.unix);
        let mut data = vec![0; 64 << 10];
        for _ in 0..2 {
            for at in 0..16 {
                client.read(at * (64 << 10), &mut data).expect("a read");
            }
        }
        for at in 0..8 {
            client.write(at * (64 << 10), &data, false).expect("a write");
        }
        client.write_zeroes(2 << 20, 4096, false).expect("zeroes");
        client.trim(3 << 20, 4096).expect("a trim");
        client.flush().expect("a flush");
        client.read(8 << 20, &mut data).expect_err("beyond the volume");
        let status = server.status();
        let volume = &status.volumes[0];
        assert_eq!(
            (volume.name.as_str(), volume.bytes, volume.read_only),
            ("floe", 8 << 20, false)
        );
        assert_eq!(status.server.write_mode, mode);
        assert_eq!(status.devices.cache_size_bytes, 4 << 20);
        assert_eq!(status.connections, 1);
        assert_eq!((status.cache.requests.reads, status.cache.requests.read_bytes), (32, 2 << 20));
        assert_eq!(
            (status.cache.requests.writes, status.cache.requests.write_bytes),
            (8, 512 << 10)
        );
        assert_eq!((status.cache.requests.flushes, status.cache.requests.trims), (1, 2));
        // A read that comes before its block has reached the cache device joins the fetch, and may
        // count as a hit too.
        let keeps = mode != "pass" || status.memory.is_some();
        let spared_reads = if keeps { 16 } else { 0 };
        assert!(status.cache.requests.read_hits <= spared_reads, "{mode}: {status:?}");
        assert!(
            status.cache.requests.read_hits + status.cache.counters.joined_reads >= spared_reads,
            "{mode}: {status:?}"
        );
        assert!(status.cache.requests.write_hits <= status.cache.requests.writes);
        assert!(
            (status.requests.read_hit_ratio - status.cache.requests.read_hits as f64 / 32.0).abs()
                < 1e-9
        );
        let fetched = if keeps { 1 << 20 } else { 2 << 20 };
        assert_eq!(status.cache.counters.backing_read_bytes, fetched, "{mode}");
        let stays_dirty = mode == "back" && !threads.contains("volatile");
        assert!(
            stays_dirty || status.cache.counters.backing_write_bytes >= 512 << 10,
            "{mode}: all is flushed"
        );
        assert_eq!((status.devices.cache_errors, status.devices.backing_errors), (0, 0));
        assert_eq!(
            status.cache.dirty_bytes > 0,
            stays_dirty,
            "a flush leaves what is dirty in a kept cache"
        );
        let allocated: u64 =
            status.devices.blocks.iter().map(|count| count.blocks * count.block_bytes).sum();
        assert!(
            status.cache.valid_bytes <= allocated && allocated <= status.devices.cache_size_bytes,
            "{status:?}"
        );
        assert_eq!(status.cache.valid_bytes > 0, mode != "pass");
        for latency in [status.requests.read_latency, status.requests.write_latency] {
            let rising = [0.0, latency.p50_us, latency.p99_us, latency.p999_us];
            assert!(
                rising.is_sorted() && latency.p50_us > 0.0 && latency.mean_us > 0.0,
                "{latency:?}"
            );
        }
        assert_eq!(idle.advice, None);
        let advice = status.advice.as_ref().expect("there were reads");
        assert_eq!(advice.tier, if status.memory.is_some() { "memory" } else { "cache" });
        assert!(!advice.past_p_star && advice.p_star == 1.0, "its policy is FIFO-like: {advice:?}");
        assert!((0.0..=0.5).contains(&advice.hit_ratio) && advice.in_flight > 0.0, "{advice:?}");
        assert_eq!(advice.model_reads_per_second.is_some(), status.memory.is_some());
        if let Some(memory) = &status.memory {
            assert_eq!((memory.read_hits, memory.read_bytes), (16, 1 << 20), "{memory:?}");
            assert_eq!((memory.read_hit_ratio, memory.dirty_bytes), (0.5, 0));
            assert!(
                memory.page_bytes >= 512 << 10 && memory.page_bytes < memory.size_bytes,
                "{memory:?}"
            );
        }
        let table = floe_ok(&["status", "--admin", &server.admin]);
        assert!(table.contains(&format!("write {mode}, evict lru, 1 client")), "{table}");
        assert_eq!(table.contains("16 reads, 50.0 % of all"), status.memory.is_some(), "{table}");
    }
}

#[test]
fn volumes_come_grow_and_go_while_the_server_runs() {
    let volume = Volume::new(&pattern(49, MIB), "back").with(&NEVER);
    let server = volume.serve();
    let backing = volume.path("second.img");
    std::fs::write(&backing, vec![0; MIB]).expect("a second volume");
    let spec = format!("file:{}", text(&backing));
    let floe_volume =
        |words: &[&str]| floe(&[&["volume"], words, &["--admin", &server.admin]].concat());
    let ok = |words: &[&str]| {
        let output = floe_volume(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("output is UTF-8")
    };
    assert_eq!(ok(&["add", "a/b", &spec]), "added a/b of 1MiB\n");
    let uri = server.unix.replace("/floe?", "/a/b?");
    let bytes = pattern(50, 64 << 10);
    let mut client = connect(&uri);
    client.write(0, &bytes, false).expect("it can be written");
    drop(client);
    std::fs::File::options()
        .write(true)
        .open(&backing)
        .and_then(|file| file.set_len(2 << 20))
        .expect("it grows");
    assert_eq!(ok(&["resize", "a/b"]), "resized a/b to 2MiB\n");
    let list = ok(&["list", "--json"]);
    assert!(
        list.lines().count() == 2 && list.contains(r#""name":"a/b","bytes":2097152"#),
        "{list}"
    );
    ok(&["remove", "a/b"]);
    let found = std::fs::read(&backing).expect("it can be read");
    assert_same("what was written before", &found[..bytes.len()], &bytes);
    for (words, said) in [
        (&["remove", "a/b"][..], "a/b"),
        (&["resize", "nowhere"], "nowhere"),
        (&["ana", "nowhere", "optimized"], "nowhere"),
        (&["add", "floe", "memory:4MiB"], "floe"),
        (&["add", "c", "file:/no/such/file"], "/no/such/file"),
    ] {
        let output = floe_volume(words);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {complaint}");
        assert!(
            complaint.contains(said) && complaint.lines().count() == 1,
            "{words:?}: {complaint}"
        );
    }
    server.end();
}

#[test]
fn settings_of_the_command_line_become_a_file() {
    let volume = Volume::new(&pattern(48, MIB), "back").with(&NEVER).with(&["--print-config"]);
    let line = volume.command_line();
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    let printed = floe_ok(&words);
    let file = volume.path("floe.toml");
    std::fs::write(&file, &printed).expect("a file");
    assert_eq!(floe_ok(&["serve", "--config", text(&file), "--print-config"]), printed);
    assert!(printed.contains("flush-interval = \"1h\"\n"), "{printed}");
    assert!(!volume.path("cache.img").exists(), "nothing is served");
}

#[test]
fn a_second_signal_says_what_is_still_dirty() {
    let volume = Volume::new(&pattern(47, 8 * MIB), "back").with(&NEVER).with(&["--volatile"]);
    let slow: Vec<String> = volume
        .command_line()
        .into_iter()
        .map(|word| if word.ends_with("backing.img") { word + ",medium=hdd" } else { word })
        .collect();
    let mut child = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(slow)
        .env("STATE_DIRECTORY", volume.path("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("floe runs");
    let mut uris = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut client = connect(&uris.next().expect("a line").expect("a URI"));
    for at in 0..256 {
        client.write(at * (32 << 10), &pattern(at, 4096), false).expect("it can be written");
    }
    drop(client);
    let mut log =
        BufReader::new(child.stderr.take().expect("it is piped")).lines().map(Result::unwrap);
    let serving = log.find(|line| line.contains("admin=")).expect("it serves");
    let (_, admin) = serving.split_once("admin=").expect("just seen");
    let pid = rustix::process::Pid::from_child(&child);
    let signal =
        || rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    signal();
    let health = || http(admin, "GET /healthz HTTP/1.1\r\n\r\n").0;
    // Each time once more, since the machine may be as slow as the disk.
    wait_until("the end to begin", || {
        signal();
        health().starts_with("HTTP/1.1 503 ")
    });
    signal();
    let warning = log.find(|line| line.contains(" WARN ")).expect("a second signal is answered");
    assert!(warning.contains("dirty_bytes=") && !warning.contains("dirty_bytes=0"), "{warning}");
    assert!(
        log.any(|line| line.contains("ended dirty_bytes=0")),
        "all is on the backing device in the end"
    );
    assert!(crate::common::wait_for(&mut child).success());
    let bytes = volume.backing();
    for at in 0..256 {
        assert_same("a block", &bytes[at * (32 << 10)..][..4096], &pattern(at as u64, 4096));
    }
}

#[test]
fn the_log_tells_what_happens_as_json_a_line() {
    let volume = Volume::new(&pattern(44, MIB), "back")
        .with(&NEVER)
        .with(&["--volatile"])
        .with(&["--log-format", "json"]);
    let command = volume.command_line();
    let mut child = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(command)
        .env("FLOE_LOG", "debug")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("floe runs");
    let mut uris = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut client = connect(&uris.next().expect("a line").expect("a URI"));
    client.write(0, &pattern(45, 4096), false).expect("it can be written");
    drop(client);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let log = String::from_utf8(output.stderr).expect("text");
    let events: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect();
    let event = |message: &str| {
        events
            .iter()
            .find(|event| event["message"] == message)
            .unwrap_or_else(|| panic!("{message}: {log}"))
    };
    assert_eq!(event("started")["write"], "back");
    assert_eq!(event("volume")["read_only"], false);
    assert_eq!(event("serving")["level"], "INFO");
    assert_eq!(event("connected")["level"], "DEBUG");
    assert_eq!(event("disconnected")["client"], 0);
    assert_eq!(event("ending")["dirty_bytes"], 4096);
    assert_eq!(event("ended")["dirty_bytes"], 0);
}

#[test]
fn with_few_descriptors_fewer_clients_are_served_and_the_admin_interface_answers() {
    let volume = Volume::new(&pattern(46, MIB), "through");
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -n 160 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_floe")])
        .args(volume.command_line())
        .env("STATE_DIRECTORY", volume.path("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("floe runs");
    let mut log =
        BufReader::new(child.stderr.take().expect("it is piped")).lines().map(Result::unwrap);
    let warning = log.find(|line| line.contains("room=")).expect("a warning");
    let number = |line: &str, name: &str| {
        let (_, after) = line.split_once(name).expect("it is there");
        after.split_whitespace().next().expect("a number").parse::<usize>().expect("a number")
    };
    let room = number(&warning, "room=");
    assert!(warning.contains(" WARN ") && room < 64 && warning.contains("asked=1024"), "{warning}");
    let serving = log.find(|line| line.contains("admin=")).expect("it serves");
    let (_, admin) = serving.split_once("admin=").expect("just seen");
    let socket = volume.path("nbd.sock");
    let crowd: Vec<_> =
        (0..200).map(|_| UnixStream::connect(&socket).expect("a connection")).collect();
    let status = || {
        serde_json::from_str::<serde_json::Value>(&floe_ok(&["status", "--json", "--admin", admin]))
    };
    wait_until("as many clients as there is room for", || {
        status().expect("JSON")["connections"] == room
    });
    drop(crowd);
    floe_ok(&["stop", "--admin", admin]);
    assert!(crate::common::wait_for(&mut child).success());
}

#[test]
fn a_monitor_finds_health_and_metrics() {
    let volume = Volume::new(&pattern(41, MIB), "back").with(&NEVER).with(&["--volume", "a b"]);
    let server = volume.serve();
    let mut client = connect(&server.unix);
    client.write(0, &pattern(42, 8192), false).expect("it can be written");
    client.read(0, &mut [0; 4096]).expect("it can be read");
    let (head, body) = http(&server.admin, "GET /healthz HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(body, "ok\n");
    let (head, body) = http(&server.admin, "GET /metrics HTTP/1.1\r\nAccept: text/plain\r\n\r\n");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    for line in [
        r#"floe_requests_total{volume="a b",operation="write"} 1"#,
        r#"floe_request_bytes_total{volume="a b",operation="read"} 4096"#,
        r#"floe_request_duration_seconds_count{operation="read"} 1"#,
        r#"floe_volume_connections{volume="a b"} 1"#,
        "floe_cache_dirty_bytes 8192",
        "floe_degraded 0",
    ] {
        assert!(body.lines().any(|there| there == line), "{line} is not in:\n{body}");
    }
    server.end();
}

#[test]
fn the_volumes_can_be_listed() {
    let volume = Volume::new(&pattern(43, MIB), "through").with(&["--volume", "pictures"]);
    let server = volume.serve();
    let _client = connect(&server.unix);
    let list = floe_ok(&["volume", "list", "--json", "--admin", &server.admin]);
    let listed: serde_json::Value = serde_json::from_str(&list).expect("one volume on a line");
    assert_eq!((&listed["name"], &listed["bytes"]), (&"pictures".into(), &MIB.into()));
    assert_eq!((&listed["read_only"], &listed["connections"]), (&false.into(), &1.into()));
    let table = floe_ok(&["volume", "list", "--admin", &server.admin]);
    assert!(table.contains(" pictures   read-write   1MiB     1 nbd "), "{table}");
    let table = floe_ok(&["status", "--admin", &server.admin]);
    assert!(
        table.contains("write through, evict lru, 1 client (1 nbd)") && table.contains("pictures"),
        "{table}"
    );
    server.end();
}

#[test]
fn a_volume_served_again_holds_what_was_written() {
    let mut content = pattern(17, 6 * MIB);
    let volume = Volume::new(&content, "back");
    for round in 0..4 {
        let server = volume.serve();
        let mut client = connect(&server.unix);
        let mut found = vec![0; 6 * MIB];
        client.read(0, &mut found).expect("a read");
        assert_same("the volume", &found, &content);
        let piece = pattern(20 + round, 1_234_567);
        let at = 1_100_001 * round as usize;
        client.write(at as u64, &piece, false).expect("a write");
        content[at..][..piece.len()].copy_from_slice(&piece);
        server.end();
    }
    volume.serve().drain_and_end();
    assert_same("the backing device", &volume.backing(), &content);
}

/// Runs a second server that must be refused with one line, which must hold this.
fn refused(volume: &Volume, changes: &[(&str, &str)], wanted: &str) {
    let mut line = volume.command_line();
    for (from, to) in changes {
        line.iter_mut().for_each(|word| *word = word.replace(from, to));
    }
    let output = floe(&line.iter().map(String::as_str).collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.is_empty() && !output.status.success());
    assert!(said.lines().count() == 1 && said.contains(wanted), "{wanted} is not in: {said}");
}

#[test]
fn two_servers_cannot_have_the_same_files_or_socket() {
    let volume = Volume::new(&pattern(18, 5 * MIB), "back");
    let server = volume.serve();
    refused(&volume, &[], "nbd.sock");
    refused(
        &volume,
        &[("nbd.sock", "b.sock"), ("admin.sock", "b.admin"), ("cache.img", "b.img")],
        "backing.img is in use by another process",
    );
    std::fs::copy(volume.path("backing.img"), volume.path("b.img")).expect("a copy");
    refused(
        &volume,
        &[("nbd.sock", "b.sock"), ("admin.sock", "b.admin"), ("backing.img", "b.img")],
        "cache.img is in use by another process",
    );
    refused(&volume, &[("backing.img", "b.img"), ("cache.img", "c.img")], "nbd.sock");
    let mut data = vec![0; MIB];
    connect(&server.unix).read(0, &mut data).expect("the first one still serves");
    assert_same("the volume", &data, &pattern(18, MIB));
    server.end();
}

#[test]
fn a_client_killed_while_it_writes_leaves_others_served() {
    if !is_installed(&["fio"]) {
        return;
    }
    let content = pattern(19, 16 * MIB);
    let volume = Volume::new(&content, "back");
    let server = volume.serve();
    let mut bystander = connect(&server.unix);
    for uri in [&server.unix, &server.tcp] {
        let written = server.status().cache.requests.write_bytes;
        let uri = format!("--uri={uri}");
        let mut fio = Command::new("fio")
            .args([
                "--name=w",
                "--ioengine=nbd",
                &uri,
                "--rw=randwrite",
                "--bs=64k",
                "--iodepth=16",
            ])
            .args(["--offset=8m", "--size=8m", "--time_based", "--runtime=600", "--thread"])
            .current_dir(volume.path(""))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("fio runs");
        wait_until("a write", || {
            server.status().cache.requests.write_bytes > written + 8 * MIB as u64
        });
        fio.kill().expect("it is there");
        wait_for(&mut fio);
        let mut data = vec![0; MIB];
        bystander.read(MIB as u64, &mut data).expect("a read");
        assert_same("what the bystander read", &data, &content[MIB..2 * MIB]);
        wait_until("the end of the killed client's connections", || {
            server.status().connections == 1
        });
    }
    assert_eq!(server.status().cache.requests.errors, 0);
    server.end();
    assert_same("the half nobody wrote to", &volume.backing()[..8 * MIB], &content[..8 * MIB]);
}

/// What a client may send that makes no sense: before the handshake, within it, and as a request.
fn nonsense() -> [Vec<u8>; 4] {
    const FIXED_NEWSTYLE: [u8; 4] = [0, 0, 0, 3];
    const EXPORT_NAME: &[u8] = b"IHAVEOPT\0\0\0\x01\0\0\0\0";
    let huge_option = [&FIXED_NEWSTYLE[..], b"IHAVEOPT\0\0\0\x06\xff\xff\xff\xff"].concat();
    let request = [&FIXED_NEWSTYLE[..], EXPORT_NAME, &pattern(21, 4096)].concat();
    let write =
        [&FIXED_NEWSTYLE[..], EXPORT_NAME, b"\x25\x60\x95\x13\0\0\0\x01\xff\xff\xff\xff"].concat();
    [pattern(22, 100_000), huge_option, request, write]
}

/// Sends all of it and reads until the server has enough.
fn pester(mut socket: impl Read + Write, nonsense: &[u8], hang_up: impl FnOnce()) {
    let _ = socket.write_all(nonsense); // the server may hang up first
    hang_up();
    let _ = socket.read_to_end(&mut Vec::new());
}

#[test]
fn a_client_that_sends_nonsense_disturbs_nobody() {
    let content = pattern(23, 5 * MIB);
    let volume = Volume::new(&content, "back");
    let server = volume.serve();
    let mut bystander = connect(&server.unix);
    let address = server.tcp.trim_start_matches("nbd://").split('/').next().expect("an address");
    for (nonsense, at) in nonsense().iter().zip(0..) {
        let tcp = TcpStream::connect(address).expect("a connection");
        pester(&tcp, nonsense, || tcp.shutdown(std::net::Shutdown::Write).unwrap_or(()));
        let unix = UnixStream::connect(volume.path("nbd.sock")).expect("a connection");
        pester(&unix, nonsense, || unix.shutdown(std::net::Shutdown::Write).unwrap_or(()));
        let mut data = vec![0; MIB];
        bystander.read(at * MIB as u64, &mut data).expect("a read");
        assert_same("what the bystander read", &data, &content[at as usize * MIB..][..MIB]);
    }
    only_one_is_left(&server);
    server.end();
    assert_same("the backing device", &volume.backing(), &content);
}

fn only_one_is_left(server: &Server) {
    wait_until("the end of the other connections", || server.status().connections == 1);
}
