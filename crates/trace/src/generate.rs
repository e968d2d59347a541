//! Generated traces, and the registry of generators. A new generator needs a file here and a line
//! in `generators!` below.
//!
//! A generator chooses the next key, and some also choose the operation. [`Generated`] makes
//! requests of that: reads and writes by share, and disk I/O on request. The same text gives the
//! same trace, on any machine and in any version.
//!
//! Invariant: a generator's keys are below the span it declares, so that the keys of a mix's parts
//! do not overlap.

mod loads;
mod orders;
mod spec;
mod zipf;

pub use self::spec::SpecError;
pub use spec::GeneratorSpec;

use serde::Serialize;

use self::spec::Parameter;
use self::zipf::Rng;
use crate::decode::{Batch, key_only};
use crate::request::{BLOCK_REQUEST_BYTES_MAX, Op, Request, TraceKind};

/// A generator's entry in the registry.
pub(crate) struct Entry {
    /// Name of the generator on the command line.
    pub(crate) name: &'static str,
    /// Description of its requests, in a few words.
    pub(crate) about: &'static str,
    /// Parameters of this generator besides `requests`, `seed` and `block`, which all have.
    pub(crate) parameters: &'static [Parameter],
    /// True if the generator chooses reads and writes itself, so that it has no parameter `read`.
    pub(crate) chooses_ops: bool,
    /// Function that creates the generator from a spec.
    pub(crate) make: fn(&GeneratorSpec, Plan) -> Result<Made, SpecError>,
}

macro_rules! generators {
    ($($module:ident::$entry:ident),+ $(,)?) => {
        static ENTRIES: &[&Entry] = &[$(&$module::$entry),+];
    };
}

generators! {
    zipf::ZIPF,
    zipf::DRIFT,
    zipf::UNIFORM,
    orders::LOOP,
    orders::SCAN,
    orders::MIX,
    loads::YCSB,
    loads::SFS,
    loads::CHURN,
}

/// Parameters that every generator is created with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Maximum number of requests that will be drawn.
    pub(crate) requests: u64,
}

/// A generator, and the span of its keys: all keys are below that number.
pub(crate) struct Made {
    pub(crate) span: u64,
    pub(crate) generator: Box<dyn Generate>,
}

/// A range of keys and the operation on them; without an operation it is drawn at random.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    key: u64,
    /// Number of keys, at least 1. Disk I/O covers all of them; in a trace of keys the first one
    /// stands for all.
    count: u64,
    op: Option<Op>,
}

impl Access {
    #[inline]
    fn to(key: u64) -> Self {
        Self { key, count: 1, op: None }
    }
}

/// An endless stream of accesses.
pub(crate) trait Generate: Send {
    /// Returns the next access.
    fn next(&mut self) -> Access;

    /// Adds the next `count` accesses to a batch. A method of the trait, so that there is one
    /// indirect call per batch.
    fn fill(&mut self, shape: &mut Shape, count: u64, batch: &mut Batch) {
        for _ in 0..count {
            let access = self.next();
            batch.push(shape.request(access));
        }
    }
}

/// Turns accesses into requests: chooses between reads and writes, and sets sizes.
pub(crate) struct Shape {
    block_bytes: Option<u64>,
    /// Threshold of random draws below which a request is a read; `None` when all are reads.
    read_until: Option<u64>,
    rng: Rng,
}

impl Shape {
    #[inline]
    fn request(&mut self, access: Access) -> Request {
        let op = match (access.op, self.read_until) {
            (Some(op), _) => op,
            (None, Some(until)) if self.rng.next() >= until => Op::Write,
            (None, _) => Op::Read,
        };
        let request = match self.block_bytes {
            Some(bytes) => {
                let count = access.count.min(BLOCK_REQUEST_BYTES_MAX / bytes);
                Request { key: access.key * bytes, bytes: count * bytes, ..key_only(0) }
            }
            None => key_only(access.key),
        };
        Request { op, ..request }
    }
}

/// A stream of generated requests.
pub(crate) struct Generated {
    generator: Box<dyn Generate>,
    shape: Shape,
    left: u64,
}

impl Generated {
    /// Starts the trace that `spec` describes.
    pub(crate) fn new(spec: &GeneratorSpec) -> Result<Self, SpecError> {
        let (seed, requests) = (spec.whole("seed"), spec.requests());
        let made = spec.make(Plan { seed, requests })?;
        let block_bytes = spec.block_bytes();
        if made.span > i64::MAX as u64 / block_bytes.unwrap_or(1) {
            return Err(SpecError::TooFar { keys: made.span });
        }
        let read_until = spec.read_share().filter(|share| *share < 1.0).map(self::zipf::threshold);
        let shape =
            Shape { block_bytes, read_until, rng: Rng::new(self::zipf::derived(seed, u64::MAX)) };
        Ok(Self { generator: made.generator, shape, left: requests })
    }

    pub(crate) fn kind(&self) -> TraceKind {
        if self.shape.block_bytes.is_some() { TraceKind::Block } else { TraceKind::Key }
    }

    /// Adds requests to an empty batch until it is full or the trace ends; returns their number.
    pub(crate) fn fill(&mut self, batch: &mut Batch) -> u64 {
        let count = self.left.min(batch.room() as u64);
        self.generator.fill(&mut self.shape, count, batch);
        self.left -= count;
        count
    }
}

/// Description of a registered generator.
#[derive(Debug, Clone, Serialize)]
pub struct GeneratorInfo {
    /// Name of the generator.
    pub generator: &'static str,
    /// Description of its requests, in a few words.
    pub about: &'static str,
    /// Parameters that the generator accepts.
    pub parameters: Vec<ParameterInfo>,
}

/// A parameter of a generator.
#[derive(Debug, Clone, Serialize)]
pub struct ParameterInfo {
    /// Name of the parameter.
    pub name: &'static str,
    /// Default value, as a user would write it.
    pub default: &'static str,
    /// Description of the allowed values.
    pub expected: &'static str,
    /// Meaning of the parameter.
    pub about: &'static str,
}

/// Returns the descriptions of all generators.
pub fn generators() -> impl Iterator<Item = GeneratorInfo> {
    let parameter = |parameter: &Parameter| ParameterInfo {
        name: parameter.name,
        default: parameter.default,
        expected: parameter.of.expected(),
        about: parameter.about,
    };
    ENTRIES.iter().map(move |entry| GeneratorInfo {
        generator: entry.name,
        about: entry.about,
        parameters: spec::parameters_of(entry, false).map(parameter).collect(),
    })
}

/// Returns a Markdown table of all generators and their parameters, for the manual.
pub fn generators_table() -> String {
    let mut table =
        String::from("| generator | makes | parameters and their defaults |\n|---|---|---|\n");
    for GeneratorInfo { generator, about, parameters } in generators() {
        let parameters: Vec<_> = parameters
            .iter()
            .map(|parameter| {
                format!("{}={} ({})", parameter.name, parameter.default, parameter.about)
            })
            .collect();
        table += &format!("| {generator} | {about} | {} |\n", parameters.join(", "));
    }
    table
}
