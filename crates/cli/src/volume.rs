//! `floe volume`: lists and changes the volumes of a running server.

use clap::{Args, Subcommand, ValueEnum};
use floe_device::Spec;
use floe_server::NamedClients;
use floe_server::admin::{AnaState, NewVolume, Resize, client};
use floe_server::config::{Bytes, LogicalBlock};
use floe_server::status::VolumeStatus;
use serde_json::json;

use crate::admin::{Answer, Server};
use crate::error::{CliError, OrFail};
use crate::output;

use self::evict::Evict;
use self::limit::{Limit, Limits};
use self::share::{Share, ShareOptions};
use self::warm::Warm;

mod evict;
pub(crate) mod limit;
mod parts;
mod share;
mod warm;

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// List the volumes
    List(List),
    /// Add a volume
    Add(Add),
    /// Remove a volume that no client uses, after writing its dirty data to its backing device
    Remove(Remove),
    /// Resize a volume
    Resize(ResizeArguments),
    /// Limit the requests and the number of a volume's clients
    Limit(Limit),
    /// Change the part of each tier that a volume uses
    Share(Share),
    /// Bring a volume, or parts of it, into the cache
    Warm(Warm),
    /// Drop what the cache has of a volume, or of parts of it
    Evict(Evict),
    /// Set the access that NVMe hosts have to a volume on this server
    Ana(Ana),
}

const LIST_EXAMPLES: &str = "\
Examples:
  floe volume list
  floe volume list --json | jq -r .name";

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
  floe volume add pictures file:/dev/vdc
  floe volume add archive file:/srv/archive.img --read-only --description 'until 2024'";

#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(crate) struct Add {
    /// Name of the volume for clients
    #[arg(value_name = "NAME")]
    name: String,
    /// The slow volume, as floe serve takes it; paths are the server's
    #[arg(value_name = "SPEC")]
    backing: Spec,
    /// Refuse clients' writes to the volume
    #[arg(long)]
    read_only: bool,
    /// Serve the volume although its device is a cache of Floe: that of a client, which is a Floe
    /// server itself
    #[arg(long)]
    holds_cache: bool,
    /// The size of the logical blocks that NVMe hosts see, 512 or 4KiB
    #[arg(long, value_name = "SIZE", default_value = "512", hide_default_value = true)]
    nvme_block_size: LogicalBlock,
    /// A description for clients that list the volumes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    share: ShareOptions,
    #[command(flatten)]
    answer: Answer,
}

const REMOVE_EXAMPLES: &str = "\
Examples:
  floe volume remove pictures
  floe volume remove pictures --force     # also if clients use it: it is taken from them";

#[derive(Debug, Args)]
#[command(after_help = REMOVE_EXAMPLES)]
pub(crate) struct Remove {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    name: String,
    /// Remove it even while clients use it; NBD clients are disconnected
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    answer: Answer,
}

const RESIZE_EXAMPLES: &str = "\
Examples:
  floe volume resize pictures          # to what its backing device has by now
  floe volume resize pictures 20GiB";

#[derive(Debug, Args)]
#[command(after_help = RESIZE_EXAMPLES)]
pub(crate) struct ResizeArguments {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    name: String,
    /// The new size, for volumes in files and memory [default: the present size of the backing
    /// device]
    #[arg(value_name = "SIZE")]
    size: Option<Bytes>,
    #[command(flatten)]
    answer: Answer,
}

const ANA_EXAMPLES: &str = "\
Examples:
  floe volume ana pictures inaccessible     # hosts use other paths, or wait
  floe volume ana pictures optimized";

#[derive(Debug, Args)]
#[command(after_help = ANA_EXAMPLES)]
pub(crate) struct Ana {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    name: String,
    /// The access from now on
    #[arg(value_name = "STATE")]
    state: State,
    #[command(flatten)]
    answer: Answer,
}

/// A state of asymmetric namespace access.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    /// Hosts use the volume on this server
    Optimized,
    /// Hosts use another path, and wait while there is none
    Inaccessible,
    /// The access is about to change: hosts wait for that for a few seconds
    Change,
}

impl From<State> for AnaState {
    fn from(state: State) -> Self {
        match state {
            State::Optimized => Self::Optimized,
            State::Inaccessible => Self::Inaccessible,
            State::Change => Self::Change,
        }
    }
}

