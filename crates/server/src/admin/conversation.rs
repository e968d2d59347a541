//! The server's side of one admin connection: collects bytes until they form one request of limited
//! length.

use std::sync::Arc;

use httparse::Status as Parsed;

use super::access::{Access, Trust, values};
use super::command::{AdminCommand, Reply, Trouble};

/// Longest accepted request head. Floe's clients send fewer than a hundred bytes.
const HEAD_MAX_BYTES: usize = 8 << 10;

/// Maximum number of header lines of a request.
const HEADERS_MAX: usize = 64;

/// Longest accepted request body. The longest useful one has a name and the paths of a few devices.
const BODY_MAX_BYTES: usize = 64 << 10;

/// The server's next action after bytes of a request have arrived.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// Wait for more bytes: the request is not complete.
    More,
    /// Execute the command and send its reply.
    Command(AdminCommand),
    /// Send this reply and close the connection.
    Refusal(Reply),
}

/// The received part of a request, and the rights of the client that sends it.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    received: Vec<u8>,
    access: Arc<Access>,
}

impl Conversation {
    /// Creates a conversation with a client that has these rights.
    pub(crate) fn new(access: Arc<Access>) -> Self {
        Self { received: Vec::new(), access }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Adds received bytes to the request and parses it.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Heard {
        self.received.extend_from_slice(bytes);
        match self.understand() {
            Ok(Some(command)) => Heard::Command(command),
            Ok(None) => Heard::More,
            Err(refusal) => Heard::Refusal(refusal),
        }
    }

    fn understand(&self) -> Result<Option<AdminCommand>, Reply> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let head_bytes = match request.parse(&self.received) {
            Ok(Parsed::Complete(bytes)) if bytes <= HEAD_MAX_BYTES => bytes,
            Ok(Parsed::Partial) if self.received.len() < HEAD_MAX_BYTES => return Ok(None),
            Ok(_) => {
                return Err(Reply::trouble(Trouble::HeadTooLong, "the request's head is too long"));
            }
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Reply::trouble(
                    Trouble::HeadTooLong,
                    "the request has too many headers",
                ));
            }
            Err(error) => {
                return Err(Reply::trouble(Trouble::Input, format!("this is not HTTP: {error}")));
            }
        };
        let trust = self.access.judge(request.headers)?;
        let body_bytes = body_bytes(request.headers)?;
        let Some(body) = self.received.get(head_bytes..head_bytes + body_bytes) else {
            return Ok(None);
        };
        let (method, path) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
        let command = AdminCommand::understand(method, path, body)?;
        match trust {
            Trust::Reading { token_given } if !command.only_reads() => {
                Err(self.access.refusal(token_given))
            }
            Trust::Browsing if !command.only_reads() => Err(self.access.refusal_of_browser()),
            _ => Ok(Some(command)),
        }
    }
}

/// Returns the length of the request's body from its `Content-Length`.
fn body_bytes(headers: &[httparse::Header<'_>]) -> Result<usize, Reply> {
    if values(headers, "Transfer-Encoding").next().is_some() {
        return Err(Reply::trouble(Trouble::NoLength, "a body must come with its Content-Length"));
    }
    let mut lengths = values(headers, "Content-Length");
    let Some(length) = lengths.next() else { return Ok(0) };
    let digits = std::str::from_utf8(length)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|text| text.parse::<u64>().ok()) {
        Some(bytes) if bytes > BODY_MAX_BYTES as u64 => Err(Reply::trouble(
            Trouble::TooLong,
            format!("a body has at most {BODY_MAX_BYTES} bytes"),
        )),
        Some(bytes) if lengths.next().is_none() => Ok(bytes as usize),
        _ => Err(Reply::trouble(
            Trouble::Input,
            "the Content-Length is not a number, or is given \
                                                 twice",
        )),
    }
}

#[cfg(test)]
mod tests {
    use floe_nvme::target::io::BlockSize;

    use super::*;
    use crate::admin::command::{Addition, AnaState, NewVolume};
    use crate::volume_limit::{LimitChange, RequestLimit};
    use crate::volume_share::{ShareChange, VolumeShare};

    fn hear(request: &[u8]) -> Heard {
        Conversation::default().hear(request)
    }

