//! Admission of objects to flash: [`Admission`] names the rule, and [`Gate`] applies it.
//!
//! The gate is asked about each object that memory evicts. A rule admits what is worth a write:
//! FussyCache's popularity, OBP and small bypass of "Writes Hurt", or TinyLFU. A
//! [`Trial`] on a sample of the keys measures the rule's harm, and the gate
//! admits everything where it does harm. After the rule comes the [budget](crate::budget), which
//! declines the least valuable objects.
//!
//! The gate reads no clock: times are given to it. So a simulation runs the same decisions.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use floe_policy::admission::{Admissions, Room};

use crate::budget::{Budget, WriteBudget, value};
use crate::insertion::Declined;
use crate::miniature::Trial;
use crate::popularity::Popularity;
use crate::price::{Price, TimedRead};
use crate::rules::{Candidate, LEVELS, PolicyRule, Rule};

/// OBP, by bytes and with the measured cost of a write.
const OBP: &str = "obp:bytes=1";
/// Objects over which a mean size is taken.
const MEAN_UNIT: u64 = 256;
/// Objects on flash for each counted entry of TinyLFU, whose sketch takes 8 bytes an entry.
const OBJECTS_PER_ENTRY: u64 = 8;

/// A rule that decides which evicted objects are written to flash.
///
/// Everything is admitted until flash is full for the first time after the start. All but
/// [`Everything`](Self::Everything) run a trial on a sample of the keys. While they would lose more
/// than 1 % of the hits, everything is admitted.
///
/// ```
/// use floe_hybrid::Admission;
///
/// assert_eq!("tinylfu".parse(), Ok(Admission::TinyLfu));
/// assert_eq!(Admission::default().to_string(), "everything");
/// # Ok::<(), floe_hybrid::AdmissionError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Admission {
    /// All objects are admitted.
    #[default]
    Everything,
    /// Objects that were requested before are admitted: FussyCache's popularity. Of four levels, up
    /// to a quarter of the offers of objects requested three times, the one is used that writes
    /// least without losing hits.
    Popularity,
    /// OBP of "Writes Hurt": bytes written stay below a tenth of the bytes looked up. A byte
    /// written counts as the bytes of reads that it costs, at least one. The cost is measured as
    /// the latency of reads beside writes.
    Obp,
    /// Small bypass of "Writes Hurt": nothing is admitted while the objects in use fit into memory.
    SmallBypass,
    /// TinyLFU: objects requested more often than one that flash has evicted lately are admitted.
    TinyLfu,
}

/// The error of a text that names no [`Admission`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not an admission: expected 'everything', 'popularity', 'obp', 'small-bypass' or \
     'tinylfu'"
)]
pub struct AdmissionError(String);

impl Admission {
    /// Returns all rules.
    pub fn all() -> [Self; 5] {
        [Self::Everything, Self::Popularity, Self::Obp, Self::SmallBypass, Self::TinyLfu]
    }

    fn name(self) -> &'static str {
        match self {
            Self::Everything => "everything",
            Self::Popularity => "popularity",
            Self::Obp => "obp",
            Self::SmallBypass => "small-bypass",
            Self::TinyLfu => "tinylfu",
        }
    }

    /// Returns the text of the admission in the registry of `floe_policy`.
    fn registered(self) -> Option<&'static str> {
        match self {
            Self::Everything | Self::Popularity => None,
            Self::Obp => Some(OBP),
            Self::SmallBypass => Some("small-bypass"),
            Self::TinyLfu => Some("duel"),
        }
    }

    fn reason(self) -> Declined {
        match self {
            Self::Everything | Self::Popularity | Self::TinyLfu => Declined::Unpopular,
            Self::Obp => Declined::WriteCost,
            Self::SmallBypass => Declined::FitsMemory,
        }
    }
}

impl fmt::Display for Admission {
    /// Writes the text that [`FromStr`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Admission {
    type Err = AdmissionError;

    /// Parses a name: `everything`, `popularity`, `obp`, `small-bypass` or `tinylfu`.
    fn from_str(text: &str) -> Result<Self, AdmissionError> {
        let known = Self::all().into_iter().find(|admission| admission.name() == text.trim());
        known.ok_or_else(|| AdmissionError(text.to_owned()))
    }
}

/// Options of a [`Gate`].
#[derive(Debug, Clone, Copy, Default)]
pub struct GateOptions {
    /// The rule.
    pub admission: Admission,
    /// The budget of writes, if there is one.
    pub budget: Option<WriteBudget>,
    /// Size of the flash in bytes.
    pub capacity_bytes: u64,
    /// Memory for objects, in bytes.
    pub memory_bytes: u64,
    /// Expected mean bytes of an object.
    pub object_bytes: u64,
    /// Number of the choice to follow whatever the trial says, for comparison. The choice 0 admits
    /// everything, and 1 is the rule; popularity has 4 levels.
    pub fixed: Option<u64>,
}

