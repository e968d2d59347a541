//! Settings as text, and what is made of them.

use floe_block::{Admissions, Evict};
use floe_server::admin::AllowedPaths;

use super::*;

fn fit(asked: Option<u64>, shards: Option<u64>, cache_bytes: u64) -> Result<usize, String> {
    let tier = TierPlan {
        cache: "memory:1MiB".parse().unwrap(),
        cache_bytes,
        volatile: false,
        mode: WriteMode::Back,
        admit: Admissions::default(),
        evict: Evict::default(),
        sizes: Some("4KiB,64KiB".parse().unwrap()),
        dirty_max: None,
        shards,
    };
    let roomy = TierPlan { cache_bytes: 1 << 40, shards: None, ..tier.clone() };
    threads(asked, &[roomy, tier]).map_err(|wrong| wrong.to_string())
}

#[test]
fn every_thread_has_a_shard() {
    assert_eq!(fit(Some(3), Some(8), 64 << 20), Ok(3));
    assert_eq!(fit(Some(64), None, 64 << 30), Ok(64));
    assert!(fit(Some(4), Some(2), 64 << 20).unwrap_err().contains("more than there are shards"));
    for wrong in [0, 65] {
        assert!(fit(Some(wrong), None, 1 << 40).unwrap_err().contains("between 1 and 64"));
    }
}

fn volumes(toml: &str) -> Result<Vec<VolumePlan>, (Option<usize>, String)> {
    let settings: Settings = toml::from_str(toml).unwrap();
    settings.volumes().map_err(|wrong| (wrong.place.line(toml), wrong.problem))
}

#[test]
fn the_guides_example_is_understood() {
    let guide = include_str!("../../../../../docs/service/configure.md");
    let (_, rest) = guide.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let plans = volumes(example).unwrap();
    let names: Vec<_> = plans.iter().map(|plan| (plan.name.as_str(), plan.read_only)).collect();
    assert_eq!(names, [("pictures", false), ("archive", true)]);
    assert_eq!(plans[1].description, "until 2024");
}

#[test]
fn volumes_must_differ() {
    let a = "[[volume]]\nname = 'a'\nbacking = 'file:one'\n";
    let after = |text: &str| volumes(&format!("{a}{text}")).unwrap_err();
    let (line, problem) = after("[[volume]]\nbacking = 'memory:4MiB'\nname = 'a'\n");
    assert_eq!((line, problem.as_str()), (Some(6), "two volumes are named \"a\""));
    let (line, problem) = after("[[volume]]\nname = 'b'\nbacking = 'file:one'\n");
    assert_eq!((line, problem.as_str()), (Some(6), "volumes \"a\" and \"b\" are the same file"));
    assert!(
        volumes(
            "[[volume]]\nname = 'a'\nbacking = 'memory:4MiB'\n                         \
             [[volume]]\nname = 'b'\nbacking = 'memory:4MiB'\n"
        )
        .is_ok()
    );
}

#[test]
fn a_volume_that_lacks_something_is_named_by_its_line() {
    let (line, problem) = volumes("\n[[volume]]\nbacking = 'memory:4MiB'\n").unwrap_err();
    assert!(line == Some(2) && problem.starts_with("name is missing"), "{problem}");
    let (line, problem) = volumes("[[volume]]\nname = 'a'\n").unwrap_err();
    assert!(line == Some(1) && problem.starts_with("backing is missing"), "{problem}");
    let (line, problem) = volumes("[[volume]]\nname = 'a'\n\nbacking = 'disk:5'\n").unwrap_err();
    assert!(line == Some(4) && problem.starts_with("backing: unknown kind"), "{problem}");
}

#[test]
fn a_plan_written_as_settings_is_the_same_plan() {
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
        ("write = 'back'\ndirty-max = '25%'\n", ""),
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
        let plan = |text: &str| toml::from_str::<Settings>(text).unwrap().plan().unwrap();
        let (first, text) = (plan(&text), toml::to_string(&plan(&text).settings()).unwrap());
        assert_eq!(format!("{first:?}"), format!("{:?}", plan(&text)), "{text}");
    }
}

#[test]
fn a_small_cache_is_not_split_among_all_cores_unless_asked() {
    assert_eq!(fit(None, None, 64 << 10), Ok(1));
    assert_eq!(fit(None, Some(1), 64 << 30), Ok(1));
}

#[test]
fn tiers_stand_in_their_order_whether_or_not_a_cache_is_the_first() {
    let volume = "[[volume]]\nname = 'a'\nbacking = 'memory:1GiB'\n";
    let tiers = |settings: &str| {
        let settings: Settings = toml::from_str(&format!("{settings}{volume}")).unwrap();
        let plan = settings.plan().map_err(|wrong| wrong.to_string())?;
        Ok::<_, String>(
            plan.tiers.iter().map(|tier| (tier.cache_bytes >> 20, tier.mode)).collect::<Vec<_>>(),
        )
    };
    let below =
        "[[tier]]\ncache = 'memory:8MiB'\nwrite = 'back'\n[[tier]]\ncache = 'memory:16MiB'\n";
    let two = [(8, WriteMode::Back), (16, WriteMode::Through)];
    assert_eq!(tiers(below).unwrap(), two);
    let three = tiers(&format!("cache = 'memory:4MiB'\nwrite = 'around'\n{below}")).unwrap();
    assert_eq!((three[0], &three[1..]), ((4, WriteMode::Around), &two[..]));
    let refused = tiers(&format!("write = 'around'\n{below}")).unwrap_err();
    assert_eq!(refused, "write is for cache; of tiers, each has its own");
}

#[test]
fn what_is_wrong_with_a_tier_is_named_by_its_number_and_its_line() {
    for (tier, line, said) in [
        ("write = 'back'", 1, "tier 1: cache is missing"),
        ("cache = 'memory:4MiB'\nwrite = 'up'", 3, "tier 1: write: "),
        ("cache = 'memory:4MiB'\ncache-size = '5MiB'", 3, "but the cache device has 4MiB"),
        ("cache = 'memory:4MiB,color=red'", 2, "of a tier there are also write=MODE"),
        ("cache = 'file:/nowhere/tier'", 2, "tier 1: size is missing"),
        (
            "cache = 'memory:4MiB'\n[[tier]]\ncache = 'memory:4MiB'\ndirty-max = '5%'",
            5,
            "tier 2: dirty-max is for",
        ),
        (
            "cache = 'file:x,size=4MiB'\n[[tier]]\ncache = 'file:x,size=4MiB'",
            4,
            "tier 2: it is the same file",
        ),
    ] {
        let text = format!("[[tier]]\n{tier}\n[[volume]]\nname = 'a'\nbacking = 'memory:1GiB'\n");
        let wrong = toml::from_str::<Settings>(&text).unwrap().plan().unwrap_err();
        assert_eq!(wrong.place.line(&text), Some(line), "{wrong}");
        assert!(wrong.to_string().contains(said), "{wrong}");
    }
}

#[test]
fn a_tier_is_named_by_all_that_makes_it() {
    for text in [
        "memory:64MiB,medium=pmem,write=back,admit=duel + \
         obp:target=0.3,evict=s3-fifo,block-sizes=4KiB+64KiB,dirty-max=30%,shards=2,volatile",
        "memory:64MiB,write=through",
    ] {
        assert_eq!(TierPlan::of(text, &AllowedPaths::All).unwrap().name(), text);
    }
}
