//! Text and drawings as parts of a page.

use super::chart_writer::clean;

/// Text that means only itself in the page.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The elements of a drawing, without the one around them.
pub(super) fn inside(drawing: &str) -> &str {
    let begin = drawing.find('>').map_or(0, |at| at + 1);
    let end = drawing.rfind("</svg>").unwrap_or(drawing.len());
    &drawing[begin..end]
}
