//! Tests of the validation, on settings given as text.

use super::*;

/// The tables that every server needs.
const REST: &str = "[[volume]]\nname = 'a'\nbacking = 'memory:1GiB'\n";

fn config(toml: &str) -> Result<ServerConfig, String> {
    ServerConfig::from_text(toml)
}

fn threads(asked: Option<u64>, shards: Option<u64>, cache_bytes: u64) -> Result<usize, String> {
    let line = |name: &str, value: Option<u64>| {
        value.map(|value| format!("{name} = {value}\n")).unwrap_or_default()
    };
    let text = format!(
        "cache = 'file:/roomy,size=1TiB'\n{}[[tier]]\ncache = 'file:/tight,size={cache_bytes}'\n\
         block-sizes = '4KiB,64KiB'\n{}{REST}",
        line("threads", asked),
        line("shards", shards)
    );
    config(&text).map(|config| config.threads())
}

#[test]
fn every_thread_has_a_shard() {
    assert_eq!(threads(Some(3), Some(8), 64 << 20), Ok(3));
    assert_eq!(threads(Some(64), None, 64 << 30), Ok(64));
    let few = threads(Some(4), Some(2), 64 << 20).unwrap_err();
    assert!(few.contains("more than there are shards"), "{few}");
    for wrong in [0, 65] {
        let problem = threads(Some(wrong), None, 1 << 40).unwrap_err();
        assert!(problem.contains("between 1 and 64"), "{problem}");
    }
}

#[test]
fn a_small_cache_is_not_split_among_all_cores_unless_asked() {
    assert_eq!(threads(None, None, 64 << 10), Ok(1));
    assert_eq!(threads(None, Some(1), 64 << 30), Ok(1));
}

#[test]
fn the_guides_example_is_understood() {
    let guide = include_str!("../../../../../docs/service/configure.md");
    let (_, rest) = guide.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let config: ServerConfig = toml::from_str(example).unwrap();
    let volumes = &config.volume;
    let names: Vec<_> = volumes.iter().map(|volume| (volume.name(), volume.read_only)).collect();
    assert_eq!(names, [("pictures", false), ("archive", true)]);
    assert_eq!(volumes[1].description.as_deref(), Some("until 2024"));
    config.validate_volumes().unwrap();
}

#[test]
fn volumes_must_differ() {
    let a = "cache = 'memory:1MiB'\n[[volume]]\nname = 'a'\nbacking = 'file:one'\n";
    let after = |text: &str| config(&format!("{a}{text}")).unwrap_err();
    let same_name = after("[[volume]]\nbacking = 'memory:4MiB'\nname = 'a'\n");
    assert_eq!(same_name, "line 7: two volumes are named \"a\"");
    let same_file = after("[[volume]]\nname = 'b'\nbacking = 'file:one'\n");
    assert_eq!(same_file, "line 7: volumes \"a\" and \"b\" are the same file");
    let memory = "cache = 'memory:1MiB'\n[[volume]]\nname = 'a'\nbacking = 'memory:4MiB'\n\
                  [[volume]]\nname = 'b'\nbacking = 'memory:4MiB'\n";
    assert!(config(memory).is_ok());
}

#[test]
fn a_persistent_cache_limits_the_names_of_its_volumes() {
    let with = |cache: &str, bytes: usize| {
        let name = "é".repeat(bytes / 2);
        config(&format!("{cache}[[volume]]\nbacking = 'memory:1GiB'\nname = '{name}'\n")).map(drop)
    };
    let file = "cache = 'file:/cache,size=64MiB'\n";
    let below = "cache = 'memory:64MiB'\n[[tier]]\ncache = 'file:/cache,size=64MiB'\n";
    for cache in [file, below] {
        assert_eq!(with(cache, 64), Ok(()));
        let problem = with(cache, 66).unwrap_err();
        assert!(problem.contains("has 66 bytes") && problem.contains("at most 64"), "{problem}");
        assert!(problem.starts_with(&format!("line {}: ", cache.lines().count() + 3)), "{problem}");
    }
    for cache in ["cache = 'memory:64MiB'\n", &format!("{file}volatile = true\n")] {
        assert_eq!(with(cache, 66), Ok(()));
    }
}

#[test]
fn a_volume_that_lacks_something_is_named_by_its_line() {
    for (text, said) in [
        ("\n[[volume]]\nbacking = 'memory:4MiB'\n", "line 2: name is missing"),
        ("[[volume]]\nname = 'a'\n", "line 1: backing is missing"),
        ("[[volume]]\nname = 'a'\n\nbacking = 'disk:5'\n", "line 4: backing: \"disk:5\" is not"),
    ] {
        let problem = config(text).unwrap_err();
        assert!(problem.starts_with(said), "{problem}");
    }
}