/// An object that memory has evicted.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Hash of the key.
    pub hash: u64,
    /// Bytes that the object takes in the log.
    pub bytes: u64,
    /// Requests that memory has answered with it, at most 3.
    pub uses: u8,
}

/// Decides which objects are written to flash: a state machine without I/O or clock.
///
/// The owner reports each lookup that memory could not answer, and each removal. It offers each
/// object that memory evicts, and each used one whose segment is evicted. Times are nanoseconds
/// since any start. `spent` is the number of bytes written to flash or on their way there.
#[derive(Debug)]
pub struct Gate {
    admission: Admission,
    options: GateOptions,
    popularity: Popularity,
    /// Mean bytes of the objects offered of late, times [`MEAN_UNIT`].
    mean_bytes: AtomicU64,
    price: Price,
    trial: Option<Mutex<Trial>>,
    /// Lowest tag bits of sampled keys that are 0.
    sampled: AtomicU64,
    /// Number of the rule that the trial has chosen; 0 is the baseline.
    chosen: AtomicU64,
    /// True once flash has evicted. Before that, the rule declines nothing.
    is_full: AtomicBool,
    /// Number of objects offered.
    judged: AtomicU64,
    rule: Option<Mutex<Rule>>,
    budget: Option<Mutex<Budget>>,
    /// Bytes of memory of the trial and the rule, as of the last look.
    other_bytes: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    /// Creates a gate; `None` if it would admit everything.
    pub fn new(options: &GateOptions, now_ns: u64, spent: u64) -> Option<Self> {
        let GateOptions { admission, capacity_bytes, .. } = *options;
        if admission == Admission::Everything && options.budget.is_none() {
            return None;
        }
        let mean_bytes = options.object_bytes.max(1);
        let objects = (capacity_bytes / mean_bytes).max(1);
        let has_trial = admission != Admission::Everything;
        let trial = has_trial.then(|| {
            Trial::new(capacity_bytes, objects, |bits| match admission.registered() {
                None => LEVELS.iter().map(|level| Rule::Popular(*level, 0)).collect(),
                Some(text) => vec![Rule::Everything, registered(text, options, bits)],
            })
        });
        let gate = Self {
            admission,
            options: *options,
            popularity: Popularity::new(objects),
            mean_bytes: AtomicU64::new(mean_bytes.saturating_mul(MEAN_UNIT)),
            price: Price::default(),
            sampled: AtomicU64::new(trial.as_ref().map_or(64, |trial| trial.bits().into())),
            trial: trial.map(Mutex::new),
            chosen: AtomicU64::new(options.fixed.unwrap_or(0)),
            is_full: AtomicBool::new(false),
            judged: AtomicU64::new(0),
            rule: admission.registered().map(|text| Mutex::new(registered(text, options, 0))),
            budget: options
                .budget
                .map(|budget| Mutex::new(Budget::new(budget, capacity_bytes, now_ns, spent))),
            other_bytes: AtomicU64::new(0),
        };
        let trial_bytes = gate.trial.as_ref().map_or(0, |trial| lock(trial).memory_bytes());
        gate.count_bytes(trial_bytes);
        Some(gate)
    }

    fn count_bytes(&self, trial_bytes: usize) {
        let rule = self.rule.as_ref().map_or(0, |rule| lock(rule).memory_bytes());
        let budget = self.budget.as_ref().map_or(0, |_| size_of::<Budget>());
        let bytes = (size_of::<Self>() + trial_bytes + rule + budget) as u64;
        self.other_bytes.store(bytes, Ordering::Relaxed); // a statistic
    }

    /// Returns the trial and the key's tag, if the key is sampled.
    fn sample(&self, hash: u64) -> Option<(MutexGuard<'_, Trial>, u32)> {
        let trial = self.trial.as_ref()?;
        let tag = Trial::tag(hash);
        // Relaxed: a key that is sampled once too often or once too seldom does no harm.
        let is_sampled = u64::from(tag.trailing_zeros()) >= self.sampled.load(Ordering::Relaxed);
        is_sampled.then(|| (lock(trial), tag))
    }

    /// Stores the decisions of the trial.
    fn follow(&self, trial: &Trial) {
        // Relaxed: statistics of the past that order nothing.
        self.sampled.store(trial.bits().into(), Ordering::Relaxed);
        if trial.has_checked() {
            self.count_bytes(trial.memory_bytes());
        }
        if self.options.fixed.is_none() {
            self.chosen.store(trial.chosen() as u64, Ordering::Relaxed);
        }
    }

    /// Notes a lookup that memory could not answer. `found` has the bytes and the earlier uses of
    /// the object if flash has it.
    pub fn looked_up(&self, hash: u64, found: Option<(u64, u8)>) {
        if found.is_none() {
            self.popularity.add(hash);
        }
        if let Some(rule) = &self.rule {
            lock(rule).looked_up(hash, found.map(|(bytes, _)| bytes));
        }
        if let Some((mut trial, tag)) = self.sample(hash) {
            let candidate = found.map(|(bytes, uses)| Candidate {
                hash: tag.into(),
                bytes,
                uses: 0,
                requests: self.popularity.estimate(hash).saturating_add(uses).saturating_add(1),
            });
            let mean_bytes = self.mean_bytes.load(Ordering::Relaxed) as f64 / MEAN_UNIT as f64;
            trial.look_up(tag, candidate.as_ref(), (self.price.per_byte(), mean_bytes.max(1.0)));
            self.follow(&trial);
        }
    }

