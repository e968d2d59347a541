//! Registry of all admissions by name. A new admission needs its own file, and in `admission.rs`
//! its module and a line in the list.

use std::fmt;
use std::str::FromStr;

use super::{
    ADMISSIONS, Admission, Needs, Orders, RegisteredAdmission, Room, Verdict, Victim, Window,
};
use crate::{Access, Parameters, PolicyInfo, Tick, registry};

pub use crate::registry::ChoiceError;

/// An admission's name with parameters, such as `obp:target=0.2`.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice(registry::Choice);

impl Choice {
    /// Returns the admission's name without parameters.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Returns all parameters; those that were not given have their defaults.
    pub fn parameters(&self) -> &Parameters {
        self.0.parameters()
    }

    /// Returns the choice with `parameter` set to `value` unless its text gave it. A value outside
    /// the parameter's range is clamped.
    ///
    /// # Panics
    /// When the admission has no such parameter.
    pub fn unless_given(self, parameter: &str, value: f64) -> Self {
        let info = ADMISSIONS.iter().find(|info| info.name == self.name());
        let known =
            info.and_then(|info| info.parameters.iter().find(|known| known.name == parameter));
        let known = known.unwrap_or_else(|| panic!("{} has no parameter {parameter}", self.name()));
        Self(self.0.unless_given(known, value))
    }

    /// Returns the choice of a registered admission with default parameters.
    pub fn of(info: &PolicyInfo) -> Self {
        Self(registry::Choice::of(info))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Choice {
    type Err = ChoiceError;

    /// Parses `name` or `name:parameter=value:parameter=value`.
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        registry::Choice::among("admission", ADMISSIONS.iter(), text).map(Self)
    }
}

/// Parses choices joined by `+`, such as `small-bypass + obp:target=0.2`.
///
/// # Errors
/// When a choice is invalid, or an admission appears twice, which would count each event twice.
pub fn choices(text: &str) -> Result<Vec<Choice>, ChoiceError> {
    let choices =
        text.split('+').map(|part| part.trim().parse()).collect::<Result<Vec<Choice>, _>>()?;
    for (at, choice) in choices.iter().enumerate() {
        if choices[..at].iter().any(|before| before.name() == choice.name()) {
            return Err(ChoiceError::ChosenTwice { kind: "admission", chosen: choice.name() });
        }
    }
    Ok(choices)
}

/// The names of all admissions.
pub fn names() -> Vec<&'static str> {
    ADMISSIONS.iter().map(|info| info.name).collect()
}

/// Returns the help of `--admit`: all admissions with their parameters, one a line.
pub fn help() -> String {
    registry::help_of(ADMISSIONS.iter())
}

/// Returns a Markdown table of all admissions.
pub fn table() -> String {
    let mut text = String::from("| admission | idea | parameters | source |\n|---|---|---|---|\n");
    for info in ADMISSIONS {
        let parameters = registry::parameters_cell(info);
        text += &format!("| {} | {} | {parameters} | {} |\n", info.name, info.idea, info.source);
    }
    text
}

