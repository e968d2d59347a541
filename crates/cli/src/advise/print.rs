//! Advice as text of 80 columns.

use comfy_table::Table;
use floe_lab::advise::{Advice, Trial};

use crate::output;

pub(super) fn print(advice: &Advice) {
    output::say!("{}\n", wrapped(&advice.verdict));
    output::print_table(&table(advice));
    if let Some(safe) = &advice.without_write_back {
        let time = output::microseconds(safe.mean_us);
        let text =
            format!("Without write-back, {} is best, with a mean of {time}.", safe.candidate);
        output::say!("\n{}", wrapped(&text));
    }
    let of_them = match advice.coarse_requests < advice.requests {
        true => format!(", most on the first {}", advice.coarse_requests),
        false => String::new(),
    };
    let touched = format!(
        "{} trials{of_them}; {} requests touch {}, and {} in blocks of 32 KiB.",
        advice.trials,
        advice.requests,
        output::bytes(advice.footprint_bytes),
        output::bytes(advice.footprint_in_cache_bytes)
    );
    output::say!("\n{}", wrapped(&touched));
    for warning in &advice.warnings {
        output::say!("\n{}", wrapped(&format!("Warning: {warning}")));
    }
    match &advice.toml {
        Some(toml) => output::say!("\nfloe.toml:\n\n{}", toml.trim_end()),
        None => output::say!("\nNo floe.toml is recommended."),
    }
}

/// The text of a row of the table for a trial.
type Told = Box<dyn Fn(&Trial) -> String>;

/// Makes a table with a column for each of the three.
fn table(advice: &Advice) -> Table {
    type Cell = fn(&Trial) -> String;
    let us = |time: Option<f64>| time.map_or("–".to_owned(), output::microseconds);
    let lines: Vec<(&str, Told)> = vec![
        ("cache", Box::new(|t| output::bytes(t.candidate.cache_bytes))),
        ("write", Box::new(|t| t.candidate.write.clone())),
        ("blocks", Box::new(|t| range(&t.candidate.block_sizes))),
        ("evict", Box::new(|t| t.candidate.evict.clone())),
        ("admit", Box::new(|t| t.candidate.admit.clone())),
        ("mean request", Box::new(|t| output::microseconds(t.mean_us))),
        ("read mean", Box::new(move |t| us(t.result.read_us_mean))),
        ("     p50", Box::new(move |t| us(t.result.read_us_p50))),
        ("     p99", Box::new(move |t| us(t.result.read_us_p99))),
        ("     p99.9", Box::new(move |t| us(t.result.read_us_p999))),
        ("write mean", Box::new(move |t| us(t.result.write_us_mean))),
        ("      p50", Box::new(move |t| us(t.result.write_us_p50))),
        ("      p99", Box::new(move |t| us(t.result.write_us_p99))),
        ("      p99.9", Box::new(move |t| us(t.result.write_us_p999))),
        (
            "requests/s",
            Box::new(|t| t.result.requests_per_second.map_or("–".into(), |r| format!("{r:.0}"))),
        ),
        ("read hits", Box::new(|t| output::percent(t.result.read_hit_ratio))),
        ("read from volume", Box::new(|t| output::bytes(t.result.backing_read_bytes))),
        ("written to volume", Box::new(|t| output::bytes(t.result.backing_write_bytes))),
        ("read from cache", Box::new(|t| output::bytes(t.result.cache_read_bytes))),
        ("written to cache", Box::new(|t| output::bytes(t.result.cache_write_bytes))),
        ("memory of the cache", Box::new(|t| output::bytes(t.result.metadata_bytes))),
        ("written a year", Box::new(|t| paced(t, format!("{:.1} TB", t.written_tb_per_year)))),
        ("drive writes a day", Box::new(|t| paced(t, format!("{:.2}", t.writes_per_day)))),
    ];
    let mut table = output::table(&["", "best", "default", "bare"], 1);
    for (name, cell) in &lines {
        // Nothing is cached on a bare volume, whatever its settings.
        let of_cache = matches!(*name, "cache" | "blocks" | "evict" | "admit");
        let bare = if of_cache { "–".to_owned() } else { cell(&advice.bare) };
        table.add_row(vec![(*name).to_owned(), cell(&advice.best), cell(&advice.default), bare]);
    }
    if advice.best.price.is_some() {
        let price: Cell =
            |trial| trial.price.map_or("–".to_owned(), |price| format!("{price:.2}"));
        let (best, default) = (price(&advice.best), price(&advice.default));
        table.add_row(vec!["price".to_owned(), best, default, "–".to_owned()]);
    }
    table
}

/// Returns a figure that needs the pace of the trace, if that is known.
fn paced(trial: &Trial, figure: String) -> String {
    if trial.has_pace() { figure } else { "–".to_owned() }
}

/// Shortens a list of block sizes to its ends.
fn range(sizes: &str) -> String {
    match (sizes.split(',').next(), sizes.rsplit(',').next()) {
        (Some(first), Some(last)) if first != last => format!("{first}–{last}"),
        _ => sizes.to_owned(),
    }
}

/// Breaks a sentence into lines of at most 80 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > 80 {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_fit_into_80_columns() {
        let text = "a word and another ".repeat(20);
        let wrapped = wrapped(&text);
        assert!(wrapped.lines().count() > 3);
        assert!(wrapped.lines().all(|line| line.chars().count() <= 80), "{wrapped}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&wrapped), words(&text));
    }

    #[test]
    fn several_block_sizes_are_shown_by_their_ends() {
        assert_eq!(range("32KiB,64KiB,256KiB"), "32KiB–256KiB");
        assert_eq!(range("64KiB"), "64KiB");
    }
}
