//! The answers of the admin interface, and their encoding in HTTP.

use serde::Serialize;

use super::page_key::PageWrite;
use crate::{live, metrics};

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
