//! `floe volume share`: changes the share of a volume in each tier of a running server.

use std::str::FromStr;

use clap::Args;
use floe_server::VolumeShare;
use floe_server::admin::{ShareChange, client};
use floe_server::config::CachePortion;
use floe_server::status::VolumeStatus;

use crate::admin::Answer;
use crate::error::CliError;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  floe volume share pictures --guaranteed 10GiB --most 50%
  floe volume share pictures --most none     # lifts it";

/// A part of each tier, or the end of one.
#[derive(Debug, Clone, Copy)]
struct PortionOrNone(Option<CachePortion>);

impl FromStr for PortionOrNone {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let portion = if text == "none" { Ok(None) } else { text.parse().map(Some) };
        portion.map(Self).map_err(|problem| format!("{problem}, or none"))
    }
}

/// The share of a volume to be added as options, none of which must be given.
#[derive(Debug, Args)]
pub(crate) struct ShareOptions {
    /// The part of each tier, a size or a percentage, that other volumes do not evict
    #[arg(long, value_name = "PART")]
    cache_guaranteed: Option<CachePortion>,
    /// The largest part of each tier, a size or a percentage, that the volume uses
    #[arg(long, value_name = "PART")]
    cache_most: Option<CachePortion>,
}

impl ShareOptions {
    /// Returns the change that the options describe.
    pub(crate) fn change(&self) -> Result<ShareChange, CliError> {
        let Self { cache_guaranteed, cache_most } = *self;
        let change =
            ShareChange { guaranteed: cache_guaranteed.map(Some), most: cache_most.map(Some) };
        possible(change)
    }
}

/// Returns the change if some volume can have it.
fn possible(change: ShareChange) -> Result<ShareChange, CliError> {
    change
        .applied(VolumeShare::default())
        .map_or_else(|wrong| Err(CliError::usage(wrong)), |_| Ok(change))
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Share {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    name: String,
    /// The part of each tier, a size or a percentage, that other volumes do not evict; none for
    /// nothing
    #[arg(long, value_name = "PART")]
    guaranteed: Option<PortionOrNone>,
    /// The largest part of each tier, a size or a percentage, that the volume uses; none for all of
    /// it
    #[arg(long, value_name = "PART")]
    most: Option<PortionOrNone>,
    #[command(flatten)]
    answer: Answer,
}

impl Share {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let change = possible(ShareChange {
            guaranteed: self.guaranteed.map(|PortionOrNone(portion)| portion),
            most: self.most.map(|PortionOrNone(portion)| portion),
        })?;
        if change == ShareChange::default() {
            return Err(CliError::usage("give --guaranteed or --most"));
        }
        let shared = client::share_volume(&self.answer.endpoint()?, &self.name, &change)?;
        let text = format!("{}: {}", shared.name, shared.cache_share);
        self.answer.print(&shared, &text)
    }
}

/// Returns the bytes that a volume uses of each tier, from the top.
pub(crate) fn used(volume: &VolumeStatus) -> String {
    let used = volume.cached.iter().map(|tier| output::bytes(tier.used_bytes));
    used.collect::<Vec<_>>().join(", ")
}
