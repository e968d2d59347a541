//! Prints curves as tables.

use floe_lab::classes::{self, Point, Verdict};
use floe_lab::model::{Answer, Identity, Line, Star};
use floe_model::Locks;

use crate::output;

/// Prints a table for a curve, and its conclusion.
pub(super) fn curve(lines: &[Line], star: &Star) {
    output::say!("{}", heading(&star.identity));
    let (rate, time) = (|mrps: f64| format!("{mrps:.4}"), |us: f64| format!("{us:.2}"));
    let columns: &[&str] = match lines.first().map(|line| &line.answer) {
        Some(Answer::Open { .. }) => &["hit ratio", "saturation M/s", "response µs", "limits"],
        Some(Answer::Closed { sim_mrps: Some(_), .. }) => {
            &["hit ratio", "bound M/s", "mva M/s", "sim M/s", "± 95 %", "limits"]
        }
        _ => &["hit ratio", "bound M/s", "mva M/s", "limits"],
    };
    let mut table = output::table(columns, 0);
    for line in lines {
        let mut cells = vec![line.hit_ratio.to_string()];
        match line.answer {
            Answer::Closed { bound_mrps, mva_mrps, sim_mrps, sim_ci95 } => {
                cells.extend([rate(bound_mrps), rate(mva_mrps)]);
                cells.extend([sim_mrps, sim_ci95].into_iter().flatten().map(rate));
            }
            Answer::Open { saturation_mrps, response_us } => {
                cells.push(saturation_mrps.map_or("none".to_owned(), rate));
                cells.push(response_us.map_or("piles up".to_owned(), time));
            }
        }
        cells.push(line.bottleneck.unwrap_or("nothing").to_owned());
        table.add_row(cells);
    }
    output::print_table(&table);
    output::say!("{}\n", verdict(star));
}

fn heading(identity: &Identity) -> String {
    let Identity { policy, q, frozen, written, mpl, arrival_mrps, cores, disk_us } = identity;
    let option = |name: &str, value: Option<f64>| {
        value.map_or(String::new(), |value| format!(" · {name} {value}"))
    };
    let q =
        if matches!(*policy, "prob-lru" | "relaxed-lru") { option("q", *q) } else { String::new() };
    let mpl = mpl.map_or(String::new(), |mpl| format!(" · MPL {mpl}"));
    let arrivals = arrival_mrps.map_or(String::new(), |mrps| format!(" · {mrps} M/s arrive"));
    let cores =
        cores.map_or(String::new(), |cores| format!(" · {cores} cores, so mva is approximate"));
    let shares = option("frozen", *frozen) + &option("written", *written);
    format!("{policy}{q}{shares}{mpl}{arrivals}{cores} · disk {disk_us} µs")
}

/// Returns the conclusion in one line.
fn verdict(star: &Star) -> String {
    let Star { p_star, peak_mrps, all_hits_mrps, classification, bottleneck, .. } = star;
    let rate =
        |mrps: &Option<f64>| mrps.map_or("any rate".to_owned(), |mrps| format!("{mrps:.4} M/s"));
    let limit =
        bottleneck.map_or("nothing is waited for".to_owned(), |name| format!("bottleneck {name}"));
    let (peak, hits) = (rate(peak_mrps), rate(all_hits_mrps));
    if *p_star < 1.0 {
        format!("p* {p_star:.3}: {peak} there, {hits} with hits only; {classification}, {limit}")
    } else {
        format!("p* 1: it never falls, {hits} with hits only; {classification}, {limit}")
    }
}

/// Prints the operations counted of a policy over a trace, and the resulting curve.
pub(super) fn counted(points: &[Point], verdict: &Verdict) {
    let classes::Identity { policy, mpl, cores, disk_us, locks, .. } = &verdict.identity;
    let cores = cores.map_or(String::new(), |cores| format!(" · {cores} cores (mva approximate)"));
    let locks = match locks {
        Locks::Operation => "a lock for each operation",
        Locks::List => "one lock",
    };
    output::say!("{policy} · {locks} · MPL {mpl}{cores} · disk {disk_us} µs");
    let columns = [
        "size",
        "hit ratio",
        "mva M/s",
        "list operations a hit",
        "hits that lock",
        "longest",
        "its µs a request",
    ];
    let mut table = output::table(&columns, 0);
    for point in points {
        table.add_row([
            point.size.to_string(),
            format!("{:.4}", point.hit_ratio),
            format!("{:.4}", point.mva_mrps),
            format!("{:.3}", point.operations_per_hit),
            output::percent(point.hits_locking),
            point.bottleneck.clone().unwrap_or_else(|| "–".into()),
            format!("{:.3}", point.bottleneck_us),
        ]);
    }
    output::print_table(&table);
    let paper = verdict.paper.map_or(String::new(), |paper| {
        let agrees = if paper == verdict.classification { "as" } else { "not as" };
        format!(", {agrees} the paper says")
    });
    let limit = verdict
        .bottleneck
        .as_deref()
        .map_or(String::new(), |station| format!("; {station} limits it"));
    let Verdict { p_star, fall, lowest_at, classification, .. } = verdict;
    if *p_star < 1.0 {
        output::say!(
            "p* {p_star:.3}: throughput then falls by {}, furthest at {lowest_at:.3}; \
             {classification}{paper}{limit}\n",
            output::percent(*fall)
        );
    } else {
        output::say!("throughput never falls; {classification}{paper}{limit}\n");
    }
}
