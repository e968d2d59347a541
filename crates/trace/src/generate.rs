//! Traces that are computed: the registry of generators. Adding one is a file here and a line in
//! `generators!` below.
//!
//! A generator says which key comes next, and which operation where it has an opinion.
//! [`Generated`] makes requests of that: reads and writes by share, disk I/O where asked. The same
//! text gives the same trace, on any machine and in any version.
//!
//! Invariant: a generator's keys are below the span it declares, so that parts of a mix never meet.

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
use crate::request::{BLOCK_REQUEST_BYTES_MAX, Kind, Op, Request};

/// A generator's entry in the registry.
pub(crate) struct Entry {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Describes its requests in a few words.
    pub(crate) about: &'static str,
    /// Its own parameters; all have `requests`, `seed` and `block`.
    pub(crate) parameters: &'static [Parameter],
    /// True if it chooses reads and writes itself, and so takes no `read`.
    pub(crate) chooses_ops: bool,
    /// The generator a spec describes.
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

/// The plan that a generator draws from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// The most requests there will be.
    pub(crate) requests: u64,
}

/// A generator, and the first number above all of its keys.
pub(crate) struct Made {
    pub(crate) span: u64,
    pub(crate) generator: Box<dyn Generate>,
}

/// A key, how many keys from there on, and what is done to them unless that is left to chance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    key: u64,
    /// At least 1; disk I/O is as long, while in a trace of keys the first one stands for all.
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
    /// The next one.
    fn next(&mut self) -> Access;

    /// Adds the next `count` to a batch; here so that choosing the generator costs one indirect
    /// call per batch.
    fn fill(&mut self, shape: &mut Shape, count: u64, batch: &mut Batch) {
        for _ in 0..count {
            let access = self.next();
            batch.push(shape.request(access));
        }
    }
}

/// Turns accesses into requests.
pub(crate) struct Shape {
    block_bytes: Option<u64>,
    /// Draws below it read; `None` when all do.
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

/// A generated trace.
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

    pub(crate) fn kind(&self) -> Kind {
        if self.shape.block_bytes.is_some() { Kind::Block } else { Kind::Key }
    }

    /// Adds requests to an empty batch until it is full or the trace ends; how many.
    pub(crate) fn fill(&mut self, batch: &mut Batch) -> u64 {
        let count = self.left.min(batch.room() as u64);
        self.generator.fill(&mut self.shape, count, batch);
        self.left -= count;
        count
    }
}

/// A generator as the registry knows it.
#[derive(Debug, Clone, Serialize)]
pub struct GeneratorInfo {
    /// Its name.
    pub generator: &'static str,
    /// Describes its requests in a few words.
    pub about: &'static str,
    /// Its parameters.
    pub parameters: Vec<ParameterInfo>,
}

/// A parameter of a generator.
#[derive(Debug, Clone, Serialize)]
pub struct ParameterInfo {
    /// Its name.
    pub name: &'static str,
    /// The default.
    pub default: &'static str,
    /// The values it may have.
    pub expected: &'static str,
    /// Its meaning.
    pub about: &'static str,
}

/// All generators.
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

/// Generators and their parameters as a Markdown table, for the manual.
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
