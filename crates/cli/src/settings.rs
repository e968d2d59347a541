//! The settings of a run of the cache, from the command line or a file such as floe.toml.
//!
//! Both have the same settings. The command line describes one volume by `--backing`, `--volume`
//! and `--read-only`, and each tier below the first one in a line. A file has a `[[volume]]` and a
//! `[[tier]]` table for each. [`Settings::plan`] validates all settings in one step, before
//! anything is opened. An error is one line with the setting, and in a file also with its line.

mod place;
mod plan;
mod tier;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::CliError;
use place::Place;
pub(crate) use plan::{Plan, TierPlan, VolumePlan};
use tier::TierTable;

/// Settings given directly or in a file.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// A file with the settings, instead of giving them here
    #[arg(long, value_name = "FILE", conflicts_with_all = ["Settings", "Tables"])]
    config: Option<PathBuf>,
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    settings: Settings,
}

/// The settings as they are written. (clap makes a group of the fields, which `--config` excludes;
/// it does so only for a flat structure.)
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// The fast device, given as the volume is; a missing file is created
    #[arg(long, value_name = "SPEC")]
    pub(crate) cache: Option<String>,
    /// Size of the cache, its metadata included; by default that of the cache device
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_size: Option<String>,
    /// Make the cache anew at each start, as one in memory always is, instead of going on with what
    /// is on its device
    #[arg(long)]
    pub(crate) volatile: bool,
    /// Folder where the state of kept caches is noted, so that an old copy of one is refused
    /// [default: $STATE_DIRECTORY, or /var/lib/floe]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// When writes reach which device: through (default), around, back, only or pass
    #[arg(long, value_name = "MODE")]
    pub(crate) write: Option<String>,
    /// Who decides what comes into the cache, such as obp:target=0.2 or small-bypass+obp; floe help
    /// simulate lists them [default: always]
    #[arg(long, value_name = "ADMISSION")]
    pub(crate) admit: Option<String>,
    /// Which policy decides what leaves the cache, such as s3-fifo or sarc:threshold=4; floe help
    /// simulate lists them [default: lru]
    #[arg(long, value_name = "POLICY")]
    pub(crate) evict: Option<String>,
    /// What floe calibrate found, a file, for what --admit is not told: obp's target [default: what
    /// is noted in the cache, if anything is]
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// How much of the cache may be newer than the volume, with --write back or only: what would be
    /// more is written through [default: 50%]
    #[arg(long, value_name = "SHARE")]
    pub(crate) dirty_max: Option<String>,
    /// Sizes of cached blocks, powers of two from 4KiB to 1MiB [default: those of the cache that is
    /// there, or 32KiB,64KiB,128KiB,256KiB]
    #[arg(long, value_name = "LIST")]
    pub(crate) block_sizes: Option<String>,
    /// Memory for a tier above the cache, everything included: what is read is kept there,
    /// 4KiB-wise
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// When writes reach what is below memory: through (default) or back, which holds up to a
    /// quarter of it unwritten
    #[arg(long, value_name = "WHEN")]
    pub(crate) memory_write: Option<String>,
    /// Who decides what comes into memory, as --admit does for the cache, such as second-access
    /// [default: always]
    #[arg(long, value_name = "ADMISSION")]
    pub(crate) memory_admit: Option<String>,
    /// Whether the hottest pages in memory are frozen as far as that pays: adaptive or off
    /// (default)
    #[arg(long, value_name = "HOW")]
    pub(crate) memory_freeze: Option<String>,
    /// Read up to MOST of the hits from the volume instead of the cache device, as far as that is
    /// found to be faster [default: none, without MOST 50%]
    #[arg(long, value_name = "MOST", num_args = 0..=1, require_equals = true,
        default_missing_value = "50%")]
    pub(crate) shed: Option<String>,
    /// What list operations take on this machine, a file as for floe model, for the advice in floe
    /// status [default: the paper's]
    #[arg(long, value_name = "FILE")]
    pub(crate) service: Option<PathBuf>,
    /// Threads that serve, each with its own shards; by default as many as there are cores and
    /// shards for
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u64>,
    /// Number of shards; by default those of the cache that is there, or one for each GiB, up to
    /// 128, and several a thread
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<u64>,
    /// Where to listen: nbd://HOST:PORT or nbd+unix:///?socket=PATH; may be repeated [default:
    /// nbd://127.0.0.1:10809]
    #[arg(long, value_name = "URI")]
    pub(crate) listen: Vec<String>,
    /// Most clients served at a time; others are hung up on [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) max_connections: Option<u64>,
    /// Whether clients may or must encrypt: off (default), on or require
    #[arg(long, value_name = "WHEN")]
    pub(crate) tls: Option<String>,
    /// Folder with ca-cert.pem, server-cert.pem and server-key.pem
    #[arg(long, value_name = "DIR")]
    pub(crate) tls_certificates: Option<PathBuf>,
    /// Serve only clients that show a certificate signed by ca-cert.pem
    #[arg(long)]
    pub(crate) tls_verify_peer: bool,
    /// Where the admin interface listens: unix:PATH, or HOST:PORT, where it only tells; may be
    /// repeated [default: unix:/run/floe/admin.sock, or $XDG_RUNTIME_DIR/floe/admin.sock]
    #[arg(long, value_name = "ADDRESS")]
    #[serde(deserialize_with = "one_or_more")]
    pub(crate) admin: Vec<String>,
    /// The group that may use the admin socket, too, by name or number [default: only the server's
    /// user]
    #[arg(long, value_name = "GROUP")]
    pub(crate) admin_group: Option<String>,
    /// A file with the token by which clients may change something over TCP as well; others must
    /// not be able to read it
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// A name, beside localhost, by which clients may call the admin interface over TCP; may be
    /// repeated
    #[arg(long, value_name = "NAME")]
    #[serde(deserialize_with = "one_or_more", skip_serializing_if = "Vec::is_empty")]
    pub(crate) admin_hosts: Vec<String>,
    /// A folder in which volumes and tiers may be that are added later; may be repeated [default:
    /// anywhere for the server's user, else beside the files that are served]
    #[arg(long, value_name = "DIR")]
    pub(crate) admin_paths: Option<Vec<PathBuf>>,
    /// How long written data stays in the cache only, with --write back or only, and in memory
    /// only, with --memory-write back [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) flush_interval: Option<String>,
    /// Allow listening on addresses that other machines can reach
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Below the first tier, or all of them where there is no `cache`. Last, as tables are in TOML.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tier: Vec<TierTable>,
    /// One at least.
    #[arg(skip)]
    pub(crate) volume: Vec<VolumeTable>,
}

