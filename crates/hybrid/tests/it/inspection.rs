//! The inspection of files: what it reports is what the next open finds.

use std::os::unix::fs::FileExt;
use std::path::Path;

use floe_hybrid::{DamageKind, Hybrid, Opened, check, info, prometheus, saved_stats};

use crate::{open, value};

/// Enough for segments of 128 KiB, so that the file has room behind its last segment.
const MEMORY: u64 = 2 << 20;
const FLASH: u64 = 16 << 20;

fn filled(path: &Path, keys: u64) -> Hybrid<u64, Vec<u8>> {
    let cache = open(path, MEMORY, FLASH);
    for key in 0..keys {
        cache.insert(key, value(key, 1000));
    }
    cache
}

/// Inverts a byte of a file.
fn damage(path: &Path, offset: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

#[test]
fn facts_about_a_closed_cache_are_those_of_the_next_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = filled(&path, 5000);
    let in_use = info(&path).unwrap();
    assert!(in_use.in_use && !in_use.clean && in_use.content.is_none(), "{in_use:?}");
    assert!(check(&path, |_, _| {}).unwrap_err().to_string().contains("in use"));
    cache.close().unwrap();
    drop(cache);

    let before = std::fs::read(&path).unwrap();
    let found = info(&path).unwrap();
    let content = found.content.clone().unwrap();
    let contents = check(&path, |_, _| {}).unwrap();
    assert_eq!(before, std::fs::read(&path).unwrap(), "an inspection writes nothing");
    assert!(found.clean && !found.in_use && found.session == 1, "{found:?}");
    assert_eq!((content.next_open, content.objects), (Opened::Clean, 5000));
    assert_eq!((contents.live_objects, contents.lost_objects), (5000, 0));
    assert_eq!(contents.segments, content.used_segments);
    let (oldest, newest) = (content.oldest_seconds.unwrap(), content.newest_seconds.unwrap());
    assert!(oldest <= newest && content.oldest_segment == Some(1), "{content:?}");
    let cache = open(&path, MEMORY, FLASH);
    assert_eq!((cache.opened(), cache.stats().flash.objects), (content.next_open, 5000));
}

#[test]
fn damage_is_told_by_place_and_what_it_costs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = filled(&path, 5000);
    cache.close().unwrap();
    drop(cache);
    let found = info(&path).unwrap();
    let start = |place: u64| (64 << 10) + place * found.segment_bytes;
    let sound = check(&path, |_, _| {}).unwrap();
    assert_eq!((sound.damaged_places, sound.live_objects), (0, 5000), "{sound:?}");
    // Segment n is in place n: the log has not come round.
    damage(&path, 4096 + 100); // the older copy
    damage(&path, start(1) + 64 + 20);
    damage(&path, start(2) + found.segment_bytes - 100);
    damage(&path, start(3) + 30);
    let contents = check(&path, |_, _| {}).unwrap();
    let kinds: Vec<_> = contents.damage.iter().map(|it| (it.kind, it.segment)).collect();
    let expected = [
        (DamageKind::Superblock, None),
        (DamageKind::Record, Some(1)),
        (DamageKind::Footer, Some(2)),
        (DamageKind::Header, Some(3)),
    ];
    assert_eq!(kinds, expected, "{:?}", contents.damage);
    assert_eq!((contents.damage[1].offset, contents.damaged_places), (start(1) + 64, 4));
    // A damaged footer costs nothing: the records are read. Nor does a header.
    assert_eq!((contents.lost_objects, contents.live_objects), (1, 4999));
}

#[test]
fn statistics_are_in_the_file_while_it_is_open_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = filled(&path, 3000);
    let at_first = saved_stats(&path).unwrap().unwrap();
    assert!(at_first.in_use && !at_first.closed && at_first.session == 1, "{at_first:?}");
    (0..100).for_each(|key| assert!(cache.get_blocking(&key).is_some()));
    cache.close().unwrap();
    drop(cache);
    let stats = saved_stats(&path).unwrap().unwrap();
    assert!(stats.closed && !stats.in_use && stats.session == 1, "{stats:?}");
    assert_eq!(stats.get("memory_hits").unwrap() + stats.get("flash_hits").unwrap(), 100);
    assert_eq!(stats.get("flash_objects"), Some(3000));
    let cache = open(&path, MEMORY, FLASH);
    let stats = saved_stats(&path).unwrap().unwrap();
    assert!(stats.in_use && stats.session == 2, "{stats:?}");
    assert_eq!(stats.get("memory_hits"), Some(0), "figures are of one session");
    drop(cache);
}