pub(crate) fn run(command: &VolumeCommand) -> Result<(), CliError> {
    match command {
        VolumeCommand::List(List { server, json }) => {
            let volumes = client::volumes(&server.endpoint()?)?;
            if *json {
                return volumes.iter().try_for_each(output::json_line).or_failure();
            }
            print(&volumes);
            Ok(())
        }
        VolumeCommand::Add(Add {
            name,
            backing,
            read_only,
            holds_cache,
            nvme_block_size,
            description,
            limits,
            share,
            answer,
        }) => {
            let volume = NewVolume {
                name: name.clone(),
                backing: backing.to_string(),
                read_only: *read_only,
                holds_cache: *holds_cache,
                nvme_block_bytes: Some(nvme_block_size.0.bytes()).filter(|bytes| *bytes != 512),
                description: description.clone(),
                limit: limits.change()?,
                share: share.change()?,
            };
            let added = client::add_volume(&answer.endpoint()?, &volume)?;
            let size = output::bytes(added.bytes);
            let excess = limit::excess(&added);
            answer.print(&added, &format!("added {} of {size}{excess}", added.name))
        }
        VolumeCommand::Remove(Remove { name, force, answer }) => {
            client::remove_volume(&answer.endpoint()?, name, *force)?;
            answer.print(&json!({ "removed": name }), &format!("removed {name}"))
        }
        VolumeCommand::Limit(limit) => limit.run(),
        VolumeCommand::Share(share) => share.run(),
        VolumeCommand::Warm(warm) => warm.run(),
        VolumeCommand::Evict(evict) => evict.run(),
        VolumeCommand::Ana(Ana { name, state, answer }) => {
            let state = AnaState::from(*state);
            client::set_access(&answer.endpoint()?, name, state)?;
            let set = json!({ "volume": name, "state": state });
            answer.print(&set, &format!("{name} is {state} for NVMe hosts"))
        }
        VolumeCommand::Resize(ResizeArguments { name, size, answer }) => {
            let resize = Resize { size_bytes: size.map(|Bytes(bytes)| bytes) };
            let resized = client::resize_volume(&answer.endpoint()?, name, &resize)?;
            let size = output::bytes(resized.bytes);
            answer.print(&resized, &format!("resized {} to {size}", resized.name))
        }
    }
}

/// Prints the volumes as a table.
pub(crate) fn print(volumes: &[VolumeStatus]) {
    // Most servers have no limits and no shares.
    let names_clients = |it: &VolumeStatus| it.limit.clients != NamedClients::NONE;
    let is_limited =
        |it: &VolumeStatus| it.limit.is_any() || it.limit.has_weight() || names_clients(it);
    let has_limits = volumes.iter().any(|it| is_limited(it) || it.delayed_requests > 0);
    let has_refused = volumes.iter().any(|it| it.refused_connections > 0);
    let has_shares = volumes.iter().any(|it| it.cache_share.is_any());
    let mut columns = vec!["volume", "access", "size", "clients", "requests"];
    if has_limits {
        columns.extend(["limit", "delayed"]);
    }
    if has_shares {
        columns.extend(["share", "cached"]);
    }
    if has_refused {
        columns.push("refused");
    }
    let mut table = output::table(&columns, 2);
    for volume in volumes {
        let mut row = vec![
            volume.name.clone(),
            if volume.read_only { "read-only" } else { "read-write" }.to_owned(),
            output::bytes(volume.bytes),
            volume.connections_by_protocol.to_string(),
            volume.requests.to_string(),
        ];
        if has_limits {
            let (requests, seconds) = (volume.delayed_requests, volume.delayed_seconds);
            row.extend([limit::shown(&volume.limit), format!("{requests} ({seconds:.1} s)")]);
        }
        if has_shares {
            row.extend([volume.cache_share.to_string(), share::used(volume)]);
        }
        if has_refused {
            row.push(output::counted(volume.refused_connections as usize, "client"));
        }
        table.add_row(row);
    }
    output::print_list(table, &[0, 3, 5, 6]);
    print_clients(volumes);
}

/// Prints the requests of the clients that volumes name as a table, if there are any.
fn print_clients(volumes: &[VolumeStatus]) {
    let uses = volumes.iter().flat_map(|it| it.client_use.iter().map(move |of| (&it.name, of)));
    let mut uses = uses.peekable();
    if uses.peek().is_none() {
        return;
    }
    let mut table = output::table(&["client", "volume", "requests", "bytes", "delayed"], 2);
    for (volume, (client, counts)) in uses {
        let (requests, seconds) = (counts.delayed_requests, counts.delayed_seconds);
        table.add_row(vec![
            client.to_string(),
            volume.clone(),
            counts.requests.to_string(),
            output::bytes(counts.bytes),
            format!("{requests} ({seconds:.1} s)"),
        ]);
    }
    output::say!();
    output::print_list(table, &[0, 1]);
}
