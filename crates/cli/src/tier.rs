//! `floe tier`: lists, attaches, detaches and resizes tiers of a running server's cache.

use clap::{Args, Subcommand};
use floe_server::admin::{NewTier, client};
use floe_server::config::Bytes;
use floe_server::status::TierStatus;
use serde_json::json;

use crate::admin::{Answer, Server};
use crate::error::{CliError, OrFail};
use crate::{draining, output};

#[derive(Debug, Subcommand)]
pub(crate) enum TierCommand {
    /// List the tiers, from the top
    List(List),
    /// Attach a tier below the first, while clients are served
    Add(Add),
    /// Detach a tier after writing its dirty data below it, while clients are served
    Remove(Remove),
    /// Change the size of a tier, while clients are served
    Resize(ResizeArguments),
}

const LIST_EXAMPLES: &str = "\
Examples:
  floe tier list
  floe tier list --json | jq -r .name     # each as --tier takes it";

#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct List {
    #[command(flatten)]
    server: Server,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

const ADD_EXAMPLES: &str = "\
Examples:
  floe tier add file:/dev/nvme1n1                       # below all others
  floe tier add memory:8GiB,write=back --at 1           # directly below the first
  floe tier add file:/dev/sdc,write=back --initialise   # whatever is on it";

#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(crate) struct Add {
    /// Its device and settings, as floe serve --tier takes them; paths are the server's
    #[arg(value_name = "SPEC")]
    tier: String,
    /// Its number from the top, 1 or more [default: below all others]
    #[arg(long, value_name = "N")]
    at: Option<usize>,
    /// Make a new cache on its device, whatever the device holds
    #[arg(long)]
    initialise: bool,
    /// Discard the dirty data of a cache on the device; the log says how much
    #[arg(long, requires = "initialise")]
    discard_dirty: bool,
    #[command(flatten)]
    answer: Answer,
}

const REMOVE_EXAMPLES: &str = "\
Examples:
  floe tier list
  floe tier remove 1";

#[derive(Debug, Args)]
#[command(after_help = REMOVE_EXAMPLES)]
pub(crate) struct Remove {
    /// Its number from the top, 1 or more
    #[arg(value_name = "N")]
    number: usize,
    #[command(flatten)]
    answer: Answer,
}

const RESIZE_EXAMPLES: &str = "\
Examples:
  floe tier resize 0 64GiB
  floe tier resize 1 200GiB --json";

#[derive(Debug, Args)]
#[command(after_help = RESIZE_EXAMPLES)]
pub(crate) struct ResizeArguments {
    /// Its number from the top, from 0
    #[arg(value_name = "N")]
    number: usize,
    /// The new size, a multiple of 4KiB
    #[arg(value_name = "SIZE")]
    size: Bytes,
    #[command(flatten)]
    answer: Answer,
}

pub(crate) fn run(command: &TierCommand) -> Result<(), CliError> {
    match command {
        TierCommand::List(List { server, json }) => {
            let tiers = client::tiers(&server.endpoint()?)?;
            if *json {
                return tiers.iter().try_for_each(output::json_line).or_failure();
            }
            print(&tiers);
            Ok(())
        }
        TierCommand::Add(Add { tier, at, initialise, discard_dirty, answer }) => {
            let new = NewTier {
                tier: tier.clone(),
                at: *at,
                initialise: *initialise,
                discard_dirty: *discard_dirty,
            };
            let (number, added) = client::add_tier(&answer.endpoint()?, &new)?;
            let size = output::bytes(added.size_bytes);
            answer.print(&added, &format!("added tier {number}: {} of {size}", added.name))
        }
        TierCommand::Remove(Remove { number, answer }) => {
            let server = answer.endpoint()?;
            let is_removed = |tier| tier == *number;
            draining::show(&server, is_removed, || client::remove_tier(&server, *number))?;
            answer.print(&json!({ "removed": number }), &format!("removed tier {number}"))
        }
        TierCommand::Resize(ResizeArguments { number, size: Bytes(bytes), answer }) => {
            let server = answer.endpoint()?;
            let over = |tiers: &[TierStatus]| {
                tiers.get(*number).map_or(0, |tier| tier.valid_bytes.saturating_sub(*bytes))
            };
            let resize = || client::resize_tier(&server, *number, *bytes);
            let (before, after) = draining::follow(&server, "giving back space", over, resize)?;
            let [was, is] = [before.size_bytes, after.size_bytes].map(output::bytes);
            let said = match before.size_bytes == after.size_bytes {
                true => format!("tier {number} has {is} already"),
                false => format!("resized tier {number} from {was} to {is}"),
            };
            answer.print(&after, &said)
        }
    }
}

/// Prints the tiers as a table.
fn print(tiers: &[TierStatus]) {
    let mut table = output::table(&["tier", "name", "size", "valid", "dirty", ""], 2);
    for (number, tier) in tiers.iter().enumerate() {
        table.add_row(vec![
            number.to_string(),
            tier.name.clone(),
            output::bytes(tier.size_bytes),
            output::bytes(tier.valid_bytes),
            output::bytes(tier.dirty_bytes),
            tier.standing().to_owned(),
        ]);
    }
    output::print_list(table, &[1]);
}
