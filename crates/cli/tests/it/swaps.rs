//! Devices that are not the cache's: another volume's, another disk's, and an old copy of the cache
//! itself.

use std::path::{Path, PathBuf};

use crate::common::{Server, assert_same, floe, floe_ok, text};
use floe_server::nbd_client::Client;
use floe_testkit::pattern;

const MIB: usize = 1 << 20;
const VOLUMES: [&str; 2] = ["alpha", "beta"];

/// What both volumes begin and end with, so that only what is between tells them apart.
const ENDS: usize = 256 << 10;

/// Two volumes of one size behind one cache.
struct Pair {
    folder: tempfile::TempDir,
    content: [Vec<u8>; 2],
}

impl Pair {
    fn new(mode: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let content = [1, 2].map(|seed| {
            let mut content = pattern(seed, 4 * MIB);
            content[..ENDS].copy_from_slice(&pattern(7, ENDS));
            content[4 * MIB - ENDS..].copy_from_slice(&pattern(8, ENDS));
            content
        });
        let pair = Self { folder, content };
        let path = |name: &str| text(&pair.path(name)).to_owned();
        let mut config = format!(
            "cache = \"file:{}\"\ncache-size = \"16MiB\"\nwrite = \"{mode}\"\nthreads = 1\n\
             block-sizes = \"4KiB,64KiB\"\nstate-dir = \"{}\"\nadmin = \"unix:{}\"\n\
             listen = [\"nbd+unix:///?socket={}\", \"nbd://127.0.0.1:0\"]\n",
            path("cache.img"),
            path("state"),
            path("admin.sock"),
            path("nbd.sock")
        );
        if mode == "back" {
            config += "flush-interval = \"1h\"\n";
        }
        for (name, content) in VOLUMES.iter().zip(&pair.content) {
            std::fs::write(pair.image(name), content).expect("a volume");
            let backing = text(&pair.image(name)).to_owned();
            config += &format!("[[volume]]\nname = \"{name}\"\nbacking = \"file:{backing}\"\n");
        }
        std::fs::write(pair.path("floe.toml"), config).expect("a file");
        pair
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn image(&self, volume: &str) -> PathBuf {
        self.path(&format!("{volume}.img"))
    }

    fn line(&self, more: &[&str]) -> Vec<String> {
        let config = self.path("floe.toml");
        let line = ["serve", "--config", text(&config)].into_iter().chain(more.iter().copied());
        line.map(str::to_owned).collect()
    }

    fn serve(&self, more: &[&str]) -> Server {
        let line = self.line(more);
        Server::run(&line.iter().map(String::as_str).collect::<Vec<_>>(), self.path("floe.log"))
    }

    fn client(server: &Server, volume: &str) -> Client {
        let uri = server.unix.replace("/alpha", &format!("/{volume}"));
        Client::connect(&uri.parse().expect("a URI")).expect("the volume is served")
    }

    /// Writes something into each volume, and flushes it.
    fn write(&mut self, server: &Server, seed: u64) {
        for (number, (name, content)) in VOLUMES.iter().zip(&mut self.content).enumerate() {
            let piece = pattern(seed + number as u64, 64 << 10);
            let mut client = Self::client(server, name);
            client.write(MIB as u64, &piece, false).expect("a write");
            client.flush().expect("a flush");
            content[MIB..][..piece.len()].copy_from_slice(&piece);
        }
    }

    /// Reads all that is between the ends of each volume.
    fn check(&self, server: &Server) {
        for (name, content) in VOLUMES.iter().zip(&self.content) {
            let mut found = vec![0; content.len()];
            Self::client(server, name).read(0, &mut found).expect("a read");
            assert_same(name, &found, content);
        }
    }

    /// The line with which it refuses to serve; nothing is changed by it.
    #[track_caller]
    fn refusal(&self, more: &[&str]) -> String {
        let files = || {
            ["cache.img", "alpha.img", "beta.img"].map(|name| std::fs::read(self.path(name)).ok())
        };
        let before = files();
        let line = self.line(more);
        let output = floe(&line.iter().map(String::as_str).collect::<Vec<_>>());
        let said = String::from_utf8(output.stderr).expect("text");
        let lines: Vec<&str> = said.lines().filter(|line| !line.contains(" INFO ")).collect();
        assert_eq!((output.status.code(), lines.len()), (Some(2), 1), "{said}");
        assert!(files() == before, "a refusal changes something");
        lines[0].to_owned()
    }
}

fn kill(server: Server, files: &[&Path]) {
    drop(server);
    floe_testkit::wait_until("its end", || {
        files.iter().all(|file| {
            let file = std::fs::File::open(file).expect("the file is there");
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
        })
    });
}

/// Exchanges what is in two files, which stay the same files.
fn exchange_content(a: &Path, b: &Path) {
    let content = [a, b].map(|file| std::fs::read(file).expect("it is there"));
    for (file, content) in [a, b].into_iter().zip(content.iter().rev()) {
        let to = std::fs::OpenOptions::new().write(true).open(file).expect("it is there");
        std::os::unix::fs::FileExt::write_all_at(&to, content, 0).expect("a write");
    }
}

fn exchange_names(a: &Path, b: &Path) {
    let other = a.with_extension("other");
    std::fs::rename(a, &other).expect("a name");
    std::fs::rename(b, a).expect("a name");
    std::fs::rename(&other, b).expect("a name");
}

/// By their names, as other disks have after a boot, and by their content alone, as where nothing
/// identifies a disk.
#[test]
fn swapped_devices_are_refused_after_a_crash_and_after_a_good_end() {
    for (mode, killed) in [("back", true), ("back", false), ("through", true), ("through", false)] {
        for exchange in [exchange_names, exchange_content] {
            let mut pair = Pair::new(mode);
            let server = pair.serve(&[]);
            pair.check(&server);
            pair.write(&server, 20);
            let images = VOLUMES.map(|name| pair.image(name));
            match killed {
                true => kill(server, &[&images[0], &images[1], &pair.path("cache.img")]),
                false => server.end(),
            }
            exchange(&images[0], &images[1]);
            let said = pair.refusal(&[]);
            let wanted = ["volume \"alpha\"", "has the data of volume \"beta\"", text(&images[0])];
            assert!(wanted.iter().all(|part| said.contains(part)), "{mode}, {killed}: {said}");
            exchange(&images[0], &images[1]);
            let server = pair.serve(&[]);
            pair.check(&server);
            server.drain_and_end();
            for (image, content) in images.iter().zip(&pair.content) {
                assert_same("a volume", &std::fs::read(image).expect("it is there"), content);
            }
        }
    }
}

/// Nothing identifies them, and all that the cache has of them is dirty: a few sectors of each are
/// known, but for those that were written.
#[test]
fn swapped_devices_are_refused_after_a_crash_with_nothing_clean() {
    let mut pair = Pair::new("back");
    let server = pair.serve(&[]);
    pair.write(&server, 20);
    let images = VOLUMES.map(|name| pair.image(name));
    kill(server, &[&images[0], &images[1], &pair.path("cache.img")]);
    exchange_content(&images[0], &images[1]);
    let said = pair.refusal(&[]);
    let wanted = ["volume \"alpha\"", "has the data of volume \"beta\"", text(&images[0])];
    assert!(wanted.iter().all(|part| said.contains(part)), "{said}");
    exchange_content(&images[0], &images[1]);
    let server = pair.serve(&[]);
    pair.check(&server);
    server.drain_and_end();
}

/// Whichever of the sectors by which it is told were among them: what is left of those still tells
/// it from another one.
#[test]
fn a_volume_that_was_written_while_it_was_served_is_itself_after_a_crash() {
    for (mode, sectors) in [("around", 0..1), ("around", 0..1024), ("back", 0..1024)] {
        let mut pair = Pair::new(mode);
        let server = pair.serve(&[]);
        let range = sectors.start * 4096..sectors.end * 4096;
        let news = pattern(90, range.len());
        let mut client = Pair::client(&server, "alpha");
        for (at, part) in (range.start..).step_by(MIB).zip(news.chunks(MIB)) {
            client.write(at as u64, part, false).expect("a write");
        }
        client.flush().expect("a flush");
        floe_ok(&["flush", "--admin", &server.admin]);
        pair.content[0][range.clone()].copy_from_slice(&news);
        let images = VOLUMES.map(|name| pair.image(name));
        kill(server, &[&images[0], &images[1], &pair.path("cache.img")]);
        exchange_content(&images[0], &images[1]);
        let said = pair.refusal(&[]);
        assert!(said.contains("volume \""), "{mode}, {range:?}: {said}");
        exchange_content(&images[0], &images[1]);
        let server = pair.serve(&[]);
        pair.check(&server);
        server.end();
    }
}

/// Restored or made anew, a file is another one even where it has the number of the old one's
/// inode.
#[test]
fn a_file_made_anew_in_the_place_of_a_volume_is_refused() {
    let mut pair = Pair::new("back");
    let server = pair.serve(&[]);
    pair.write(&server, 20);
    let image = pair.image("beta");
    kill(server, &[&image, &pair.image("alpha"), &pair.path("cache.img")]);
    let content = std::fs::read(&image).expect("it is there");
    std::fs::remove_file(&image).expect("it can be removed");
    std::fs::write(&image, content).expect("another one");
    let said = pair.refusal(&[]);
    assert!(
        said.contains("volume \"beta\"") && said.contains("another file than before"),
        "{said}"
    );
    assert!(said.contains("--accept-backing") && said.contains("--keep-dirty"), "{said}");
    let server = pair.serve(&["--accept-backing", "--keep-dirty"]);
    pair.check(&server);
    server.end();
}

/// Whenever it is made, and however the cache ended since.
#[test]
fn an_old_copy_of_the_cache_is_refused() {
    for (ended_well, copied_while_served) in [(true, false), (false, false), (true, true)] {
        let mut pair = Pair::new("back");
        let (cache, copy) = (pair.path("cache.img"), pair.path("copy.img"));
        let server = pair.serve(&[]);
        pair.write(&server, 20);
        if copied_while_served {
            std::fs::copy(&cache, &copy).expect("a copy");
            pair.write(&server, 30);
            floe_ok(&["flush", "--admin", &server.admin]);
            server.end();
        } else {
            server.end();
            std::fs::copy(&cache, &copy).expect("a copy");
            let server = pair.serve(&[]);
            pair.write(&server, 30);
            floe_ok(&["flush", "--admin", &server.admin]);
            match ended_well {
                true => server.end(),
                false => kill(server, &[&pair.image("alpha"), &pair.image("beta"), &cache]),
            }
        }
        std::fs::copy(&copy, &cache).expect("the old state");
        let said = pair.refusal(&[]);
        let wanted = ["the cache is an old copy", "session 1", "state/cache-", "--accept-backing"];
        assert!(wanted.iter().all(|part| said.contains(part)), "{said}");
        assert!(
            said.contains("131072 bytes (128KiB)") && said.contains("--discard-dirty"),
            "{said}"
        );
        let backings = VOLUMES.map(|name| format!("{name}=file:{}", text(&pair.image(name))));
        let state = pair.path("state");
        let export =
            ["export-dirty", text(&cache), "--state-dir", text(&state), "--backing", &backings[0]];
        let output = floe(&[&export[..], &["--backing", &backings[1]]].concat());
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(2) && said.contains("is an old copy"), "{said}");
        // What it has is older than the volumes.
        let server = pair.serve(&["--accept-backing", "--discard-dirty"]);
        pair.check(&server);
        server.end();
        pair.serve(&[]).end();
    }
}

#[test]
fn a_state_folder_that_cannot_be_written_matters_where_it_is_asked_for() {
    let pair = Pair::new("through");
    std::fs::write(pair.path("state"), "no folder").expect("a file");
    let line = pair.line(&[]);
    let output = floe(&line.iter().map(String::as_str).collect::<Vec<_>>());
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.lines().last().is_some_and(|line| line.contains("state-dir: ")), "{said}");
    let config = std::fs::read_to_string(pair.path("floe.toml")).expect("it is there");
    let lines: Vec<&str> = config.lines().filter(|line| !line.starts_with("state-dir")).collect();
    std::fs::write(pair.path("floe.toml"), lines.join("\n")).expect("a file");
    // The usual one of the server of a test is `state` beside its log.
    let server = pair.serve(&[]);
    let warnings = server.log().lines().filter(|line| line.contains("WARN")).count();
    assert_eq!(warnings, 1, "{}", server.log());
    server.end();
}
