//! Opening a mirror: reads the headers of the halves and decides which of them serve.

use std::io;
use std::sync::{Arc, Weak};

use super::layout::{HEAD_BYTES, Header, Label, Seen, Shape};
use super::marks::Regions;
use super::shared::{
    HalfDevice, HalfPlace, HalfSource, MirrorStatus, Pace, Shared, Waiting, first_headers,
};
use super::state::{Plant, Start, State};
use super::threads::Running;
use super::witness::{Generation, Witness};
use crate::buffer::SECTOR_BYTES;
use crate::device::Halves;
use crate::system::random_id;

/// An open mirror, from which each thread opens a device. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct MirrorSource(pub(super) Arc<Running>);

/// Access to the status of a mirror. Does not keep the mirror open.
#[derive(Debug, Clone)]
pub struct MirrorWatch(Weak<Running>);

impl MirrorWatch {
    /// Returns the mirror's status; `None` once the mirror is closed.
    pub fn status(&self) -> Option<MirrorStatus> {
        self.0.upgrade().map(|running| running.shared.status())
    }

    /// Sets a function to call with the current status, and again soon after each change of a
    /// half's state. The function must not block.
    pub fn on_change(&self, hear: impl Fn(&MirrorStatus) + Send + 'static) {
        if let Some(running) = self.0.upgrade() {
            running.shared.listener.set(Box::new(hear));
        }
    }
}

/// The result of looking for a half at its place.
struct Found {
    name: String,
    source: Option<Box<dyn HalfDevice>>,
    seen: Seen,
    slot: usize,
    /// True if the file was just created, so that it holds zeros.
    fresh: bool,
}

impl Found {
    fn look(place: &dyn HalfPlace, bytes: u64, pace: Pace) -> Found {
        let name = place.name();
        let looked = place.open(None).and_then(|source| {
            let wanted = bytes + HEAD_BYTES;
            if source.size_bytes() < wanted {
                let has = source.size_bytes();
                return Err(io::Error::other(format!("it has {has} of {wanted} bytes")));
            }
            let (seen, slot) = Waiting::open(&*source, pace.timeout)?.look()?;
            Ok((source, seen, slot))
        });
        match looked {
            Ok((source, seen, slot)) => {
                Found { name, source: Some(source), seen, slot, fresh: false }
            }
            Err(error) => {
                let seen = Seen::Missing(error.to_string());
                Found { name, source: None, seen, slot: 0, fresh: false }
            }
        }
    }
}

impl MirrorSource {
    /// Opens the mirror of these halves, or creates it with `bytes` of data.
    pub(crate) fn prepare(
        places: &[Arc<dyn HalfPlace>],
        bytes: u64,
        pace: Pace,
        witness: Arc<dyn Witness>,
    ) -> Result<MirrorSource, MirrorRefusal> {
        let shape = Shape::new(places.len(), bytes);
        let look = |place: &Arc<dyn HalfPlace>| Found::look(&**place, bytes, pace);
        let mut found: Vec<Found> = places.iter().map(look).collect();
        let may_be_new = |(half, place): (&Found, &Arc<dyn HalfPlace>)| match half.seen {
            Seen::Blank => true,
            Seen::Missing(_) => place.is_absent(),
            _ => false,
        };
        if found.iter().zip(places).all(may_be_new) {
            for (half, place) in found.iter_mut().zip(places).filter(|(_, it)| it.is_absent()) {
                let source = place.open(Some(bytes + HEAD_BYTES));
                let source = source.map_err(|error| {
                    MirrorRefusal::NotMade(half.name.clone(), error.to_string())
                })?;
                let (source, seen) = (Some(source), Seen::Blank);
                *half = Found { source, seen, fresh: true, name: half.name.clone(), slot: 0 };
            }
        }
        let names: Vec<String> = found.iter().map(|half| half.name.clone()).collect();
        let seen: Vec<Seen> = found.iter().map(|half| half.seen.clone()).collect();
        let known = id(&seen, &names)?;
        let newest = match known {
            Some(mirror) => witness.read(&mirror).map_err(|error| error.to_string()),
            None => Ok(None),
        };
        let facts = Facts { seen: &seen, names: &names, shape, witness: newest, plant: None };
        let (mirror, numbers, start) = match facts.open()? {
            Opening::Serve { numbers, start } => (known.expect("a half told it"), numbers, start),
            Opening::New => {
                let mirror = random_id().map_err(MirrorRefusal::making)?;
                let numbers = (0..places.len()).collect();
                let start = make(&mut found, mirror, shape, pace, witness.as_ref())?;
                (mirror, numbers, start)
            }
        };
        let numbers: Vec<usize> = numbers;
        let mut halves: Vec<_> = found.into_iter().zip(places).zip(numbers).collect();
        halves.sort_by_key(|(_, number)| *number);
        let (halves, places) = halves
            .into_iter()
            .map(|((half, place), _)| {
                let mut source = HalfSource::new(half.name, half.source, half.slot);
                source.error = match half.seen {
                    Seen::Missing(why) => Some(why),
                    Seen::Blank => Some("it is new".to_owned()),
                    Seen::Damaged => Some("its header is damaged".to_owned()),
                    Seen::Header(..) | Seen::Foreign => None,
                };
                (source, Arc::clone(place))
            })
            .unzip();
        let label = Label { mirror, half: 0, shape };
        let mut state = State::new(start, None);
        state.await_judge(true);
        let shared = Shared::new(places, &label, pace, witness, state, halves);
        shared.wake(&mut shared.lock());
        let running = Running::start(shared).map_err(MirrorRefusal::making)?;
        Ok(MirrorSource(Arc::new(running)))
    }

