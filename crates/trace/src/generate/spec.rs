//! Generators in words: `name:parameter=value,…`, wherever a trace's path may stand.
//!
//! A mix takes its parts behind plus signs, each with a `weight`, and gives them its requests and
//! seed: `mix:requests=9000+zipf:keys=100,weight=2+loop:keys=50`. Every parameter has a default.

use std::fmt;
use std::str::FromStr;

use super::parameter::{BLOCK, OF_PARTS, Parameter, READ, REQUESTS, SEED, Value};
use super::{ENTRIES, Entry, Made, Plan, SpecError, mix, sfs};

/// A generated trace in words. Parses from `zipf:keys=1000,theta=0.9` and prints as what was given.
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
    /// The given values, in the order of the registry.
    given: Vec<(&'static Parameter, Value)>,
    parts: Vec<GeneratorSpec>,
    is_part: bool,
}

/// All parameters of a generator, or those it takes as part of a mix.
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
    /// The generator's name.
    pub fn name(&self) -> &'static str {
        self.entry.name
    }

    /// Returns the number of requests it makes.
    pub fn requests(&self) -> u64 {
        self.whole("requests")
    }

    /// Returns whether `text` starts as a spec does: with a word and a colon, or with the name of a
    /// generator.
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

    /// Returns the given value, or the default.
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

    /// One generator without parts.
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
        let is_mix = spec.name() == mix::MIX.name;
        for part in parts {
            if !is_mix {
                return Err(SpecError::Parts { generator: spec.name() });
            }
            let part = Self::parse(part, true)?;
            if part.name() == mix::MIX.name {
                return Err(SpecError::Nested);
            }
            spec.parts.push(part);
        }
        if is_mix && spec.parts.is_empty() {
            return Err(SpecError::NoParts);
        }
        // What a file server asks for has the sizes of a paper, in blocks of these.
        let has_sizes =
            std::iter::once(&spec).chain(&spec.parts).any(|spec| spec.name() == sfs::SFS.name);
        match spec.block_bytes() {
            Some(bytes) if has_sizes && bytes != sfs::BLOCK_BYTES => Err(SpecError::Value {
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
