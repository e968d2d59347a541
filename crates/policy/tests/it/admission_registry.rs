//! Admissions are chosen by name, several at once; what is wrong with a choice is said in one line.

use floe_policy::admission::registry::{Choice, help, names, table};
use floe_policy::admission::{ADMISSIONS, Admission, Admissions, Room, Verdict};
use floe_policy::{Access, mix};

fn error(text: &str) -> String {
    text.parse::<Admissions>().expect_err("the text chooses no admission").to_string()
}

#[test]
fn every_admission_is_found_by_its_name() {
    for info in ADMISSIONS {
        assert_eq!(info.name.parse(), Ok(Choice::of(info)));
    }
    let mut distinct = names();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), ADMISSIONS.len(), "two admissions share a name");
}

#[test]
fn a_text_is_read_back() {
    for text in ["obp:target=0.1", "small-bypass + obp", "fussy:popular=3:check=100 + sequential"] {
        assert_eq!(text.parse::<Admissions>().expect("the choice is valid").to_string(), text);
    }
    assert_eq!(
        "never+always".parse::<Admissions>().expect("no blanks are needed").to_string(),
        "never + always"
    );
}

#[test]
fn what_is_wrong_is_said() {
    let unknown = error("obb");
    assert!(
        unknown.starts_with(
            "no admission is called `obb`; did you mean `obp`? there are: always, never, "
        ),
        "{unknown}"
    );
    assert!(names().iter().all(|name| unknown.contains(name)), "{unknown}");
    assert!(error("obp + ").starts_with("no admission is called ``; there are: "));
    assert_eq!(error("always:p=1"), "admission always has no parameter `p`; it takes none");
    assert_eq!(
        error("always + obp:target=2"),
        "admission obp: parameter target must be a number from 0 to 1, not `2`"
    );
    assert_eq!(
        error("obp:target=0.1:target=0.5"),
        "admission obp: parameter target is given twice"
    );
    assert_eq!(
        error("obp + duel + obp:target=0.5"),
        "admission obp is given twice; one of them is enough"
    );
    assert!(
        error("second-access:ghosts=0").contains("from 0.001 to 16"),
        "{}",
        error("second-access:ghosts=0")
    );
    assert!(error("obp:target=1KiB").contains("must be a number from 0 to 1, not `1KiB`"));
    assert!(error("small-bypass:memory=2PiB").contains("a whole number"));
}

#[test]
fn what_counts_bytes_takes_units() {
    for text in
        ["small-bypass:memory=1GiB", "small-bypass:memory=1073741824", "small-bypass:memory=0.5GiB"]
    {
        let choice: Choice = text.parse().expect("a size");
        let bytes = if text.contains("0.5") { 1 << 29 } else { 1 << 30 };
        assert_eq!(choice.parameters().count("memory"), bytes, "{text}");
        assert_eq!(choice.to_string(), text);
    }
}

#[test]
fn the_help_names_every_admission_and_parameter() {
    let help = help();
    for info in ADMISSIONS {
        assert!(help.contains(info.name) && help.contains(info.idea));
        assert!(info.parameters.iter().all(|parameter| help.contains(parameter.name)));
    }
}

/// A clone shares nothing, and what was reserved is counted as memory.
#[test]
fn each_is_a_template() {
    for info in ADMISSIONS {
        let template: Admissions = info.name.parse().expect("a registered name");
        let run = |mut admission: Admissions| -> Vec<Verdict> {
            admission.reserve(&Room { entries: 64, weight: 64, above: 8 });
            assert!(admission.memory_bytes() < 64 << 10, "{}", info.name);
            (0..500).map(|at| admission.admit(&Access::new(mix(at % 40)), None)).collect()
        };
        let first = run(template.clone());
        assert_eq!(run(template), first, "{}", info.name);
    }
}

/// The table in the documentation is the registry's. With UPDATE_DOCS set, it is written instead of
/// compared.
#[test]
fn the_documented_table_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/admissions.md");
    let text = format!(
        "# The admissions\n\nGenerated from the registry by `UPDATE_DOCS=1 cargo test -p \
         floe-policy --test it admission_registry`. Several are written\nwith `+` between them, \
         such as `small-bypass + obp:target=0.2`: a block is admitted if all of them admit \
         it.\n\n{}",
        table()
    );
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &text).expect("the table can be written");
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap_or_default(),
        text,
        "docs/admissions.md is stale: set UPDATE_DOCS"
    );
}