    /// Returns the size in the first header found; `None` if no half has a header.
    pub(crate) fn size_made(places: &[Arc<dyn HalfPlace>], pace: Pace) -> Option<u64> {
        let found = places.iter().map(|place| Found::look(&**place, 0, pace)).collect::<Vec<_>>();
        size_in_header(&found)
    }

    /// Returns the size in the first header found. If no half has a header, returns the size for
    /// which all halves have room.
    pub(crate) fn size_found(places: &[Arc<dyn HalfPlace>], pace: Pace) -> Option<u64> {
        let found = places.iter().map(|place| Found::look(&**place, 0, pace)).collect::<Vec<_>>();
        let room = |half: &Found| {
            let bytes = half.source.as_ref()?.size_bytes().checked_sub(HEAD_BYTES)?;
            Some(bytes / SECTOR_BYTES * SECTOR_BYTES).filter(|bytes| *bytes > 0)
        };
        let rooms = || found.iter().map(room).collect::<Option<Vec<_>>>()?.into_iter().min();
        size_in_header(&found).or_else(rooms)
    }

    pub(crate) fn watch(&self) -> MirrorWatch {
        MirrorWatch(Arc::downgrade(&self.0))
    }

    pub(crate) fn status(&self) -> MirrorStatus {
        self.0.shared.status()
    }
}

/// Returns the size in the first header of these halves.
fn size_in_header(found: &[Found]) -> Option<u64> {
    found.iter().find_map(|half| match &half.seen {
        Seen::Header(label, _) => Some(label.shape.bytes),
        _ => None,
    })
}

/// Creates a mirror: writes the headers of all halves, informs the witness, and writes the headers
/// again.
fn make(
    found: &mut [Found],
    mirror: [u8; 16],
    shape: Shape,
    pace: Pace,
    witness: &dyn Witness,
) -> Result<Start, MirrorRefusal> {
    let count = found.len();
    let generation = Generation { number: 1, halves: Halves::first(count) };
    let regions = shape.regions();
    let equal = found.iter().all(|half| half.fresh);
    let map = if equal { Regions::none(regions) } else { Regions::all(regions) };
    let headers = first_headers(shape, generation, &map);
    for (at, header) in headers.iter().enumerate() {
        for (half, found) in found.iter_mut().enumerate() {
            let label = Label { mirror, half, shape };
            let source = found.source.as_deref().expect("a new mirror has all halves");
            let write = |mut it: Waiting| it.write(&label, header, found.slot);
            let written = Waiting::open(source, pace.timeout).and_then(write);
            written.map_err(|error| {
                let (name, why) = (found.name.clone(), error.to_string());
                MirrorRefusal::NotMade(name, why)
            })?;
            found.slot = 1 - found.slot;
        }
        if at == 0 {
            witness.raise(&mirror, None, generation).map_err(MirrorRefusal::making)?;
        }
    }
    Ok(Start {
        count,
        order: (0..count).collect(),
        generation,
        missing: Halves::NONE,
        unconfirmed: false,
        sequence: headers[1].sequence,
        known: headers[1].known,
        regions,
        map,
    })
}

