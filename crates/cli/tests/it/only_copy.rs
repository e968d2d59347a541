//! Dirty data, of which the cache has the only copy: `floe check` reads it before it says that all
//! is well, and says so where it is out of reach.

use crate::common::assert_same;
use crate::kept::{read, used};
use crate::kept_checked::{offline, rot};

const MIB: usize = 1 << 20;

#[test]
fn a_check_reads_what_is_dirty() {
    let (volume, content) = used(true);
    rot(&volume, &content[MIB + 8192..][..4096]);
    for arguments in [&["check"][..], &["check", "--repair"]] {
        let (code, said, line) = offline(&volume, arguments);
        assert!(code == Some(1) && !said.contains("no problems found"), "{said}");
        for wanted in [
            "lost: volume \"floe\", offset 1056768, 4096 bytes",
            "are not what was stored: volume \"floe\" from 1056768 on, which has no other copy",
        ] {
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
        assert!(line.contains("cannot be repaired") && !line.contains("nothing is lost"), "{line}");
    }
    let (code, said, _) = offline(&volume, &["check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, &json["lost"][0]["offset"]), (Some(1), &1056768.into()), "{said}");
}

#[test]
fn a_check_tells_what_is_dirty_and_cannot_be_read() {
    let (volume, content) = used(true);
    let cached = std::fs::read(volume.path("cache.img")).expect("the cache");
    let sector = &content[MIB + 4096..][..4096];
    let at = cached.chunks(4096).position(|found| found == sector).expect("it is cached") * 4096;
    let faults = volume.path("faults");
    std::fs::write(&faults, format!("read EIO {at}-{}", at + 4096)).expect("a file");
    let cache = format!("{},faults={}", volume.path("cache.img").display(), faults.display());
    let output = crate::common::floe(&["check", &format!("file:{cache}")]);
    let said = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot be read: volume \"floe\" from 1052672 on"), "{said}");
    assert!(said.contains("lost: volume \"floe\", offset 1052672, 4096 bytes"), "{said}");
}

#[test]
fn a_cache_file_that_was_cut_short_is_whole_again_when_it_has_its_length() {
    let (volume, content) = used(true);
    let whole = std::fs::read(volume.path("cache.img")).expect("the cache");
    let cut = |bytes: usize| {
        let file = std::fs::OpenOptions::new().write(true).open(volume.path("cache.img"));
        file.and_then(|file| file.set_len(bytes as u64)).expect("it is cut");
    };
    for bytes in [whole.len() - (128 << 10), whole.len() / 2, 80 << 10] {
        cut(bytes);
        for arguments in [&["check"][..], &["check", "--repair"]] {
            let (code, said, line) = offline(&volume, arguments);
            assert!(code == Some(1) && !said.contains("no problems found"), "{said}");
            assert!(line.contains("it was cut short: make it 41"), "{line}");
            assert!(!line.contains("nothing is lost") && !line.contains("mends"), "{line}");
            assert_eq!(said.contains("dirty 64KiB"), bytes > 1 << 20, "{said}");
        }
    }
    std::fs::write(volume.path("cache.img"), &whole[..whole.len() - (128 << 10)]).expect("cut");
    cut(whole.len());
    let (code, said, _) = offline(&volume, &["check"]);
    assert!(code == Some(0) && said.contains("dirty 64KiB"), "{said}");
    let server = volume.serve();
    assert_same("what was dirty", &read(&server, MIB, 64 << 10), &content[MIB..][..64 << 10]);
    server.end();
}
