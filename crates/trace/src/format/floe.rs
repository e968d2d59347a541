//! Floe's own compact form; see [`crate::compact`]. Known by its magic. Its kind stands in its
//! header.

use super::{Fit, Spec};
use crate::compact::{Decoder, is_compact};
use crate::request::Kind;

pub(super) static FLOE: Spec = Spec {
    name: "floe",
    kind: Kind::Key,
    layout: "binary: header, then blocks of columns (docs/trace-format.md)",
    origin: "`floe trace convert`",
    fit: |sample| Fit::sure(100).only_if(is_compact(sample.bytes)),
    names: &[],
    decoder: || Box::new(Decoder::default()),
    block_decoder: Some(|| Box::new(Decoder::default())),
    ..Spec::NONE
};
