//! NVMe hosts that may connect and hosts that may not: by their names, and by their secrets.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use floe_nvme::auth::{Group, Hash, Secret};
use floe_testkit::nvme_host::tcp::Controller;
use floe_testkit::nvme_host::{Access, Authentication, HostError};
use floe_testkit::{PATIENCE, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Server, Volume, floe_in};

const ONE: &str = "nqn.2026-11.com.example:one";
const TWO: &str = "nqn.2026-11.com.example:two";

fn volume() -> Volume {
    Volume::new(&vec![0; 1 << 20], "back").on("2")
}

fn random(bytes: &mut [u8]) -> bool {
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes)).is_ok()
}

fn secret(seed: u8) -> Secret {
    Secret::new(&[seed; 32], Some(Hash::Sha256)).expect("a good length")
}

fn access(server: &Server, host: &str) -> Access {
    let address = server.nvme.strip_prefix("nvme-tcp://").expect("an address");
    let (address, name) = address.split_once('/').expect("a name");
    Access { timeout: Some(PATIENCE), host: host.to_owned(), ..Access::new(address, name) }
}

fn with_secret(access: Access, secret: Secret, controller: Option<Secret>) -> Access {
    let authentication = Some(Authentication::new(secret, controller, random));
    Access { authentication, ..access }
}

/// Connects both queues, and reads.
fn use_it(access: &Access) -> Result<(), HostError> {
    let mut controller = Controller::connect(access)?;
    controller.set_queues(1)?;
    let mut queue = controller.io_queue(1, 16)?;
    let range = floe_testkit::nvme_host::Range { namespace: 1, first: 0, blocks: 1 };
    queue.read(range, 512).map(drop)
}

