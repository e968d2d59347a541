//! The part of a result of `floe calibrate` that an admission needs.

use std::path::Path;

use floe_block::Calibrated;
use serde::Deserialize;

/// The result, as far as it is read here.
#[derive(Deserialize)]
struct Calibration {
    write_cost: f64,
    target: f64,
    target_bytes: f64,
}

/// Reads the parameters of admissions from a file that `floe calibrate` wrote.
pub(super) fn read(file: &Path) -> Result<Calibrated, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let found: Calibration = serde_json::from_str(&text).map_err(|error| {
        format!("{} is not what floe calibrate writes: {error}", file.display())
    })?;
    let Calibration { write_cost, target, target_bytes } = found;
    let is_share = |share: f64| (0.0..=1.0).contains(&share);
    if write_cost >= 0.0 && is_share(target) && is_share(target_bytes) {
        Ok(Calibrated { write_cost, target, target_bytes })
    } else {
        Err(format!("{}: a target is from 0 to 1, and a write cost not below 0", file.display()))
    }
}
