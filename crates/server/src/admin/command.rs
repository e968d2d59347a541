//! The commands of admin clients and the replies to them, in the form of HTTP requests and
//! responses.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use floe_device::Spec;
use floe_nbd::uri;
use floe_nvme::target::access::AccessState;
use floe_nvme::target::io::BlockSize;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::total_limit::TotalLimitChange;
use crate::volume_limit::{LimitChange, RequestLimit};
use crate::volume_share::{ShareChange, VolumeShare};
use crate::{live, metrics};

/// Last line that the old program sends, before an upgrade, to a client that waits for the new one.
pub(crate) const REPLACING: &str = "replacing";

/// A parsed request of an admin client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AdminCommand {
    /// Send the live page.
    Page,
    /// Send the stream of events that the live page shows.
    Events,
    Status,
    Metrics,
    Health,
    Flush,
    Stop,
    /// Replace the running program by the present version of the program file.
    Upgrade,
    /// End, so that the other server of the pair takes over.
    HandOver,
    /// Take over from the other server of the pair.
    TakeOver,
    /// Use a failed cache device again.
    RestoreCache,
    ListVolumes,
    AddVolume(Box<Addition>),
    RemoveVolume {
        name: String,
        /// Remove the volume even if clients use it.
        force: bool,
    },
    ResizeVolume {
        name: String,
        /// New size; `None` adopts the present size of the backing device.
        size_bytes: Option<u64>,
    },
    /// Change the limits of a volume's requests.
    LimitVolume {
        name: String,
        change: LimitChange,
    },
    /// Change the limits of all volumes together.
    LimitTotal {
        change: TotalLimitChange,
    },
    /// Change the share of a volume in each tier.
    ShareVolume {
        name: String,
        change: ShareChange,
    },
    /// Bring a part of a volume into the cache.
    WarmVolume {
        name: String,
        part: VolumePart,
    },
    /// Write the dirty data of a volume back, and drop what the cache has of a part of it.
    EvictVolume {
        name: String,
        part: VolumePart,
    },
    /// Set the access that NVMe hosts have to a volume.
    SetAccess {
        name: String,
        state: AnaState,
    },
    ListTiers,
    AddTier(NewTier),
    RemoveTier {
        /// Number of the tier, counted from the top, from 0.
        number: usize,
    },
    /// Change the size of a volatile tier.
    ResizeTier {
        /// Number of the tier, counted from the top, from 0.
        number: usize,
        size_bytes: u64,
    },
}

/// A [`NewVolume`] whose device specification has been parsed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Addition {
    /// Name for clients, not empty.
    pub(crate) name: String,
    pub(crate) backing: Spec,
    pub(crate) read_only: bool,
    /// Accept a backing device that is a persistent cache.
    pub(crate) holds_cache: bool,
    pub(crate) block_size: BlockSize,
    pub(crate) description: String,
    pub(crate) limit: RequestLimit,
    pub(crate) share: VolumeShare,
}

/// The request body that describes a volume to be added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Name by which clients ask for the volume.
    pub name: String,
    /// The backing device, written as on the command line.
    pub backing: String,
    /// Refuse writes of clients.
    #[serde(default)]
    pub read_only: bool,
    /// Accept a backing device that is a cache of Floe: that of a client, which is a Floe server
    /// itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub holds_cache: bool,
    /// Bytes of the logical blocks that NVMe hosts see: 512, which is the default, or 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_block_bytes: Option<u64>,
    /// A description that NBD clients can show to users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The limits of the volume's requests; none where a field is missing.
    #[serde(default, skip_serializing_if = "LimitChange::is_none")]
    pub limit: LimitChange,
    /// The share of the volume in each tier; none where a field is missing.
    #[serde(default, skip_serializing_if = "ShareChange::is_none")]
    pub share: ShareChange,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// The request body with a volume's new size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resize {
    /// New size in bytes; `None` adopts the present size of the backing device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

/// The request body with a tier's new size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSize {
    /// New size in bytes, a multiple of 4096.
    pub size_bytes: u64,
}

