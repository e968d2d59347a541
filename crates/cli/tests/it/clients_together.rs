//! Many clients of the program at once: fio's jobs side by side, copies over several connections,
//! and clients that break off wherever they happen to be while another one verifies every byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::common::{SETUPS, Server, Volume, assert_same, floe_ok, text, wait_for};
use floe_server::nbd_client::Client;
use floe_testkit::{is_installed, pattern, run, wait_until};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const MIB: usize = 1 << 20;

fn quiet(server: &Server) {
    wait_until("the end of all connections", || server.status().connections == 0);
}

/// Jobs of fio, each a process with a connection of its own: verifying ones in parts of the volume,
/// one that trims in another part, and one that reads all over the volume while they write.
const JOBS: &str = "
[global]
ioengine=nbd
verify_state_save=0
verify_fatal=1
randseed=1
iodepth=16

[sectors]
uri=${UNIX}
rw=randrw
bs=4k
size=4m
offset_increment=4m
numjobs=2
verify=crc32c
fsync=32

[unaligned]
uri=${TCP}
rw=randrw
bssplit=512/20:3k/30:20k/30:132k/20
offset=8m
size=4m
verify=crc32c
fsync=8

[again]
uri=${UNIX}
rw=randwrite
bs=16k
offset=12m
size=4m
verify=crc32c
verify_backlog=32
loops=3

[trimmer]
uri=${TCP}
rw=randtrim
bs=64k
offset=16m
size=4m

[reader]
uri=${TCP}
rw=randread
bs=64k
size=20m
loops=2
";

#[test]
fn fios_jobs_verify_what_they_wrote_side_by_side() {
    if !is_installed(&["fio"]) {
        return;
    }
    for (mode, threads) in SETUPS {
        let untouched = pattern(31, MIB);
        let mut content = pattern(30, 20 * MIB);
        content.extend(&untouched);
        let volume = Volume::new(&content, mode).on(threads);
        let server = volume.serve();
        let jobs = volume.path("jobs");
        std::fs::write(&jobs, JOBS.replace("${UNIX}", &server.unix).replace("${TCP}", &server.tcp))
            .expect("jobs");
        run("fio", &[text(&jobs)]);
        quiet(&server);
        let status = server.status();
        assert_eq!(
            (
                status.cache.requests.errors,
                status.devices.cache_errors,
                status.devices.backing_errors
            ),
            (0, 0, 0),
            "after write {mode} on {threads}"
        );
        assert!(
            status.cache.requests.trims >= 64 && status.cache.requests.flushes >= 32,
            "{status:?}"
        );
        assert!(
            status.cache.requests.write_bytes >= (8 + 4 + 3 * 4) * MIB as u64 / 2,
            "{status:?}"
        );
        server.end();
        assert_same("the range nobody wrote to", &volume.backing()[20 * MIB..], &untouched);
    }
}

#[test]
fn nbdcopy_over_many_connections_from_server_to_server_keeps_every_byte() {
    if !is_installed(&["nbdcopy"]) {
        return;
    }
    for (mode, threads) in SETUPS {
        let content = pattern(32, 24 * MIB + 512);
        let (from, to) = (
            Volume::new(&content, mode).on(threads),
            Volume::new(&vec![0xff; 24 * MIB + 512], mode).on(threads),
        );
        let (source, target) = (from.serve(), to.serve());
        let many = ["--connections=4", "--threads=4", "--requests=64", "--request-size=262144"];
        run("nbdcopy", &[&many[..], &[&source.unix, &target.tcp]].concat());
        let copy = to.path("copy");
        run("nbdcopy", &[&many[..], &[&target.unix, text(&copy)]].concat());
        assert_same("the copy", &std::fs::read(&copy).expect("a copy"), &content);
        source.end();
        target.drain_and_end();
        assert_same("the backing device", &to.backing(), &content);
    }
}

#[test]
fn qemu_img_converts_between_servers_out_of_order() {
    if !is_installed(&["qemu-img"]) {
        return;
    }
    for (mode, threads) in SETUPS {
        let mut content = pattern(33, 16 * MIB);
        content[3 * MIB..9 * MIB].fill(0);
        let (from, to) = (
            Volume::new(&content, mode).on(threads),
            Volume::new(&pattern(34, 16 * MIB), mode).on(threads),
        );
        let (source, target) = (from.serve(), to.serve());
        let line = [
            "convert",
            "-n",
            "-W",
            "-m",
            "16",
            "-f",
            "raw",
            "-O",
            "raw",
            &source.tcp,
            &target.unix,
        ];
        run("qemu-img", &line);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source.unix, &target.tcp]);
        source.drain_and_end();
        target.drain_and_end();
        assert_same(
            &format!("the backing device after write {mode} on {threads}"),
            &to.backing(),
            &content,
        );
        assert_same(
            &format!("the source after write {mode} on {threads}"),
            &from.backing(),
            &content,
        );
    }
}

/// A connection that can be broken off.
trait Socket: Read + Write {
    fn begin(server: &Server, volume: &Volume) -> Self;
}

