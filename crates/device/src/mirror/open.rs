//! The decision whether a mirror opens, and with which halves.

use super::layout::{Label, Seen, Shape};
use super::plant::Plant;
use super::state::Regions;
use super::state::{Header, Start};
use super::witness::{Generation, Halves};

/// Why a mirror does not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MirrorRefusal {
    /// No half has the newest generation.
    #[error(
        "{stale} has generation {has}, the mirror is at {newest}: bring back {wanted}, which has \
         the newest data"
    )]
    Stale {
        /// The half that was found.
        stale: String,
        /// Its generation.
        has: u64,
        /// The generation of the witness.
        newest: u64,
        /// The halves that have it.
        wanted: String,
    },
    /// The witness is unknown and not all halves agree.
    #[error(
        "no witness tells which half of the mirror is the newest, and {why}: bring back all \
         halves, or the witness"
    )]
    NoWitness {
        /// The reason why the halves do not tell it.
        why: String,
    },
    /// A new mirror needs all of its halves.
    #[error("{name} is needed to make the mirror: {why}")]
    NotMade {
        /// The half.
        name: String,
        /// The obstacle.
        why: String,
    },
    /// It cannot be made or run.
    #[error("cannot open the mirror: {why}")]
    Making {
        /// The obstacle.
        why: String,
    },
    /// Halves of two mirrors.
    #[error("{name} is a half of another mirror; to use it, overwrite its first MiB with zeros")]
    OtherMirror {
        /// The half.
        name: String,
    },
    /// A half that holds something else, where others are halves of the mirror.
    #[error("{name} holds data that is no half's; to use it, overwrite its first MiB with zeros")]
    Foreign {
        /// The half.
        name: String,
    },
    /// The halves are of another shape.
    #[error("{name} is of a mirror of {found}, not of {wanted}")]
    OtherShape {
        /// The half.
        name: String,
        /// The shape of its mirror.
        found: String,
        /// The shape asked for.
        wanted: String,
    },
    /// Two copies of one half.
    #[error("{name} is half {half} of the mirror, as {other} is")]
    Twice {
        /// One.
        name: String,
        /// The other.
        other: String,
        /// Their number.
        half: usize,
    },
}

impl MirrorRefusal {
    pub(super) fn making(error: impl std::fmt::Display) -> MirrorRefusal {
        MirrorRefusal::Making { why: error.to_string() }
    }
}

/// A mirror that opens.
#[derive(Debug)]
pub(crate) enum Opening {
    /// There is none yet.
    New,
    /// The number of the half at each place, and the state to begin with.
    Serve { numbers: Vec<usize>, start: Start },
}

/// Returns the id of the mirror, if a half tells it.
pub(crate) fn id(seen: &[Seen], names: &[String]) -> Result<Option<[u8; 16]>, MirrorRefusal> {
    let mut id = None;
    for (seen, name) in seen.iter().zip(names) {
        if let Seen::Header(label, _) = seen
            && *id.get_or_insert(label.mirror) != label.mirror
        {
            return Err(MirrorRefusal::OtherMirror { name: name.clone() });
        }
    }
    Ok(id)
}

/// The facts by which a mirror opens.
pub(crate) struct Facts<'a> {
    /// The halves, in the order in which reads prefer them.
    pub(crate) seen: &'a [Seen],
    pub(crate) names: &'a [String],
    /// The shape asked for.
    pub(crate) shape: Shape,
    /// The newest generation; an error where the witness cannot be reached.
    pub(crate) witness: Result<Option<Generation>, String>,
    pub(crate) plant: Option<Plant>,
}

