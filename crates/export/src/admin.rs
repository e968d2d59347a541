//! The admin interface: HTTP on an address of its own.
//!
//! | request | answer |
//! |---|---|
//! | `GET /status` | [`Status`](crate::status::Status) as JSON |
//! | `GET /healthz` | `ok` |
//! | `POST /flush` | after everything written so far is on the backing device |
//! | `POST /stop` | when requests under way and the last flush have ended, just before the server does |
//!
//! `Conversation` is the server's side of one connection, without I/O: bytes in, one `Command`, one answer, and the
//! connection closes. [`client`] is the other side, for `floe status`, `flush` and `stop`.

pub mod client;

use httparse::Status as Parsed;

/// Where the admin interface listens unless told otherwise.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:10810";

/// Longest request head that is read; ours are a few dozen bytes.
const HEAD_MAX_BYTES: usize = 8 << 10;

/// Most header lines of a request.
const HEADERS_MAX: usize = 64;

/// What an admin client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Status,
    Health,
    Flush,
    Stop,
}

/// What to do with a connection after it has sent something.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The request is not complete.
    More,
    /// Carry it out and answer with [`answer`].
    Command(Command),
    /// Send this and hang up.
    Refusal(Vec<u8>),
}

/// One admin connection.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    head: Vec<u8>,
}

impl Conversation {
    /// Takes in what was received.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Heard {
        self.head.extend_from_slice(bytes);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&self.head) {
            Ok(Parsed::Complete(_)) => {}
            Ok(Parsed::Partial) if self.head.len() < HEAD_MAX_BYTES => return Heard::More,
            Ok(Parsed::Partial) => return refusal(431, "Request Header Fields Too Large"),
            Err(_) => return refusal(400, "Bad Request"),
        }
        let commands = [
            ("GET", "/status", Command::Status),
            ("GET", "/healthz", Command::Health),
            ("POST", "/flush", Command::Flush),
            ("POST", "/stop", Command::Stop),
        ];
        let path = request.path.unwrap_or("");
        match commands.into_iter().find(|(_, known, _)| *known == path) {
            None => refusal(404, "Not Found"),
            Some((method, ..)) if request.method != Some(method) => refusal(405, "Method Not Allowed"),
            Some((_, _, command)) => Heard::Command(command),
        }
    }
}

fn refusal(code: u16, reason: &str) -> Heard {
    Heard::Refusal(response(code, reason, "text/plain", &format!("{reason}\n")))
}

fn response(code: u16, reason: &str, content_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// The answer to a command: a body, or what went wrong.
pub(crate) fn answer(command: Command, result: Result<&str, &str>) -> Vec<u8> {
    let content_type = if command == Command::Status { "application/json" } else { "text/plain" };
    match result {
        Ok(body) => response(200, "OK", content_type, body),
        Err(problem) => response(500, "Internal Server Error", "text/plain", &format!("{problem}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_arrive_in_pieces() {
        let mut conversation = Conversation::default();
        assert_eq!(conversation.hear(b"GET /sta"), Heard::More);
        assert_eq!(conversation.hear(b"tus HTTP/1.1\r\nHost: a\r\n"), Heard::More);
        assert_eq!(conversation.hear(b"\r\n"), Heard::Command(Command::Status));
    }

    #[test]
    fn what_is_not_offered_is_refused_with_the_reason() {
        let code = |request: &[u8]| match Conversation::default().hear(request) {
            Heard::Refusal(bytes) => String::from_utf8(bytes).unwrap()[9..12].to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(code(b"GET /secrets HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(code(b"GET /flush HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(code(b"\0\0\0\0\r\n\r\n"), "400");
        assert_eq!(code(&[b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'a'; HEAD_MAX_BYTES]].concat()), "431");
    }
}
