//! What an admin client is answered, and how that looks in HTTP.

use serde::Serialize;

use crate::metrics;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is done; a word about it.
    Done(&'static str),
    /// What was asked for, as JSON.
    Json(String),
    /// What was asked for, as Prometheus wants it.
    Metrics(String),
    /// It was not done, and why.
    Trouble(Trouble, String),
    /// The path is there for this method only.
    WrongMethod(&'static str),
}

/// Why something was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The request makes no sense.
    Input,
    /// The client has no right to it.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// It does not fit what is there.
    Conflict,
    /// The body is too long.
    TooLong,
    /// The head of the request is too long.
    HeadTooLong,
    /// The length of the body is not said.
    NoLength,
    /// A device failed.
    Failed,
    /// Some requests of clients are refused.
    Refusing,
    /// The server ends.
    Ending,
    /// Too much is asked for at once.
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

    /// The bytes to send before hanging up.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let text = "text/plain; charset=utf-8";
        match self {
            Self::Done(word) => response("200 OK", text, "", &format!("{word}\n")),
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