/// The request body with a part of a volume, to be brought into the cache or to leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumePart {
    /// First byte of the part.
    pub offset: u64,
    /// Length of the part in bytes: at most [`WARM_BYTES_MAX`](Self::WARM_BYTES_MAX), or
    /// [`EVICT_BYTES_MAX`](Self::EVICT_BYTES_MAX).
    pub bytes: u64,
}

impl VolumePart {
    /// Maximum length in bytes of a part to be brought in, so that each answer comes soon.
    pub const WARM_BYTES_MAX: u64 = 64 << 20;
    /// Maximum length in bytes of a part that is to leave the cache.
    pub const EVICT_BYTES_MAX: u64 = 1 << 40;
}

/// The request body with the access that NVMe hosts have to a volume on this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAccess {
    /// State of the access from now on.
    pub state: AnaState,
}

/// A state of asymmetric namespace access (ANA), which tells NVMe hosts whether to use this path to
/// a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnaState {
    /// Hosts use the volume through this server.
    Optimized,
    /// Hosts use another path to the volume, and wait while none exists.
    Inaccessible,
    /// The access is about to change. Hosts wait for the change for a few seconds.
    Change,
}

impl std::fmt::Display for AnaState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Optimized => "optimized",
            Self::Inaccessible => "inaccessible",
            Self::Change => "change",
        })
    }
}

impl From<AnaState> for AccessState {
    fn from(state: AnaState) -> Self {
        match state {
            AnaState::Optimized => Self::Optimized,
            AnaState::Inaccessible => Self::Inaccessible,
            AnaState::Change => Self::Change,
        }
    }
}

/// The request body that describes a tier to be attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTier {
    /// Device and settings of the tier, written as on the command line.
    pub tier: String,
    /// Number of the tier from the top, from 0; `None` puts the tier below all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<usize>,
    /// Makes a new cache on the tier's device, whatever is there.
    #[serde(default)]
    pub initialise: bool,
    /// Discards dirty data of a cache that is on the tier's device.
    #[serde(default)]
    pub discard_dirty: bool,
}

