//! Tests of HTML pages and PNG pictures.

use super::outcomes::{Sizes, simulation_report};
use super::pictures::write;
use super::{Chart, PictureFormat, Report, Scale, html, png, svg_file, write_pictures};
use crate::simulate::objects::SimulationResult;

fn outcome(trace: &str, policy: &str, size: u64, miss_ratio: f64) -> SimulationResult {
    SimulationResult {
        trace: trace.to_owned(),
        policy: policy.to_owned(),
        size,
        requests: 1000,
        warmup_requests: 0,
        sampled_requests: None,
        hits: 0,
        misses: 0,
        inserted: None,
        prefetches: 0,
        miss_ratio,
        miss_ratio_ci95: None,
        byte_miss_ratio: miss_ratio,
        byte_miss_ratio_ci95: None,
        mean_latency_us: None,
        seconds: 0.1,
        requests_per_second: 80e6,
        policy_bytes_per_object: 8.0,
        adaptation: None,
        series: Vec::new(),
    }
}

fn page(outcomes: &[SimulationResult]) -> String {
    html(&simulation_report("A title", "floe simulate t --policy lru", Sizes::Objects, outcomes))
}

fn of(outcomes: &[SimulationResult]) -> Report {
    simulation_report("A title", "floe simulate", Sizes::Objects, outcomes)
}

fn several() -> Vec<SimulationResult> {
    let mut outcomes = Vec::new();
    for (at, policy) in ["lru", "fifo", "slru:segments=4", "belady"].into_iter().enumerate() {
        for (size, miss_ratio) in [(100, 0.9), (1000, 0.6), (20_000, 0.3)] {
            outcomes.push(outcome("P3", policy, size, miss_ratio - at as f64 * 0.05));
        }
    }
    outcomes
}

/// Checks that elements are closed in order and attributes are quoted, which is enough for any
/// parser.
fn check_form(page: &str) {
    let body = page.strip_prefix("<!DOCTYPE html>").expect("a page says that it is one");
    let mut open: Vec<&str> = Vec::new();
    let mut rest = body;
    while let Some(begin) = rest.find('<') {
        assert!(!rest[..begin].contains('>') || open.last() == Some(&"style"), "a stray >");
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let tag = &rest[begin + 1..end];
        assert!(tag.split('"').step_by(2).all(|outside| !outside.contains(['\'', '<'])), "{tag}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap_or_default();
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()), "{tag}");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    for after in page.split('&').skip(1) {
        assert!(
            ["amp;", "lt;", "gt;", "quot;", "apos;", "#39;"]
                .iter()
                .any(|name| after.starts_with(name))
        );
    }
}

fn chart<'a>(report: &'a Report, name: &str) -> Option<&'a Chart> {
    report.sections[0].charts.iter().find(|chart| chart.name == name)
}

/// Returns width and height from the header of a PNG file.
fn dimensions(bytes: &[u8]) -> (u32, u32) {
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(&bytes[12..16], b"IHDR");
    let number =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (number(16), number(20))
}

#[test]
fn the_page_is_well_formed_and_names_every_policy_and_size() {
    let page = page(&several());
    check_form(&page);
    assert!(page.contains("<body>\n<h1>") && !page.contains('\\'), "nothing is written by mistake");
    for text in [
        "lru",
        "fifo",
        "slru:segments=4",
        "belady",
        "100",
        "1,000",
        "20,000",
        "floe simulate t --policy lru",
    ] {
        assert!(page.contains(&format!(">{text}")) || page.contains(&format!("{text}<")), "{text}");
    }
}

#[test]
fn the_first_chart_stands_before_the_table_and_folders_are_left_out() {
    let outcomes = [outcome("in/a folder/t.csv", "lru", 10, 0.5), outcome("b", "lru", 10, 0.4)];
    let mut report = of(&outcomes);
    report.title = "in/folders/t.csv replayed".to_owned();
    report.sections[0].heading = "in/folders/t.csv".to_owned();
    report.sections[0].summary = report.sections[0].figures.clone();
    let page = html(&report);
    check_form(&page);
    assert!(page.contains("<h1>t.csv replayed</h1>") && page.contains("<h2>t.csv</h2>"), "{page}");
    let body = page.split_once("<section").expect("a section").1;
    let at = |tag: &str| body.find(tag).expect("it is there");
    assert!(at("<figure") < at("<table"), "{body}");
}

