//! The demonstration prints what it always printed, and runs on the server's defaults.

use floe_block::{Memory, WriteMode};
use floe_lab::demo;
use floe_server::config::{ServerConfig, TierConfig, VolumeConfig};

/// The output of `make demo`, to the last digit. `UPDATE_DOCS=1` writes it.
#[test]
fn the_demonstration_prints_the_same_on_every_machine() {
    let rows = demo::run(|_| ()).unwrap();
    let printed = format!("{}\n\n{}\n", demo::introduction(), demo::text(&rows));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/demo.txt");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &printed).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap();
    assert_eq!(printed, expected, "UPDATE_DOCS=1 writes tests/demo.txt anew");
}

#[test]
fn the_demonstration_uses_the_defaults_of_the_server() {
    let plan = demo::plan(WriteMode::Back);
    let config = ServerConfig {
        first: TierConfig {
            cache: Some(plan.tiers[0].device.clone()),
            write: Some(WriteMode::Back),
            ..TierConfig::default()
        },
        volume: vec![VolumeConfig {
            name: Some("demo".to_owned()),
            backing: Some(plan.volumes[0].spec.clone()),
            ..VolumeConfig::default()
        }],
        ..ServerConfig::default()
    };
    let config = config.validated().unwrap();
    let tier = config.first.config(Memory::None, 0);
    assert_eq!(format!("{:?}", plan.tiers[0].config), format!("{tier:?}"));
    assert_eq!(plan.tiers[0].most_dirty_bytes, config.first.most_dirty_bytes());
    assert_eq!(demo::setup().flush_interval, config.serving.flush_interval());
}
