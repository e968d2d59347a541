//! Registry of all policies by name. A new policy needs its own file, its module in `lib.rs`, and
//! its line in the list here.
//!
//! A [`Choice`] is a name with parameters, parsed from text such as `slru:segments=2`. Generic code
//! runs over the chosen policy through a [`Visitor`], compiled once per policy, so a request makes
//! no indirect calls. Code whose type must not depend on the policy takes an
//! [`AnyPolicy`].

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

#[cfg(feature = "policies")]
use crate::auto::AutoMarks;
#[cfg(feature = "policies")]
use crate::lhd::AgedHits;
use crate::{
    Access, Adaptation, AlwaysPromote, Coins, Counters, Cursor, Eviction, HitKind, Marks, NoMarks,
    Parameter, Parameters, Plain, Policy, PolicyInfo, Replacement, Slot, Touch, TryPromote,
};
#[cfg(feature = "policies")]
use crate::{LastUses, Stamps};

/// A policy in the registry.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name, idea, source and parameters of the policy.
    pub info: PolicyInfo,
    /// Effect of the policy's hits on throughput.
    pub kind: HitKind,
}

impl Entry {
    pub(crate) const fn of<P: Policy>() -> Self {
        Self { info: P::INFO, kind: <P::Marks as Marks>::KIND }
    }
}

/// Generic code that runs over a policy chosen by name.
pub trait Visitor {
    /// Result of the visit.
    type Out;

    /// Runs the code for policies of type `P`; `make` creates an empty one, without room.
    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Self::Out;
}

/// Names of the policies and admissions of the feature `policies`, by kind. Few caches choose them,
/// and they take longer to compile than the rest of a cache.
const FURTHER: &[(&str, &[&str])] = &[
    (
        "policy",
        &[
            "s4-fifo",
            "gdsf",
            "clock2q-plus",
            "car",
            "clock-pro",
            "lru-k",
            "mq",
            "sampled",
            "hyperbolic",
            "lfru",
            "lecar",
            "lhd",
            "cacheus",
            "sarc",
            "auto",
            "belady",
        ],
    ),
    ("admission", &["fussy", "sequential"]),
];

/// Calls a macro with the list of all policies, after the tokens in `given`. A new policy gets its
/// line here, below the feature `policies` unless most programs should contain it.
macro_rules! with_policies {
    ($then:ident $($given:tt)*) => {
        $then! {
            ($($given)*)
            fifo::Fifo,
            lru::Lru,
            lru::RelaxedLru,
            lru::ProbLru,
            clock::Clock,
            slru::Slru,
            two_q::TwoQ,
            arc::Arc,
            s3_fifo::S3Fifo,
            #[cfg(feature = "policies")]
            s4_fifo::S4Fifo,
            sieve::Sieve,
            lfu::Lfu,
            #[cfg(feature = "policies")]
            gdsf::Gdsf,
            lirs::Lirs,
            quick_demotion::Qdlp,
            quick_demotion::QdClock,
            #[cfg(feature = "policies")]
            clock2q_plus::Clock2QPlus,
            #[cfg(feature = "policies")]
            car::Car,
            #[cfg(feature = "policies")]
            clock_pro::ClockPro,
            w_tinylfu::WTinyLfu,
            #[cfg(feature = "policies")]
            lru_k::LruK,
            #[cfg(feature = "policies")]
            mq::Mq,
            #[cfg(feature = "policies")]
            sampled::Sampled,
            #[cfg(feature = "policies")]
            hyperbolic::Hyperbolic,
            #[cfg(feature = "policies")]
            lfru::Lfru,
            #[cfg(feature = "policies")]
            lecar::LeCaR,
            #[cfg(feature = "policies")]
            lhd::Lhd,
            #[cfg(feature = "policies")]
            cacheus::Cacheus,
            #[cfg(feature = "policies")]
            sarc::Sarc,
            #[cfg(feature = "policies")]
            auto::Auto,
            #[cfg(feature = "policies")]
            belady::Belady,
        }
    };
}

