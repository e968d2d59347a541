//! A mirror that is open: its halves were found, and its threads run.

use std::io;
use std::sync::{Arc, Weak};

use super::device::MirrorDevice;
use super::half::{HalfDevice, HalfPlace, Waiting, first_headers};
use super::layout::{HEAD_BYTES, Label, Seen, Shape};
use super::open::{Facts, MirrorRefusal, Opening, id};
use super::shared::{HalfSource, MirrorStatus, Pace, Shared};
use super::state::Regions;
use super::state::{Start, State};
use super::threads::Running;
use super::witness::{Generation, Halves, Witness};
use crate::SECTOR_BYTES;
use crate::buffer::Pool;
use crate::identity::Identity;
use crate::ring::Ring;

/// A mirror, made ready. Clones are the same mirror.
#[derive(Debug, Clone)]
pub(crate) struct MirrorSource(Arc<Running>);

/// The state of a mirror, for others to look at; it does not keep the mirror open.
#[derive(Debug, Clone)]
pub struct MirrorWatch(Weak<Running>);

impl MirrorWatch {
    /// Returns its state; `None` of a mirror that is closed.
    pub fn status(&self) -> Option<MirrorStatus> {
        self.0.upgrade().map(|running| running.shared.status())
    }

    /// Has a function called with the present state, and again soon after a half has left, returned
    /// or come into sync. It must not wait.
    pub fn on_change(&self, hear: impl Fn(&MirrorStatus) + Send + 'static) {
        if let Some(running) = self.0.upgrade() {
            running.shared.listener.set(Box::new(hear));
        }
    }
}

/// A half as it was found.
struct Found {
    name: String,
    source: Option<Box<dyn HalfDevice>>,
    seen: Seen,
    slot: usize,
    /// It was made just now: it holds zeros.
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
    /// Opens or makes the mirror of these halves, with `bytes` of data.
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
                let source = source.map_err(|error| MirrorRefusal::NotMade {
                    name: half.name.clone(),
                    why: error.to_string(),
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

    /// Returns the bytes of data of the mirror that these are halves of; where there is no header,
    /// for which there is room on all of them.
    pub(crate) fn size_found(places: &[Arc<dyn HalfPlace>], pace: Pace) -> Option<u64> {
        let found = places.iter().map(|place| Found::look(&**place, 0, pace)).collect::<Vec<_>>();
        let header = found.iter().find_map(|half| match &half.seen {
            Seen::Header(label, _) => Some(label.shape.bytes),
            _ => None,
        });
        let room = |half: &Found| {
            let bytes = half.source.as_ref()?.size_bytes().checked_sub(HEAD_BYTES)?;
            Some(bytes / SECTOR_BYTES * SECTOR_BYTES).filter(|bytes| *bytes > 0)
        };
        let rooms = || found.iter().map(room).collect::<Option<Vec<_>>>()?.into_iter().min();
        header.or_else(rooms)
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.0.shared.shape.bytes
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::of_mirror(&self.0.shared.mirror)
    }

    pub(crate) fn watch(&self) -> MirrorWatch {
        MirrorWatch(Arc::downgrade(&self.0))
    }

    pub(crate) fn status(&self) -> MirrorStatus {
        self.0.shared.status()
    }

    pub(crate) fn name(&self) -> String {
        let names = self.0.shared.places.iter().map(|place| place.name());
        format!("mirror:{}", names.collect::<Vec<_>>().join("+"))
    }

    pub(crate) fn open(&self, ring: &Ring, pool: &Pool) -> Result<MirrorDevice, MirrorRefusal> {
        MirrorDevice::new(ring, pool, &self.0).map_err(MirrorRefusal::making)
    }
}

fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut id)?;
    Ok(id)
}

/// Makes a mirror: writes the headers of all halves, tells the witness, and writes them again.
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
                MirrorRefusal::NotMade { name, why }
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