#[test]
fn the_page_refers_to_nothing_outside_itself() {
    let page = page(&several());
    for outside in ["http:", "https:", "src=", "url(", "@import", "<link", "<script", "xmlns"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn the_same_report_gives_the_same_page() {
    assert_eq!(page(&several()), page(&several()));
}

#[test]
fn hostile_names_are_only_text() {
    let name = "</title><script>alert(\"1\")</script>&\u{0}'";
    let outcomes =
        [outcome(name, name, 1, 0.5), outcome(name, "lru", 1, 0.4), outcome("b", name, 1, 0.5)];
    let page = html(&simulation_report(name, name, Sizes::Objects, &outcomes));
    check_form(&page);
    assert!(!page.contains("<script"));
    assert!(!page.contains('\0'));
}

#[test]
fn hostile_names_do_not_leave_the_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let outcomes = [
        outcome("../../a b/c", "lru", 1, 0.5),
        outcome("..", "lru", 1, 0.4),
        outcome("...", "lru", 1, 0.4),
    ];
    let written = write_pictures(&of(&outcomes), &directory.path().join("out"), PictureFormat::Png)
        .expect("pictures");
    assert_eq!(written.len(), 3);
    for path in &written {
        assert_eq!(path.parent(), Some(directory.path()));
        assert!(path.exists());
    }
    assert_ne!(written[1], written[2]);
}

#[test]
fn a_single_size_is_drawn_as_dots() {
    let outcomes = [outcome("t", "lru", 1000, 0.5), outcome("t", "fifo", 1000, 0.6)];
    let page = page(&outcomes);
    check_form(&page);
    assert!(!page.contains("<polyline fill=\"none\" opacity=\"1\" stroke=\"#0072B2\""));
    assert!(page.contains("<circle"));
}

#[test]
fn narrow_screens_get_the_names_of_lines_as_a_list() {
    let page = page(&several());
    let lists: Vec<&str> = page.split("<ul class=\"legend\">").skip(1).collect();
    assert_eq!(lists.len(), page.matches("<figure>").count());
    for list in lists {
        let list = &list[..list.find("</ul>").expect("a list ends")];
        let names = list.split("</li>").filter_map(|item| item.rsplit("</svg>").next());
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        assert!(!names.is_empty() && names.iter().all(|name| !name.contains('<')), "{names:?}");
        assert!(names.contains(&"lru") || names.contains(&"fifo"), "{names:?}");
        assert_eq!(list.matches("class=\"key\"").count(), names.len());
    }
    let dots = [outcome("t", "lru", 1000, 0.5), outcome("t", "fifo", 1000, 0.6)];
    assert!(!self::page(&dots).contains("<ul"), "each row begins with its name");
}

#[test]
fn each_chart_is_drawn_for_wide_screens_and_for_narrow_ones() {
    let page = page(&several());
    let drawn = |class: &str| -> Vec<&str> {
        let begin = format!("<svg class=\"{class}\"");
        page.split(&begin).skip(1).filter_map(|rest| rest.split("</svg>").next()).collect()
    };
    let (wide, narrow) = (drawn("wide"), drawn("narrow"));
    assert_eq!((wide.len(), narrow.len()), (2, 2));
    let named = |svg: &&str| svg.contains("fifo\n</text>");
    assert!(wide.iter().all(named) && !narrow.iter().any(named), "{narrow:?}");
    let lines = |svg: &&str| svg.matches("<polyline").count();
    assert!(narrow.iter().all(|svg| lines(svg) > 0), "{narrow:?}");
}

#[test]
fn a_table_of_many_columns_has_its_headings_at_each_value() {
    let report = of(&several());
    let columns = report.sections[0].figures.as_ref().expect("figures").columns.clone();
    assert!(columns.len() > 4, "{columns:?}");
    let page = html(&report);
    assert!(page.contains("<table class=\"many\">"), "{page}");
    for column in &columns {
        assert!(page.contains(&format!("data-head=\"{column}\"")), "{column}");
    }
}

#[test]
fn a_line_that_rises_with_the_size_has_a_note() {
    let rising = |fifo: f64| {
        let mut outcomes = several();
        let at = outcomes.iter().position(|it| it.policy == "fifo" && it.size == 1000);
        outcomes[at.expect("it was simulated")].miss_ratio = fifo;
        of(&outcomes).sections[0].charts[0].note.clone()
    };
    assert!(!rising(0.55).contains("rises"), "{}", rising(0.55));
    let note = rising(0.9);
    assert!(note.contains("fifo rises from 85.00 % at 100 to 90.00 % at 1,000: "), "{note}");
}

#[test]
fn a_single_policy_needs_no_winner() {
    let report = of(&[outcome("t", "lru", 10, 0.5), outcome("t", "lru", 100, 0.4)]);
    assert!(report.sections[0].summary.is_none());
    check_form(&html(&report));
}

#[test]
fn miss_ratios_of_zero_and_numbers_that_are_none_can_be_drawn() {
    let none = outcome("t", "fifo", 100, f64::NAN);
    let outcomes = [outcome("t", "lru", 10, 0.0), outcome("t", "lru", 100, 0.0), none];
    let report = of(&outcomes);
    check_form(&html(&report));
    dimensions(&png::encode(&report.sections[0].charts[0], "t").expect("a picture"));
    let nothing = of(&[outcome("t", "lru", 10, f64::NAN)]);
    check_form(&html(&nothing));
    dimensions(&png::encode(&nothing.sections[0].charts[0], "t").expect("a picture"));
    check_form(&html(&of(&[])));
}

#[test]
fn sizes_over_a_decade_lie_on_a_logarithmic_axis() {
    assert_eq!(of(&several()).sections[0].charts[0].x.scale, Scale::Log);
    let near = [outcome("t", "lru", 10, 0.5), outcome("t", "lru", 90, 0.4)];
    assert_eq!(of(&near).sections[0].charts[0].x.scale, Scale::Linear);
}

#[test]
fn the_gap_to_belady_is_drawn_where_belady_ran() {
    let report = of(&several());
    let gap = chart(&report, "gap-to-belady").expect("belady is among the policies");
    assert_eq!(gap.series.len(), 3);
    assert!((gap.series[0].points[0].y - 0.15).abs() < 1e-12);
    let without: Vec<SimulationResult> =
        several().into_iter().filter(|o| o.policy != "belady").collect();
    assert!(chart(&of(&without), "gap-to-belady").is_none());
}

#[test]
fn latency_orders_and_is_drawn_when_it_is_known() {
    let mut outcomes = vec![outcome("t", "a", 10, 0.1), outcome("t", "b", 10, 0.2)];
    assert!(chart(&of(&outcomes), "latency").is_none());
    outcomes[0].mean_latency_us = Some(20.0);
    outcomes[1].mean_latency_us = Some(10.0);
    let report = of(&outcomes);
    assert!(chart(&report, "latency").is_some());
    let figures = report.sections[0].figures.as_ref().expect("figures");
    assert_eq!(figures.groups[0].rows[0].cells[0], "b");
}

#[test]
fn a_sample_shows_its_error() {
    let mut outcomes = several();
    for outcome in &mut outcomes {
        outcome.miss_ratio_ci95 = Some(0.0196);
    }
    let page = page(&outcomes);
    check_form(&page);
    assert!(page.contains("<polygon opacity=\"0.16\""));
    assert!(page.contains("± 1.96 %"));
}

#[test]
fn a_policy_looks_the_same_for_every_trace() {
    let outcomes =
        [outcome("a", "lru", 1, 0.5), outcome("a", "arc", 1, 0.4), outcome("b", "arc", 1, 0.4)];
    let report = of(&outcomes);
    let look = |section: usize| {
        let series = &report.sections[section].charts[0].series;
        series.iter().find(|series| series.name == "arc").and_then(|series| series.look)
    };
    assert_eq!(look(0), Some(1));
    assert_eq!(look(1), Some(1));
}

#[test]
fn pictures_are_png_of_twice_the_size() {
    let report = of(&several());
    let bytes = png::encode(&report.sections[0].charts[0], "P3").expect("a picture");
    assert_eq!(dimensions(&bytes), (1800, 828));
    assert!(bytes.len() > 10_000, "something is drawn");
}

#[test]
fn a_picture_in_svg_stands_alone_and_names_all_series() {
    let report = of(&several());
    let svg = svg_file(&report.sections[0].charts[0], "Miss ratio – <P3>");
    check_form(&format!("<!DOCTYPE html>{svg}"));
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\""), "{svg}");
    for text in ["Miss ratio – &lt;P3&gt;", "lru\n</text>", "belady\n</text>"] {
        assert!(svg.contains(text), "{text} is not in {svg}");
    }
}

#[test]
fn one_picture_for_each_chart_is_named_after_it() {
    let directory = tempfile::tempdir().expect("a directory");
    for (format, expected) in [
        (PictureFormat::Png, ["out-miss-ratio.png", "out-gap-to-belady.png"]),
        (PictureFormat::Svg, ["out-miss-ratio.svg", "out-gap-to-belady.svg"]),
    ] {
        let stem = directory.path().join("out");
        let written = write_pictures(&of(&several()), &stem, format).expect("pictures");
        let names: Vec<_> = written.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, expected);
        assert!(written.iter().all(|path| path.exists()));
    }
}

#[test]
fn an_error_names_the_file() {
    let report = of(&several());
    let path = std::path::Path::new("/nowhere/at/all.png");
    let chart = &report.sections[0].charts[0];
    let error = write(chart, "P3", path, PictureFormat::Png).expect_err("no such directory");
    assert!(error.to_string().starts_with("cannot write the picture /nowhere/at/all.png: "));
}