impl AdminCommand {
    /// Returns whether the command changes nothing.
    pub(super) fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Page
                | Self::Events
                | Self::Status
                | Self::Metrics
                | Self::Health
                | Self::ListVolumes
                | Self::ListTiers
        )
    }

    /// Parses a complete request: its method, path with query, and body.
    ///
    /// # Errors
    /// The reply that refuses the request.
    pub(super) fn understand(method: &str, target: &str, body: &[u8]) -> Result<Self, Reply> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let names: Vec<&str> = path.split('/').skip(1).collect();
        let (wanted, command) = match names.as_slice() {
            [""] => ("GET", Ok(Self::Page)),
            ["events"] => ("GET", Ok(Self::Events)),
            ["status"] => ("GET", Ok(Self::Status)),
            ["metrics"] => ("GET", Ok(Self::Metrics)),
            ["healthz"] => ("GET", Ok(Self::Health)),
            ["flush"] => ("POST", Ok(Self::Flush)),
            ["stop"] => ("POST", Ok(Self::Stop)),
            ["upgrade"] => ("POST", Ok(Self::Upgrade)),
            ["handover"] => ("POST", Ok(Self::HandOver)),
            ["takeover"] => ("POST", Ok(Self::TakeOver)),
            ["cache", "restore"] => ("POST", Ok(Self::RestoreCache)),
            ["volumes"] if method == "POST" => ("POST", Self::add(body)),
            ["volumes"] => ("GET", Ok(Self::ListVolumes)),
            ["volumes", name] => ("DELETE", {
                let force = query.split('&').any(|word| word == "force");
                named(name).map(|name| Self::RemoveVolume { name, force })
            }),
            ["volumes", name, "resize"] => {
                ("POST", named(name).and_then(|name| Self::resize(name, body)))
            }
            ["volumes", name, "limit"] => ("POST", {
                let change = json(body);
                named(name).and_then(|name| Ok(Self::LimitVolume { name, change: change? }))
            }),
            ["limit"] => ("POST", json(body).map(|change| Self::LimitTotal { change })),
            ["volumes", name, "share"] => ("POST", {
                let change = json(body);
                named(name).and_then(|name| Ok(Self::ShareVolume { name, change: change? }))
            }),
            ["volumes", name, "warm"] => ("POST", {
                let part = json(body);
                named(name).and_then(|name| Ok(Self::WarmVolume { name, part: part? }))
            }),
            ["volumes", name, "evict"] => ("POST", {
                let part = json(body);
                named(name).and_then(|name| Ok(Self::EvictVolume { name, part: part? }))
            }),
            ["volumes", name, "ana"] => ("POST", {
                let state = json(body).map(|SetAccess { state }| state);
                named(name).and_then(|name| Ok(Self::SetAccess { name, state: state? }))
            }),
            ["tiers"] if method == "POST" => ("POST", json(body).map(Self::AddTier)),
            ["tiers"] => ("GET", Ok(Self::ListTiers)),
            ["tiers", number] => {
                ("DELETE", numbered(number).map(|number| Self::RemoveTier { number }))
            }
            ["tiers", number, "resize"] => ("POST", {
                let size = json(body).map(|NewSize { size_bytes }| size_bytes);
                numbered(number)
                    .and_then(|number| Ok(Self::ResizeTier { number, size_bytes: size? }))
            }),
            _ => return Err(Reply::trouble(Trouble::NotFound, format!("there is no {path} here"))),
        };
        if method != wanted {
            return Err(Reply::WrongMethod(wanted));
        }
        command
    }

    fn add(body: &[u8]) -> Result<Self, Reply> {
        let volume: NewVolume = json(body)?;
        let NewVolume { name, backing, read_only, holds_cache, .. } = volume;
        let NewVolume { nvme_block_bytes, description, limit, share, .. } = volume;
        if name.is_empty() {
            return Err(Reply::trouble(Trouble::Input, "a volume needs a name"));
        }
        let backing = backing.parse();
        let backing =
            backing.map_err(|error| Reply::trouble(Trouble::Input, format!("backing: {error}")))?;
        let block_size = BlockSize::of(nvme_block_bytes.unwrap_or(512)).ok_or_else(|| {
            Reply::trouble(Trouble::Input, "nvme_block_bytes is neither 512 nor 4096")
        })?;
        let limit = limit.applied(&RequestLimit::NONE);
        let limit = limit.map_err(|problem| Reply::trouble(Trouble::Input, problem))?;
        let share = share.applied(VolumeShare::default());
        let share = share.map_err(|problem| Reply::trouble(Trouble::Input, problem))?;
        let addition = Addition {
            name,
            backing,
            read_only,
            holds_cache,
            block_size,
            description,
            limit,
            share,
        };
        Ok(Self::AddVolume(Box::new(addition)))
    }

    fn resize(name: String, body: &[u8]) -> Result<Self, Reply> {
        let Resize { size_bytes } = if body.is_empty() { Resize::default() } else { json(body)? };
        Ok(Self::ResizeVolume { name, size_bytes })
    }
}

fn json<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, Reply> {
    serde_json::from_slice(body).map_err(|error| {
        Reply::trouble(Trouble::Input, format!("the body is not as expected: {error}"))
    })
}

/// Decodes a volume's name from a path.
fn named(text: &str) -> Result<String, Reply> {
    let bytes = uri::decode(text).ok();
    let name =
        bytes.and_then(|bytes| String::from_utf8(bytes).ok()).filter(|name| !name.is_empty());
    name.ok_or_else(|| {
        Reply::trouble(
            Trouble::Input,
            format!(
                "{text:?} is not the name of a \
                                                               volume"
            ),
        )
    })
}

/// Parses a tier's number from a path.
fn numbered(text: &str) -> Result<usize, Reply> {
    text.parse().map_err(|_| {
        Reply::trouble(Trouble::Input, format!("{text:?} is not the number of a tier"))
    })
}