    /// Notes the removal or replacement of an object on flash.
    pub fn removed(&self, hash: u64) {
        if let Some((mut trial, tag)) = self.sample(hash) {
            trial.remove(tag);
        }
    }

    /// Notes that flash evicted an object.
    pub fn evicted(&self, hash: u64) {
        self.is_full.store(true, Ordering::Relaxed); // orders nothing
        if let Some(rule) = &self.rule {
            lock(rule).evicted(hash);
        }
    }

    /// Notes the latency of a read of flash. Returns whether latencies are used.
    pub fn read(&self, read: TimedRead) {
        if self.times_reads() {
            self.price.read(read);
        }
    }

    /// Returns whether the rule depends on the latency of reads.
    pub fn times_reads(&self) -> bool {
        self.admission == Admission::Obp
    }

    /// Decides about an object that memory has evicted.
    ///
    /// # Errors
    /// The reason why it is declined.
    pub fn offer(&self, now_ns: u64, spent: u64, offer: &Offer) -> Result<(), Declined> {
        let Offer { hash, bytes, uses } = *offer;
        self.note_size(bytes);
        let requests = self.popularity.estimate(hash).saturating_add(uses);
        let candidate = Candidate { hash, bytes, uses, requests };
        if let Some((mut trial, tag)) = self.sample(hash) {
            trial.offer(tag, &Candidate { hash: tag.into(), ..candidate });
            self.follow(&trial);
        }
        let chosen = self.chosen.load(Ordering::Relaxed);
        let admits = match &self.rule {
            // It is asked in any case, since it learns from offers.
            Some(rule) => {
                let mut rule = lock(rule);
                if self.times_reads() {
                    rule.set_write_cost(self.price.per_byte());
                }
                rule.judge(&candidate) || chosen == 0
            }
            None => {
                let judged = self.judged.fetch_add(1, Ordering::Relaxed);
                LEVELS[chosen as usize].admits(requests, judged)
            }
        };
        if !admits && self.is_full.load(Ordering::Relaxed) {
            return Err(self.admission.reason());
        }
        match &self.budget {
            Some(budget) => {
                let item = (hash, value(requests, bytes), bytes);
                let admits = lock(budget).admits(now_ns, spent, item);
                admits.then_some(()).ok_or(Declined::OverBudget)
            }
            None => Ok(()),
        }
    }

    /// Decides about a used object whose segment is evicted: whether it may be appended again.
    pub fn keeps(&self, now_ns: u64, spent: u64, offer: &Offer) -> bool {
        self.budget.as_ref().is_none_or(|budget| {
            let requests = self.popularity.estimate(offer.hash).saturating_add(offer.uses + 1);
            let item = (offer.hash, value(requests, offer.bytes), offer.bytes);
            lock(budget).admits(now_ns, spent, item)
        })
    }

    /// Decides about an object in memory when the cache is closed. Only the budget may decline it.
    ///
    /// # Errors
    /// The reason why it is declined.
    pub fn offer_at_close(&self, now_ns: u64, spent: u64, bytes: u64) -> Result<(), Declined> {
        let affords = |budget: &Mutex<Budget>| lock(budget).affords(now_ns, spent, bytes);
        self.budget.as_ref().is_none_or(affords).then_some(()).ok_or(Declined::OverBudget)
    }

    /// Updates the mean size of objects, and with it the size of the sketch.
    fn note_size(&self, bytes: u64) {
        // Relaxed, and not atomic together: a lost update is one object of many.
        let mean = self.mean_bytes.load(Ordering::Relaxed);
        let mean = (mean - mean / MEAN_UNIT).saturating_add(bytes);
        self.mean_bytes.store(mean, Ordering::Relaxed);
        self.popularity.grow(self.options.capacity_bytes / (mean / MEAN_UNIT).max(1));
    }

    /// Returns the bytes of memory that the gate takes.
    pub fn memory_bytes(&self) -> u64 {
        self.popularity.memory_bytes() + self.other_bytes.load(Ordering::Relaxed)
    }
}

/// Returns the rule of a registered admission, for a share of `2^-bits` of the keys.
fn registered(text: &str, options: &GateOptions, bits: u32) -> Rule {
    let admissions: Admissions = text.parse().expect("a registered admission");
    let objects = (options.capacity_bytes / options.object_bytes.max(1)).max(1);
    let room = Room {
        entries: (objects / OBJECTS_PER_ENTRY).max(1) as usize,
        weight: options.capacity_bytes,
        above: options.memory_bytes,
    };
    Rule::Policy(Box::new(PolicyRule::new(admissions, &room, bits)))
}
