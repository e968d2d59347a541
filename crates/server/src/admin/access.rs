//! Rights of the admin interface's clients, which depend on the address they connect to.
//!
//! A client that can open the Unix socket may do everything: the socket's permissions decide that.
//! TCP connections carry no user, so all users of the machine, and every page in a browser on it,
//! can connect. A TCP client may read; to change something, it must send the token. Foreign pages
//! are recognised by two headers of the browser: `Origin`, and `Host`, the name under which the
//! browser found the server (DNS rebinding).
//!
//! A Unix socket can be forwarded to a port, where browsers reach it. A browser is recognised by
//! `Origin`. It may therefore change something only from the live page, with its [key](PageKey), on
//! any address.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::{fmt, io};

use floe_device::Spec;
use httparse::Header;
use subtle::ConstantTimeEq;

use super::command::{HEADER, PageKey, PageWrite, Reply, Trouble};
use crate::socket_file::read_private;

/// Rights of the clients that connect to one address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    /// Rules for TCP clients; `None` for a Unix socket.
    pub(crate) network: Option<NetworkRules>,
    /// Key of the live page; `None` if the page may not change anything.
    pub(crate) page: Option<PageKey>,
    /// Files and devices that the clients may have the server open.
    pub(crate) paths: AllowedPaths,
}

/// Rules for clients over TCP.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetworkRules {
    /// Names that clients may use for the server, beside `localhost` and IP addresses.
    pub(crate) hosts: Vec<String>,
    /// Secret by which a client gets all rights; `None` if TCP clients may only read.
    pub(crate) token: Option<Token>,
    /// True if clients must use TLS.
    pub(crate) encrypted_only: bool,
}

/// The rights of the client that sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    Everything,
    /// The client may only read: its token is missing or wrong.
    Reading {
        token_given: bool,
    },
    /// The client is a browser and does not ask from the live page, so it may only read.
    Browsing,
}

impl Access {
    /// Returns whether clients must use TLS.
    pub(crate) fn encrypted_only(&self) -> bool {
        self.network.as_ref().is_some_and(|rules| rules.encrypted_only)
    }