/// The reason why a mirror cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MirrorRefusal {
    /// No half of the newest generation was found.
    #[error(
        "{stale} has generation {has}, the mirror is at {newest}: bring back {wanted}, which has \
         the newest data"
    )]
    Stale {
        /// The name of the half that was found.
        stale: String,
        /// The number of that half's generation.
        has: u64,
        /// The number of the newest generation, from the witness.
        newest: u64,
        /// The names of the halves that have the newest generation.
        wanted: String,
    },
    /// The witness is unavailable or unknown, and not all halves are present with one generation.
    #[error(
        "no witness tells which half of the mirror is the newest, and {0}: bring back all \
         halves, or the witness"
    )]
    NoWitness(String),
    /// The named half is needed to create the mirror, but failed with this error.
    #[error("{0} is needed to make the mirror: {1}")]
    NotMade(String, String),
    /// The mirror cannot be created or started.
    #[error("cannot open the mirror: {0}")]
    Making(String),
    /// The named half belongs to another mirror.
    #[error("{0} is a half of another mirror; to use it, overwrite its first MiB with zeros")]
    OtherMirror(String),
    /// The named device holds other data, while other devices are halves of the mirror.
    #[error(
        "{0} holds data that is not a half of a mirror; to use it, overwrite its first MiB \
             with zeros"
    )]
    Foreign(String),
    /// A half belongs to a mirror with another number of halves or another size.
    #[error("{name} belongs to a mirror of {found}, not of {wanted}")]
    OtherShape {
        /// The name of the half.
        name: String,
        /// The geometry in the half's header.
        found: String,
        /// The requested geometry.
        wanted: String,
    },
    /// Two devices hold copies of one half.
    #[error("{name} is half {half} of the mirror, as {other} is")]
    Twice {
        /// The name of the one device.
        name: String,
        /// The name of the other device.
        other: String,
        /// The number of the half that both hold.
        half: usize,
    },
}

impl MirrorRefusal {
    pub(super) fn making(error: impl std::fmt::Display) -> MirrorRefusal {
        MirrorRefusal::Making(error.to_string())
    }
}

/// The decision on how a mirror opens.
#[derive(Debug)]
pub(crate) enum Opening {
    /// No half has a header: create the mirror.
    New,
    /// Serve from the halves found: the number of the half at each place, and the initial state.
    Serve { numbers: Vec<usize>, start: Start },
}

/// Returns the mirror's id from the headers; `None` if no half has one.
pub(crate) fn id(seen: &[Seen], names: &[String]) -> Result<Option<[u8; 16]>, MirrorRefusal> {
    let mut id = None;
    for (seen, name) in seen.iter().zip(names) {
        if let Seen::Header(label, _) = seen
            && *id.get_or_insert(label.mirror) != label.mirror
        {
            return Err(MirrorRefusal::OtherMirror(name.clone()));
        }
    }
    Ok(id)
}

/// The information from which [`Facts::open`] decides how a mirror opens.
pub(crate) struct Facts<'a> {
    /// The headers found, in the order in which reads prefer the halves.
    pub(crate) seen: &'a [Seen],
    pub(crate) names: &'a [String],
    /// The requested geometry.
    pub(crate) shape: Shape,
    /// The newest generation known to the witness; an error if the witness cannot be reached.
    pub(crate) witness: Result<Option<Generation>, String>,
    pub(crate) plant: Option<Plant>,
}

impl Facts<'_> {
    /// Decides how the mirror opens, or why it is refused.
    pub(crate) fn open(&self) -> Result<Opening, MirrorRefusal> {
        let found: Vec<(usize, &Label, &Header)> =
            (0..).zip(self.seen).filter_map(header).collect();
        let is_untouched = |(_, _, header): &(usize, &Label, &Header)| header.sequence == 1;
        let unknown = matches!(self.witness, Ok(None));
        if found.is_empty() || unknown && found.iter().all(is_untouched) {
            return self.anew();
        }
        if let Some(place) = self.seen.iter().position(|seen| *seen == Seen::Foreign) {
            return Err(MirrorRefusal::Foreign(self.names[place].clone()));
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
                Seen::Damaged => "its header as half of a mirror is damaged".to_owned(),
                Seen::Foreign => "it holds data; overwrite its first MiB with zeros".to_owned(),
                Seen::Missing(why) => why.clone(),
            };
            return Err(MirrorRefusal::NotMade(name.clone(), why));
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

    /// Returns the generation on which all halves agree; an error if they do not or one is missing.
    fn agreed(&self, found: &[(usize, &Label, &Header)]) -> Result<Generation, MirrorRefusal> {
        let refuse = |why: String| Err(MirrorRefusal::NoWitness(why));
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