/// Exports, registers and lists the policies, and implements `Default` with their default
/// parameters.
macro_rules! register {
    (() $($(#[$gate:meta])* $module:ident::$Policy:ident,)*) => {
        /// The types of all policies.
        pub(crate) mod policies {
            $($(#[$gate])* pub use crate::$module::$Policy;)*
        }

        $(
            $(#[$gate])*
            impl Default for policies::$Policy {
                /// Creates an empty order without room, with the default parameters of the
                /// registry.
                fn default() -> Self {
                    Self::new(&Parameters::defaults(&Self::INFO))
                }
            }
        )*

        /// Entries of all registered policies.
        pub const POLICIES: &[Entry] = &[$($(#[$gate])* Entry::of::<policies::$Policy>()),*];

        /// Runs a visitor over the chosen policy.
        pub fn with<V: Visitor>(choice: &Choice, visitor: V) -> V::Out {
            $(
                $(#[$gate])*
                if choice.name() == policies::$Policy::INFO.name {
                    return visitor.visit(|| policies::$Policy::new(&choice.parameters));
                }
            )*
            unreachable!("a choice names a registered policy")
        }

        #[derive(Debug, Clone)]
        enum AnyOrder {
            $($(#[$gate])* $Policy(Box<policies::$Policy>),)*
        }

        impl AnyOrder {
            fn of(choice: &Choice) -> Self {
                $(
                    $(#[$gate])*
                    if choice.name() == policies::$Policy::INFO.name {
                        return Self::$Policy(Box::new(Policy::new(&choice.parameters)));
                    }
                )*
                unreachable!("a choice names a registered policy")
            }
        }
    };
}
with_policies!(register);

/// A policy's name with parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    name: &'static str,
    text: String,
    pub(crate) parameters: Parameters,
}

impl Choice {
    /// The policy's name without parameters.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns all parameters; those that were not given have their defaults.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns the choice of a registered policy with default parameters.
    pub fn of(info: &PolicyInfo) -> Self {
        Self { name: info.name, text: info.name.to_owned(), parameters: Parameters::defaults(info) }
    }

    /// Returns the choice with `parameter` set to `value` unless its text gave it. A value outside
    /// the parameter's range is clamped.
    pub(crate) fn unless_given(mut self, parameter: &Parameter, value: f64) -> Self {
        let given = self.text.split(':').skip(1).filter_map(|part| part.split_once('='));
        if given.into_iter().all(|(name, _)| name != parameter.name) {
            let value = value.clamp(parameter.min, parameter.max);
            self.parameters.set(parameter.name, value);
            self.text += &format!(":{}={value}", parameter.name);
        }
        self
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The error of a text that is no valid choice. `kind` says which kind of name was parsed: a
/// policy, or an admission.
#[derive(Debug, Clone, PartialEq)]
pub enum ChoiceError {
    /// The name is not registered.
    UnknownName {
        /// The kind of name that was parsed.
        kind: &'static str,
        /// Name that was given.
        name: String,
        /// All registered names.
        known: Vec<&'static str>,
    },
    /// The name belongs to a policy or admission that is part of the feature `policies`, which is
    /// off.
    NotCompiled {
        /// The kind of name that was parsed.
        kind: &'static str,
        /// Name that was given.
        name: &'static str,
    },
    /// The chosen policy or admission has no such parameter.
    UnknownParameter {
        /// The kind of name that was parsed.
        kind: &'static str,
        /// Name of the chosen policy or admission.
        chosen: &'static str,
        /// Parameter name that was given.
        name: String,
        /// Parameters of the chosen policy or admission.
        known: Vec<String>,
    },
    /// A parameter is given twice.
    GivenTwice {
        /// The kind of name that was parsed.
        kind: &'static str,
        /// Name of the chosen policy or admission.
        chosen: &'static str,
        /// Name of the parameter.
        name: &'static str,
    },
    /// An admission appears twice in a combination.
    ChosenTwice {
        /// The kind of name that was parsed.
        kind: &'static str,
        /// Name that appears twice.
        chosen: &'static str,
    },
    /// A parameter does not allow its value.
    BadValue {
        /// The kind of name that was parsed.
        kind: &'static str,
        /// Name of the chosen policy or admission.
        chosen: &'static str,
        /// Name of the parameter.
        name: &'static str,
        /// Description of the allowed values.
        expected: String,
        /// Value that was given.
        value: String,
    },
}

impl fmt::Display for ChoiceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownName { kind, name, known } => {
                write!(formatter, "no {kind} is called `{name}`; ")?;
                // First: a long list hides what comes behind it.
                if let Some(meant) = nearest(name, known.iter().copied()) {
                    write!(formatter, "did you mean `{meant}`? ")?;
                }
                write!(formatter, "there are: {}", known.join(", "))
            }
            Self::NotCompiled { kind, name } => {
                let needed = "the feature `policies` of the crate `floe`, which is off";
                write!(formatter, "{kind} {name} needs {needed} in this program")
            }
            Self::UnknownParameter { kind, chosen, name, known } => {
                write!(formatter, "{kind} {chosen} has no parameter `{name}`; {}", list(known))
            }
            Self::GivenTwice { kind, chosen, name } => {
                write!(formatter, "{kind} {chosen}: parameter {name} is given twice")
            }
            Self::ChosenTwice { kind, chosen } => {
                write!(formatter, "{kind} {chosen} is given twice; one of them is enough")
            }
            Self::BadValue { kind, chosen, name, expected, value } => {
                let must = format_args!("parameter {name} must be {expected}");
                write!(formatter, "{kind} {chosen}: {must}, not `{value}`")
            }
        }
    }
}

impl std::error::Error for ChoiceError {}

fn list(known: &[String]) -> String {
    if known.is_empty() {
        "it takes none".to_owned()
    } else {
        format!("it takes: {}", known.join(", "))
    }
}

impl FromStr for Choice {
    type Err = ChoiceError;

    /// Parses `name` or `name:parameter=value:parameter=value`.
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        Self::among("policy", POLICIES.iter().map(|entry| &entry.info), text)
    }
}

impl Choice {
    /// Parses a choice among the given policies or admissions.
    pub(crate) fn among<'a>(
        kind: &'static str,
        infos: impl Iterator<Item = &'a PolicyInfo> + Clone,
        text: &str,
    ) -> Result<Self, ChoiceError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let Some(info) = infos.clone().find(|info| info.name == name) else {
            let further = FURTHER.iter().filter(|of| of.0 == kind).flat_map(|of| of.1);
            if let Some(name) = further.copied().find(|further| *further == name) {
                return Err(ChoiceError::NotCompiled { kind, name });
            }
            let known = infos.map(|info| info.name).collect();
            return Err(ChoiceError::UnknownName { kind, name: name.to_owned(), known });
        };
        let mut choice = Self { text: text.to_owned(), ..Self::of(info) };
        let mut given = Vec::new();
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let Some(parameter) = info.parameters.iter().find(|parameter| parameter.name == name)
            else {
                return Err(ChoiceError::UnknownParameter {
                    kind,
                    chosen: info.name,
                    name: name.to_owned(),
                    known: info.parameters.iter().map(ToString::to_string).collect(),
                });
            };
            if given.contains(&parameter.name) {
                return Err(ChoiceError::GivenTwice {
                    kind,
                    chosen: info.name,
                    name: parameter.name,
                });
            }
            given.push(parameter.name);
            match parameter.number(value) {
                Some(number) if parameter.allows(number) => choice.parameters.set(name, number),
                _ => {
                    let number = match parameter {
                        Parameter { names: [_, ..], .. } => "",
                        Parameter { whole: true, .. } => "a whole number ",
                        _ => "a number ",
                    };
                    return Err(ChoiceError::BadValue {
                        kind,
                        chosen: info.name,
                        name: parameter.name,
                        expected: format!("{number}{}", parameter.values()),
                        value: value.to_owned(),
                    });
                }
            }
        }
        Ok(choice)
    }
}

/// The names of all policies.
pub fn names() -> Vec<&'static str> {
    POLICIES.iter().map(|entry| entry.info.name).collect()
}

/// Returns the help of `--policy`: all policies with their parameters, one a line.
pub fn help() -> String {
    help_of(POLICIES.iter().map(|entry| &entry.info))
}

/// Returns the given policies or admissions with their parameters, one a line.
pub(crate) fn help_of<'a>(infos: impl Iterator<Item = &'a PolicyInfo>) -> String {
    let mut text = String::new();
    for info in infos {
        text += &format!("{:<12} {}\n", info.name, info.idea);
        for parameter in info.parameters {
            text += &format!(
                "{:<12}   :{}={} {} ({})\n",
                "",
                parameter.name,
                parameter.written(parameter.default),
                parameter.about,
                parameter.values()
            );
        }
    }
    text
}

/// Returns the table cell that lists the parameters of a policy or admission.
pub(crate) fn parameters_cell(info: &PolicyInfo) -> String {
    let cells = info.parameters.iter().map(|parameter| {
        let others = if parameter.names.is_empty() {
            String::new()
        } else {
            format!(" ({})", parameter.values())
        };
        let default = parameter.written(parameter.default);
        format!("`{}={default}` {}{others}", parameter.name, parameter.about)
    });
    cells.collect::<Vec<_>>().join("; ")
}

/// Returns a Markdown table of all policies.
pub fn table() -> String {
    let mut text =
        String::from("| policy | a hit | idea | parameters | source |\n|---|---|---|---|---|\n");
    for Entry { info, kind } in POLICIES {
        let kind = match kind {
            HitKind::FifoLike => "leaves a mark (FIFO-like)",
            HitKind::LruLike => "owes a promotion (LRU-like)",
        };
        text += &format!(
            "| {} | {kind} | {} | {} | {} |\n",
            info.name,
            info.idea,
            parameters_cell(info),
            info.source
        );
    }
    text
}

/// Largest Levenshtein distance at which a registered name is suggested for a misspelt one.
const MOST_CHANGES: usize = 2;

/// Returns the name that was probably meant: the nearest one, ignoring case, if it is within two
/// changed letters and fewer than half of the letters written.
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

/// Returns the length of the common prefix of two texts, in letters.
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

/// Evaluates an expression with the order of the chosen policy.
macro_rules! each {
    (
        ($any:expr, |$order:ident| $does:expr)
        $($(#[$gate:meta])* $module:ident::$Policy:ident,)*
    ) => {
        match $any {
            $($(#[$gate])* AnyOrder::$Policy($order) => $does,)*
        }
    };
}

/// Any registered policy, chosen at run time.
///
/// ```
/// use floe_policy::{Access, AnyPolicy, Eviction, Slot};
///
/// let mut order: AnyPolicy = "slru:segments=2".parse()?;
/// order.reserve(1);
/// order.insert(Slot(0), &Access::new(10));
/// assert_eq!(order.evict(None), Some(Slot(0)));
/// # Ok::<(), floe_policy::registry::ChoiceError>(())
/// ```
///
/// It is for owners whose type should not depend on the policy, such as a cache whose policy is in
/// a configuration file. Each call is a match over all policies instead of a virtual call. A hit
/// matches over the few kinds of marks, always with the same outcome, so the processor predicts it.
#[derive(Clone)]
pub struct AnyPolicy {
    order: AnyOrder,
    marks: AnyMarks,
}

impl AnyPolicy {
    /// Creates an empty order without room.
    pub fn new(choice: &Choice) -> Self {
        let order = AnyOrder::of(choice);
        Self { marks: marks_of(&order), order }
    }
}

fn marks_of(order: &AnyOrder) -> AnyMarks {
    fn of(order: &impl Eviction<Marks: Into<AnyMarks>>) -> AnyMarks {
        order.marks().clone().into()
    }
    with_policies!(each order, |order| of(&**order))
}

impl FromStr for AnyPolicy {
    type Err = ChoiceError;

    /// Parses a [`Choice`], such as `slru:segments=2`.
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        Ok(Self::new(&text.parse()?))
    }
}

impl fmt::Debug for AnyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.order.fmt(f)
    }
}

impl Replacement for AnyPolicy {
    fn info(&self) -> &'static PolicyInfo {
        with_policies!(each & self.order, |order| order.info())
    }
}

/// Forwards methods to the order of the chosen policy.
macro_rules! forward {
    ($(fn $method:ident(&$($this:ident)+ $(, $argument:ident: $Type:ty)*) $(-> $Out:ty)?;)*) => {
        $(
            fn $method(&$($this)+ $(, $argument: $Type)*) $(-> $Out)? {
                with_policies!(each &$($this)+.order, |order| order.$method($($argument),*))
            }
        )*
    };
}

impl Eviction for AnyPolicy {
    type Marks = AnyMarks;

    const BY_PLACE: bool = true; // where the chosen policy's are by slot, that is ignored

    #[inline]
    fn marks(&self) -> &AnyMarks {
        &self.marks
    }

    fn reserve(&mut self, slots: usize) {
        with_policies!(each &mut self.order, |order| order.reserve(slots));
        self.marks = marks_of(&self.order);
    }

    fn reserve_places(&mut self, places: usize) {
        with_policies!(each &mut self.order, |order| order.reserve_places(places));
        self.marks = marks_of(&self.order);
    }

    forward! {
        fn place(&mut self, slot: Slot, place: u32, moves: bool);
        fn expect(&mut self, slots: usize);
        fn leave_tags_to_owner(&mut self);
        fn departed(&mut self, tag: u32);
        fn set_capacity(&mut self, weight: u64);
        fn len(&self) -> usize;
        fn promote(&mut self, slot: Slot);
        fn insert(&mut self, slot: Slot, access: &Access);
        fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot>;
        fn victim(&mut self, incoming: Option<&Access>) -> Option<Slot>;
        fn remove(&mut self, slot: Slot);
        fn transfer(&mut self, from: Slot, to: Slot);
        fn access(&mut self, slot: Slot);
        fn hit(&mut self, slot: Slot, access: &Access);
        fn reweigh(&mut self, slot: Slot, weight: u32);
        fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor;
        fn remembered_hits(&self, slot: Slot) -> u32;
        fn freeze(&mut self, slots: &[Slot]);
        fn thaw(&mut self);
        fn thaw_some(&mut self, most: usize) -> bool;
        fn fetches_ahead(&self) -> Option<u64>;
        fn adaptation(&self) -> Option<Adaptation>;
    }

    fn memory_bytes(&self) -> usize {
        with_policies!(each & self.order, |order| size_of_val(&**order) + order.memory_bytes())
    }
}

/// Marks of [`AnyPolicy`]: those of the chosen policy.
#[derive(Debug, Clone)]
pub struct AnyMarks(Inner);

/// Implements the marks of [`AnyPolicy`] as an enum of every kind of marks that a registered policy
/// has.
macro_rules! any_marks {
    ($($(#[$gate:meta])* $Kind:ident,)*) => {
        #[derive(Debug, Clone)]
        enum Inner {
            $($(#[$gate])* $Kind($Kind),)*
        }

        $(
            $(#[$gate])*
            impl From<$Kind> for AnyMarks {
                fn from(marks: $Kind) -> Self {
                    Self(Inner::$Kind(marks))
                }
            }
        )*

        impl Marks for AnyMarks {
            /// The worst case, because a chosen policy may owe promotions; the kind of each policy
            /// is in [`POLICIES`](POLICIES).
            const KIND: HitKind = HitKind::LruLike;
            const PLAIN: Option<Plain<Self>> = Plain::YES;

            fn memory_bytes(&self) -> usize {
                match &self.0 {
                    $($(#[$gate])* Inner::$Kind(marks) => marks.memory_bytes(),)*
                }
            }

            fn of_readers(&self) -> Self {
                match &self.0 {
                    $($(#[$gate])* Inner::$Kind(marks) => marks.of_readers().into(),)*
                }
            }

            #[inline]
            fn touch(&self, slot: Slot) -> Touch {
                match &self.0 {
                    $($(#[$gate])* Inner::$Kind(marks) => marks.touch(slot),)*
                }
            }

            #[inline]
            fn touch_at(&self, slot: impl FnOnce() -> Slot, place: impl FnOnce() -> u32) -> Touch {
                match &self.0 {
                    $($(#[$gate])* Inner::$Kind(marks) => marks.touch_at(slot, place),)*
                }
            }
        }
    };
}

any_marks! {
    NoMarks,
    AlwaysPromote,
    TryPromote,
    Counters,
    Coins,
    #[cfg(feature = "policies")]
    LastUses,
    #[cfg(feature = "policies")]
    Stamps,
    #[cfg(feature = "policies")]
    AgedHits,
    #[cfg(feature = "policies")]
    AutoMarks,
}

#[cfg(test)]
mod further_tests {
    use super::*;
    use crate::admission::ADMISSIONS;

    #[test]
    fn a_name_that_is_not_compiled_is_answered_with_the_feature() {
        let few = POLICIES[..3].iter().map(|entry| &entry.info);
        let error = Choice::among("policy", few.clone(), "lhd:samples=3").unwrap_err();
        let needed = "policy lhd needs the feature `policies` of the crate `floe`";
        assert!(error.to_string().starts_with(needed), "{error}");
        let error = Choice::among("policy", few, "lhdd").unwrap_err();
        assert!(matches!(error, ChoiceError::UnknownName { .. }), "{error}");
        let error = Choice::among("admission", [].iter(), "fussy:tune=1").unwrap_err();
        assert_eq!(error, ChoiceError::NotCompiled { kind: "admission", name: "fussy" });
        assert!(
            "fussy".parse::<Choice>().is_err_and(|error| error.to_string().contains("no policy"))
        );
    }

    #[test]
    fn further_names_are_those_of_the_feature() {
        let infos: [Vec<_>; 2] =
            [POLICIES.iter().map(|entry| &entry.info).collect(), ADMISSIONS.iter().collect()];
        for ((_, further), infos) in FURTHER.iter().zip(infos) {
            for name in *further {
                let is_registered = infos.iter().any(|info| info.name == *name);
                assert_eq!(is_registered, cfg!(feature = "policies"), "{name}");
            }
        }
        assert_eq!(names().len(), if cfg!(feature = "policies") { 31 } else { 15 });
    }
}