#[test]
fn validated_settings_written_as_text_are_the_same_settings() {
    for (settings, volume) in [
        ("", ""),
        (
            "write = 'back'\nflush-interval = '1min 30s'\nshards = 3\nblock-sizes = \
             '4KiB,16KiB'\ninsecure = true\ntls = 'require'\ntls-certificates = 'a \
             \"folder\"'\ntls-verify-peer = true\nmax-connections = 7\nlisten = \
             ['nbds://[::1]:1', 'nbd+unix:///?socket=/a%20b']\n",
            "description = 'a\\\\b'\n",
        ),
        (
            "admin = ['unix:/a/b', '127.0.0.1:1']\nadmin-group = '0'\nadmin-token-file = \
             't'\nadmin-hosts = 'x'\nadmin-paths = ['/dev']\n",
            "",
        ),
        ("admin = '127.0.0.1:1'\n", ""),
        ("memory = '64MiB'\nmemory-write = 'back'\nflush-interval = '7s'\n", ""),
        ("memory = '3MiB'\nmemory-freeze = 'adaptive'\n", ""),
        ("memory = '3MiB'\nmemory-admit = 'second-access + obp:target=0.2'\n", ""),
        ("shed = '12.5%'\n", ""),
        ("memory = '3MiB'\nadmit = 'small-bypass + obp:target=0.2'\n", ""),
        ("write = 'only'\nadmit = 'second-access'\nevict = 's3-fifo:small=0.2'\n", ""),
        ("write = 'pass'\n", ""),
        ("write = 'back'\ndirty-max = '25%'\nstate-dir = '/var/lib/x'\nthreads = 1\n", ""),
        (
            "[[tier]]\ncache = 'file:b,size=1GiB'\nvolatile = true\nwrite = 'back'\nshards = \
             4\n[[tier]]\ncache = 'memory:8MiB'\nblock-sizes = '4KiB'\n",
            "",
        ),
    ] {
        let text = format!(
            "cache = 'memory:64MiB,medium=nvme'\n{settings}[[volume]]\nname = 'a'\nbacking = \
             'file:a=b,size=1GiB'\n{volume}"
        );
        let first = config(&text).unwrap();
        let again = config(&first.to_text()).unwrap();
        assert_eq!(format!("{first:?}"), format!("{again:?}"), "{}", first.to_text());
        let given = text.lines().filter(|line| line.contains(" = "));
        for name in given.filter_map(|line| line.split(" = ").next()) {
            assert!(first.to_text().contains(&format!("{name} = ")), "{name}");
        }
    }
}

#[test]
fn tiers_stand_in_their_order_whether_or_not_a_cache_is_the_first() {
    let tiers = |settings: &str| {
        let config = config(&format!("{settings}{REST}"))?;
        let tiers = config.tiers().map(|tier| (tier.cache_bytes() >> 20, tier.mode()));
        Ok::<_, String>(tiers.collect::<Vec<_>>())
    };
    let below =
        "[[tier]]\ncache = 'memory:8MiB'\nwrite = 'back'\n[[tier]]\ncache = 'memory:16MiB'\n";
    let two = [(8, WriteMode::Back), (16, WriteMode::Through)];
    assert_eq!(tiers(below).unwrap(), two);
    let three = tiers(&format!("cache = 'memory:4MiB'\nwrite = 'around'\n{below}")).unwrap();
    assert_eq!((three[0], &three[1..]), ((4, WriteMode::Around), &two[..]));
    let refused = tiers(&format!("write = 'around'\n{below}")).unwrap_err();
    assert_eq!(refused, "line 1: write applies to cache; each tier has its own");
}

#[test]
fn what_is_wrong_with_a_tier_is_named_by_its_number_and_its_line() {
    for (tier, line, said) in [
        ("write = 'back'", 1, "tier 1: cache is missing"),
        ("cache = 'memory:4MiB'\nwrite = 'up'", 3, "tier 1: write: "),
        ("cache = 'memory:4MiB'\ncache-size = '5MiB'", 3, "but the cache device has 4MiB"),
        ("cache = 'memory:4MiB,color=red'", 2, "tier 1: cache: "),
        ("cache = 'file:/nowhere/tier'", 2, "tier 1: size is missing"),
        (
            "cache = 'memory:4MiB'\n[[tier]]\ncache = 'memory:4MiB'\ndirty-max = '5%'",
            5,
            "tier 2: dirty-max applies to",
        ),
        (
            "cache = 'file:x,size=4MiB'\n[[tier]]\ncache = 'file:x,size=4MiB'",
            4,
            "above it are the same file",
        ),
    ] {
        let problem = config(&format!("[[tier]]\n{tier}\n{REST}")).unwrap_err();
        assert!(problem.starts_with(&format!("line {line}: ")), "{problem}");
        assert!(problem.contains(said), "{problem}");
    }
}

#[test]
fn a_number_out_of_its_range_is_named_by_its_line() {
    let wrong = |text: &str| config(&format!("cache = 'memory:4MiB'\n{text}\n{REST}")).unwrap_err();
    assert_eq!(
        wrong("max-connections = 0"),
        "line 2: max-connections = 0 is not between 1 and 65536"
    );
    assert!(wrong("max-connections = 65537").contains("between 1 and 65536"));
}