    /// Returns the HTTP status of the refusal of a request.
    fn code(request: &[u8]) -> String {
        match hear(request) {
            Heard::Refusal(reply) => String::from_utf8(reply.encode()).unwrap()[9..12].to_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn with_body(method: &str, path: &str, body: &str) -> Vec<u8> {
        format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .into_bytes()
    }

    #[test]
    fn a_request_may_arrive_in_pieces() {
        let mut conversation = Conversation::default();
        assert_eq!(conversation.hear(b"GET /sta"), Heard::More);
        assert_eq!(conversation.hear(b"tus HTTP/1.1\r\nHost: a\r\n"), Heard::More);
        assert_eq!(conversation.hear(b"\r\n"), Heard::Command(AdminCommand::Status));
        let request = with_body("POST", "/volumes/a/resize", r#"{"size_bytes": 4096}"#);
        let mut conversation = Conversation::default();
        let (last, first) = request.split_last().unwrap();
        first.iter().for_each(|byte| assert_eq!(conversation.hear(&[*byte]), Heard::More));
        let resize = AdminCommand::ResizeVolume { name: "a".into(), size_bytes: Some(4096) };
        assert_eq!(conversation.hear(&[*last]), Heard::Command(resize));
    }

    #[test]
    fn commands_are_understood_with_their_bodies() {
        let command = |request: &[u8]| match hear(request) {
            Heard::Command(command) => command,
            other => panic!("{other:?}"),
        };
        let plain = |line: &str| command(format!("{line} HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(plain("GET /metrics"), AdminCommand::Metrics);
        assert_eq!(
            (plain("GET /"), plain("GET /events")),
            (AdminCommand::Page, AdminCommand::Events)
        );
        assert_eq!(plain("GET /healthz?verbose"), AdminCommand::Health);
        assert_eq!(plain("POST /cache/restore"), AdminCommand::RestoreCache);
        assert_eq!(plain("GET /volumes"), AdminCommand::ListVolumes);
        let name = "a/b c".to_owned();
        assert_eq!(
            plain("DELETE /volumes/a%2Fb%20c"),
            AdminCommand::RemoveVolume { name: name.clone(), force: false }
        );
        let force = AdminCommand::RemoveVolume { name: name.clone(), force: true };
        assert_eq!(plain("DELETE /volumes/a%2Fb%20c?force"), force);
        assert_eq!(
            plain("POST /volumes/a%2fb%20c/resize"),
            AdminCommand::ResizeVolume { name, size_bytes: None }
        );
        let resize = with_body("POST", "/tiers/0/resize", r#"{"size_bytes": 4096}"#);
        let size = AdminCommand::ResizeTier { number: 0, size_bytes: 4096 };
        assert_eq!(command(&resize), size);
        let ana = with_body("POST", "/volumes/a/ana", r#"{"state": "inaccessible"}"#);
        let state = AnaState::Inaccessible;
        assert_eq!(command(&ana), AdminCommand::SetAccess { name: "a".into(), state });
        let body = r#"{"requests_per_second": 5, "bytes_per_second": null}"#;
        let change = LimitChange {
            requests_per_second: Some(Some(5)),
            bytes_per_second: Some(None),
            limit_burst_ms: None,
            ..LimitChange::default()
        };
        let limit = command(&with_body("POST", "/volumes/a/limit", body));
        assert_eq!(limit, AdminCommand::LimitVolume { name: "a".into(), change });
        let add =
            command(&with_body("POST", "/volumes", r#"{"name": "a", "backing": "memory:4MiB"}"#));
        let addition = Addition {
            name: "a".into(),
            backing: "memory:4MiB".parse().unwrap(),
            read_only: false,
            holds_cache: false,
            block_size: BlockSize::default(),
            description: String::new(),
            limit: RequestLimit::default(),
            share: VolumeShare::default(),
        };
        assert_eq!(add, AdminCommand::AddVolume(Box::new(addition)));
        // Servers of earlier versions know no limits, and refuse what they do not know.
        let volume: NewVolume =
            serde_json::from_str(r#"{"name": "a", "backing": "memory:4MiB"}"#).unwrap();
        let text = serde_json::to_string(&volume).unwrap();
        assert!(!text.contains("limit") && !text.contains("share"), "{text}");
        let share = with_body("POST", "/volumes/a/share", r#"{"guaranteed": "25%"}"#);
        let guaranteed = Some(Some("25%".parse().unwrap()));
        let change = ShareChange { guaranteed, most: None };
        assert_eq!(command(&share), AdminCommand::ShareVolume { name: "a".into(), change });
    }

    #[test]
    fn over_tcp_without_a_token_there_is_only_reading() {
        use crate::admin::access::NetworkRules;
        let network = Access { network: Some(NetworkRules::default()), ..Access::default() };
        let hear = |line: &str| {
            let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            Conversation::new(Arc::new(network.clone())).hear(request.as_bytes())
        };
        for line in [
            "GET /",
            "GET /events",
            "GET /status",
            "GET /metrics",
            "GET /healthz",
            "GET /volumes",
            "GET /tiers",
        ] {
            assert!(matches!(hear(line), Heard::Command(_)), "{line}");
        }
        for line in [
            "POST /flush",
            "POST /stop",
            "POST /cache/restore",
            "DELETE /volumes/a",
            "POST /volumes/a/resize",
            "DELETE /tiers/1",
        ] {
            let Heard::Refusal(reply) = hear(line) else { panic!("{line}") };
            let answer = String::from_utf8(reply.encode()).unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 403 ") && answer.contains("admin-token-file"),
                "{answer}"
            );
        }
        let foreign = b"GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n";
        let heard = Conversation::new(Arc::new(network.clone())).hear(foreign);
        assert!(
            matches!(heard, Heard::Refusal(Reply::Trouble(Trouble::Forbidden, _))),
            "{heard:?}"
        );
    }

    #[test]
    fn what_is_not_offered_is_refused_with_the_reason() {
        assert_eq!(code(b"GET /secrets HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(code(b"GET /page.css HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(code(b"POST / HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(code(b"GET /volumes/a/b/c HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(code(b"GET /flush HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(code(b"PUT /volumes HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(code(b"POST /volumes/a HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(code(b"DELETE /volumes/ HTTP/1.1\r\n\r\n"), "400");
        assert_eq!(code(b"DELETE /volumes/%ff HTTP/1.1\r\n\r\n"), "400");
        assert_eq!(code(b"DELETE /volumes/%4 HTTP/1.1\r\n\r\n"), "400");
        assert_eq!(code(b"\0\0\0\0\r\n\r\n"), "400");
    }

    #[test]
    fn bodies_that_are_not_as_expected_are_refused() {
        for body in [
            "",
            "[]",
            r#"{"name": "a"}"#,
            r#"{"name": "", "backing": "memory:4MiB"}"#,
            r#"{"name": "a", "backing": "disk:5"}"#,
            r#"{"name": "a", "backing": "memory:4MiB", "colour": "red"}"#,
            r#"{"name": "a", "backing": "memory:4MiB"} more"#,
        ] {
            assert_eq!(code(&with_body("POST", "/volumes", body)), "400", "{body}");
        }
        for body in [r#"{"size_bytes": -1}"#, r#"{"size": 1}"#, "4096"] {
            assert_eq!(code(&with_body("POST", "/volumes/a/resize", body)), "400", "{body}");
        }
        for body in ["", "{}", r#"{"size_bytes": "1GiB"}"#, r#"{"size_bytes": 1, "at": 2}"#] {
            assert_eq!(code(&with_body("POST", "/tiers/0/resize", body)), "400", "{body}");
        }
        for body in ["", r#"{"state": "lost"}"#, r#"{"state": "change", "for": 3}"#] {
            assert_eq!(code(&with_body("POST", "/volumes/a/ana", body)), "400", "{body}");
        }
    }

    #[test]
    fn nothing_endless_is_read() {
        assert_eq!(
            code(&[b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'a'; HEAD_MAX_BYTES]].concat()),
            "431"
        );
        assert_eq!(
            code(format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65)).as_bytes()),
            "431"
        );
        let length = |value: &str| {
            code(format!("POST /volumes HTTP/1.1\r\nContent-Length: {value}\r\n\r\n").as_bytes())
        };
        assert_eq!(length("65537"), "413");
        assert_eq!(length("99999999999999999999"), "400");
        assert_eq!(length("+5"), "400");
        assert_eq!(length("5\r\nContent-Length: 5"), "400");
        assert_eq!(code(b"POST /volumes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), "411");
    }
}