/// A reply to an admin client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The command succeeded. The text is one line about it.
    Done(&'static str),
    /// The live page, with the changes that it may offer.
    Page(PageWrite),
    /// The requested data, as JSON.
    Json(String),
    /// The requested data, in Prometheus' text format.
    Metrics(String),
    /// The command failed or was refused, for the reason in the text.
    Trouble(Trouble, String),
    /// The path supports only this HTTP method.
    WrongMethod(&'static str),
}

/// The kind of a refusal or failure, which decides the HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The request is malformed.
    Input,
    /// The client has no right to the command.
    Forbidden,
    /// The path, volume or tier does not exist.
    NotFound,
    /// The command conflicts with the present volumes and tiers.
    Conflict,
    /// The request's body is too long.
    TooLong,
    /// The head of the request is too long.
    HeadTooLong,
    /// The request states no length of its body.
    NoLength,
    /// The command failed, for example because a device did.
    Failed,
    /// The server is refusing some requests of storage clients.
    Refusing,
    /// The server is ending.
    Ending,
    /// Too many admin requests are in progress.
    Busy,
}

impl Trouble {
    fn status(self) -> &'static str {
        match self {
            Self::Input => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::Conflict => "409 Conflict",
            Self::NoLength => "411 Length Required",
            Self::TooLong => "413 Content Too Large",
            Self::HeadTooLong => "431 Request Header Fields Too Large",
            Self::Failed => "500 Internal Server Error",
            Self::Ending | Self::Busy | Self::Refusing => "503 Service Unavailable",
        }
    }
}

impl Reply {
    pub(crate) fn json(value: &impl Serialize) -> Self {
        Self::Json(serde_json::to_string(value).expect("answers are plain data"))
    }

    pub(crate) fn trouble(trouble: Trouble, problem: impl Into<String>) -> Self {
        Self::Trouble(trouble, problem.into())
    }

    /// Encodes the reply as an HTTP response.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let text = "text/plain; charset=utf-8";
        match self {
            Self::Done(word) => response("200 OK", text, "", &format!("{word}\n")),
            Self::Page(write) => {
                let page = live::page(&write.attributes());
                response("200 OK", "text/html; charset=utf-8", live::PAGE_HEADERS, &page)
            }
            Self::Json(body) => response("200 OK", "application/json", "", body),
            Self::Metrics(body) => response("200 OK", metrics::CONTENT_TYPE, "", body),
            Self::Trouble(trouble, problem) => {
                response(trouble.status(), text, "", &format!("{problem}\n"))
            }
            Self::WrongMethod(allowed) => {
                let problem = format!("this path takes {allowed} only\n");
                response("405 Method Not Allowed", text, &format!("Allow: {allowed}\r\n"), &problem)
            }
        }
    }
}

fn response(status: &str, content_type: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{headers}\
         Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Name of the HTTP header in which the live page sends its key.
pub(super) const HEADER: &str = "Floe-Page";

/// The secret by which the live page proves where it comes from. It is new for each run of the
/// server. Clones share it.
///
/// Any page can make a browser send requests to an address that the browser's user can reach. But
/// it cannot read the replies of another server. The live page therefore contains a secret and
/// repeats it in a header. Other pages neither know the secret nor can send that header. Without
/// the setting `admin-write` no key exists, and browsers change nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct PageKey(Arc<str>);

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageKey")
    }
}

impl PageKey {
    /// Creates a random key.
    ///
    /// # Errors
    /// When the operating system returns no random bytes.
    pub fn draw() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(text.into()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Compares the key with one that a client has sent, in constant time.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

/// The changes that the live page offers to clients of one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageWrite {
    /// No changes: the setting `admin-write` is off.
    Off,
    /// No changes at this address: it is on TCP, and the server has no admin token.
    NoToken,
    /// All changes, if the client sends the key, and over TCP the admin token as well.
    On { key: PageKey, needs_token: bool },
}

impl PageWrite {
    /// Returns the attributes of the page's `<body>` by which its script knows the allowed changes.
    pub(crate) fn attributes(&self) -> String {
        match self {
            Self::Off => "data-write=\"off\"".to_owned(),
            Self::NoToken => "data-write=\"no-token\"".to_owned(),
            Self::On { key, needs_token } => {
                let word = if *needs_token { "token" } else { "on" };
                format!("data-write=\"{word}\" data-key=\"{}\"", key.text())
            }
        }
    }
}
