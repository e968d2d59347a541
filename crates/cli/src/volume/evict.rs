//! `floe volume evict`: drops what the cache of a running server has of a volume.

use clap::Args;
use floe_server::admin::{VolumePart, client};
use serde_json::json;

use crate::admin::Answer;
use crate::error::CliError;
use crate::output;
use crate::volume::parts::{ByteRange, counted, in_parts, ranges, since, volume_bytes};

const EXAMPLES: &str = "\
Examples:
  floe volume evict pictures
  floe volume evict pictures --range 0..10GiB --range 1TiB..1100GiB";

const NOTES: &str = "\
The server first writes all dirty data of the volume back, and drops nothing if that fails. Then it
drops the copies in the parts from all tiers, a TiB at a time. Data that clients write meanwhile may
stay. The bytes dropped are those of all tiers, and of all evictions meanwhile.";

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
        let before = counted(&server, |tier| tier.dropped_bytes);
        let bytes = in_parts(parts, VolumePart::EVICT_BYTES_MAX, "evicting", |part| {
            client::evict_volume(&server, &self.name, part)
        })?;
        let dropped = since(before, counted(&server, |tier| tier.dropped_bytes));
        let shown = output::bytes(dropped.unwrap_or(bytes));
        let line = format!("the cache has dropped {shown} of {}", self.name);
        let result = json!({ "volume": self.name, "bytes": bytes, "dropped_bytes": dropped });
        self.answer.print(&result, &line)
    }
}