#[test]
fn a_file_that_ends_at_its_last_segment_has_no_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache: Hybrid<u64, u64> =
        Hybrid::builder().memory(1 << 20).flash(&path, (64 << 10) + (16 << 16)).open().unwrap();
    cache.insert(1, 2);
    cache.close().unwrap();
    drop(cache);
    assert_eq!(saved_stats(&path).unwrap(), None);
    assert_eq!(check(&path, |_, _| {}).unwrap().live_objects, 1);
}

#[test]
fn files_that_hold_no_cache_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let refused = || {
        let lines = [
            info(&path).unwrap_err().to_string(),
            check(&path, |_, _| {}).unwrap_err().to_string(),
            saved_stats(&path).unwrap_err().to_string(),
        ];
        assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
        assert!(lines[0].contains(path.to_str().unwrap()) && !lines[0].contains('\n'));
        lines[0].clone()
    };
    assert!(refused().contains("No such file"), "{}", refused());
    std::fs::create_dir(&path).unwrap();
    assert!(refused().contains("neither a regular file nor"), "{}", refused());
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, b"").unwrap();
    assert!(refused().contains("too small"), "{}", refused());
    std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
    assert!(refused().contains("something other than a hybrid cache"));
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    assert!(refused().contains("something other than a hybrid cache"));
    std::fs::remove_file(&path).unwrap();
    filled(&path, 10).close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..8 << 20]).unwrap();
    assert!(refused().contains("cut short"), "{}", refused());
    // Both copies of the superblock, in another version and then damaged.
    let mut later = bytes.clone();
    for at in [0, 4096] {
        later[at + 16] = 99;
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &later[at + 4..at + 4096]);
        later[at..at + 4].copy_from_slice(&(sum as u32).to_le_bytes());
    }
    std::fs::write(&path, &later).unwrap();
    assert!(refused().contains("has format 99"), "{}", refused());
    later[200] ^= 1;
    later[4096 + 200] ^= 1;
    std::fs::write(&path, &later).unwrap();
    assert!(refused().contains("both superblocks are damaged"), "{}", refused());
}

#[test]
fn the_text_for_prometheus_has_each_family_once_and_the_values_of_the_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let cache = filled(&folder.path().join("cache"), 3000);
    (0..3001).for_each(|key| drop(cache.get_blocking(&key)));
    let stats = cache.stats();
    let text = prometheus(&[("a", &stats), ("b \"x\"", &stats)]);
    let mut families = std::collections::HashSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(families.insert(name.to_owned()), "{name} begins twice");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        }
    }
    let value = |sample: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {sample} in {text}")).parse().unwrap()
    };
    assert_eq!(value("floe_hybrid_misses_total{cache=\"a\"}"), 1.0);
    let hits = |place| value(&format!("floe_hybrid_hits_total{{cache=\"a\",place=\"{place}\"}}"));
    assert_eq!(hits("memory") + hits("flash"), 3000.0);
    assert!(hits("flash") > 500.0);
    let escaped = value("floe_hybrid_hits_total{cache=\"b \\\"x\\\"\",place=\"flash\"}");
    assert_eq!(escaped, hits("flash"));
    let reads = value("floe_hybrid_reads_total{cache=\"a\"}");
    let measured = value("floe_hybrid_flash_read_seconds_count{cache=\"a\"}");
    assert!(reads > 0.0 && (measured - reads / 16.0).abs() <= 2.0, "{measured} of {reads}");
    let all = value("floe_hybrid_flash_read_seconds_bucket{cache=\"a\",le=\"+Inf\"}");
    assert_eq!(all, measured);
    assert!(value("floe_hybrid_write_amplification{cache=\"a\"}") > 0.5);
}

/// Checks that the table in the documentation has all figures. If `UPDATE_DOCS` is set, writes it.
#[test]
fn the_documentation_has_all_figures() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hybrid.md");
    let current = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- figures: generated -->\n", "<!-- figures: end -->");
    let (before, rest) = current.split_once(begin).expect("the table begins");
    let (_, after) = rest.split_once(end).expect("the table ends");
    let mut table = "| in JSON | metric | type | meaning |\n|---|---|---|---|\n".to_owned();
    for figure in floe_hybrid::figures() {
        let labels: Vec<_> =
            figure.labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let (name, metric) = (figure.name, figure.metric);
        let (kind, help) = (figure.kind.name(), figure.help);
        table += &format!("| `{name}` | `{metric}{labels}` | {kind} | {help} |\n");
    }
    let text = format!("{before}{begin}\n{table}\n{end}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, text).unwrap();
    } else {
        assert_eq!(text, current, "docs/hybrid.md is stale: set UPDATE_DOCS");
    }
}
