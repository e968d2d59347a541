//! `floe volume evict`: drops what the cache of a running server has of a volume.

use clap::Args;
use floe_server::admin::{VolumePart, client};
use serde_json::json;

use crate::admin::Answer;
use crate::error::CliError;
use crate::output;
use crate::volume::parts::{ByteRange, in_parts, ranges, volume_bytes};

const EXAMPLES: &str = "\
Examples:
  floe volume evict pictures
  floe volume evict pictures --range 0..10GiB --range 1TiB..1100GiB";

const NOTES: &str = "\
The server first writes all dirty data of the volume back, and drops nothing if that fails. Then it
drops the copies in the parts from all tiers, a TiB at a time. Data that clients write meanwhile may
stay.";

#[derive(Debug, Args)]
#[command(after_help = format!("{NOTES}\n\n{EXAMPLES}"))]
pub(crate) struct Evict {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    name: String,
    /// The part to drop; may be repeated [default: all of the volume]
    #[arg(long, value_name = "START..END")]
    range: Vec<ByteRange>,
    #[command(flatten)]
    answer: Answer,
}

impl Evict {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let server = self.answer.endpoint()?;
        let parts = ranges(&self.range, &self.name, volume_bytes(&server, &self.name)?)?;
        let bytes = in_parts(parts, VolumePart::EVICT_BYTES_MAX, "evicting", |part| {
            client::evict_volume(&server, &self.name, part)
        })?;
        let line = format!("the cache has dropped {} of {}", output::bytes(bytes), self.name);
        self.answer.print(&json!({ "volume": self.name, "bytes": bytes }), &line)
    }
}
