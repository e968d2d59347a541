//! TLS with other people's clients, and with clients that cheat. Certificates are made here.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use floe_nbd::uri::{Address, Uri};

use crate::rig::{Rig, VOLUME, drained, header, simple_reply};
use floe_block::WriteMode;
use floe_server::ServerSetup;
use floe_server::admin::Token;
use floe_server::tls::TlsConfig;
use floe_testkit::{certificates, is_installed, pattern};

/// A server with these certificates.
fn serve(folder: &Path, verify_peer: bool, required: bool) -> Rig {
    let tls = TlsConfig::load(folder, verify_peer, required).unwrap();
    let tune = |config: &mut ServerSetup| config.tls = Some(tls);
    Rig::tuned(WriteMode::Back, |memory| Box::new(memory), tune)
}

fn port(rig: &Rig) -> u16 {
    let Address::Tcp { port, .. } = rig.uris[1].address else { panic!("{:?}", rig.uris) };
    port
}

/// What libnbd connects to, over TCP.
fn tcp_uri(rig: &Rig, folder: &Path) -> String {
    format!("nbds://localhost:{}/floe?tls-certificates={}", port(rig), folder.display())
}

/// Runs a program; `None` where it is missing.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let run = || Command::new(program).args(arguments).stdin(Stdio::null()).output();
    is_installed(&[program]).then(|| run().expect("it is installed"))
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let Some(output) = run(program, arguments) else { return false };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    true
}

