//! The reference of settings in the documentation, generated from their declarations.

use floe_server::config::{ServerConfig, Setting, SettingKind, VolumeConfig};

/// Formats a single word as code; returns a phrase unchanged.
fn shown(text: &str) -> String {
    match text {
        "" => "–".to_owned(),
        _ if text.contains('$') => format!("`{text}`"),
        _ if text.contains(", ") || text.contains(" or ") => text.to_owned(),
        _ if text.split(' ').count() > 1 => text.to_owned(),
        _ => format!("`{text}`"),
    }
}

fn row(setting: &Setting) -> String {
    let name = setting.name();
    let value = match (setting.kind, setting.unit) {
        (SettingKind::Flag, _) => "`true` or `false`".to_owned(),
        (_, "") => format!("`{}`", setting.value),
        (_, unit) => format!("`{}`, {unit}", setting.value),
    };
    let forms: Vec<_> =
        setting.forms.split(" or ").map(|forms| forms.replace(", ", "`, `")).collect();
    let forms = match setting.forms {
        "" => String::new(),
        _ => format!(" (`{}`)", forms.join("` or `")),
    };
    let range = setting.range.map(|(low, high)| format!(", from {low} to {high}"));
    let guide = match setting.guide {
        "" => String::new(),
        link => format!(" ([guide]({link}))"),
    };
    let (meaning, range) = (setting.meaning(), range.unwrap_or_default());
    let (default, example) = (shown(setting.default), shown(setting.example));
    format!("| `{name}` | {value} | {default} | {meaning}{range}{forms}{guide} | {example} |\n")
}

fn table<'a>(settings: impl Iterator<Item = &'a Setting>) -> String {
    let head = "| setting | value | default | meaning | example |\n|---|---|---|---|---|\n";
    head.to_owned() + &settings.map(row).collect::<String>()
}

fn reference() -> String {
    let of_tier: Vec<_> = floe_server::config::TierConfig::settings()
        .map(|setting| format!("`{}`", setting.name()))
        .collect();
    format!(
        "{}\nA `[[volume]]` table; on the command line its name is `--volume`, by default `floe`, \
         and\n`description` has no option:\n\n{}\nA `[[tier]]` table, `--tier SPEC` on the command \
         line, has these settings with the meanings above\n([tiers.md](tiers.md)):\n{}.\n",
        table(ServerConfig::settings()),
        table(VolumeConfig::settings()),
        of_tier.join(",\n"),
    )
}

/// With UPDATE_DOCS set, the reference is written instead of compared.
#[test]
fn the_documented_settings_are_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/service/settings.md");
    let (begin, end) = ("<!-- settings: generated -->\n\n", "\n<!-- settings: end -->");
    let text = std::fs::read_to_string(path).expect("the page is there");
    let (before, rest) = text.split_once(begin).expect("the page has a table");
    let (_, after) = rest.split_once(end).expect("the table has an end");
    let current = [before, begin, &reference(), end, after].concat();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &current).expect("the page can be written");
    } else {
        assert_eq!(text, current, "{path} is stale: run this test with UPDATE_DOCS=1");
    }
}

/// The help on tiers lists every tier setting.
#[test]
fn the_help_on_tiers_is_whole() {
    let forms = floe_server::config::own_forms();
    for name in ["calibration=FILE", "dirty-max=SHARE", "block-sizes=SIZE+SIZE", "volatile"] {
        assert!(forms.iter().any(|form| form == name), "{name} is not in {forms:?}");
    }
}

/// Users depend on the names of settings, so none is ever removed from the list.
#[test]
fn names_of_settings_stay() {
    let pinned = [
        "cache",
        "cache-size",
        "volatile",
        "state-dir",
        "write",
        "admit",
        "evict",
        "calibration",
        "dirty-max",
        "block-sizes",
        "memory",
        "memory-write",
        "memory-admit",
        "memory-freeze",
        "shed",
        "service",
        "threads",
        "shards",
        "listen",
        "max-connections",
        "total-requests-per-second",
        "total-bytes-per-second",
        "total-burst",
        "tls",
        "tls-certificates",
        "tls-verify-peer",
        "admin",
        "admin-group",
        "admin-token-file",
        "admin-hosts",
        "admin-paths",
        "flush-interval",
        "insecure",
    ];
    let names: Vec<String> = ServerConfig::settings().map(Setting::name).collect();
    for name in pinned {
        assert!(names.iter().any(|known| known == name), "{name} is a setting no more");
    }
    let of_volume: Vec<String> = VolumeConfig::settings().map(Setting::name).collect();
    assert_eq!(
        of_volume,
        [
            "name",
            "backing",
            "read-only",
            "holds-cache",
            "nvme-block-size",
            "requests-per-second",
            "bytes-per-second",
            "client-requests-per-second",
            "client-bytes-per-second",
            "clients",
            "limit-burst",
            "weight",
            "connections",
            "cache-guaranteed",
            "cache-most",
            "attach",
            "share",
            "description"
        ]
    );
}
