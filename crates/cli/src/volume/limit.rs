//! `floe volume limit`: changes the limits of a volume's requests and connections on a running
//! server.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use floe_server::admin::{LimitChange, TotalLimitChange, client};
use floe_server::config::{Bytes, Interval};
use floe_server::status::VolumeStatus;
use floe_server::{ClientChanges, ClientLimit, ClientName, NamedClient, RequestLimit, TotalLimit};

use crate::admin::Answer;
use crate::error::CliError;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  floe volume limit pictures --requests-per-second 5000 --bytes-per-second 100MiB
  floe volume limit pictures --bytes-per-second none     # lifts it
  floe volume limit pictures --client-bytes-per-second 20MiB
  floe volume limit pictures --client 10.0.0.0/8,requests-per-second=500
  floe volume limit pictures --client 10.0.0.0/8,none    # has that of each client again
  floe volume limit pictures --connections 20            # disconnects nobody
  floe volume limit pictures --weight 300                # see floe limit";

/// A number of connections.
#[derive(Debug, Clone, Copy)]
struct Connections(u64);

impl FromStr for Connections {
    type Err = <u64 as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl LimitForm for Connections {
    const FORM: &str = "a number from 1 to 65536, such as 20";
}

/// A limit, or its end.
#[derive(Debug, Clone, Copy)]
struct OrNone<T>(Option<T>);

/// A type of limits.
trait LimitForm: FromStr {
    /// The values that a limit can have, with an example.
    const FORM: &str;
}

impl LimitForm for u64 {
    const FORM: &str = "a number from 1 to 1000000000, such as 5000";
}

impl LimitForm for Bytes {
    const FORM: &str = "a size of at least 4KiB, such as 100MiB";
}

impl<T: LimitForm> FromStr for OrNone<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => match text.parse() {
                Ok(limit) => Ok(Self(Some(limit))),
                Err(_) => {
                    Err(format!("`{text}` is neither a limit nor none; a limit is {}", T::FORM))
                }
            },
        }
    }
}

/// A client with limits of its own, or the end of these.
#[derive(Debug, Clone)]
struct ClientChange(ClientName, Option<ClientLimit>);

impl FromStr for ClientChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix(",none") {
            Some(name) => Ok(Self(name.parse()?, None)),
            None => text.parse().map(|NamedClient { name, limit }| Self(name, Some(limit))),
        }
    }
}

/// The limits of a volume as options, none of which must be given.
#[derive(Debug, Args)]
pub(crate) struct Limits {
    /// The most requests per second of all clients of the volume; none for no limit
    #[arg(long, value_name = "N")]
    requests_per_second: Option<OrNone<u64>>,
    /// The most bytes per second that all clients of the volume read, write and zero; none for no
    /// limit
    #[arg(long, value_name = "SIZE")]
    bytes_per_second: Option<OrNone<Bytes>>,
    /// The most requests per second of each client of the volume; none for no limit
    #[arg(long, value_name = "N")]
    client_requests_per_second: Option<OrNone<u64>>,
    /// The most bytes per second that each client of the volume reads, writes and zeroes; none for
    /// no limit
    #[arg(long, value_name = "SIZE")]
    client_bytes_per_second: Option<OrNone<Bytes>>,
    /// A client with limits of its own instead of those of each client, and with a weight among the
    /// clients of the volume: NAME and any of ,requests-per-second=N ,bytes-per-second=SIZE and
    /// ,weight=N or NAME,none; may be repeated
    #[arg(long, value_name = "CLIENT")]
    client: Vec<ClientChange>,
    /// The time's worth of the limits that may start at once after a pause
    #[arg(long, value_name = "DURATION")]
    limit_burst: Option<Interval>,
    /// The most connections to the volume at one time, of NBD clients and NVMe hosts; none for no
    /// limit
    #[arg(long, value_name = "N")]
    connections: Option<OrNone<Connections>>,
    /// The volume's part of the limits of the server while volumes compete, in proportion to the
    /// weights of the others; 100 unless set
    #[arg(long, value_name = "N")]
    weight: Option<u64>,
}