/// What the program complains of.
fn fails(program: &str, arguments: &[&str]) -> Option<String> {
    let output = run(program, arguments)?;
    assert!(!output.status.success(), "{program} {arguments:?} succeeds");
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A file of random bytes as long as the volume.
fn disk_file(folder: &Path) -> (PathBuf, Vec<u8>) {
    let (path, content) = (folder.join("disk"), pattern(1, VOLUME));
    std::fs::write(&path, &content).unwrap();
    (path, content)
}

#[test]
fn nbdcopy_copies_in_and_out_over_tls() {
    let folder = certificates();
    let rig = serve(folder.path(), true, true);
    let (source, content) = disk_file(folder.path());
    let target = folder.path().join("target");
    let uri = tcp_uri(&rig, folder.path());
    if succeeds("nbdcopy", &["--flush", source.to_str().unwrap(), &uri]) {
        succeeds("nbdcopy", &[&uri, target.to_str().unwrap()]);
        assert!(std::fs::read(target).unwrap() == content);
        assert!(rig.end() == content);
    }
}

#[test]
fn nbdinfo_finds_everything_inside_tls() {
    let folder = certificates();
    let rig = serve(folder.path(), false, true);
    let Some(output) = run("nbdinfo", &[&tcp_uri(&rig, folder.path())]) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    for wanted in
        ["with TLS", "structured", "base:allocation", "can_cache: true", "can_fast_zero: true"]
    {
        assert!(
            text.contains(wanted),
            "{wanted:?} is not in {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let Address::Unix(socket) = &rig.uris[0].address else { panic!("{:?}", rig.uris) };
    let unix = format!(
        "nbds+unix:///floe?socket={}&tls-certificates={}&tls-hostname=localhost&tls-verify-peer=0",
        socket.display(),
        folder.path().display()
    );
    succeeds("nbdinfo", &["--size", &unix]);
}

#[test]
fn qemu_img_converts_and_compares_over_tls() {
    let folder = certificates();
    let rig = serve(folder.path(), true, true);
    let (source, content) = disk_file(folder.path());
    let credentials = format!(
        "tls-creds-x509,id=tls0,endpoint=client,verify-peer=on,dir={}",
        folder.path().display()
    );
    let target = format!(
        "driver=nbd,server.type=inet,server.host=localhost,server.port={},export=floe,\
         tls-creds=tls0",
        port(&rig)
    );
    let source = source.to_str().unwrap();
    let convert = [
        "convert",
        "--object",
        &credentials,
        "-n",
        "--target-image-opts",
        "-f",
        "raw",
        source,
        &target,
    ];
    if succeeds("qemu-img", &convert) {
        let reading = format!("driver=raw,file.{}", target.replace(",", ",file."));
        let file = format!("driver=raw,file.driver=file,file.filename={source}");
        succeeds(
            "qemu-img",
            &["compare", "--object", &credentials, "--image-opts", &file, &reading],
        );
        assert!(rig.end() == content);
    }
}

#[test]
fn a_client_without_a_certificate_is_kept_out_where_one_is_asked_for() {
    let folder = certificates();
    let rig = serve(folder.path(), true, true);
    let anonymous = tempfile::tempdir().unwrap();
    std::fs::copy(folder.path().join("ca-cert.pem"), anonymous.path().join("ca-cert.pem")).unwrap();
    fails("nbdinfo", &["--size", &tcp_uri(&rig, anonymous.path())]);
    let stranger = certificates();
    std::fs::copy(folder.path().join("ca-cert.pem"), stranger.path().join("ca-cert.pem")).unwrap();
    fails("nbdinfo", &["--size", &tcp_uri(&rig, stranger.path())]);
    succeeds("nbdinfo", &["--size", &tcp_uri(&rig, folder.path())]);
    rig.end();
}

#[test]
fn a_client_in_the_clear_is_served_only_where_it_may_choose() {
    let folder = certificates();
    let required = serve(folder.path(), false, true);
    let plain = |rig: &Rig| Uri { tls: false, ..rig.uris[1].clone() }.to_string();
    if let Some(told) = fails("nbdinfo", &["--size", &plain(&required)]) {
        assert!(told.contains("TLS"), "{told}");
    }
    assert!(required.uris.iter().all(|uri| uri.tls), "{:?}", required.uris);
    let offered = serve(folder.path(), false, false);
    succeeds("nbdinfo", &["--size", &plain(&offered)]);
    succeeds("nbdinfo", &["--size", &tcp_uri(&offered, folder.path())]);
    offered.raw();
}

#[test]
fn nothing_is_served_in_the_clear_where_clients_must_show_certificates() {
    let folder = certificates();
    let anonymous = tempfile::tempdir().unwrap();
    std::fs::copy(folder.path().join("ca-cert.pem"), anonymous.path().join("ca-cert.pem")).unwrap();
    for required in [false, true] {
        let rig = serve(folder.path(), true, required);
        assert!(rig.uris.iter().all(|uri| uri.tls), "{:?}", rig.uris);
        // Options: list, choose by name, choose with an answer. The last one may not be answered.
        for (option, data) in [(3_u32, &b""[..]), (7, &b"\0\0\0\x04floe\0\0"[..]), (1, b"floe")] {
            let (Address::Unix(socket), uri) = (&rig.uris[0].address, &rig.uris[0]) else {
                panic!("{:?}", rig.uris)
            };
            let unix = std::os::unix::net::UnixStream::connect(socket).unwrap();
            let refused = |stream: &mut dyn ReadWrite| {
                let mut hello = [0; 18];
                stream.read_exact(&mut hello).unwrap();
                let mut ask = [&[0, 0, 0, 3][..], b"IHAVEOPT"].concat();
                ask.extend(option.to_be_bytes());
                ask.extend((data.len() as u32).to_be_bytes());
                ask.extend(data);
                stream.write_all(&ask).unwrap();
                let mut reply = [0; 20];
                match stream.read_exact(&mut reply) {
                    // NBD_REP_ERR_TLS_REQD
                    Ok(()) => assert_eq!(reply[12..16], [0x80, 0, 0, 5], "{option} on {uri}"),
                    Err(_) => assert_eq!(option, 1, "hung up on {uri}"),
                }
            };
            refused(&mut rig.stranger());
            refused(&mut &unix);
        }
        let told = rig.over_tcp("GET /status HTTP/1.1\r\n\r\n");
        assert!(told.starts_with("HTTP/1.1 403") && told.contains("certificates"), "{told}");
        fails("nbdinfo", &["--size", &tcp_uri(&rig, anonymous.path())]);
        succeeds("nbdinfo", &["--size", &tcp_uri(&rig, folder.path())]);
        let path = |name: &str| folder.path().join(name).display().to_string();
        let url = format!("https://{}/healthz", rig.admin_tcp);
        let authority = path("ca-cert.pem");
        let common = ["--silent", "--show-error", "--cacert", &authority, &url];
        fails("curl", &common);
        let (certificate, key) = (path("client-cert.pem"), path("client-key.pem"));
        let own = ["--cert", &certificate, "--key", &key];
        succeeds("curl", &[&own[..], &common[..]].concat());
        rig.end();
    }
}

/// A stream of either kind.
trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

#[test]
fn what_is_no_tls_ends_the_connection_and_no_other() {
    let folder = certificates();
    let rig = serve(folder.path(), false, false);
    let mut good = rig.raw();
    for bytes in [
        &b"IHAVEOPT\0\0\0\x01\0\0\0\x04floe"[..],
        &[0x16; 4096],
        &[0; 70_000],
        b"\x17\x03\x03\xff\xff",
    ] {
        let mut stream = rig.stranger();
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0").unwrap();
        let mut granted = [0; 38];
        stream.read_exact(&mut granted).unwrap();
        assert_eq!(granted[30..34], [0, 0, 0, 1]);
        // The server may have hung up already.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        drained(&mut stream);
    }
    good.write_all(&header(3, 5, 0, 0)).unwrap();
    assert_eq!(simple_reply(&mut good), (0, 5));
}

#[test]
fn bad_certificates_are_said_in_one_line() {
    let load =
        |folder: &Path, verify| TlsConfig::load(folder, verify, true).unwrap_err().to_string();
    let folder = certificates();
    let path = |name: &str| folder.path().join(name);
    let told = |error: &str, name: &str, what: &str| {
        assert!(error.contains(name) && error.contains(what) && !error.contains('\n'), "{error}");
    };
    let other = certificates();
    std::fs::copy(other.path().join("server-key.pem"), path("server-key.pem")).unwrap();
    told(&load(folder.path(), false), folder.path().to_str().unwrap(), "certificate and key");
    std::fs::write(path("server-key.pem"), "nonsense").unwrap();
    told(&load(folder.path(), false), "server-key.pem", "no private key");
    std::fs::write(path("server-cert.pem"), "").unwrap();
    told(&load(folder.path(), false), "server-cert.pem", "no certificate");
    std::fs::remove_file(path("server-cert.pem")).unwrap();
    told(&load(folder.path(), false), "server-cert.pem", "No such file");
    std::fs::remove_file(other.path().join("ca-cert.pem")).unwrap();
    told(&load(other.path(), true), "ca-cert.pem", "No such file");
    assert!(TlsConfig::load(other.path(), false, true).is_ok(), "nobody to verify");
    std::fs::write(
        other.path().join("ca-cert.pem"),
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    told(&load(other.path(), true), "ca-cert.pem", "");
}

#[test]
fn the_admin_interface_over_tcp_speaks_tls_to_those_who_begin_with_it() {
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    let folder = certificates();
    let tls = TlsConfig::load(folder.path(), false, true).unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, SECRET).unwrap();
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let token = Token::read(&token).unwrap();
    let tune = |config: &mut ServerSetup| {
        config.tls = Some(tls);
        config.admin.token = Some(token);
    };
    let rig = Rig::tuned(WriteMode::Back, |memory| Box::new(memory), tune);
    let authority = folder.path().join("ca-cert.pem").display().to_string();
    let curl = |words: &[&str], path: &str| {
        let url = format!("https://{}{path}", rig.admin_tcp);
        let line = [&["--silent", "--show-error", "--cacert", &authority], words, &[&url]].concat();
        run("curl", &line).map(|output| {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            String::from_utf8(output.stdout).unwrap()
        })
    };
    let Some(health) = curl(&[], "/healthz") else { return };
    assert_eq!(health, "ok\n");
    for version in [["--tlsv1.2", "--tls-max", "1.2"], ["--tlsv1.3", "--tls-max", "1.3"]] {
        assert!(curl(&version, "/metrics").unwrap().ends_with('\n'));
    }
    let bearer = format!("Authorization: Bearer {SECRET}");
    assert_eq!(curl(&["--request", "POST", "--header", &bearer], "/flush").unwrap(), "flushed\n");
    let refused = curl(&["--request", "POST"], "/flush").unwrap();
    assert!(refused.contains("admin token"), "{refused}");
    // A monitor on this machine may do without, and what is no TLS is hung up on.
    assert!(rig.over_tcp("GET /healthz HTTP/1.1\r\n\r\n").ends_with("ok\n"));
    let mut cheat = std::net::TcpStream::connect(&rig.admin_tcp).unwrap();
    cheat.write_all(&[&[22, 3, 1, 0, 5][..], &[7; 100]].concat()).unwrap();
    let alert = drained(&mut cheat);
    assert!(!alert.starts_with(b"HTTP"), "{alert:?}");
    rig.end();
}

#[test]
fn certificates_that_are_read_again_count_for_whoever_comes_then() {
    let (folder, others) = (certificates(), certificates());
    let tls = TlsConfig::load(folder.path(), false, true).unwrap();
    let reloadable = tls.clone();
    let rig =
        Rig::tuned(WriteMode::Back, |memory| Box::new(memory), |config| config.tls = Some(tls));
    let trusts = |authority: &Path| {
        let authority = authority.display().to_string();
        let url = format!("https://{}/healthz", rig.admin_tcp);
        run("curl", &["--silent", "--cacert", &authority, &url])
            .map(|output| output.status.success())
    };
    let first = folder.path().join("first-ca-cert.pem");
    std::fs::copy(folder.path().join("ca-cert.pem"), &first).unwrap();
    let second = others.path().join("ca-cert.pem");
    let Some(trusted) = trusts(&first) else { return };
    assert!(trusted && trusts(&second) == Some(false));
    std::fs::write(folder.path().join("server-key.pem"), "no key").unwrap();
    reloadable.reload().unwrap_err();
    assert_eq!(trusts(&first), Some(true), "what cannot be read changes nothing");
    for name in ["server-cert.pem", "server-key.pem"] {
        std::fs::copy(others.path().join(name), folder.path().join(name)).unwrap();
    }
    reloadable.reload().unwrap();
    assert_eq!((trusts(&first), trusts(&second)), (Some(false), Some(true)));
    rig.end();
}
