//! Tests that the alerts and the dashboard in `packaging` name only existing metrics and labels.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;

const ALERTS: &str = include_str!("../../../../../packaging/prometheus/floe.rules.yml");
const DASHBOARD: &str = include_str!("../../../../../packaging/grafana/floe.json");

/// Labels that Prometheus adds to each sample.
const ADDED: [&str; 2] = ["instance", "job"];

/// Returns the labels of each metric, from the list of published names.
fn published() -> HashMap<&'static str, HashSet<&'static str>> {
    let names =
        include_str!("../published.txt").lines().filter_map(|it| it.strip_prefix("metric "));
    names
        .filter_map(|it| it.strip_suffix('}')?.split_once('{'))
        .map(|(name, labels)| (name, labels.split(',').collect()))
        .collect()
}

/// Returns whether a character may be part of a metric's name.
fn is_part(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Returns each metric in an expression, with the text that follows it.
fn metrics(expression: &str) -> Vec<(&str, &str)> {
    let starts = ["floe_", "process_"].into_iter();
    let starts = starts.flat_map(|start| expression.match_indices(start)).map(|(at, _)| at);
    let whole = |at: &usize| !expression[..*at].ends_with(is_part);
    let name = |at: usize| {
        let rest = &expression[at..];
        rest.split_at(rest.find(|it| !is_part(it)).unwrap_or(rest.len()))
    };
    starts.filter(whole).map(name).collect()
}

/// Returns a message for each unknown metric or label in an expression.
fn faults(expression: &str) -> Vec<String> {
    let published = published();
    let mut faults = Vec::new();
    let mut labels: BTreeSet<&str> = BTreeSet::new();
    for (name, rest) in metrics(expression) {
        let Some(known) = published.get(name) else {
            faults.push(format!("no metric {name}"));
            continue;
        };
        labels.extend(known);
        let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        for matcher in matchers.map_or("", |(inside, _)| inside).split(", ") {
            let label = matcher.split('=').next().unwrap_or_default();
            if !label.is_empty() && !known.contains(label) && !ADDED.contains(&label) {
                faults.push(format!("{name} has no label {label}"));
            }
        }
    }
    for grouped in expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next()) {
        let unknown = |label: &&str| !labels.contains(*label) && !ADDED.contains(label);
        let missing = grouped.split(", ").filter(unknown);
        faults.extend(missing.map(|label| format!("nothing has a label {label}")));
    }
    faults
}

#[test]
fn alerts_ask_for_metrics_that_there_are() {
    // An expression stands on the line of its key, or on the lines after `>-`.
    let rules: Vec<&str> = ALERTS.split("- alert: ").skip(1).collect();
    assert!(rules.len() >= 10);
    let mut names = HashSet::new();
    for rule in rules {
        let (name, rest) = rule.split_once('\n').expect("a rule has lines");
        assert!(names.insert(name), "{name} is there twice");
        let (_, expression) = rest.split_once("expr: ").expect("a rule has an expression");
        let (expression, rest) = expression.split_once("labels: { severity: ").expect("a severity");
        assert!(rest.contains("summary: ") && rest.contains("description: "), "{name}");
        assert_eq!(faults(expression), Vec::<String>::new(), "{name}");
        assert!(name == "FloeDown" || !metrics(expression).is_empty(), "{name}: {expression}");
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let mut ids = HashSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "{panel}");
        for target in panel["targets"].as_array().expect("a panel has targets") {
            let expression = target["expr"].as_str().expect("a target has an expression");
            assert_eq!(faults(expression), Vec::<String>::new(), "{}", panel["title"]);
            assert!(!metrics(expression).is_empty(), "{expression}");
        }
    }
    assert!(panels.len() >= 10);
}

#[test]
fn wrong_names_are_found() {
    for (expression, count) in [
        ("rate(floe_requests_total{operation=\"read\"}[5m])", 0),
        ("floe_request_total", 1),
        ("sum by (tier) (floe_requests_total)", 1),
        ("floe_requests_total{instance=\"a\", tier=\"0\"}", 1),
        ("sum by (le) (floe_request_duration_seconds_bucket)", 0),
    ] {
        assert_eq!(faults(expression).len(), count, "{expression}");
    }
}