    /// Returns the client's rights, by the headers of its request.
    ///
    /// # Errors
    /// When a page of another server has sent the request.
    pub(super) fn judge(&self, headers: &[Header<'_>]) -> Result<Trust, Reply> {
        let browsing = values(headers, "Origin").next().is_some();
        if browsing && !self.is_own_page(headers) {
            if let Some(rules) = &self.network {
                rules.refuse_foreign(headers)?;
            }
            return Ok(Trust::Browsing);
        }
        let Some(rules) = &self.network else { return Ok(Trust::Everything) };
        rules.refuse_foreign(headers)?;
        let mut given = values(headers, "Authorization");
        let (first, more) = (given.next(), given.next());
        let trusted = match (&rules.token, first, more) {
            (Some(token), Some(value), None) => bearer(value).is_some_and(|given| token.is(given)),
            _ => false,
        };
        Ok(if trusted {
            Trust::Everything
        } else {
            Trust::Reading { token_given: first.is_some() }
        })
    }

    /// Returns whether a browser's request comes from the live page: the key is right, and `Host`
    /// and `Origin` name this server. A name that others can point at this machine does not count.
    fn is_own_page(&self, headers: &[Header<'_>]) -> bool {
        let mut keys = values(headers, HEADER);
        let (key, more) = (keys.next(), keys.next());
        let local = NetworkRules::default();
        let names = self.network.as_ref().unwrap_or(&local);
        let known = self.page.as_ref().zip(key).is_some_and(|(page, key)| page.is(key));
        known && more.is_none() && names.refuse_foreign(headers).is_ok()
    }

    /// Returns the changes that the live page offers to clients of this address.
    pub(crate) fn page_write(&self) -> PageWrite {
        let has_token = self.network.as_ref().map(|rules| rules.token.is_some());
        match (&self.page, has_token) {
            (None, _) => PageWrite::Off,
            (Some(_), Some(false)) => PageWrite::NoToken,
            (Some(key), needs) => PageWrite::On { key: key.clone(), needs_token: needs.is_some() },
        }
    }

    /// Returns the reply to a browser that asks for a change from another page than the live page.
    pub(super) fn refusal_of_browser(&self) -> Reply {
        let problem = match &self.page {
            None => {
                "browsers may not change anything here, unless the server has admin-write = \
                     true"
            }
            Some(_) => "browsers may change something only from this server's live page; reload it",
        };
        Reply::trouble(Trouble::Forbidden, problem)
    }

    /// Returns the reply to a client that may only read and asks for a change.
    pub(super) fn refusal(&self, token_given: bool) -> Reply {
        let there_is_one = self.network.as_ref().is_some_and(|rules| rules.token.is_some());
        let problem = match (token_given, there_is_one) {
            (true, true) => "wrong admin token: nothing is changed",
            (false, true) => {
                "over TCP a change needs the admin token: give --admin-token-file, or use the Unix \
                 socket"
            }
            (_, false) => {
                "over TCP this server allows no changes: use the Unix socket, or give the server \
                 an admin-token-file"
            }
        };
        Reply::trouble(Trouble::Forbidden, problem)
    }
}

impl NetworkRules {
    fn refuse_foreign(&self, headers: &[Header<'_>]) -> Result<(), Reply> {
        let refuse = |problem: String| Err(Reply::trouble(Trouble::Forbidden, problem));
        let hosts: Vec<&[u8]> = values(headers, "Host").collect();
        // Every browser sends `Host`; a program that does not is none.
        if let Some(host) = hosts.iter().find(|host| !self.knows(host)) {
            let host = String::from_utf8_lossy(host);
            return refuse(format!("{host:?} is not a name of this server; add it to admin-hosts"));
        }
        let own = |origin: &[u8]| {
            let authority =
                origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
            authority.is_some_and(|authority| {
                hosts.iter().any(|host| host.eq_ignore_ascii_case(authority))
            })
        };
        if values(headers, "Origin").any(|origin| !own(origin)) {
            return refuse("pages of other sites may not use this address".into());
        }
        Ok(())
    }

    /// Returns whether clients may use this name for the server.
    fn knows(&self, host: &[u8]) -> bool {
        std::str::from_utf8(host).is_ok_and(|host| {
            let name = name_in(host);
            name.eq_ignore_ascii_case("localhost")
                || name.parse::<IpAddr>().is_ok()
                || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
        })
    }
}

/// Returns the host of `host:port`, where the port may be missing. An IPv6 address loses its
/// brackets.
pub(crate) fn name_in(authority: &str) -> &str {
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.split_once(':').map_or(authority, |(name, _)| name),
    }
}

/// Returns the token in the value of an `Authorization` header.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

/// Returns the values of all headers with this name.
pub(super) fn values<'a>(
    headers: &'a [Header<'a>],
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> {
    headers
        .iter()
        .filter(move |header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value)
}

/// Minimum length of a token; a shorter one could be guessed.
const LEAST_BYTES: usize = 16;

/// Largest size of a token file.
const MOST_BYTES: u64 = 4096;

/// The admin token, read from a file. Clones share it, and see a reloaded token.
#[derive(Clone)]
pub struct Token(Arc<Kept>);

struct Kept {
    file: PathBuf,
    secret: RwLock<String>,
}

/// An error about a token file: it cannot be read, is open to other users, or holds no token.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct TokenError {
    file: PathBuf,
    problem: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Token").field(&self.0.file).finish()
    }
}

impl Token {
    /// Reads the token from a file that other users cannot read.
    ///
    /// # Errors
    /// When the file cannot be read, is open to other users, or holds no token.
    pub fn read(file: &Path) -> Result<Self, TokenError> {
        let secret = RwLock::new(secret_in(file)?);
        Ok(Self(Arc::new(Kept { file: file.to_owned(), secret })))
    }

    /// Reads the file again, for all clones.
    ///
    /// # Errors
    /// Those of [`Token::read`]; the old token then stays in use.
    pub fn reload(&self) -> Result<(), TokenError> {
        let secret = secret_in(&self.0.file)?;
        *self.0.secret.write().unwrap_or_else(PoisonError::into_inner) = secret;
        Ok(())
    }

