//! The rows of a demonstration as text of 80 columns.

use std::fmt::Write;

use super::Row;

/// Columns of the longest bar.
const BAR_COLUMNS: f64 = 52.0;

const NEXT: &str = "\
Your own trace: floe advise TRACE --backing hdd --cache nvme
Your own disks: floe demo --real --volume /mnt/slow --cache /mnt/fast";

/// Describes the rows of a bare volume, a write-through and a write-back cache, and the next steps.
///
/// # Panics
/// When there are not three rows.
pub fn text(rows: &[Row]) -> String {
    format!("{}\n{}\n{}\n\n{NEXT}", bars(rows), details(rows), verdict(rows))
}

/// Draws a bar a row, as long as its requests a second.
fn bars(rows: &[Row]) -> String {
    let most = rows.iter().map(|row| row.requests_per_second).fold(f64::MIN_POSITIVE, f64::max);
    let mut text = format!("{:13}  {:>10}\n", "", "requests/s");
    for row in rows {
        let eighths = (row.requests_per_second / most * BAR_COLUMNS * 8.0).round() as usize;
        let last = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
        let bar = "█".repeat(eighths / 8) + last;
        writeln!(text, "{:13}  {:10.0}  {bar}", row.run, row.requests_per_second)
            .expect("text takes all");
    }
    text
}

/// Lists the figures of each row.
fn details(rows: &[Row]) -> String {
    let mut text = format!(
        "{:13} {:>9} {:>9} {:>10} {:>9} {:>7} {:>9} {:>7}\n",
        "", "read mean", "p99", "write mean", "p99", "hits", "disk read", "written"
    );
    for row in rows {
        writeln!(
            text,
            "{:13} {:>9} {:>9} {:>10} {:>9} {:>5.1} % {:>9} {:>7}",
            row.run,
            microseconds(row.read_us_mean),
            microseconds(row.read_us_p99),
            microseconds(row.write_us_mean),
            microseconds(row.write_us_p99),
            100.0 * row.read_hit_ratio,
            mebibytes(row.backing_read_bytes),
            mebibytes(row.backing_write_bytes),
        )
        .expect("text takes all");
    }
    text
}

/// Says in one sentence what happened, for a bare volume, a write-through and a write-back cache.
fn verdict(rows: &[Row]) -> String {
    let [bare, through, back] = rows else { panic!("a demonstration has three rows") };
    format!(
        "The cache served {:.0} % of reads, and a read took {} instead of {}. The\nsame \
         load ran {:.1} times as fast with write-through, {:.1} times with write-back.",
        100.0 * through.read_hit_ratio,
        microseconds(through.read_us_mean),
        microseconds(bare.read_us_mean),
        through.requests_per_second / bare.requests_per_second,
        back.requests_per_second / bare.requests_per_second,
    )
}

/// Formats a time in the unit that fits.
fn microseconds(us: f64) -> String {
    match us {
        us if us >= 0.999_995e6 => format!("{:.2} s", us / 1e6),
        us if us >= 999.95 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} µs"),
    }
}

fn mebibytes(bytes: u64) -> String {
    match bytes >> 20 {
        mebibytes @ 0..10_000 => format!("{mebibytes}MiB"),
        mebibytes => format!("{}GiB", mebibytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The widest figures that a run can show.
    fn row(run: &'static str) -> Row {
        Row {
            run,
            requests_per_second: 1_234_567.8,
            mebibytes_per_second: 12_345.6,
            read_us_mean: 999_999.9,
            read_us_p99: 1_234_567.8,
            write_us_mean: 999_999.9,
            write_us_p99: 1_234_567.8,
            read_hit_ratio: 1.0,
            backing_read_bytes: 9_999 << 20,
            backing_write_bytes: (999 << 30) + (512 << 20),
        }
    }

    #[test]
    fn the_text_fits_into_80_columns() {
        let rows = ["bare volume", "write-through", "write-back"].map(row);
        let introductions = [super::super::introduction(), super::super::real_introduction()];
        for line in text(&rows).lines().chain(introductions.iter().flat_map(|text| text.lines())) {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
    }
}
