//! The live page: the last hour of a server, for people with a browser.
//!
//! The acceptor takes a [`Sample`] of all counters every few seconds
//! ([`sample_interval`](crate::limits::Limits::sample_interval)). The difference of two samples is
//! a [`Point`]. [`History`] keeps the points of an hour in bounded memory. `GET /` returns a page
//! that contains its own style and script and loads nothing else. `GET /events` returns server-sent
//! events: the history once, then each new point with the status.
//!
//! Names come from configuration and may contain anything. The page receives them as JSON and shows
//! them as text, never as markup. Its content policy allows no script but its own.

mod point;
mod what_if;

use std::collections::VecDeque;

use serde::Serialize;

use crate::status::Status;

pub(crate) use point::{Point, Sample};
pub(crate) use what_if::{Outlook, WhatIf};

/// Default attributes of the page's `<body>`, which [`page`] replaces.
const ATTRIBUTES: &str = "data-write=\"off\"";

/// Returns the page with these attributes of its `<body>`, which state the changes that the page
/// offers.
pub(crate) fn page(attributes: &str) -> String {
    PAGE.replacen(ATTRIBUTES, attributes, 1)
}

/// The page, with its style and script.
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
    include_str!("live/adaptation.js"),
    include_str!("live/administer.js"),
    include_str!("live/page.js"),
    "</script>\n</body>\n</html>\n"
);

/// HTTP headers of the page's response. They forbid loading other resources, embedding in a frame,
/// and storing.
pub(crate) const PAGE_HEADERS: &str = "Content-Security-Policy: default-src 'none'; \
     style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
     X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
     Cache-Control: no-store\r\n";

/// HTTP head of a stream of events, which ends with the connection.
pub(crate) const EVENTS_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
     Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n\
     retry: 2000\n\n";

/// The data of one event, from which the page updates everything it shows.
#[derive(Debug, Serialize)]
pub(crate) struct Update<'a> {
    /// The interval that has just ended.
    pub(crate) point: &'a Point,
    pub(crate) status: &'a Status,
    /// Estimates for other cache sizes; `None` before enough reads.
    pub(crate) what_if: Option<Outlook>,
    /// The model's throughput by hit ratio; `None` without a memory tier or without reads.
    pub(crate) model: Option<Vec<(f64, f64)>>,
}

/// Encodes a server-sent event. JSON data contains no line breaks.
pub(crate) fn event(name: &str, data: &impl Serialize) -> String {
    let data = serde_json::to_string(data).expect("events are plain data");
    format!("event: {name}\ndata: {data}\n\n")
}

/// Maximum number of points kept: one hour of intervals of 5 s.
const MOST_POINTS: usize = 720;

/// The points of the last hour, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
    last: Option<Sample>,
}

impl History {
    /// Adds a sample. Returns the point of the interval since the sample before, unless this is the
    /// first.
    pub(crate) fn add(&mut self, sample: Sample) -> Option<&Point> {
        let before = self.last.replace(sample);
        let point = self.last.as_ref()?.since(&before?)?;
        if self.points.len() == MOST_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        self.points.back()
    }

    /// Returns the points, oldest first.
    pub(crate) fn points(&self) -> &VecDeque<Point> {
        &self.points
    }
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

#[cfg(test)]
mod history_tests {
    use std::time::Duration;

    use super::*;
    use crate::live::point::{MOST_TIERS, MOST_VOLUMES};

    #[test]
    fn an_hour_stays_and_takes_less_than_a_mebibyte() {
        let mut history = History::default();
        for second in 0..(MOST_POINTS as u64 + 100) {
            let sample = Sample::crowded(Duration::from_secs(5 * second), second);
            history.add(sample);
        }
        assert_eq!(history.points().len(), MOST_POINTS);
        let bytes: usize = history.points().iter().map(Point::bytes).sum();
        assert!(bytes < 1 << 20, "{bytes} bytes with {MOST_TIERS} tiers, {MOST_VOLUMES} volumes");
    }
}