    /// Compares a client's token with this one, in constant time for tokens of equal length.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        let secret = self.0.secret.read().unwrap_or_else(PoisonError::into_inner);
        secret.as_bytes().ct_eq(given).into()
    }

    /// Returns the token, for sending it to a server.
    pub(crate) fn secret(&self) -> String {
        self.0.secret.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn secret_in(path: &Path) -> Result<String, TokenError> {
    let refuse = |problem: String| TokenError { file: path.to_owned(), problem };
    let text = read_private(path, MOST_BYTES).map_err(refuse)?;
    let secret = text.trim();
    let is_plain = secret.bytes().all(|byte| byte.is_ascii_graphic());
    if text.len() as u64 > MOST_BYTES || secret.len() < LEAST_BYTES || !is_plain {
        let problem = format!(
            "it holds no token, which is {LEAST_BYTES} visible characters or more; make one with \
             openssl rand -hex 32"
        );
        return Err(refuse(problem));
    }
    Ok(secret.to_owned())
}

/// Files and devices that admin clients may have the server open.
///
/// Clients name devices, for example when they add a volume. Without limits, a client of a server
/// that runs as root could create a file anywhere, and read and write any disk.
///
/// Links and `..` are resolved first, in the folders and in the path. A folder in which others may
/// change links protects nothing.
#[derive(Debug, Clone, Default)]
pub enum AllowedPaths {
    /// All paths that the server itself can open.
    #[default]
    All,
    /// Paths in these folders and their subfolders.
    Within(Arc<[PathBuf]>),
}

/// The reason why an admin client may not have a path opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathRefused {
    /// The path is in none of the allowed folders.
    #[error(
        "{} is in none of the folders that admin-paths allows{}",
        path.display(), leads(path, place)
    )]
    Outside {
        /// The path that the client gave.
        path: PathBuf,
        /// The path after links and `..` are resolved.
        place: PathBuf,
    },
    /// The device is on the network, such as a Ceph image or an NBD export, and so in no folder.
    #[error("{device} is in none of the folders that admin-paths allows, but on a network")]
    Remote {
        /// The device that the client gave.
        device: String,
    },
    /// The path cannot be resolved.
    #[error("{}: {problem}", path.display())]
    Unknown {
        /// The path that the client gave.
        path: PathBuf,
        /// The operating system's error.
        problem: String,
    },
}

fn leads(path: &Path, place: &Path) -> String {
    if path == place { String::new() } else { format!(": it leads to {}", place.display()) }
}

impl AllowedPaths {
    /// Checks whether clients may have a device opened, or its files created.
    ///
    /// # Errors
    /// When a path of the device is outside the allowed folders or cannot be resolved, or the
    /// device is on the network.
    pub fn check_device(&self, device: &Spec) -> Result<(), PathRefused> {
        if matches!(self, Self::Within(_)) && device.is_remote() {
            return Err(PathRefused::Remote { device: device.to_string() });
        }
        device.paths().iter().try_for_each(|path| self.check(path))
    }

    /// Checks whether clients may have a file or device at this path opened or created.
    ///
    /// # Errors
    /// When the path is outside the allowed folders or cannot be resolved.
    pub fn check(&self, path: &Path) -> Result<(), PathRefused> {
        let Self::Within(folders) = self else { return Ok(()) };
        let place = resolved(path).map_err(|error| PathRefused::Unknown {
            path: path.to_owned(),
            problem: error.to_string(),
        })?;
        let is_inside =
            |folder: &PathBuf| folder.canonicalize().is_ok_and(|it| place.starts_with(it));
        if folders.iter().any(is_inside) {
            return Ok(());
        }
        Err(PathRefused::Outside { path: path.to_owned(), place })
    }
}