/// Reads a list of texts; a single text may stand alone.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a string or a list of strings")]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }
    Ok(match OneOrMore::deserialize(deserializer)? {
        OneOrMore::One(text) => vec![text],
        OneOrMore::More(texts) => texts,
    })
}

/// The settings for which a file has tables: one volume, and tiers.
#[derive(Debug, Args)]
struct Tables {
    // Not a doc comment: rustdoc would see links in it.
    #[arg(long, value_name = "SPEC")]
    #[arg(help = "The slow volume: file:PATH[,size=SIZE], memory:SIZE or \
                  stripe:PATH+PATH[,chunk=SIZE][,size=SIZE]; each may end in \
                  ,medium=NAME[,interference=off], and files, for tests of power cuts, in \
                  ,write-cache=volatile")]
    backing: Option<String>,
    #[arg(long, value_name = "SPEC")]
    #[arg(help = "A tier of the cache, below that of --cache and those before; may be repeated. \
                  A device as --cache has, size=SIZE included, and of the tier ,write=MODE \
                  ,admit=ADMISSION ,evict=POLICY ,block-sizes=SIZE+SIZE ,dirty-max=SHARE \
                  ,shards=N ,volatile")]
    tier: Vec<String>,
    /// Name of the volume for clients [default: floe]
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Refuse clients' writes to the volume
    #[arg(long)]
    read_only: bool,
}

/// A `[[volume]]` of a file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct VolumeTable {
    pub(crate) name: Option<String>,
    pub(crate) backing: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) read_only: bool,
}

/// A setting that cannot be used.
#[derive(Debug)]
pub(crate) struct Wrong {
    place: Place,
    problem: String,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem)
    }
}

impl Source {
    /// Validates the settings, wherever they were given.
    pub(crate) fn plan(self) -> Result<Plan, CliError> {
        match self.config {
            Some(file) => Plan::from_file(&file),
            None => {
                let Tables { backing, tier, volume, read_only } = self.tables;
                let name = volume.or_else(|| Some("floe".into()));
                let volume = vec![VolumeTable { name, backing, read_only, description: None }];
                let tier = tier.iter().enumerate().map(|(index, text)| {
                    let problem =
                        |problem| CliError::usage(format!("tier {}: {problem}", index + 1));
                    TierTable::parse(text).map_err(problem)
                });
                let tier = tier.collect::<Result<_, _>>()?;
                let settings = Settings { volume, tier, ..self.settings };
                settings.plan().map_err(|wrong| CliError::usage(wrong.to_string()))
            }
        }
    }
}

impl Plan {
    /// Validates the settings in a file.
    pub(crate) fn from_file(file: &Path) -> Result<Self, CliError> {
        let refuse = |problem: &str| CliError::usage(format!("{}: {problem}", file.display()));
        let at = |line: Option<usize>, problem: &str| match line {
            Some(line) => refuse(&format!("line {line}: {problem}")),
            None => refuse(problem),
        };
        let text = std::fs::read_to_string(file).map_err(|error| refuse(&error.to_string()))?;
        let settings: Settings = toml::from_str(&text).map_err(|error| {
            let start = error.span().map(|span| span.start);
            let setting = start.and_then(|start| place::setting_at(&text, start));
            let setting = setting.map(|setting| format!("{setting}: ")).unwrap_or_default();
            let line = start.map(|start| place::line_at(&text, start));
            at(line, &format!("{setting}{}", error.message()))
        })?;
        settings.plan().map_err(|wrong| at(wrong.place.line(&text), &wrong.problem))
    }
}
