//! Clients that encrypt and show certificates: libnbd from Python, fio's jobs side by side.

use std::path::Path;

use crate::common::{Server, Volume, assert_same, text};
use floe_testkit::{certificates, is_installed, pattern, run, wait_until};

const MIB: usize = 1 << 20;

/// What Python imports as `nbd`.
const LIBNBD: &str = "/usr/lib/python3/dist-packages/nbd.py";

/// Serves a volume to clients that encrypt only.
fn serve(content: &[u8], mode: &str, folder: &Path, settings: &[&str]) -> (Volume, Server) {
    let tls = ["--tls", "require", "--tls-certificates", text(folder)];
    let volume = Volume::new(content, mode).with(&tls).with(settings);
    let server = volume.serve();
    (volume, server)
}

/// URIs of the volume with TLS, on TCP and on the Unix socket, with something about certificates.
fn uris(server: &Server, certificates: &str) -> (String, String) {
    let tcp = server.tcp.replace("127.0.0.1", "localhost"); // which the server's certificate is for
    (
        format!("{tcp}?{certificates}"),
        format!("{}&{certificates}&tls-hostname=localhost", server.unix),
    )
}

#[test]
fn libnbd_from_python_finds_every_promise_kept_over_tls() {
    if !is_installed(&[LIBNBD]) {
        return;
    }
    let folder = certificates();
    let content = pattern(41, 24 * MIB);
    let (volume, server) = serve(
        &content,
        "back",
        folder.path(),
        &["--threads", "2", "--tls-verify-peer", "--flush-interval", "1h"],
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libnbd.py");
    let (source, wanted) = (volume.path("source"), volume.path("wanted"));
    std::fs::write(&source, &content).expect("a source");
    let (tcp, unix) = uris(&server, &format!("tls-certificates={}", folder.path().display()));
    run("/usr/bin/python3", &[text(&script), &tcp, &unix, text(&source), text(&wanted)]);
    // Its last flush has promised it all.
    server.kill(&volume);
    volume.serve().drain_and_end();
    assert_same(
        "the backing device",
        &volume.backing(),
        &std::fs::read(&wanted).expect("a result"),
    );
}

#[test]
fn fios_jobs_verify_what_they_wrote_over_tls() {
    if !is_installed(&["fio"]) {
        return;
    }
    let folder = certificates();
    for (mode, threads) in [("through", "1"), ("through", "2"), ("back", "1"), ("back", "2")] {
        let (_volume, server) =
            serve(&pattern(42, 16 * MIB), mode, folder.path(), &["--threads", threads]);
        // fio does not let libnbd read the files that a URI names.
        let (tcp, unix) = uris(&server, "tls-verify-peer=0");
        let job = |name: &str, uri: &str, offset: &str| {
            let words = ["--name", "--uri", "--offset"].iter().zip([name, uri, offset]);
            words.map(|(word, value)| format!("{word}={value}")).collect::<Vec<_>>()
        };
        let mut line: Vec<String> = [
            "--ioengine=nbd",
            "--rw=randrw",
            "--bssplit=512/20:4k/30:20k/30:132k/20",
            "--iodepth=16",
            "--size=4m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--fsync=32",
        ]
        .map(str::to_owned)
        .into();
        for (name, uri, offset) in
            [("a", &tcp, "0"), ("b", &unix, "4m"), ("c", &tcp, "8m"), ("d", &unix, "12m")]
        {
            line.extend(job(name, uri, offset));
        }
        run("fio", &line.iter().map(String::as_str).collect::<Vec<_>>());
        wait_until("the end of all connections", || server.status().connections == 0);
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
        server.end();
    }
}