impl Socket for TcpStream {
    fn begin(server: &Server, _volume: &Volume) -> Self {
        let address =
            server.tcp.trim_start_matches("nbd://").split('/').next().expect("an address");
        TcpStream::connect(address).expect("a connection")
    }
}

impl Socket for UnixStream {
    fn begin(_server: &Server, volume: &Volume) -> Self {
        UnixStream::connect(volume.path("nbd.sock")).expect("a connection")
    }
}

/// What a well-behaved client sends from its first byte on: the handshake, then a read, a write, a
/// flush and a trim, all within the second half of the volume.
fn a_clients_words(random: &mut StdRng) -> Vec<u8> {
    let mut words = [&[0, 0, 0, 3][..], b"IHAVEOPT\0\0\0\x01\0\0\0\0"].concat();
    for cookie in 0..random.random_range(1..40_u64) {
        let (command, length) =
            [(0_u16, 200 << 10), (1, 40 << 10), (3, 0), (4, 64 << 10)][random.random_range(0..4)];
        let offset =
            if command == 3 { 0 } else { 8 * MIB as u64 + random.random_range(0..7 * MIB as u64) };
        words.extend(0x2560_9513_u32.to_be_bytes());
        words.extend(0_u16.to_be_bytes());
        words.extend(command.to_be_bytes());
        words.extend(cookie.to_be_bytes());
        words.extend(offset.to_be_bytes());
        words.extend((length as u32).to_be_bytes());
        if command == 1 {
            words.resize(words.len() + length, cookie as u8);
        }
    }
    words
}

/// Says some of what a client would say, perhaps damaged, perhaps reading some of the answers, and
/// is gone.
fn break_off<S: Socket>(server: &Server, volume: &Volume, random: &mut StdRng) {
    let mut socket = S::begin(server, volume);
    let mut words = a_clients_words(random);
    if random.random_ratio(1, 4) {
        // not in an offset, which might lead to what others write
        let at = random.random_range(0..36);
        words[at] ^= 1 << random.random_range(0..8);
    }
    words.truncate(random.random_range(0..=words.len()));
    // The server may hang up, or stop reading until its answers are taken: a client that is gone
    // then is what this is for.
    let _ = socket.write(&words);
    if random.random_ratio(1, 2) {
        let mut answers = vec![0; random.random_range(1..100_000)];
        let _ = socket.read(&mut answers);
    }
}

/// How much memory and how many files a process holds.
fn holds(server: &Server) -> (u64, usize) {
    let proc = std::path::PathBuf::from(format!("/proc/{}", server.pid()));
    let status = std::fs::read_to_string(proc.join("status")).expect("it runs");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    (kilobytes << 10, std::fs::read_dir(proc.join("fd")).expect("it runs").count())
}

#[test]
fn clients_that_break_off_anywhere_disturb_nobody_and_leave_nothing_behind() {
    if !is_installed(&["fio"]) {
        return;
    }
    for (mode, threads, seed) in [("through", "1", 35), ("back", "2", 36)] {
        let mut random = StdRng::seed_from_u64(seed);
        let volume = Volume::new(&pattern(seed, 16 * MIB), mode).on(threads);
        let mut server = volume.serve();
        let mut settled = None;
        for round in 0..3 {
            let uri = format!("--uri={}", server.unix);
            let mut fio = Command::new("fio")
                .args([
                    "--name=verify",
                    "--ioengine=nbd",
                    &uri,
                    "--rw=randrw",
                    "--bssplit=512/30:4k/40:40k/30",
                ])
                .args(["--iodepth=8", "--size=6m", "--verify=crc32c", "--verify_fatal=1"])
                .args(["--verify_state_save=0", "--fsync=64"])
                .current_dir(volume.path(""))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::inherit())
                .spawn()
                .expect("fio runs");
            for _ in 0..300 {
                if random.random() {
                    break_off::<TcpStream>(&server, &volume, &mut random);
                } else {
                    break_off::<UnixStream>(&server, &volume, &mut random);
                }
            }
            assert!(
                wait_for(&mut fio).success(),
                "fio in round {round} of write {mode}: {}",
                server.log()
            );
            quiet(&server);
            // The connection of whoever asked for the status may outlive its answer by a moment.
            let settled = *settled.get_or_insert_with(|| holds(&server).1);
            wait_until("the end of all files but those of the first round", || {
                holds(&server).1 <= settled
            });
            let (memory, _) = holds(&server);
            // Thousands of clients asked for gigabytes between them.
            assert!(memory < 512 * MIB as u64, "{memory} bytes are held after round {round}");
        }
        let mut client =
            Client::connect(&server.tcp.parse().expect("the URI is good")).expect("it serves");
        let mut data = vec![0; 2 * MIB];
        client.read(6 * MIB as u64, &mut data).expect("a read");
        assert_same("the range nobody wrote to", &data, &pattern(seed, 8 * MIB)[6 * MIB..]);
        drop(client);
        assert_eq!(floe_ok(&["stop", "--admin", &server.admin]), "");
        server.has_ended_well();
    }
}