/// Writes lines of secrets for the server's user only.
fn write_secrets(volume: &Volume, lines: &[String]) -> String {
    let path = volume.path("secrets");
    std::fs::write(&path, lines.join("\n")).expect("a file");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("its owner may");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn only_listed_hosts_connect_and_the_log_names_others() {
    let volume = volume().with(&["--listen", "nvme-tcp://127.0.0.1:0", "--nvme-hosts", ONE]);
    let server = volume.serve();
    use_it(&access(&server, ONE)).expect("it is listed");
    let refused = use_it(&access(&server, TWO)).expect_err("it is not listed");
    let HostError::Command(error) = refused else { panic!("{refused}") };
    assert_eq!((error.status.kind(), error.status.code()), (1, 0x84), "invalid host");
    let line = format!("NVMe host {TWO}: it is not among the hosts that may connect");
    wait_until("the line in the log", || server.log().matches(&line).count() == 1);
    assert!(server.log().contains("client cannot be trusted"), "{}", server.log());
    use_it(&access(&server, ONE)).expect("others are not disturbed");
    server.end();
}

#[test]
fn hosts_prove_that_they_have_their_secret() {
    let volume = volume();
    let (one, two, own) = (secret(1), secret(2), secret(3));
    let lines =
        [format!("{ONE} {}", one.to_text()), format!("{TWO} {} {}", two.to_text(), own.to_text())];
    let file = write_secrets(&volume, &lines);
    // Other machines reach the address: with secrets that is no risk.
    let listen = ["--listen", "nvme-tcp://0.0.0.0:0", "--nvme-secrets-file", &file];
    let volume = volume.with(&listen);
    let server = volume.serve();
    use_it(&with_secret(access(&server, ONE), one.clone(), None)).expect("the secret is right");
    use_it(&with_secret(access(&server, TWO), two.clone(), Some(own))).expect("both are right");

    assert!(matches!(use_it(&access(&server, ONE)), Err(HostError::NoSecret)));
    let wrong = use_it(&with_secret(access(&server, ONE), two.clone(), None));
    assert!(matches!(wrong, Err(HostError::NotAuthenticated(1))), "{wrong:?}");
    let line = format!("NVMe host {ONE}: it did not prove that it has its secret");
    wait_until("the line in the log", || server.log().matches(&line).count() == 1);
    let wrong = use_it(&with_secret(access(&server, TWO), two.clone(), Some(one.clone())));
    assert!(matches!(wrong, Err(HostError::WrongController)), "{wrong:?}");
    let other = format!("{ONE}-2");
    let unknown = use_it(&with_secret(access(&server, &other), one.clone(), None));
    assert!(matches!(unknown, Err(HostError::Command(_))), "{unknown:?}");
    for secret in [&one, &two] {
        assert!(!server.log().contains(&secret.to_text()), "{}", server.log());
    }

    // SIGHUP reads the file again.
    write_secrets(&volume, &[format!("{ONE} {}", two.to_text())]);
    kill_process(Pid::from_raw(server.pid() as i32).expect("a process"), Signal::HUP)
        .expect("it is there");
    wait_until("the new secrets", || server.log().contains("NVMe secrets read again"));
    use_it(&with_secret(access(&server, ONE), two, None)).expect("the new secret");
    assert!(use_it(&with_secret(access(&server, ONE), one, None)).is_err());
    server.end();
}

#[test]
fn a_file_that_keeps_no_secrets_is_refused() {
    let volume = volume();
    let path = volume.path("secrets");
    let refused = |text: &str, mode: u32| {
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("its owner may");
        let folder = path.parent().expect("a folder");
        let serve = ["serve", "--backing", "memory:4MiB", "--cache", "memory:1MiB", "--listen"];
        let nvme = ["nvme-tcp://127.0.0.1:0", "--nvme-secrets-file", "secrets"];
        let output = floe_in(folder, &[&serve[..], &nvme].concat());
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("text")
    };
    let good = format!("{ONE} {}\n", secret(1).to_text());
    for (text, mode, problem) in [
        (good.as_str(), 0o644, "other users can use it (mode 644); chmod 600 it"),
        ("", 0o600, "it names no host"),
        ("one secret", 0o600, "line 1: \"one\" is no NVMe qualified name"),
        (&format!("{good}{ONE} secret"), 0o600, "line 2: a secret has the form DHHC-1:"),
    ] {
        let said = refused(text, mode);
        assert!(said.contains("secrets: ") && said.contains(problem), "{said}");
    }
}

/// Succeeds for the transaction's number and fails for the secret exponent: the controller has
/// computed its own part by then, and this host has computed nothing.
fn random_once(bytes: &mut [u8]) -> bool {
    bytes.len() == 6 && random(bytes)
}

#[test]
#[ignore = "a measurement: reads beside hosts that make the server compute the largest group"]
fn reads_beside_eight_hosts_that_offer_the_largest_group() {
    let volume = volume();
    let file = write_secrets(&volume, &[format!("{ONE} {}", secret(1).to_text())]);
    let listen = ["--listen", "nvme-tcp://127.0.0.1:0", "--nvme-secrets-file", &file];
    let volume = volume.with(&listen);
    let server = volume.serve();
    let honest = with_secret(access(&server, ONE), secret(1), None);
    let mut controller = Controller::connect(&honest).expect("the secret is right");
    controller.set_queues(1).expect("a queue");
    let mut queue = controller.io_queue(1, 16).expect("a queue");
    let mut reads = |name: &str| {
        let range = floe_testkit::nvme_host::Range { namespace: 1, first: 0, blocks: 1 };
        let mut micros: Vec<u128> = Vec::new();
        for _ in 0..3_000 {
            let begun = std::time::Instant::now();
            queue.read(range, 512).expect("an honest read");
            micros.push(begun.elapsed().as_micros());
        }
        micros.sort_unstable();
        let [middle, late, last] = [1_500, 2_970, 2_999].map(|at| micros[at]);
        eprintln!("{name}: p50 {middle} µs, p99 {late} µs, longest {last} µs");
    };
    reads("alone");
    let over = std::sync::atomic::AtomicBool::new(false);
    let tried = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let mut authentication = Authentication::new(secret(1), None, random_once);
            authentication.groups = vec![Some(Group::Ffdhe8192)];
            let attack = Access { authentication: Some(authentication), ..access(&server, ONE) };
            let (over, tried) = (&over, &tried);
            scope.spawn(move || {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let refused = Controller::connect(&attack);
                    assert!(refused.is_err(), "it never proves anything");
                    tried.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        reads("beside eight");
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    eprintln!("{} challenges meanwhile", tried.into_inner());
    server.end();
}