impl Facts<'_> {
    /// Decides.
    pub(crate) fn open(&self) -> Result<Opening, MirrorRefusal> {
        let found: Vec<(usize, &Label, &Header)> =
            (0..).zip(self.seen).filter_map(header).collect();
        let is_untouched = |(_, _, header): &(usize, &Label, &Header)| header.sequence == 1;
        let unknown = matches!(self.witness, Ok(None));
        if found.is_empty() || unknown && found.iter().all(is_untouched) {
            return self.anew();
        }
        if let Some(place) = self.seen.iter().position(|seen| *seen == Seen::Foreign) {
            return Err(MirrorRefusal::Foreign { name: self.names[place].clone() });
        }
        let numbers = self.numbers(&found)?;
        let newest = match &self.witness {
            Ok(Some(newest)) if self.plant != Some(Plant::TrustHeaders) => *newest,
            _ if self.plant == Some(Plant::TrustHeaders) => {
                let generation = found.iter().map(|(_, _, header)| header.generation);
                generation.max_by_key(|generation| generation.number).unwrap_or_default()
            }
            _ => self.agreed(&found)?,
        };
        let is_current = |(_, label, header): &&(usize, &Label, &Header)| {
            newest.halves.contains(label.half)
                && [header.generation, header.previous].contains(&newest)
        };
        let mut current: Vec<_> = found.iter().filter(is_current).collect();
        let last = current.iter().max_by_key(|(_, _, header)| header.sequence);
        let known = last.map_or([0; Halves::MAX], |(_, _, header)| header.known);
        current.retain(|(_, label, header)| header.sequence >= known[label.half]);
        if current.is_empty() {
            return Err(self.stale(&found, &numbers, newest));
        }
        let there = current.iter().map(|(_, label, _)| Halves::one(label.half));
        let there = there.fold(Halves::NONE, Halves::with);
        let mut map = Regions::none(self.shape.regions());
        current.iter().for_each(|(_, _, header)| map.add(&header.map));
        let start = Start {
            count: self.seen.len(),
            order: numbers.clone(),
            generation: newest,
            missing: newest.halves.without(there),
            unconfirmed: !matches!(self.witness, Ok(Some(_))),
            sequence: found.iter().map(|(_, _, header)| header.sequence).max().unwrap_or(0),
            known,
            regions: self.shape.regions(),
            map,
        };
        Ok(Opening::Serve { numbers, start })
    }

    fn anew(&self) -> Result<Opening, MirrorRefusal> {
        for (seen, name) in self.seen.iter().zip(self.names) {
            let why = match seen {
                Seen::Header(..) | Seen::Blank => continue,
                Seen::Damaged => "it has the damaged header of a half".to_owned(),
                Seen::Foreign => "it holds data; overwrite its first MiB with zeros".to_owned(),
                Seen::Missing(why) => why.clone(),
            };
            return Err(MirrorRefusal::NotMade { name: name.clone(), why });
        }
        Ok(Opening::New)
    }

    /// Returns the number of the half at each place.
    fn numbers(&self, found: &[(usize, &Label, &Header)]) -> Result<Vec<usize>, MirrorRefusal> {
        let mut numbers = vec![None; self.seen.len()];
        for (place, label, _) in found {
            let name = self.names[*place].clone();
            if label.shape != self.shape || label.half >= self.seen.len() {
                let (found, wanted) = (label.shape.to_string(), self.shape.to_string());
                return Err(MirrorRefusal::OtherShape { name, found, wanted });
            }
            if let Some(other) = numbers.iter().position(|number| *number == Some(label.half)) {
                let other = self.names[other].clone();
                return Err(MirrorRefusal::Twice { name, other, half: label.half });
            }
            numbers[*place] = Some(label.half);
        }
        for place in 0..numbers.len() {
            if numbers[place].is_none() {
                let free = (0..numbers.len()).find(|half| !numbers.contains(&Some(*half)));
                numbers[place] = free;
            }
        }
        Ok(numbers.into_iter().map(|number| number.expect("as many numbers as places")).collect())
    }

    /// Returns the generation on which all halves agree.
    fn agreed(&self, found: &[(usize, &Label, &Header)]) -> Result<Generation, MirrorRefusal> {
        let refuse = |why: String| Err(MirrorRefusal::NoWitness { why });
        for (seen, name) in self.seen.iter().zip(self.names) {
            match seen {
                Seen::Header(..) => {}
                Seen::Missing(why) => return refuse(format!("{name} is not there ({why})")),
                _ => return refuse(format!("{name} has no header")),
            }
        }
        let (_, _, first) = found[0];
        let agree = |(_, _, header): &(usize, &Label, &Header)| {
            (header.generation, header.previous) == (first.generation, first.previous)
        };
        let all = Halves::first(found.len());
        // A generation that the witness may not have was perhaps given up.
        let is_certain = first.generation == first.previous;
        if !found.iter().all(agree) || first.generation.halves != all || !is_certain {
            return refuse("the halves do not agree".to_owned());
        }
        Ok(first.generation)
    }

    fn stale(
        &self,
        found: &[(usize, &Label, &Header)],
        numbers: &[usize],
        newest: Generation,
    ) -> MirrorRefusal {
        let (place, _, header) = found
            .iter()
            .max_by_key(|(_, _, header)| header.generation.number)
            .expect("one at least");
        let wanted = newest.halves.iter().map(|half| {
            match numbers.iter().position(|number| *number == half) {
                Some(place) => self.names[place].clone(),
                None => format!("half {half}"),
            }
        });
        MirrorRefusal::Stale {
            stale: self.names[*place].clone(),
            has: header.generation.number,
            newest: newest.number,
            wanted: wanted.collect::<Vec<_>>().join(" or "),
        }
    }
}

fn header((place, seen): (usize, &Seen)) -> Option<(usize, &Label, &Header)> {
    match seen {
        Seen::Header(label, header) => Some((place, label, header)),
        _ => None,
    }
}
