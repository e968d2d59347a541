//! The commands of admin clients and the replies to them, as HTTP carries them.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use floe_device::Spec;
use floe_nbd::uri;
use floe_nvme::target::access::AccessState;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::{live, metrics};

/// The last word of this program to a client that waits for the next one.
pub(crate) const REPLACING: &str = "replacing";

/// A command of an admin client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AdminCommand {
    /// The live page.
    Page,
    /// The stream of events that the live page shows.
    Events,
    Status,
    Metrics,
    Health,
    Flush,
    Stop,
    /// Replace the program by that of its file.
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
        /// Take it from the clients that use it.
        force: bool,
    },
    ResizeVolume {
        name: String,
        /// `None`: the present size of the backing device.
        size_bytes: Option<u64>,
    },
    /// Set the access that NVMe hosts have to a volume.
    SetAccess {
        name: String,
        state: AnaState,
    },
    ListTiers,
    AddTier(NewTier),
    RemoveTier {
        /// Counted from the top.
        number: usize,
    },
}

/// A [`NewVolume`] whose device specification has been parsed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Addition {
    /// Not empty.
    pub(crate) name: String,
    pub(crate) backing: Spec,
    pub(crate) read_only: bool,
    pub(crate) description: String,
}

/// A volume to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// The name clients ask for.
    pub name: String,
    /// The backing device, as on the command line.
    pub backing: String,
    /// Refuse clients' writes.
    #[serde(default)]
    pub read_only: bool,
    /// A description for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// A volume's new size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resize {
    /// The size in bytes; without it, the present size of the backing device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

/// The access that NVMe hosts have to a volume on this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAccess {
    /// The access from now on.
    pub state: AnaState,
}

/// A state of asymmetric namespace access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnaState {
    /// Hosts use the volume on this server.
    Optimized,
    /// Hosts use another path, and wait while there is none.
    Inaccessible,
    /// The access is about to change. Hosts wait for that for a few seconds.
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

/// A tier to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTier {
    /// Its device and settings, as on the command line.
    pub tier: String,
    /// The number it is to have from the top; without it, it is put below all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<usize>,
    /// Make a new cache on its device, whatever is there.
    #[serde(default)]
    pub initialise: bool,
    /// Lose dirty data of a cache on its device.
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

    /// Parses a request whose body has arrived.
    ///
    /// # Errors
    /// The answer that refuses it.
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
            ["volumes", name, "ana"] => ("POST", {
                let state = json(body).map(|SetAccess { state }| state);
                named(name).and_then(|name| Ok(Self::SetAccess { name, state: state? }))
            }),
            ["tiers"] if method == "POST" => ("POST", json(body).map(Self::AddTier)),
            ["tiers"] => ("GET", Ok(Self::ListTiers)),
            ["tiers", number] => {
                ("DELETE", numbered(number).map(|number| Self::RemoveTier { number }))
            }
            _ => return Err(Reply::trouble(Trouble::NotFound, format!("there is no {path} here"))),
        };
        if method != wanted {
            return Err(Reply::WrongMethod(wanted));
        }
        command
    }

    fn add(body: &[u8]) -> Result<Self, Reply> {
        let NewVolume { name, backing, read_only, description } = json(body)?;
        if name.is_empty() {
            return Err(Reply::trouble(Trouble::Input, "a volume needs a name"));
        }
        let backing = backing.parse();
        let backing =
            backing.map_err(|error| Reply::trouble(Trouble::Input, format!("backing: {error}")))?;
        Ok(Self::AddVolume(Box::new(Addition { name, backing, read_only, description })))
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
    name.ok_or_else(|| Reply::trouble(Trouble::Input, format!("{text:?} is no volume's name")))
}

/// Parses a tier's number from a path.
fn numbered(text: &str) -> Result<usize, Reply> {
    text.parse()
        .map_err(|_| Reply::trouble(Trouble::Input, format!("{text:?} is no number of a tier")))
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The command succeeded; a word about it.
    Done(&'static str),
    /// The live page, with the changes that it offers.
    Page(PageWrite),
    /// The requested data, as JSON.
    Json(String),
    /// The requested data, in Prometheus' text format.
    Metrics(String),
    /// The command failed or was refused; the reason.
    Trouble(Trouble, String),
    /// The path supports this method only.
    WrongMethod(&'static str),
}

/// The kind of a refusal or failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The request is malformed.
    Input,
    /// The client has no right to it.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// The request does not fit the volumes and tiers there are.
    Conflict,
    /// The body is too long.
    TooLong,
    /// The head of the request is too long.
    HeadTooLong,
    /// The request does not say the length of its body.
    NoLength,
    /// A device failed.
    Failed,
    /// Some requests of clients are being refused.
    Refusing,
    /// The server is ending.
    Ending,
    /// Too many requests are under way.
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

    /// Encodes the answer for sending.
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
                let problem = format!("only {allowed} can be asked for here\n");
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

/// The header with the key.
pub(super) const HEADER: &str = "Floe-Page";

/// The key of the page of one run of a server. Clones share it.
///
/// A browser sends a request for any page that asks for it, through an address that a user can
/// reach. It shows a page the answers of its own server only. So the live page carries a secret of
/// this run of the server, and repeats it in a header, which pages of others can neither know nor
/// send. Without `admin-write` there is no key, and browsers change nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct PageKey(Arc<str>);

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageKey")
    }
}

impl PageKey {
    /// Draws a key.
    ///
    /// # Errors
    /// When the machine has no random numbers.
    pub fn draw() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(text.into()))
    }

    /// Returns the text of the key.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Compares with a key that was sent.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

/// The changes that the live page offers to a client of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageWrite {
    /// None.
    Off,
    /// None at this address: over TCP there is no token.
    NoToken,
    /// All, with the key; over TCP with the admin token, too.
    On { key: PageKey, needs_token: bool },
}

impl PageWrite {
    /// Returns the attributes of the page's body.
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
