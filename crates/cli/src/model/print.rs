//! Curves as tables.

use floe_lab::model::{Identity, Line, Star};

use crate::output;

pub(super) fn curve(lines: &[Line], star: &Star) {
    println!("{}", heading(&star.identity));
    let mut table = output::table(&["hit ratio", "bound M/s", "mva M/s"], 0);
    for line in lines {
        table.add_row([
            format!("{}", line.hit_ratio),
            format!("{:.4}", line.bound_mrps),
            format!("{:.4}", line.mva_mrps),
        ]);
    }
    output::print_table(&table);
    println!("{}\n", verdict(star));
}

fn heading(identity: &Identity) -> String {
    let Identity { policy, q, frozen, mpl, cores, disk_us } = identity;
    let option =
        |name: &str, value: Option<f64>| value.map_or(String::new(), |value| format!(" · {name} {value}"));
    let q = if matches!(*policy, "prob-lru" | "relaxed-lru") { option("q", *q) } else { String::new() };
    let cores = cores.map_or(String::new(), |cores| format!(" · {cores} cores (mva approximate)"));
    format!("{policy}{q}{} · MPL {mpl}{cores} · disk {disk_us} µs", option("frozen", *frozen))
}

/// The line that says what to take home.
fn verdict(star: &Star) -> String {
    let Star { p_star, peak_mrps, all_hits_mrps, classification, bottleneck, .. } = star;
    let limit =
        bottleneck.map_or("no list operation limits it".to_owned(), |name| format!("{name} limits it"));
    if *p_star < 1.0 {
        format!(
            "p* {p_star:.3}: {peak_mrps:.4} M/s there, {all_hits_mrps:.4} with hits only; {classification}, {limit}"
        )
    } else {
        format!(
            "p* 1: throughput never falls, {all_hits_mrps:.4} M/s with hits only; {classification}, {limit}"
        )
    }
}
