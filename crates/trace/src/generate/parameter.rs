//! Parameters of generators: their types, how they are written, and what is wrong with them.

use std::fmt;

/// The most keys or requests: sums and products of a few stay far from overflow.
const WHOLE_MAX: u64 = 1 << 48;

/// A parameter as a generator declares it.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) of: Type,
    /// As a user would write it.
    pub(crate) default: &'static str,
    pub(crate) about: &'static str,
}

pub(super) const KEYS: Parameter = Parameter {
    name: "keys",
    of: Type::Count,
    default: "1000000",
    about: "how many keys there are",
};
pub(super) const THETA: Parameter = Parameter {
    name: "theta",
    of: Type::Exponent,
    default: "0.99",
    about: "exponent of Zipf's law",
};
pub(super) const REQUESTS: Parameter = Parameter {
    name: "requests",
    of: Type::Count,
    default: "1000000",
    about: "length of the trace",
};
pub(super) const SEED: Parameter =
    Parameter { name: "seed", of: Type::Seed, default: "1", about: "another seed, another trace" };
pub(super) const BLOCK: Parameter = Parameter {
    name: "block",
    of: Type::Bytes,
    default: "0",
    about: "makes keys disk I/O of so many bytes, one behind the other",
};
pub(super) const READ: Parameter = Parameter {
    name: "read",
    of: Type::Share,
    default: "100%",
    about: "share of requests that read",
};
pub(super) const WEIGHT: Parameter = Parameter {
    name: "weight",
    of: Type::Weight,
    default: "1",
    about: "how often this part's turn comes",
};

/// Parameters that a part of a mix takes besides its generator's own.
pub(super) const OF_PARTS: &[Parameter] = &[WEIGHT];

/// The types of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Count,
    Seed,
    Bytes,
    Exponent,
    Weight,
    Share,
    Flag,
    Workload,
    FileServer,
}

/// A parameter's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    Whole(u64),
    Bytes(u64),
    Real(f64),
    Flag(bool),
    Letter(char),
    Word(&'static str),
}

impl Type {
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Self::Count => "a whole number from 1 to 2^48",
            Self::Seed => "a whole number",
            Self::Bytes => "a size from 512 to 4GiB, such as 4KiB",
            Self::Exponent => "a number from 0 to 100",
            Self::Weight => "a number above 0",
            Self::Share => "a share such as 70% or 0.7",
            Self::Flag => "yes or no",
            Self::Workload => "a workload from A to F",
            Self::FileServer => "dbtable, dblog, swbuild, vda or websearch",
        }
    }

    pub(crate) fn parse(self, text: &str) -> Option<Value> {
        let real = || text.parse().ok().filter(|number: &f64| number.is_finite());
        match self {
            Self::Count => {
                whole(text).filter(|count| (1..=WHOLE_MAX).contains(count)).map(Value::Whole)
            }
            Self::Seed => whole(text).map(Value::Whole),
            Self::Bytes => bytes(text).map(Value::Bytes),
            Self::Exponent => real().filter(|theta| (0.0..=100.0).contains(theta)).map(Value::Real),
            Self::Weight => real().filter(|weight| (1e-9..=1e9).contains(weight)).map(Value::Real),
            Self::Share => match text.strip_suffix('%') {
                Some(percent) => percent.parse::<f64>().ok().map(|percent| percent / 100.0),
                None => real(),
            }
            .filter(|share| (0.0..=1.0).contains(share))
            .map(Value::Real),
            Self::Flag => match text {
                "yes" => Some(Value::Flag(true)),
                "no" => Some(Value::Flag(false)),
                _ => None,
            },
            Self::Workload => match text.to_ascii_uppercase().as_bytes() {
                [letter @ b'A'..=b'F'] => Some(Value::Letter(char::from(*letter))),
                _ => None,
            },
            Self::FileServer => {
                let known = ["dbtable", "dblog", "swbuild", "vda", "websearch"];
                known.into_iter().find(|known| text.eq_ignore_ascii_case(known)).map(Value::Word)
            }
        }
    }
}

/// Digits, and underscores between them.
fn whole(text: &str) -> Option<u64> {
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|&(suffix, unit)| {
            let number = text.strip_suffix(suffix).or_else(|| text.strip_suffix(&suffix[..1]));
            number.map(|number| (number, unit))
        })
        .unwrap_or((text, 1));
    whole(number)?.checked_mul(unit).filter(|bytes| *bytes == 0 || (512..=1 << 32).contains(bytes))
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => {
                match UNITS.iter().find(|(_, unit)| bytes % unit == 0 && bytes > 0) {
                    Some((suffix, unit)) => write!(f, "{}{suffix}", bytes / unit),
                    None => write!(f, "{bytes}"),
                }
            }
            Self::Real(number) => write!(f, "{number}"),
            Self::Flag(flag) => f.write_str(if flag { "yes" } else { "no" }),
            Self::Letter(letter) => write!(f, "{letter}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}