/// Returns the path with links and `..` resolved. The last component need not exist.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() =>
        {
            let Some(name) = path.file_name() else { return Err(error) }; // it ends in `..`
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            Ok(folder.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        found_or_not => found_or_not, // a link that leads to nothing would have it made there
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SECRET: &str = "0123456789abcdef";

    fn network(token: bool) -> Access {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, SECRET).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let token = token.then(|| Token::read(file.path()).unwrap());
        let hosts = vec!["storage1".to_owned()];
        Access {
            network: Some(NetworkRules { hosts, token, encrypted_only: false }),
            ..Access::default()
        }
    }

    fn judge(access: &Access, headers: &[(&'static str, &str)]) -> Option<Trust> {
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| Header { name, value: value.as_bytes() }).collect();
        access.judge(&headers).ok()
    }

    #[test]
    fn over_tcp_only_the_token_lets_a_client_change_anything() {
        let access = network(true);
        let reading = |token_given| Some(Trust::Reading { token_given });
        let with =
            |value: &str| judge(&access, &[("Host", "127.0.0.1:10810"), ("Authorization", value)]);
        assert_eq!(with(&format!("Bearer {SECRET}")), Some(Trust::Everything));
        assert_eq!(with(&format!("bearer  {SECRET} ")), Some(Trust::Everything));
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer 0123456789abcdeg", SECRET, "Basic 0123456789abcdef"]
        {
            assert_eq!(with(wrong), reading(true), "{wrong}");
        }
        assert_eq!(judge(&access, &[]), reading(false));
        let right = format!("Bearer {SECRET}");
        assert_eq!(
            judge(&access, &[("Authorization", &right), ("authorization", &right)]),
            reading(true)
        );
        assert_eq!(judge(&network(false), &[("Authorization", &right)]), reading(true));
        assert_eq!(judge(&Access::default(), &[("Host", "evil.example")]), Some(Trust::Everything));
    }

    #[test]
    fn a_browser_changes_something_only_from_the_page_with_the_key() {
        let key = PageKey::draw().unwrap();
        let text = key.text().to_owned();
        let socket = Access { page: Some(key.clone()), ..Access::default() };
        let own = [("Host", "localhost:10810"), ("Origin", "http://localhost:10810")];
        let with = |access: &Access, key: &str, headers: [(&'static str, &str); 2]| {
            judge(access, &[headers[0], headers[1], ("Floe-Page", key)])
        };
        let browsing = Some(Trust::Browsing);
        assert_eq!(with(&socket, &text, own), Some(Trust::Everything));
        assert_eq!(judge(&socket, &own), browsing);
        assert_eq!(with(&socket, &text[1..], own), browsing);
        let another = PageKey::draw().unwrap();
        assert_eq!(with(&socket, another.text(), own), browsing, "of an earlier run");
        assert_eq!(with(&Access::default(), &text, own), browsing, "nothing was allowed");
        // Other pages, also where a name of theirs leads to this machine (DNS rebinding).
        for (host, origin) in [
            ("localhost:10810", "http://evil.example"),
            ("localhost:10810", "null"),
            ("evil.example:10810", "http://evil.example:10810"),
        ] {
            let foreign = [("Host", host), ("Origin", origin)];
            assert_eq!(with(&socket, &text, foreign), browsing, "{host} {origin}");
        }
        // Over TCP the page needs the token as well.
        let tcp = Access { page: Some(key), ..network(true) };
        assert_eq!(with(&tcp, &text, own), Some(Trust::Reading { token_given: false }));
        let bearer = format!("Bearer {SECRET}");
        let all = [own[0], own[1], ("Floe-Page", &text), ("Authorization", &bearer)];
        assert_eq!(judge(&tcp, &all), Some(Trust::Everything));
        assert_eq!(judge(&tcp, &[own[0], own[1], all[3]]), browsing, "the token alone");
        // Programs send no origin.
        assert_eq!(judge(&socket, &[]), Some(Trust::Everything));
    }

    #[test]
    fn the_page_offers_what_its_address_allows() {
        let key = PageKey::draw().unwrap();
        let page = Some(key.clone());
        let write = |access: Access| access.page_write();
        assert_eq!(write(Access::default()), PageWrite::Off);
        assert_eq!(write(network(true)), PageWrite::Off);
        let on = |needs_token| PageWrite::On { key: key.clone(), needs_token };
        assert_eq!(write(Access { page: page.clone(), ..Access::default() }), on(false));
        assert_eq!(write(Access { page: page.clone(), ..network(true) }), on(true));
        assert_eq!(write(Access { page, ..network(false) }), PageWrite::NoToken);
    }

    #[test]
    fn pages_of_others_are_refused() {
        let access = network(true);
        for own in [
            "127.0.0.1:10810",
            "localhost",
            "LOCALHOST:1",
            "[::1]:10810",
            "::1",
            "10.1.2.3",
            "Storage1:9",
        ] {
            let origin = format!("http://{own}");
            let known = judge(&access, &[("Host", own)]).is_some();
            assert!(known || own == "::1", "{own}"); // an IPv6 address has brackets
            let with_origin = judge(&access, &[("Host", own), ("Origin", &origin)]).is_some();
            assert_eq!(with_origin, known, "{own}");
            for foreign in ["http://evil.example", "null", "", "http://127.0.0.1:8080", "file://"] {
                assert_eq!(
                    judge(&access, &[("Host", own), ("Origin", foreign)]),
                    None,
                    "{own} {foreign}"
                );
            }
        }
        for foreign in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:10810",
            "",
            "storage2",
        ] {
            assert_eq!(judge(&access, &[("Host", foreign)]), None, "{foreign}");
        }
        assert_eq!(judge(&access, &[("Host", "localhost"), ("Host", "evil.example")]), None);
        assert_eq!(
            judge(&access, &[("Origin", "http://localhost")]),
            None,
            "nobody said whom it asks"
        );
    }
}

#[cfg(test)]
mod token_tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_token_is_itself_and_nothing_else_until_it_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write(&path, "0123456789abcdef\n", 0o600);
        let token = Token::read(&path).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0123456789abcdeF", "0123456789abcde", "0123456789abcdef\n"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong:?}");
        }
        write(&path, "another 0123456789", 0o600);
        assert!(token.reload().is_err() && token.is(b"0123456789abcdef"));
        write(&path, "fedcba9876543210", 0o600);
        token.reload().unwrap();
        assert!(token.is(b"fedcba9876543210") && !token.is(b"0123456789abcdef"));
        assert!(!format!("{token:?}").contains("fedcba"));
    }

    #[test]
    fn a_file_that_keeps_no_secret_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let problem = |text: &str, mode| {
            write(&path, text, mode);
            Token::read(&path).unwrap_err().to_string()
        };
        assert!(problem("0123456789abcdef", 0o604).contains("other users can use it (mode 604)"));
        for text in ["", "short", "0123456789 abcdef", &"a".repeat(5000)] {
            assert!(problem(text, 0o600).contains("holds no token"), "{text}");
        }
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(Token::read(&pipe).unwrap_err().to_string().contains("not a regular file"));
        assert!(Token::read(folder.path()).unwrap_err().to_string().contains("not a regular file"));
        assert!(
            Token::read(Path::new("/no/token")).unwrap_err().to_string().contains("No such file")
        );
    }
}

