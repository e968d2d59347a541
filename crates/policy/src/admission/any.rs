//! Admissions chosen at run time, of which all must agree.

use std::fmt;
use std::str::FromStr;

use super::registry::{Choice, ChoiceError, choices};
use super::{
    Admission, Calibrated, Needs, Orders, RegisteredAdmission, Room, Verdict, Victim, Window,
};
use crate::{Access, Tick};

macro_rules! define_part {
    (() $($module:ident::$Kind:ident,)*) => {
        #[derive(Debug, Clone)]
        enum Part {
            $($Kind(Box<super::$Kind>),)*
        }

        impl Part {
            fn of(choice: &Choice) -> Self {
                $(
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

/// The same done with `part`, whichever admission it is.
macro_rules! each {
    (($any:expr, |$part:ident| $does:expr) $($module:ident::$Kind:ident,)*) => {
        match $any {
            $(Part::$Kind($part) => $does,)*
        }
    };
}

/// One or several admissions, chosen by a text such as `small-bypass + obp:target=0.2`. A candidate
/// must be admitted by all of them; the first victim named leaves.
#[derive(Clone)]
pub struct Admissions {
    parts: Vec<Part>,
    /// By part: offers that it would not have.
    declined: Vec<u64>,
    text: String,
}

impl Admissions {
    /// All of these; none of them admits everything.
    pub fn new(choices: &[Choice]) -> Self {
        let texts: Vec<_> = choices.iter().map(ToString::to_string).collect();
        Self {
            parts: choices.iter().map(Part::of).collect(),
            declined: vec![0; choices.len()],
            text: texts.join(" + "),
        }
    }

    /// The same, anew and without room, with what was measured of the tier in the place of what the
    /// text leaves out.
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

    /// Returns whether every offer is always admitted, so that an owner need not ask.
    pub fn is_always(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Always(_)))
    }
}

impl Default for Admissions {
    /// Everything comes in.
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
    /// As [`FromStr`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Admissions {
    type Err = ChoiceError;

    /// Reads [`Choice`]s with `+` between them.
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