macro_rules! define_part {
    (() $($(#[$gate:meta])* $module:ident::$Kind:ident,)*) => {
        #[derive(Debug, Clone)]
        enum Part {
            $($(#[$gate])* $Kind(Box<super::$Kind>),)*
        }

        impl Part {
            fn of(choice: &Choice) -> Self {
                $(
                    $(#[$gate])*
                    if choice.name() == <super::$Kind as RegisteredAdmission>::INFO.name {
                        let admission = RegisteredAdmission::with(choice.parameters());
                        return Self::$Kind(Box::new(admission));
                    }
                )*
                unreachable!("a choice names a registered admission")
            }
        }
    };
}
with_admissions!(define_part);

/// Evaluates an expression with the chosen admission.
macro_rules! each {
    (
        ($any:expr, |$part:ident| $does:expr)
        $($(#[$gate:meta])* $module:ident::$Kind:ident,)*
    ) => {
        match $any {
            $($(#[$gate])* Part::$Kind($part) => $does,)*
        }
    };
}

/// One or several admissions, chosen by a text such as `small-bypass + obp:target=0.2`. A candidate
/// must be admitted by all of them; the first victim that one of them names is evicted.
#[derive(Clone)]
pub struct Admissions {
    parts: Vec<Part>,
    /// Number of offers that each admission declined.
    declined: Vec<u64>,
    text: String,
}

impl Admissions {
    /// Combines the chosen admissions. An empty list admits everything.
    pub fn new(choices: &[Choice]) -> Self {
        let texts: Vec<_> = choices.iter().map(ToString::to_string).collect();
        Self {
            parts: choices.iter().map(Part::of).collect(),
            declined: vec![0; choices.len()],
            text: texts.join(" + "),
        }
    }

    /// Returns new admissions without room whose parameters, where the text left them out, are set
    /// from the calibration of a tier.
    pub fn calibrated(&self, by: &Calibrated) -> Self {
        match choices(&self.text) {
            Ok(choices) => {
                Self::new(&choices.into_iter().map(|choice| by.tune(choice)).collect::<Vec<_>>())
            }
            Err(_) => self.clone(), // none: nothing to be told
        }
    }

    /// Returns how many offers each admission declined, independent of the others.
    pub fn declined(&self) -> &[u64] {
        &self.declined
    }

    /// Returns the name of each admission with its parameters, in the order of
    /// [`declined`](Self::declined).
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.text.split(" + ")
    }

    /// Returns whether every offer is always admitted, so that the cache can skip the question.
    pub fn is_always(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Always(_)))
    }
}

impl Default for Admissions {
    /// Returns admissions that admit everything.
    fn default() -> Self {
        Self { parts: Vec::new(), declined: Vec::new(), text: "always".to_owned() }
    }
}

impl fmt::Debug for Admissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.parts).finish()
    }
}

impl fmt::Display for Admissions {
    /// Writes the text that [`FromStr`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Admissions {
    type Err = ChoiceError;

    /// Parses [`Choice`]s joined by `+`.
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        Ok(Self::new(&choices(text)?))
    }
}

impl Admission for Admissions {
    fn needs(&self) -> Needs {
        self.parts.iter().fold(Needs::default(), |so_far, part| {
            let needs = with_admissions!(each part, |part| part.needs());
            Needs {
                streams: so_far.streams || needs.streams,
                fetches: so_far.fetches || needs.fetches,
                victims: so_far.victims || needs.victims,
                above: so_far.above || needs.above,
                overwrites: so_far.overwrites || needs.overwrites,
            }
        })
    }

    fn split(&mut self, number: usize, parts: usize) {
        for part in &mut self.parts {
            with_admissions!(each part, |part| part.split(number, parts));
        }
    }

    fn reserve(&mut self, room: &Room) {
        for part in &mut self.parts {
            with_admissions!(each part, |part| part.reserve(room));
        }
    }

    fn observe(&mut self, window: &Window) {
        for part in &mut self.parts {
            with_admissions!(each part, |part| part.observe(window));
        }
    }

    fn used(&mut self, access: &Access) {
        for part in &mut self.parts {
            with_admissions!(each part, |part| part.used(access));
        }
    }

    fn judge(&mut self, offer: &Access, victim: Option<&Victim>) -> Verdict {
        // Each is asked, whatever the others say: they learn from offers.
        self.parts.iter_mut().zip(&mut self.declined).fold(
            Verdict::Admit,
            |so_far, (part, declined)| {
                let verdict = with_admissions!(each part, |part| part.judge(offer, victim));
                *declined += u64::from(!verdict.admits());
                match (so_far, verdict) {
                    (Verdict::Bypass, _) | (_, Verdict::Bypass) => Verdict::Bypass,
                    (Verdict::Replace(slot), _) | (_, Verdict::Replace(slot)) => {
                        Verdict::Replace(slot)
                    }
                    (Verdict::Admit, Verdict::Admit) => Verdict::Admit,
                }
            },
        )
    }

    fn settle(&mut self, offer: &Access, verdict: Verdict) {
        for part in &mut self.parts {
            with_admissions!(each part, |part| part.settle(offer, verdict));
        }
    }

    fn overwrite(&mut self, access: &Access) -> bool {
        let mut taken = true;
        for part in &mut self.parts {
            taken &= with_admissions!(each part, |part| part.overwrite(access)); // all are asked
        }
        taken
    }

    fn evicted(&mut self, access: &Access) {
        for part in &mut self.parts {
            with_admissions!(each part, |part| part.evicted(access));
        }
    }

    fn order(&mut self, now: Tick, orders: &mut Orders) {
        for part in &mut self.parts {
            with_admissions!(each part, |part| part.order(now, orders));
        }
    }

    fn memory_bytes(&self) -> usize {
        let parts = self.parts.iter().map(
            |part| with_admissions!(each part, |part| size_of_val(&**part) + part.memory_bytes()),
        );
        let each = size_of::<Part>() + size_of::<u64>();
        parts.sum::<usize>() + self.parts.capacity() * each + self.text.capacity()
    }
}

/// Minimum cost of a byte written that a calibration may yield, in bytes read.
const LEAST_COST: f64 = 1e-4;

/// Measured slowdown of a tier's reads by writes, and the admission parameters that follow from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibrated {
    /// Bytes of reads lost for each byte written, including the slowdown of concurrent reads. It
    /// replaces [`Times::write_cost`](super::Times::write_cost), which cannot see that slowdown.
    pub write_cost: f64,
    /// Target ratio of OBP when it counts blocks.
    pub target: f64,
    /// Target ratio of OBP when it counts bytes (`bytes=1`).
    pub target_bytes: f64,
}

impl Calibrated {
    /// Returns the choice with measured values for the parameters that were not given: OBP's target
    /// and, if it counts bytes, the cost of a write.
    pub fn tune(&self, choice: Choice) -> Choice {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        match (choice.name(), choice.parameters()) {
            ("obp", parameters) if parameters.count("bytes") == 1 => {
                // A cost of 0 would be one to be measured; what costs nothing may be written.
                let (cost, target) = match rounded(self.write_cost) {
                    0.0 => (LEAST_COST, 1.0),
                    cost => (cost, rounded(self.target_bytes)),
                };
                choice.unless_given("target", target).unless_given("write-cost", cost)
            }
            ("obp", _) => choice.unless_given("target", rounded(self.target)),
            _ => choice,
        }
    }
}

#[cfg(test)]
mod calibrated_tests {
    use super::*;
    use crate::admission::Admissions;

    const CALIBRATED: Calibrated =
        Calibrated { write_cost: 4.123_456, target: 0.123_456, target_bytes: 0.25 };

    #[test]
    fn what_was_not_told_is_tuned_and_nothing_else() {
        for (given, tuned) in [
            ("obp", "obp:target=0.1235"),
            ("obp:target=0.1", "obp:target=0.1"),
            ("obp:half-life=1000", "obp:half-life=1000:target=0.1235"),
            ("obp:bytes=1", "obp:bytes=1:target=0.25:write-cost=4.1235"),
            ("obp:bytes=1:write-cost=2", "obp:bytes=1:write-cost=2:target=0.25"),
            ("fussy", "fussy"),
            ("small-bypass + obp", "small-bypass + obp:target=0.1235"),
        ] {
            let admissions: Admissions = given.parse().expect("admissions");
            let found = admissions.calibrated(&CALIBRATED);
            assert_eq!(found.to_string(), tuned);
            // The printed text gives the same admissions.
            let printed: Admissions = tuned.parse().expect("admissions");
            assert_eq!(format!("{found:?}"), format!("{printed:?}"));
        }
    }

    #[test]
    fn writes_that_cost_nothing_are_not_kept_to_a_target() {
        let free = Calibrated { write_cost: 0.0, target: 1.0, target_bytes: 0.0 };
        let tuned = free.tune("obp:bytes=1".parse().expect("an admission"));
        assert_eq!(tuned.to_string(), "obp:bytes=1:target=1:write-cost=0.0001");
    }

    #[test]
    fn what_obp_cannot_be_told_is_brought_to_the_end_of_its_range() {
        let dear = Calibrated { write_cost: 5000.0, ..CALIBRATED };
        let tuned = dear.tune("obp:bytes=1".parse().expect("an admission"));
        assert_eq!(tuned.parameters().get("write-cost"), 1000.0);
    }
}
