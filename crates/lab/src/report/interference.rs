//! The chart of the slowdown of a device's reads by writes.

use super::{Axis, Chart, Point, Report, Section, Series, Unit};
use crate::interference::Calibration;

/// A report with one section and one chart: a line for each size of operations.
pub fn report(calibration: &Calibration) -> Report {
    let line = |(at, size): (usize, &crate::interference::OfBlock)| Series {
        name: format!("reads of {}", Unit::Bytes.value(size.block_bytes as f64)),
        look: Some(at),
        points: size
            .points
            .iter()
            .map(|point| {
                let (low, high) =
                    (point.read_bytes_per_second_low, point.read_bytes_per_second_high);
                let (x, y) = (point.write_share, point.read_bytes_per_second);
                Point { x, y, error: Some((high - low) / 2.0) }
            })
            .collect(),
    };
    let chart = Chart {
        name: "reads".into(),
        title: "Reads beside writes".into(),
        note: "Bytes read in a second, by the share of the operations that write.".into(),
        x: Axis::new("share of writes", Unit::Ratio),
        y: Axis::new("bytes read in a second", Unit::Bytes),
        series: calibration.sizes.iter().enumerate().map(line).collect(),
        bands: Vec::new(),
    };
    let section =
        Section { heading: calibration.device.clone(), charts: vec![chart], ..Section::default() };
    Report {
        title: format!("{} under writes", calibration.device),
        sections: vec![section],
        ..Report::default()
    }
}
