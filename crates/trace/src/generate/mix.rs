//! Several generators in one trace, each with its own range of keys, taking turns at random by
//! weight.

use super::rng::{Rng, derived, threshold};
use super::{Access, Entry, Generate, Made, Plan, SpecError};

pub(super) static MIX: Entry = Entry {
    name: "mix",
    about: "parts that take turns, as in mix:requests=9000+zipf:keys=100,weight=2+loop:keys=50",
    parameters: &[],
    chooses_ops: false,
    make: |spec, plan| {
        if spec.parts().is_empty() {
            return Err(SpecError::NoParts);
        }
        let whole: f64 = spec.parts().iter().map(|part| part.real("weight")).sum();
        let (mut span, mut weight, mut parts) = (0, 0.0, Vec::new());
        for (part, index) in spec.parts().iter().zip(1..) {
            let made = part.make(Plan { seed: derived(plan.seed, index), ..plan })?;
            weight += part.real("weight");
            parts.push(Part {
                until: threshold(weight / whole),
                first: span,
                generator: made.generator,
            });
            span += made.span;
        }
        Ok(Made { span, generator: Box::new(Mix { rng: Rng::new(plan.seed), parts }) })
    },
};

struct Mix {
    rng: Rng,
    parts: Vec<Part>,
}

struct Part {
    /// Its turn comes when a draw falls below this, and not below that of the part before.
    until: u64,
    /// Where its keys start.
    first: u64,
    generator: Box<dyn Generate>,
}

impl Generate for Mix {
    #[inline]
    fn next(&mut self) -> Access {
        let draw = self.rng.next();
        let last = self.parts.len() - 1;
        let turn = self.parts[..last].iter().position(|part| draw < part.until).unwrap_or(last);
        let part = &mut self.parts[turn];
        let access = part.generator.next();
        Access { key: part.first + access.key, ..access }
    }
}
