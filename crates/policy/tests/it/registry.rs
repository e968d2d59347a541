//! Policies are chosen by name; what is wrong with a choice is said in one line.

use floe_policy::POLICIES;
use floe_policy::registry::{Choice, help, names, table};

fn error(text: &str) -> String {
    text.parse::<Choice>().expect_err("the text chooses no policy").to_string()
}

#[test]
fn every_policy_is_found_by_its_name() {
    for entry in POLICIES {
        assert_eq!(entry.info.name.parse(), Ok(Choice::of(&entry.info)));
    }
    let names = names();
    let mut distinct = names.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), names.len(), "two policies share a name");
}

#[test]
fn parameters_follow_the_name() {
    for text in [
        "slru:segments=2",
        "prob-lru:q=0.9",
        "clock:bits=2",
        "2q:in=0.2:out=0.6",
        "s3-fifo:fill=main",
    ] {
        assert_eq!(text.parse::<Choice>().expect("the choice is valid").to_string(), text);
    }
}

#[test]
fn unknown_names_are_answered_with_all_names() {
    let error = error("mru");
    assert!(error.starts_with("no policy is called `mru`; did you mean `lru`? there"), "{error}");
    assert!(names().iter().all(|name| error.contains(name)), "{error}");
    assert!(!error.contains('\n'));
}

#[test]
fn a_misspelt_name_is_answered_with_the_one_that_was_meant() {
    for (text, meant) in [
        ("s3fifo", "s3-fifo"),
        ("S3-FIFO:small=0.1", "s3-fifo"),
        ("LRU", "lru"),
        ("seive", "sieve"),
        ("lrru", "lru"),
    ] {
        let error = error(text);
        assert!(error.contains(&format!("`; did you mean `{meant}`? there are: ")), "{error}");
    }
    for text in ["random-ish", "x", ""] {
        assert!(!error(text).contains("did you mean"), "{text}");
    }
}

#[test]
fn unknown_parameters_are_answered_with_the_known_ones() {
    assert_eq!(
        error("slru:parts=4"),
        "policy slru has no parameter `parts`; it takes: segments (2..=8)"
    );
    assert_eq!(error("lru:parts=4"), "policy lru has no parameter `parts`; it takes none");
}

#[test]
fn values_out_of_range_are_answered_with_the_range() {
    for (text, given) in
        [("slru:segments=1", "1"), ("slru:segments=2.5", "2.5"), ("slru:segments", "")]
    {
        let expected = format!(
            "policy slru: parameter segments must be a whole number from 2 to 8, not `{given}`"
        );
        assert_eq!(error(text), expected);
    }
    assert_eq!(
        error("s3-fifo:fill=big"),
        "policy s3-fifo: parameter fill must be small or main, not `big`"
    );
    assert_eq!(
        error("s3-fifo:parts=4"),
        "policy s3-fifo has no parameter `parts`; it takes: small (0..=1), fill (small or main)"
    );
    assert_eq!(
        error("prob-lru:q=nan"),
        "policy prob-lru: parameter q must be a number from 0 to 1, not `nan`"
    );
}

#[test]
fn the_help_names_every_policy_and_parameter() {
    let help = help();
    for entry in POLICIES {
        assert!(help.contains(entry.info.name) && help.contains(entry.info.idea));
        assert!(entry.info.parameters.iter().all(|parameter| help.contains(parameter.name)));
    }
}

/// The table in the documentation is the registry's. With UPDATE_DOCS set, it is written instead of
/// compared.
#[test]
fn the_documented_table_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/policies.md");
    let text = format!(
        "# The policies\n\nGenerated from the registry by `UPDATE_DOCS=1 cargo test -p \
         floe-policy --test it registry`. Left out: LRB and 3L-Cache,\nwhich need a \
         trained model (as does the choice of s4-fifo's parameters by the load);\nAdaptSize, \
         no order but an admission of web objects by their sizes over an LRU list; GD-Wheel, \
         which orders as gdsf does in constant time, for misses of different costs, and here all \
         cost the same;\nand window-LFU, whose counts of the last requests the sketch of \
         w-tinylfu keeps in eight bytes an entry. A FIFO-like \
         policy's hits touch no list, so its throughput rises with the hit ratio; an LRU-like \
         one's hits owe\na promotion, and past some hit ratio its throughput falls. The block \
         cache (`evict`) can have all but belady; the cache in memory\nall but belady and \
         sarc.\n\n{}",
        table()
    );
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/docs"))
            .expect("the folder can be made");
        std::fs::write(path, &text).expect("the table can be written");
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap_or_default(),
        text,
        "docs/policies.md is stale: set UPDATE_DOCS"
    );
}

/// Advice for a running cache needs a model of its policy. Belady's runs in simulations only.
#[test]
fn every_policy_of_a_cache_is_modelled() {
    let has_none = |name: &&str| floe_model::Policy::alike(name).is_err();
    let without: Vec<_> = POLICIES.iter().map(|entry| entry.info.name).filter(has_none).collect();
    assert_eq!(without, ["belady"]);
}

/// Texts state the number of policies; each statement is found and compared with the registry.
#[test]
fn texts_state_the_number_of_policies_that_there_are() {
    // The cache in memory refuses those that need to know the future, or positions of blocks.
    let memory =
        |entry: &&floe_policy::registry::Entry| !entry.info.next_uses && !entry.info.streams;
    let (all, memory) = (POLICIES.len(), POLICIES.iter().filter(memory).count());
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for (file, statements) in [
        ("README.md", vec![format!("{memory} of the [{all} eviction policies]")]),
        ("bindings/python/README.md", vec![format!("{memory} eviction policies")]),
        (
            "docs/coming-from.md",
            vec![format!("| {memory} policies with the feature `policies`;"); 2],
        ),
        ("crates/floe/Cargo.toml", vec![format!("{memory} eviction policies")]),
    ] {
        let text = std::fs::read_to_string(format!("{root}/{file}")).expect("the text is there");
        for statement in &statements {
            assert_eq!(
                text.matches(statement.as_str()).count(),
                statements.len(),
                "{file} does not say {statement:?}"
            );
        }
    }
    // No text states another number; the block cache has all but Belady's.
    for file in texts(std::path::Path::new(root)) {
        let text = std::fs::read_to_string(&file).expect("the text is there");
        let words: Vec<_> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        for (at, _) in words.iter().enumerate().filter(|(_, word)| **word == "policies") {
            let near = &words[at.saturating_sub(2)..at];
            let stated = match near {
                [number, "eviction" | "replacement"] | [_, number] => number.parse::<usize>().ok(),
                _ => None,
            };
            let is_known = stated.is_none_or(|it| it < 10 || [all, all - 1, memory].contains(&it));
            assert!(is_known, "{}: {near:?} policies", file.display());
        }
    }
}

/// The Markdown of the project, but for the changelog, which tells of the past.
fn texts(root: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut folders = ["docs", "crates", "bindings"].map(|it| root.join(it)).to_vec();
    let mut found = vec![root.join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("it is there").path();
            let hidden = path.file_name().is_some_and(|it| it.as_encoded_bytes()[0] == b'.');
            if path.is_dir() && !path.ends_with("target") && !hidden {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    found
}
