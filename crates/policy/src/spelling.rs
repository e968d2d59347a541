//! The nearest of some names to a misspelt one.

use std::cmp::Reverse;

/// Most changes of letters by which a misspelt name differs from the one that was meant.
const MOST_CHANGES: usize = 2;

/// Returns the name that was probably meant: the nearest, whatever the case of its letters, if at
/// most two letters differ, and fewer than half of what was written.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    let most = MOST_CHANGES.min(name.chars().count().saturating_sub(1) / 2);
    let near = names.into_iter().map(|known| {
        let lower = known.to_lowercase();
        // Of names as near, the one that begins as what was written.
        (changes(&name, &lower), Reverse(same_letters(&name, &lower)), known)
    });
    near.filter(|&(changes, ..)| changes <= most).min().map(|(.., known)| known)
}

/// Returns with how many letters both texts begin.
fn same_letters(one: &str, other: &str) -> usize {
    one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count()
}

/// Returns the Levenshtein distance of two texts.
fn changes(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (to, other) in other.chars().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[to + 1];
            row[to + 1] = replaced.min(row[to] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}