#[cfg(test)]
mod paths_tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_lies_in_the_folders_is_allowed_wherever_links_lead() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("in/deep")).unwrap();
        std::fs::create_dir(path("inside")).unwrap();
        std::fs::write(path("out"), "").unwrap();
        std::fs::write(path("in/there"), "").unwrap();
        symlink(path("out"), path("in/leads-out")).unwrap();
        symlink(path("not-yet"), path("in/leads-to-nothing")).unwrap();
        symlink(folder.path(), path("in/up")).unwrap();
        symlink(path("in"), path("leads-in")).unwrap();
        let allowed = AllowedPaths::Within([path("leads-in"), path("missing")].into());
        for good in [
            "in/there",
            "in/new",
            "in/deep/new",
            "leads-in/there",
            "inside/../in/new",
            "in/up/in/there",
        ] {
            assert_eq!(allowed.check(&path(good)), Ok(()), "{good}");
        }
        for bad in [
            "out",
            "new",
            "inside/new",
            "in/leads-out",
            "in/../out",
            "in/up/out",
            "in/up/new",
            "missing",
        ] {
            let refused = allowed.check(&path(bad));
            assert!(matches!(refused, Err(PathRefused::Outside { .. })), "{bad}: {refused:?}");
        }
        for unknown in ["in/leads-to-nothing", "in/no/new", "in/.."] {
            let refused = allowed.check(&path(unknown));
            assert!(refused.is_err(), "{unknown}");
        }
        assert!(AllowedPaths::Within([].into()).check(&path("in/there")).is_err());
        assert_eq!(AllowedPaths::All.check(&path("out")), Ok(()));
        let line = allowed.check(&path("in/leads-out")).unwrap_err().to_string();
        assert!(
            line.contains("admin-paths") && line.ends_with(&path("out").display().to_string()),
            "{line}"
        );
    }
}
