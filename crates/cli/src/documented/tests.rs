//! A test that the commands in the documentation are commands of this program. It parses each line
//! of a code block that runs `floe`, and runs none.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

/// Returns the project's pages for users, but for the changelog, which tells of the past.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut folders = vec![root.join("docs")];
    let mut found = vec![root.join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("it is there").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the lines of the code blocks of a page, each with its number. A line that ends with a
/// backslash is joined with the next one.
fn code_lines(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut is_code, mut is_open) = (Vec::<(usize, String)>::new(), false, false);
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            (is_code, is_open) = (!is_code, false);
        } else if is_code {
            let (part, goes_on) = match line.strip_suffix('\\') {
                Some(part) => (part, true),
                None => (line, false),
            };
            match lines.last_mut() {
                Some((_, begun)) if is_open => begun.push_str(part),
                _ => lines.push((at + 1, part.to_owned())),
            }
            is_open = goes_on;
        }
    }
    lines
}

/// Splits a line into commands, and these into words, as a shell does: quotes, comments, `&&`, `;`
/// and `|`. What follows a `>` or `<` is left out.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words) = (Vec::new(), Vec::new());
    let (mut word, mut quote, mut is_file) = (None::<String>, None, false);
    for c in line.trim().trim_start_matches("$ ").chars().chain([' ', ';']) {
        match (quote, c) {
            (Some(end), _) if c == end => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | ';' | '&' | '|' | '>' | '<') => {
                let is_number = word.as_ref().is_some_and(|it| it == "2") && c == '>';
                if !is_file && !is_number {
                    words.extend(word.take());
                }
                if word.take().is_some() || c != ' ' {
                    is_file = matches!(c, '>' | '<');
                }
                if matches!(c, ';' | '&' | '|') {
                    commands.push(std::mem::take(&mut words));
                }
            }
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    commands.push(words);
    commands.retain(|it: &Vec<_>| !it.is_empty());
    commands
}

/// Returns whether a command runs this program, with all of its arguments there.
fn is_ours(words: &[String]) -> bool {
    let name = words[0].rsplit('/').next().expect("a part");
    let is_program = words[0] == "floe" || (name == "floe" && words[0].starts_with("target/"));
    let is_whole = !words.iter().any(|it| it.contains('…') || it.starts_with('['));
    is_program && is_whole
}

#[test]
fn commands_are_split_as_a_shell_does() {
    let line = "$ floe serve --listen 'nbd+unix:///?socket=/a b' > log 2>&1 && floe stop # the end";
    let words =
        [vec!["floe", "serve", "--listen", "nbd+unix:///?socket=/a b"], vec!["floe", "stop"]];
    let found: Vec<_> = commands(line).into_iter().filter(|it| is_ours(it)).collect();
    assert_eq!(found, words);
}

#[test]
fn commands_in_the_documentation_can_be_parsed() {
    let (mut parsed, mut wrong) = (0, Vec::new());
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("the page is there");
        // A row of a printed table may begin with a volume that has the program's name.
        for (number, line) in code_lines(&text).into_iter().filter(|it| !it.1.contains("floe  ")) {
            for words in commands(&line).iter().filter(|it| is_ours(it)) {
                parsed += 1;
                if let Err(refusal) = crate::command().try_get_matches_from(words)
                    && !matches!(refusal.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
                    && !refusal.to_string().contains("does not exist")
                {
                    let reason = refusal.to_string();
                    let reason = reason.lines().next().unwrap_or_default();
                    wrong.push(format!(
                        "{}:{number}: {}: {reason}",
                        page.display(),
                        words.join(" ")
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {parsed} commands:\n{}", wrong.len(), wrong.join("\n"));
    assert!(parsed > 60, "only {parsed} commands were found");
}
