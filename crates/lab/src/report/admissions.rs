//! Results of admissions, for the pages of replays and simulations of blocks: the fate of offers.

use super::table::{Group, Row};
use super::{Axis, Chart, Point, Series, Unit};
use crate::admission::AdmissionOutcome;

/// The figures of an admission, under a heading that says whose it is.
pub(super) fn group(about: &str, admission: &AdmissionOutcome) -> Group {
    let row =
        |name: &str, value: String| Row { cells: vec![name.to_owned(), value], ..Row::default() };
    let count = |blocks: u64| Unit::Count.value(blocks as f64);
    let share = |blocks: u64| {
        let of = blocks as f64 / admission.offered_blocks.max(1) as f64;
        format!("{}, {}", count(blocks), Unit::Ratio.value(of))
    };
    let mut rows = vec![
        row("smallest blocks offered", count(admission.offered_blocks)),
        row("admitted", share(admission.admitted_blocks)),
        row("bypassed", share(admission.bypassed_blocks)),
    ];
    let declined = admission.declined.iter();
    rows.extend(declined.map(|it| row(&format!("declined by {}", it.by), share(it.blocks))));
    if admission.ordered_blocks > 0 {
        rows.push(row("fetched as ordered", count(admission.ordered_blocks)));
    }
    if admission.stores_withheld > 0 {
        rows.push(row(
            "blocks not made, as nothing was to leave",
            count(admission.stores_withheld),
        ));
    }
    rows.push(row("memory of the admission", Unit::Bytes.value(admission.admission_bytes as f64)));
    Group { heading: format!("{about}: {}", admission.admission), rows }
}

/// Draws the fate of the offers, a row each; `tier` is its number from the top.
pub(super) fn chart(tier: usize, admission: &AdmissionOutcome) -> Chart {
    let one = |(look, (name, blocks)): (usize, (String, u64))| Series {
        name,
        look: Some(look),
        points: vec![Point { x: tier as f64, y: blocks as f64, error: None }],
    };
    let fates = [("admitted", admission.admitted_blocks), ("bypassed", admission.bypassed_blocks)];
    let fates = fates.map(|(name, blocks)| (name.to_owned(), blocks)).into_iter();
    let declined =
        admission.declined.iter().map(|it| (format!("declined by {}", it.by), it.blocks));
    let several =
        if admission.declined.is_empty() { "" } else { " What several declined counts for each." };
    Chart {
        name: format!("admission-{tier}"),
        title: format!("Admission: {}", admission.admission),
        note: format!(
            "What became of the {} smallest blocks that were read or written and not \
             cached.{several}",
            Unit::Count.value(admission.offered_blocks as f64)
        ),
        x: Axis::new("tier", Unit::Count),
        y: Axis::new("smallest blocks", Unit::Count),
        series: fates.chain(declined).enumerate().map(one).collect(),
        bands: Vec::new(),
    }
}
