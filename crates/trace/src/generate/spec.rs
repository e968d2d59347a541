//! Texts that describe generators: `name:parameter=value,…`, valid wherever a trace's path is.
//!
//! A mix is followed by its parts, each after a plus sign and with a `weight`; it passes them its
//! requests and seed: `mix:requests=9000+zipf:keys=100,weight=2+loop:keys=50`. Every parameter has
//! a default.

use std::fmt;
use std::str::FromStr;

use super::{ENTRIES, Entry, Made, Plan};

/// Name of the generator that has parts.
pub(super) const MIX: &str = "mix";
/// Name of the generator whose requests have sizes of their own.
pub(super) const SFS: &str = "sfs";
/// Size of the block that a key of [`SFS`] stands for.
pub(super) const SFS_BLOCK_BYTES: u64 = 4096;

/// The description of a generated trace. It parses from text such as `zipf:keys=1000,theta=0.9` and
/// prints the parameters that were given.
///
/// ```
/// use floe_trace::{GeneratorSpec, Trace};
///
/// let spec: GeneratorSpec = "zipf:keys=1000,requests=5".parse()?;
/// assert_eq!(Trace::generate(&spec)?.count(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct GeneratorSpec {
    entry: &'static Entry,
    /// Parameters that were given, in the order of the registry.
    given: Vec<(&'static Parameter, Value)>,
    parts: Vec<GeneratorSpec>,
    is_part: bool,
}

/// Returns all parameters of a generator, or those it accepts as part of a mix.
pub(super) fn parameters_of(
    entry: &'static Entry,
    is_part: bool,
) -> impl Iterator<Item = &'static Parameter> {
    static LENGTH: &[Parameter] = &[REQUESTS, SEED, BLOCK];
    static OPS: &[Parameter] = &[READ];
    let common = if is_part { OF_PARTS } else { LENGTH };
    let ops = if is_part || entry.chooses_ops { &[] } else { OPS };
    entry.parameters.iter().chain(common).chain(ops)
}

impl GeneratorSpec {
    /// Returns the generator's name.
    pub fn name(&self) -> &'static str {
        self.entry.name
    }

    /// Returns the number of requests that the trace has.
    pub fn requests(&self) -> u64 {
        self.whole("requests")
    }

    /// Returns whether `text` starts like a generator: with a word and a colon, or with the name of
    /// a generator.
    pub(crate) fn looks_like(text: &str) -> bool {
        let name = text.split([':', '+']).next().unwrap_or(text);
        let is_word = name.len() > 1
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        is_word && text.as_bytes().get(name.len()) == Some(&b':') || find(name).is_some()
    }

    pub(super) fn parts(&self) -> &[GeneratorSpec] {
        &self.parts
    }

    pub(super) fn make(&self, plan: Plan) -> Result<Made, SpecError> {
        (self.entry.make)(self, plan)
    }

    pub(super) fn block_bytes(&self) -> Option<u64> {
        match self.value("block") {
            Some(Value::Bytes(bytes)) if bytes > 0 => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn read_share(&self) -> Option<f64> {
        match self.value("read") {
            Some(Value::Real(share)) => Some(share),
            _ => None,
        }
    }

    pub(super) fn whole(&self, name: &str) -> u64 {
        match self.value(name) {
            Some(Value::Whole(number)) => number,
            value => unreachable!("{name} is a whole number, not {value:?}"),
        }
    }

    pub(super) fn real(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(Value::Real(number)) => number,
            value => unreachable!("{name} is a number, not {value:?}"),
        }
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.value(name) == Some(Value::Flag(true))
    }

    pub(super) fn letter(&self, name: &str) -> char {
        match self.value(name) {
            Some(Value::Letter(letter)) => letter,
            value => unreachable!("{name} is a letter, not {value:?}"),
        }
    }

    pub(super) fn word(&self, name: &str) -> &'static str {
        match self.value(name) {
            Some(Value::Word(word)) => word,
            value => unreachable!("{name} is a word, not {value:?}"),
        }
    }

    /// Returns the value of a parameter: the given one, or the default.
    fn value(&self, name: &str) -> Option<Value> {
        let given = self
            .given
            .iter()
            .find(|(parameter, _)| parameter.name == name)
            .map(|&(_, value)| value);
        given.or_else(|| {
            let parameter =
                parameters_of(self.entry, self.is_part).find(|parameter| parameter.name == name)?;
            parameter.of.parse(parameter.default)
        })
    }

    /// Parses one generator without parts.
    fn parse(text: &str, is_part: bool) -> Result<Self, SpecError> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        let entry = find(name).ok_or_else(|| SpecError::UnknownGenerator {
            name: name.to_owned(),
            generators: ENTRIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
        })?;
        let known: Vec<_> = parameters_of(entry, is_part).collect();
        let mut values = vec![None; known.len()];
        for pair in parameters.split(',').filter(|pair| !pair.is_empty()) {
            let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
            let at = known.iter().position(|parameter| parameter.name == name);
            let at = at.ok_or_else(|| SpecError::UnknownParameter {
                generator: entry.name,
                name: name.to_owned(),
                parameters: known
                    .iter()
                    .map(|parameter| parameter.name)
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
            let parameter = known[at].name;
            let (expected, found) = (known[at].of.expected(), text.to_owned());
            let value =
                known[at].of.parse(text).ok_or(SpecError::Value { parameter, expected, found })?;
            if values[at].replace(value).is_some() {
                return Err(SpecError::Twice { parameter });
            }
        }
        let given = known
            .into_iter()
            .zip(values)
            .filter_map(|(parameter, value)| Some((parameter, value?)));
        Ok(Self { entry, given: given.collect(), parts: Vec::new(), is_part })
    }
}

fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().copied().find(|entry| entry.name == name)
}

impl FromStr for GeneratorSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parts = text.split('+');
        let mut spec = Self::parse(parts.next().unwrap_or_default(), false)?;
        let is_mix = spec.name() == MIX;
        for part in parts {
            if !is_mix {
                return Err(SpecError::Parts { generator: spec.name() });
            }
            let part = Self::parse(part, true)?;
            if part.name() == MIX {
                return Err(SpecError::Nested);
            }
            spec.parts.push(part);
        }
        if is_mix && spec.parts.is_empty() {
            return Err(SpecError::NoParts);
        }
        // What a file server asks for has the sizes of a paper, in blocks of these.
        let has_sizes = std::iter::once(&spec).chain(&spec.parts).any(|spec| spec.name() == SFS);
        match spec.block_bytes() {
            Some(bytes) if has_sizes && bytes != SFS_BLOCK_BYTES => Err(SpecError::Value {
                parameter: "block",
                expected: "4KiB, since sfs has sizes of its own",
                found: bytes.to_string(),
            }),
            _ => Ok(spec),
        }
    }
}

impl fmt::Display for GeneratorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        for (index, (parameter, value)) in self.given.iter().enumerate() {
            let separator = if index == 0 { ':' } else { ',' };
            write!(f, "{separator}{}={value}", parameter.name)?;
        }
        self.parts.iter().try_for_each(|part| write!(f, "+{part}"))
    }
}

impl fmt::Debug for GeneratorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GeneratorSpec({self})")
    }
}

impl PartialEq for GeneratorSpec {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// Largest number of keys or requests; sums and products of a few stay far from overflow.
const WHOLE_MAX: u64 = 1 << 48;

/// A parameter of a generator, as declared in the registry.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) of: Type,
    /// Default value, as a user would write it.
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
pub(super) const SEED: Parameter = Parameter {
    name: "seed",
    of: Type::Seed,
    default: "1",
    about: "seed of the random numbers; each makes another trace",
};
pub(super) const BLOCK: Parameter = Parameter {
    name: "block",
    of: Type::Bytes,
    default: "0",
    about: "turns keys into disk I/O of this size, key 1 right behind key 0",
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
    about: "relative number of turns of this part",
};

/// Parameters that a part of a mix accepts besides its generator's own.
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

/// Parses a whole number: digits, and underscores between them.
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

/// An error in the text of a generator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No generator has this name.
    #[error("no generator is called {name:?}; there are {generators}")]
    UnknownGenerator {
        /// Name that was given.
        name: String,
        /// Names of all generators, separated by commas.
        generators: String,
    },
    /// The generator has no such parameter.
    #[error("{generator} has no parameter {name:?}; it has {parameters}")]
    UnknownParameter {
        /// Name of the generator.
        generator: &'static str,
        /// Parameter name that was given.
        name: String,
        /// Parameters of the generator, separated by commas.
        parameters: String,
    },
    /// The value of a parameter is invalid.
    #[error("{parameter}: expected {expected}, found {found:?}")]
    Value {
        /// Name of the parameter.
        parameter: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The value that was found.
        found: String,
    },
    /// A parameter is given twice.
    #[error("{parameter} is given twice")]
    Twice {
        /// Name of the parameter.
        parameter: &'static str,
    },
    /// Parts were given to a generator other than a mix.
    #[error("{generator} takes no parts; a mix does: mix:requests=9000+zipf:keys=100+loop:keys=50")]
    Parts {
        /// Name of the generator.
        generator: &'static str,
    },
    /// A mix has no parts.
    #[error("mix needs parts, as in mix:requests=9000+zipf:keys=100+loop:keys=50")]
    NoParts,
    /// A mix is a part of another mix.
    #[error("a mix cannot be part of a mix; give its parts")]
    Nested,
    /// The keys, as blocks, do not fit on any disk.
    #[error("{keys} keys of this block size do not fit on a disk")]
    TooFar {
        /// The number of keys.
        keys: u64,
    },
}
