//! Caches of version 2 of the format, as the program wrote them at commit 04de179: they come back
//! warm, with everything that was dirty.
//!
//! Two volumes of 512 sectors, of which the first 64 were read; then sectors 100 to 107 of the
//! first one and 200 to 215 of the second were written and flushed. One cache ended in good order,
//! the other one was killed. A sector holds its volume's number and its own, and how often it was
//! written, over and over.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::common::{Server, assert_same, floe, floe_ok, text};
use floe_server::nbd_client::Client;

const SECTORS: u64 = 512;
const SECTOR: usize = 4096;

/// By volume: its name, its number in its sectors, and the sectors that are dirty.
const VOLUMES: [(&str, u64, std::ops::Range<u64>); 2] =
    [("alpha", 1, 100..108), ("beta", 2, 200..216)];

fn sectors(volume: u64, written: impl Fn(u64) -> u64) -> Vec<u8> {
    let words = |sector| [volume << 32 | sector, written(sector)].map(u64::to_le_bytes).concat();
    (0..SECTORS).flat_map(|sector| words(sector).repeat(SECTOR / 16)).collect()
}

/// A cache of version 2 and its volumes in a folder.
struct Old {
    folder: tempfile::TempDir,
}

impl Old {
    fn new(image: &[u8]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cache = zstd::decode_all(image).expect("the image is whole");
        for (number, (name, volume, _)) in VOLUMES.into_iter().enumerate() {
            let backing = folder.path().join(format!("{name}.img"));
            std::fs::write(&backing, sectors(volume, |_| 0)).expect("a volume");
            // Version 2 knows a file by the number of its inode, which these files cannot have
            // again.
            let inode = std::fs::metadata(&backing).expect("it is there").ino();
            for copy in [0, 32 << 10] {
                let at = copy + 4096 + 96 * number + 16;
                cache[at..at + 8].copy_from_slice(&inode.to_le_bytes());
                let sum = crc_fast::crc64_nvme(&cache[copy + 8..copy + (32 << 10)]);
                cache[copy..copy + 8].copy_from_slice(&sum.to_le_bytes());
            }
        }
        let file = folder.path().join("cache.img");
        std::fs::write(&file, cache).expect("a cache");
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("it is ours");
        let old = Self { folder };
        let path = |name: &str| text(&old.path(name)).to_owned();
        let mut config = format!(
            "cache = \"file:{}\"\nwrite = \"back\"\nthreads = 1\nflush-interval = \"1h\"\nadmin = \
             \"unix:{}\"\nstate-dir = \"{}\"\nlisten = [\"nbd+unix:///?socket={}\", \
             \"nbd://127.0.0.1:0\"]\n",
            path("cache.img"),
            path("admin.sock"),
            path("state"),
            path("nbd.sock")
        );
        for (name, ..) in &VOLUMES {
            let backing = path(&format!("{name}.img"));
            config += &format!("[[volume]]\nname = \"{name}\"\nbacking = \"file:{backing}\"\n");
        }
        std::fs::write(old.path("floe.toml"), config).expect("a file");
        old
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(&self) -> Server {
        Server::run(&["serve", "--config", text(&self.path("floe.toml"))], self.path("floe.log"))
    }

    fn backing(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(&format!("{name}.img"))).expect("it is there")
    }
}

const IMAGES: [(&str, &[u8]); 2] = [
    ("clean", include_bytes!("../version_2/clean.img.zst")),
    ("killed", include_bytes!("../version_2/killed.img.zst")),
];

fn version(cache: &Path) -> Vec<u8> {
    std::fs::read(cache).expect("it is there")[16..20].to_vec()
}

#[test]
fn a_cache_of_version_2_comes_back_warm_and_with_what_was_dirty() {
    for (image, bytes) in IMAGES {
        let old = Old::new(bytes);
        let server = old.serve();
        assert!(!server.log().contains("WARN"), "{image}: {}", server.log());
        let status = server.status();
        assert_eq!(
            (status.cache.dirty_bytes, status.cache.valid_bytes),
            (96 << 10, 608 << 10),
            "{image}"
        );
        for (name, volume, dirty) in VOLUMES {
            let uri = server.unix.replace("/alpha", &format!("/{name}"));
            let mut client =
                Client::connect(&uri.parse().expect("a URI")).expect("the volume is served");
            let expected = sectors(volume, |sector| u64::from(dirty.contains(&sector)));
            for range in
                [0..64 * SECTOR, dirty.start as usize * SECTOR..dirty.end as usize * SECTOR]
            {
                let mut found = vec![0; range.len()];
                client.read(range.start as u64, &mut found).expect("a read");
                assert_same(name, &found, &expected[range]);
            }
        }
        assert_eq!(
            server.status().cache.counters.backing_read_bytes,
            0,
            "{image}: all of that is cached"
        );
        server.drain_and_end();
        for (name, volume, dirty) in VOLUMES {
            let expected = sectors(volume, |sector| u64::from(dirty.contains(&sector)));
            assert_same(name, &old.backing(name), &expected);
        }
        assert_eq!(
            version(&old.path("cache.img")),
            [3, 0, 0, 0],
            "it is of the newest version now"
        );
        let server = old.serve();
        assert_eq!(server.status().cache.dirty_bytes, 0);
        server.end();
    }
}

#[test]
fn what_is_dirty_in_a_cache_of_version_2_is_brought_back_without_a_server() {
    for (image, bytes) in IMAGES {
        let old = Old::new(bytes);
        floe_ok(&["check", text(&old.path("cache.img"))]);
        assert_eq!(
            version(&old.path("cache.img")),
            [2, 0, 0, 0],
            "{image}: a check changes nothing"
        );
        let backings = VOLUMES
            .map(|(name, ..)| format!("{name}=file:{}", text(&old.path(&format!("{name}.img")))));
        floe_ok(&[
            "export-dirty",
            text(&old.path("cache.img")),
            "--state-dir",
            text(&old.path("state")),
            "--backing",
            &backings[0],
            "--backing",
            &backings[1],
        ]);
        for (name, volume, dirty) in VOLUMES {
            let expected = sectors(volume, |sector| u64::from(dirty.contains(&sector)));
            assert_same(name, &old.backing(name), &expected);
        }
    }
}

/// Its own rules say whether the volumes are those it knows.
#[test]
fn a_cache_of_version_2_refuses_other_files() {
    let old = Old::new(IMAGES[0].1);
    std::fs::copy(old.path("beta.img"), old.path("copy")).expect("a copy");
    std::fs::rename(old.path("copy"), old.path("beta.img")).expect("in its place");
    let output = floe(&["serve", "--config", text(&old.path("floe.toml"))]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("volume \"beta\"") && said.contains("another file"), "{said}");
    assert_eq!(version(&old.path("cache.img")), [2, 0, 0, 0], "a refusal changes nothing");
}
