//! Rights of the admin interface's clients, by the address through which they come.
//!
//! A client that can open the Unix socket may do everything: the socket's permissions decide that.
//! TCP has no user, so that all users of the machine, and every page in a browser on it, can
//! connect. A TCP client may read, and changes something only with the token. Foreign pages are
//! recognised by two headers of the browser: `Origin`, and `Host`, the name by which the browser
//! found the server (DNS rebinding).
//!
//! A Unix socket can be forwarded to a port, where browsers reach it. So a browser, which is
//! recognised by `Origin`, changes something only from the live page, with its [key](PageKey),
//! whatever the address.

use std::net::IpAddr;

use httparse::Header;

use super::page_key::{HEADER, PageKey, PageWrite};
use super::paths::AllowedPaths;
use super::reply::{Reply, Trouble};
use super::token::Token;

/// Rights of the clients of one address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    /// The rules for clients over TCP; a Unix socket has none.
    pub(crate) network: Option<NetworkRules>,
    /// The key of the live page, where it may change something.
    pub(crate) page: Option<PageKey>,
    /// The files and devices they may have opened.
    pub(crate) paths: AllowedPaths,
}

/// The rules for clients over TCP.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetworkRules {
    /// Names by which clients may call the server, beside `localhost` and addresses.
    pub(crate) hosts: Vec<String>,
    /// The secret that makes a client trusted, if there is one.
    pub(crate) token: Option<Token>,
    /// Clients have to encrypt.
    pub(crate) encrypted_only: bool,
}

/// The trust in a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    Everything,
    /// It may not change anything: it has given no token, or a wrong one.
    Reading {
        token_given: bool,
    },
    /// It is a browser, and may not change anything from the page that it shows.
    Browsing,
}

impl Access {
    /// Returns whether clients have to encrypt.
    pub(crate) fn encrypted_only(&self) -> bool {
        self.network.as_ref().is_some_and(|rules| rules.encrypted_only)
    }

    /// Returns the client's rights, by the head of its request.
    ///
    /// # Errors
    /// The refusal of a request that a foreign page has sent.
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

    /// Returns whether a browser's request comes from the live page: it has the key, and the names
    /// are those of this server. A name that others can point at this machine is none.
    fn is_own_page(&self, headers: &[Header<'_>]) -> bool {
        let mut keys = values(headers, HEADER);
        let (key, more) = (keys.next(), keys.next());
        let local = NetworkRules::default();
        let names = self.network.as_ref().unwrap_or(&local);
        let known = self.page.as_ref().zip(key).is_some_and(|(page, key)| page.is(key));
        known && more.is_none() && names.refuse_foreign(headers).is_ok()
    }

    /// Returns the changes that the live page offers.
    pub(crate) fn page_write(&self) -> PageWrite {
        let has_token = self.network.as_ref().map(|rules| rules.token.is_some());
        match (&self.page, has_token) {
            (None, _) => PageWrite::Off,
            (Some(_), Some(false)) => PageWrite::NoToken,
            (Some(key), needs) => PageWrite::On { key: key.clone(), needs_token: needs.is_some() },
        }
    }

    /// The refusal of a change by a browser that does not ask from the live page.
    pub(super) fn refusal_of_browser(&self) -> Reply {
        let problem = match &self.page {
            None => "browsers only look here, unless the server has admin-write = true",
            Some(_) => "browsers change something from this server's live page only; load it again",
        };
        Reply::trouble(Trouble::Forbidden, problem)
    }

    /// The refusal of a change by a client that may only read.
    pub(super) fn refusal(&self, token_given: bool) -> Reply {
        let there_is_one = self.network.as_ref().is_some_and(|rules| rules.token.is_some());
        let problem = match (token_given, there_is_one) {
            (true, true) => "this is not the admin token: nothing is changed",
            (false, true) => {
                "over TCP a change needs the admin token: give --admin-token-file, or ask through \
                 the Unix socket"
            }
            (_, false) => {
                "over TCP this server only tells: ask through the Unix socket, or give the server \
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
            return refuse(format!(
                "this server is not called {host:?}; admin-hosts names what it is called"
            ));
        }
        let own = |origin: &[u8]| {
            let authority =
                origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
            authority.is_some_and(|authority| {
                hosts.iter().any(|host| host.eq_ignore_ascii_case(authority))
            })
        };
        if values(headers, "Origin").any(|origin| !own(origin)) {
            return refuse("pages of other servers may not ask here".into());
        }
        Ok(())
    }

    /// Returns whether a client may call the server by this name.
    fn knows(&self, host: &[u8]) -> bool {
        std::str::from_utf8(host).is_ok_and(|host| {
            let name = name_in(host);
            name.eq_ignore_ascii_case("localhost")
                || name.parse::<IpAddr>().is_ok()
                || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
        })
    }
}

/// The host in `host:port`, of which the port may be missing; an IPv6 address without its brackets.
pub(crate) fn name_in(authority: &str) -> &str {
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.split_once(':').map_or(authority, |(name, _)| name),
    }
}

/// The token in the value of an `Authorization` header.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

/// The values of all headers of this name.
pub(super) fn values<'a>(
    headers: &'a [Header<'a>],
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> {
    headers
        .iter()
        .filter(move |header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value)
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
