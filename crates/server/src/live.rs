//! The live page: a server's last hour, for people with a browser.
//!
//! The acceptor takes a [`Sample`] of all counters every few seconds
//! ([`sample_interval`](crate::limits::Limits::sample_interval)). The difference of two is a
//! [`Point`]; [`History`] keeps those of an hour in bounded memory. `GET /` answers with a page
//! that holds its own style and script and asks nobody else, `GET /events` with server-sent events:
//! the history once, then each new point with the status.
//!
//! Names come from configuration and could hold anything. The page receives them as JSON and shows
//! them as text, never as markup; its content policy allows no script but its own.

mod history;
mod point;
mod what_if;

pub(crate) use history::History;
pub(crate) use point::{Point, Sample};
pub(crate) use what_if::{Outlook, WhatIf};

use serde::Serialize;

use crate::status::Status;

/// The place of the attributes of the page's body.
const ATTRIBUTES: &str = "data-write=\"off\"";

/// Returns the page, with these attributes of its body: the changes that it offers.
pub(crate) fn page(attributes: &str) -> String {
    PAGE.replacen(ATTRIBUTES, attributes, 1)
}

/// The page.
const PAGE: &str = concat!(
    include_str!("live/head.html"),
    "<style>\n",
    include_str!("live/page.css"),
    "</style>\n</head>\n",
    include_str!("live/body.html"),
    "<script>\n\"use strict\";\n",
    include_str!("live/text.js"),
    include_str!("live/chart.js"),
    include_str!("live/plot.js"),
    include_str!("live/outlook.js"),
    include_str!("live/administer.js"),
    include_str!("live/page.js"),
    "</script>\n</body>\n</html>\n"
);

/// Response headers of the page: it loads nothing, is framed by nobody, and is never stored.
pub(crate) const PAGE_HEADERS: &str = "Content-Security-Policy: default-src 'none'; \
     style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
     X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
     Cache-Control: no-store\r\n";

/// The head of a stream of events, which ends with the connection.
pub(crate) const EVENTS_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
     Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n\
     retry: 2000\n\n";

/// One event: all that changes on the page.
#[derive(Debug, Serialize)]
pub(crate) struct Update<'a> {
    /// The interval that has just ended.
    pub(crate) point: &'a Point,
    pub(crate) status: &'a Status,
    /// Other sizes of the cache; `None` before enough reads.
    pub(crate) what_if: Option<Outlook>,
    /// The model's curve; `None` without a tier in memory, or without reads.
    pub(crate) model: Option<Vec<(f64, f64)>>,
}

/// Encodes an event; JSON has no line breaks.
pub(crate) fn event(name: &str, data: &impl Serialize) -> String {
    let data = serde_json::to_string(data).expect("events are plain data");
    format!("event: {name}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_nobody_else_for_anything() {
        for foreign in ["http://", "https://", "src=", "@import", "url(", "innerHTML"] {
            let allowed = "http://www.w3.org/2000/svg"; // a name, not an address to ask
            assert!(!PAGE.replace(allowed, "").contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn an_event_is_one_line_of_data_whatever_a_name_holds() {
        let text = event("update", &"</script>\n\ndata: x\r");
        assert_eq!(text, "event: update\ndata: \"</script>\\n\\ndata: x\\r\"\n\n");
    }
}
