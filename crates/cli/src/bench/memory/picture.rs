//! Charts of a measurement over time.

use std::path::Path;

use floe_lab::bench::{Identity, Measured};
use floe_lab::report::timeline::{Timeline, section as drawn};
use floe_lab::report::{Report, Section, png};

use crate::OrFail;
use crate::error::CliError;

/// Makes the section of a point, with a timeline for each of its caches.
pub(super) fn section(identities: &[Identity], measured: &[Measured]) -> Section {
    let timeline = |(identity, measured): (&Identity, &Measured)| Timeline {
        name: format!("{}, frozen {}", identity.policy, identity.freezing.frozen),
        samples: measured.watch.samples.clone(),
    };
    let timelines: Vec<Timeline> = identities.iter().zip(measured).map(timeline).collect();
    let heading = identities.first().map_or_else(String::new, |identity| {
        let disk_us = identity.setup.disk.mean_ns as f64 / 1e3;
        format!(
            "{} entries, {} threads, {disk_us} us a miss",
            identity.capacity, identity.setup.threads
        )
    });
    drawn(&heading, &timelines)
}

/// Writes the charts of all points beside the stem.
pub(super) fn write(sections: Vec<Section>, stem: &Path) -> Result<(), CliError> {
    let report = Report { sections, ..Report::default() };
    png::write_all(&report, stem).or_failure()?;
    Ok(())
}