impl Limits {
    /// Returns the change that the options describe.
    pub(crate) fn change(&self) -> Result<LimitChange, CliError> {
        let bytes = |limit: Option<OrNone<Bytes>>| {
            limit.map(|OrNone(limit)| limit.map(|Bytes(bytes)| bytes))
        };
        let requests = |limit: Option<OrNone<u64>>| limit.map(|OrNone(limit)| limit);
        let mut clients = ClientChanges::new();
        for ClientChange(name, limit) in &self.client {
            if clients.insert(name.clone(), *limit).is_some() {
                return Err(CliError::usage(format!("--client names {name} twice")));
            }
        }
        let change = LimitChange {
            requests_per_second: requests(self.requests_per_second),
            bytes_per_second: bytes(self.bytes_per_second),
            client_requests_per_second: requests(self.client_requests_per_second),
            client_bytes_per_second: bytes(self.client_bytes_per_second),
            clients,
            limit_burst_ms: self.limit_burst.map(|Interval(burst)| burst.as_millis() as u64),
            connections: self.connections.map(|OrNone(most)| most.map(|Connections(most)| most)),
            weight: self.weight,
        };
        match change.out_of_range() {
            Some(problem) => Err(CliError::usage(problem)),
            None => Ok(change),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Limit {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    answer: Answer,
}

impl Limit {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let change = self.limits.change()?;
        if change == LimitChange::default() {
            let problem = "give --requests-per-second, --bytes-per-second, \
                           --client-requests-per-second, --client-bytes-per-second, --client, \
                           --limit-burst, --connections or --weight";
            return Err(CliError::usage(problem));
        }
        let limited = client::limit_volume(&self.answer.endpoint()?, &self.name, &change)?;
        let text = format!("{}: {}{}", limited.name, shown(&limited.limit), excess(&limited));
        self.answer.print(&limited, &text)
    }
}

const TOTAL_EXAMPLES: &str = "\
Examples:
  floe limit --total-requests-per-second 20000 --total-bytes-per-second 1GiB
  floe limit --total-bytes-per-second none               # lifts it
  floe volume limit pictures --weight 300                # three times that of the others";

/// The arguments of `floe limit`.
#[derive(Debug, Args)]
#[command(after_help = TOTAL_EXAMPLES)]
pub(crate) struct LimitTotal {
    /// The most requests per second of all volumes together; none for no limit
    #[arg(long, value_name = "N")]
    total_requests_per_second: Option<OrNone<u64>>,
    /// The most bytes per second that the clients of all volumes together read, write and zero;
    /// none for no limit
    #[arg(long, value_name = "SIZE")]
    total_bytes_per_second: Option<OrNone<Bytes>>,
    /// The time's worth of the limits that may start at once after a pause
    #[arg(long, value_name = "DURATION")]
    total_burst: Option<Interval>,
    #[command(flatten)]
    answer: Answer,
}

impl LimitTotal {
    /// Changes the limits of all volumes together.
    ///
    /// # Errors
    /// When a limit is out of range, or the server refuses the change.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let bytes = self.total_bytes_per_second;
        let change = TotalLimitChange {
            total_requests_per_second: self.total_requests_per_second.map(|OrNone(limit)| limit),
            total_bytes_per_second: bytes.map(|OrNone(limit)| limit.map(|Bytes(bytes)| bytes)),
            total_burst_ms: self.total_burst.map(|Interval(burst)| burst.as_millis() as u64),
        };
        if change == TotalLimitChange::default() {
            let problem = "give --total-requests-per-second, --total-bytes-per-second or \
                           --total-burst";
            return Err(CliError::usage(problem));
        }
        if let Some(problem) = change.out_of_range() {
            return Err(CliError::usage(problem));
        }
        let limited = client::limit_total(&self.answer.endpoint()?, &change)?;
        self.answer.print(&limited, &format!("all volumes: {}", shown_total(&limited)))
    }
}

/// Returns a remark for a volume that has more clients than its limit of connections allows.
pub(super) fn excess(volume: &VolumeStatus) -> String {
    let counted = volume.counted_connections;
    match volume.limit.connections {
        Some(most) if most < counted.nbd.max(counted.nvme_tcp) => {
            format!("; its clients ({counted}) stay connected")
        }
        _ => String::new(),
    }
}

/// Returns rates in words.
fn rates(requests: Option<u64>, bytes: Option<u64>, of: &str) -> impl Iterator<Item = String> {
    let requests = requests.map(|requests| match requests {
        1 => format!("1 request/s{of}"),
        _ => format!("{requests} requests/s{of}"),
    });
    let bytes = bytes.map(|bytes| format!("{}/s{of}", output::bytes(bytes)));
    requests.into_iter().chain(bytes)
}

/// Returns a burst in words, unless it is the default.
fn burst(burst_ms: u64) -> Option<String> {
    (burst_ms != RequestLimit::NONE.limit_burst_ms).then(|| {
        let burst = Duration::from_millis(burst_ms);
        format!("bursts of {}", humantime::format_duration(burst))
    })
}

/// Returns the limits of all volumes together in words.
pub(crate) fn shown_total(limit: &TotalLimit) -> String {
    let (requests, bytes) = (limit.total_requests_per_second, limit.total_bytes_per_second);
    let mut limits: Vec<String> = rates(requests, bytes, "").collect();
    if limit.is_any() {
        limits.extend(burst(limit.total_burst_ms));
    }
    if limits.is_empty() { "no limit".to_owned() } else { limits.join(", ") }
}

/// Returns the limits and the weight of a client that a volume names, in words.
fn of_client(name: &ClientName, limit: &ClientLimit) -> Vec<String> {
    let of = format!(" of {name}");
    let rates = rates(limit.requests_per_second, limit.bytes_per_second, &of);
    let weight = limit.has_weight().then(|| format!("weight {}{of}", limit.weight));
    let all: Vec<String> = rates.chain(weight).collect();
    if all.is_empty() { vec![format!("no limit{of}")] } else { all }
}

/// Returns the limits of a volume in words.
pub(crate) fn shown(limit: &RequestLimit) -> String {
    let connections = limit.connections.map(|most| match most {
        1 => "1 connection".to_owned(),
        _ => format!("{most} connections"),
    });
    let all = rates(limit.requests_per_second, limit.bytes_per_second, "");
    let (requests, bytes) = (limit.client_requests_per_second, limit.client_bytes_per_second);
    let mut limits: Vec<String> = all.chain(rates(requests, bytes, " of each client")).collect();
    limits.extend(limit.clients.iter().flat_map(|(name, limit)| of_client(name, limit)));
    if limit.has_rate() {
        limits.extend(burst(limit.limit_burst_ms));
    }
    limits.extend(connections);
    limits.extend(limit.has_weight().then(|| format!("weight {}", limit.weight)));
    if limits.is_empty() { "no limit".to_owned() } else { limits.join(", ") }
}
