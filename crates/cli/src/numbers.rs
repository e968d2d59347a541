//! Lists of numbers on the command line: `a,b,c`, each possibly a range `from..=to:step`.

use std::str::FromStr;

/// Maximum count of numbers in one range, so that a mistyped step does not run for a week.
const NUMBERS_MAX: f64 = 10_000.0;

/// A list of numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Numbers(pub(crate) Vec<f64>);

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            match part.split_once("..=") {
                Some((from, rest)) => numbers.extend(range(part, from, rest)?),
                None => numbers.push(number(part)?),
            }
        }
        Ok(Self(numbers))
    }
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.trim().parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| format!("`{text}` is not a number"))
}

fn range(text: &str, from: &str, rest: &str) -> Result<Vec<f64>, String> {
    let (to, step) =
        rest.split_once(':').ok_or_else(|| format!("`{text}` has no step; write {text}:STEP"))?;
    let (from, to, step) = (number(from)?, number(to)?, number(step)?);
    let steps = ((to - from) / step + 1e-9).floor();
    if step <= 0.0 || !(0.0..NUMBERS_MAX).contains(&steps) {
        return Err(format!("`{text}` holds no number, or more than {NUMBERS_MAX}"));
    }
    // A tenth has no exact binary form; ten of them shall print as 1 all the same.
    let rounded = |number: f64| (number * 1e9).round() / 1e9;
    Ok((0..=steps as u64).map(|at| rounded(from + at as f64 * step)).collect())
}

/// A list of whole numbers of at least 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counts(pub(crate) Vec<usize>);

impl FromStr for Counts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = |number: f64| {
            let is_count = number >= 1.0 && number.fract() == 0.0 && number < 1e9;
            is_count
                .then_some(number as usize)
                .ok_or_else(|| format!("{number} is not a whole number of at least 1"))
        };
        text.parse::<Numbers>()?.0.into_iter().map(count).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_their_ends() {
        let numbers = |text: &str| text.parse::<Numbers>().map(|numbers| numbers.0);
        assert_eq!(numbers("0.5..=1:0.1"), Ok(vec![0.5, 0.6, 0.7, 0.8, 0.9, 1.0]));
        assert_eq!(numbers("5, 100..=300:100"), Ok(vec![5.0, 100.0, 200.0, 300.0]));
        assert_eq!("1,2..=8:2".parse(), Ok(Counts(vec![1, 2, 4, 6, 8])));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for wrong in
            ["", "a", "1,,2", "nan", "inf", "1..=2", "1..=2:0", "2..=1:1", "1..=2:-1", "1..=1e9:1"]
        {
            assert!(wrong.parse::<Numbers>().is_err(), "{wrong}");
        }
        for wrong in ["0", "1.5", "-1", "1e12", "0..=3:1"] {
            assert!(wrong.parse::<Counts>().is_err(), "{wrong}");
        }
    }
}
