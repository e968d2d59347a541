//! A mirror on simulated disks, with clients and a witness, in a process that crashes.

use std::ops::{AddAssign, Range};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::client::{Disk, DiskOp, Oracle, ROT};
use crate::device::Halves;
use crate::mirror::layout::{Header, Label, Seen, Shape};
use crate::mirror::marks::Regions;
use crate::mirror::source::{Facts, Opening};
use crate::mirror::state::{Job, Plant, Start, State};
use crate::mirror::witness::Generation;

const LIVES: u32 = 5;
const STEPS: u64 = 200;
/// Steps within which a mirror without faults gets in sync.
const STEPS_TO_SYNC: u64 = 4_000;

pub(super) struct World {
    pub(super) random: SmallRng,
    pub(super) disks: Vec<Disk>,
    pub(super) witness: Option<Generation>,
    pub(super) witness_up: bool,
    pub(super) plant: Option<Plant>,
    pub(super) shape: Shape,
    pub(super) oracle: Oracle,
    pub(super) step: u64,
    pub(super) next_content: u64,
    pub(super) power_cut: bool,
    pub(super) seldom: Seldom,
    /// Nothing fails, and no client begins anything.
    calm: bool,
    /// The halves that got in sync right before the crash.
    pub(super) joined: Halves,
    /// Clients use only so many sectors.
    pub(super) focus: usize,
}

impl World {
    pub(super) fn new(seed: u64, plant: Option<Plant>) -> World {
        let mut random = SmallRng::seed_from_u64(seed);
        let count = if random.random_range(0..4) == 0 { 3 } else { 2 };
        let regions = random.random_range(2..6);
        let sectors = regions * REGION_SECTORS;
        let shape = Shape { count, bytes: regions as u64, region_bytes: 1 };
        World {
            disks: (0..count).map(|_| Disk::new(sectors, &mut random)).collect(),
            random,
            witness: None,
            witness_up: true,
            plant,
            shape,
            oracle: Oracle::new(sectors),
            step: 0,
            next_content: 1,
            power_cut: false,
            seldom: Seldom::default(),
            calm: false,
            joined: Halves::NONE,
            focus: sectors,
        }
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        !self.calm && self.random.random_range(0..100) < percent
    }

    /// Runs the world to its end.
    pub(super) fn run(&mut self) -> Result<(), String> {
        for _ in 0..LIVES {
            if let Some(mut life) = self.start()? {
                self.live(&mut life)?;
                self.crash(life);
            }
        }
        self.calm = true;
        self.witness_up = true;
        self.disks.iter_mut().for_each(|disk| disk.up = true);
        let mut life =
            self.start()?.ok_or("a mirror with all halves and its witness is refused")?;
        self.get_in_sync(&mut life)?;
        self.compare(&mut life)
    }

    fn be_calm(&mut self) {
        (self.calm, self.witness_up) = (true, true);
        self.disks.iter_mut().for_each(|disk| disk.up = true);
    }

    pub(super) fn is_calm(&self) -> bool {
        self.calm
    }

    pub(super) fn sectors(&self) -> usize {
        self.shape.regions() * REGION_SECTORS
    }

    fn live(&mut self, life: &mut Life) -> Result<(), String> {
        self.focus = self.random.random_range(1..self.sectors() + 1);
        if self.random.random() {
            // Marks of an earlier life hide those that are missing.
            self.be_calm();
            self.get_in_sync(life)?;
            self.calm = false;
        }
        let steps = self.random.random_range(1..STEPS);
        for _ in 0..steps {
            let before = life.state.generation();
            self.one_step(life)?;
            // A crash right after a change of the generation shows the most.
            let after = life.state.generation();
            if after != before && self.random.random_range(0..4) == 0 {
                self.joined = after.halves.without(before.halves);
                break;
            }
        }
        Ok(())
    }

    fn one_step(&mut self, life: &mut Life) -> Result<(), String> {
        self.step += 1;
        match self.random.random_range(0..100) {
            0..22 => self.begin_client(life),
            22..24 if !self.calm => {
                let half = self.random.random_range(0..self.disks.len());
                let disk = &mut self.disks[half];
                // A disk that is off comes back soon, so that it gets in sync now and then.
                disk.up = !disk.up || self.random.random_range(0..3) > 0;
                if !disk.up && self.random.random() {
                    disk.cut_power(&mut self.random);
                    self.power_cut = true;
                }
            }
            24..25 if !self.calm => self.witness_up = !self.witness_up,
            25..26 if !self.calm => self.give_up(life),
            26..28 => life.state.tick(),
            28..30 => self.rot(life),
            30..31 if !self.calm => life.state.refuse_held(),
            31..36 => self.look(life),
            36..76 => self.end_one(life)?,
            _ => self.step_lanes(life),
        }
        self.step_clients(life)
    }

    /// A bit flips on a half where another half in sync has the same content, durably.
    fn rot(&mut self, life: &Life) {
        if self.calm {
            return;
        }
        let (half, sector) = (
            self.random.random_range(0..self.disks.len()),
            self.random.random_range(0..self.sectors()),
        );
        let touches = |op: &DiskOp| match op {
            DiskOp::Write(sectors, _) => sectors.iter().any(|(at, _)| *at == sector),
            DiskOp::Read(sectors) => sectors.contains(&sector),
            DiskOp::Flush(_) | DiskOp::Header(_) => false,
        };
        let is_busy = life.pending.iter().any(|pending| touches(&pending.op))
            || life.clients.iter().any(|client| match &client.what {
                ClientAction::Write(sectors, _) => sectors.contains(&sector),
                ClientAction::Read(at) | ClientAction::Mend(at, _) => *at == sector,
                ClientAction::Flush => false,
            });
        let members = life.state.members();
        let settled = |half: usize| self.disks[half].settled(sector).filter(|it| it & ROT == 0);
        let is_same = |other: usize| {
            other != half
                && members.contains(other)
                && self.is_current(other)
                && settled(other).is_some()
                && settled(other) == settled(half)
        };
        let is_safe = members.contains(half) && (0..self.disks.len()).any(is_same);
        if is_safe && !is_busy {
            self.disks[half].rot(sector);
            self.seldom.rots += 1;
        }
    }

    /// Ends an operation of a disk.
    fn end_one(&mut self, life: &mut Life) -> Result<(), String> {
        if life.pending.is_empty() {
            return Ok(());
        }
        let at = self.random.random_range(0..life.pending.len());
        let Pending { half, op, owner } = life.pending.swap_remove(at);
        let disk = &self.disks[half];
        let fails = !disk.up || disk.broken || self.chance(2);
        let result = if fails {
            self.disks[half].tear(&op, &mut self.random);
            None
        } else {
            Some(self.disks[half].carry_out(&op))
        };
        self.ended(life, half, owner, result)
    }

    fn ended(
        &mut self,
        life: &mut Life,
        half: usize,
        owner: Owner,
        result: Option<Vec<u64>>,
    ) -> Result<(), String> {
        match owner {
            Owner::Client(at) => self.client_ended(life, at, half, result),
            Owner::Header | Owner::Copy => {
                self.lane_ended(life, half, owner, result);
                Ok(())
            }
            Owner::Nothing => Ok(()),
        }
    }

    /// An operation gets no answer in time: its half is given up, but the operation may happen.
    fn give_up(&mut self, life: &mut Life) {
        if life.pending.is_empty() {
            return;
        }
        let at = self.random.random_range(0..life.pending.len());
        let Pending { half, owner, .. } = life.pending[at];
        if owner != Owner::Nothing && life.state.fail(half) {
            life.pending[at].owner = Owner::Nothing;
            self.ended(life, half, owner, None).expect("what has failed shows no content");
        }
    }

    /// Looks whether a half that is out can return.
    fn look(&mut self, life: &mut Life) {
        let is_idle = |half: &usize| life.pending.iter().all(|pending| pending.half != *half);
        let back: Vec<usize> =
            life.state.out().iter().filter(|half| self.disks[*half].up).filter(is_idle).collect();
        for half in back {
            let disk = &mut self.disks[half];
            disk.open();
            life.state.begin_return(half, disk.header().map(|header| header.sequence));
            self.seldom.returns += 1;
        }
    }

    /// Returns the answer of the witness; `None` if it does not come.
    pub(super) fn raise(&mut self, from: Generation, to: Generation, anew: bool) -> Option<bool> {
        if self.plant == Some(Plant::RaiseNothing) {
            return Some(true);
        }
        let is_expected = match self.witness {
            None => anew,
            Some(newest) => newest == from || newest == to,
        };
        let (comes, arrives) = (self.witness_up && !self.chance(5), !self.chance(50));
        if is_expected && (comes || self.witness_up && arrives) {
            self.seldom.leaves += u64::from(to.halves.len() < self.disks.len());
            self.witness = Some(to);
        }
        comes.then_some(is_expected)
    }

    /// Ends the process, perhaps with the power of some halves.
    fn crash(&mut self, life: Life) {
        self.seldom.crashes += 1;
        for Pending { half, op, .. } in life.pending {
            self.disks[half].tear(&op, &mut self.random);
        }
        let everything = !self.joined.is_empty() || self.random.random_range(0..3) == 0;
        for half in 0..self.disks.len() {
            if everything || self.random.random_range(0..6) == 0 {
                self.disks[half].cut_power(&mut self.random);
                self.power_cut = true;
            }
        }
        self.oracle.crashed(self.power_cut);
        self.power_cut = false;
    }

    fn get_in_sync(&mut self, life: &mut Life) -> Result<(), String> {
        for _ in 0..STEPS_TO_SYNC {
            self.one_step(life)?;
            let state = &life.state;
            let idle = life.clients.is_empty() && life.pending.is_empty() && state.is_whole();
            if idle && state.regions_left() == 0 && state.regions_marked() == 0 {
                return Ok(());
            }
        }
        Err(format!("it does not get in sync: {:?}", life.state))
    }

    /// All halves are equal, and have what they must.
    fn compare(&mut self, life: &mut Life) -> Result<(), String> {
        if life.state.is_fenced() {
            return Err("it is fenced, by no other server".into());
        }
        for sector in 0..self.sectors() {
            let contents = self.disks.iter().map(|disk| disk.read(sector));
            let contents: Vec<u64> = contents.filter(|content| content & ROT == 0).collect();
            if contents.is_empty() {
                return Err(format!("sector {sector} has no intact copy any more"));
            }
            if contents.iter().any(|content| *content != contents[0]) {
                return Err(format!("sector {sector} differs: {contents:?}"));
            }
            if self.oracle.lock(sector) {
                self.oracle.read(sector, contents[0], self.step)?;
            }
        }
        Ok(())
    }
}

impl World {
    /// Opens the mirror with the halves and the witness that are there; `None` if it is refused.
    pub(super) fn start(&mut self) -> Result<Option<Life>, String> {
        let count = self.shape.count;
        for half in 0..count {
            let others = !self.joined.is_empty() && !self.joined.contains(half);
            self.disks[half].up = !self.chance(if others { 60 } else { 20 });
            self.disks[half].open();
        }
        self.joined = Halves::NONE;
        self.witness_up = !self.chance(15);
        if self.chance(4) {
            self.replace_disk();
        }
        let mirror = [7; 16];
        let seen = |(half, disk): (usize, &Disk)| match disk.header() {
            _ if !disk.up => Seen::Missing("it is off".into()),
            Some(header) => Seen::Header(Label { mirror, half, shape: self.shape }, header.clone()),
            None => Seen::Blank,
        };
        let seen: Vec<Seen> = (0..).zip(&self.disks).map(seen).collect();
        let witness = if self.witness_up { Ok(self.witness) } else { Err("it is off".into()) };
        let must_open = self.witness_up && (0..count).any(|half| self.is_current(half));
        let names: Vec<String> = (0..count).map(|half| format!("half {half}")).collect();
        let facts =
            Facts { seen: &seen, names: &names, shape: self.shape, witness, plant: self.plant };
        let start = match facts.open() {
            Ok(Opening::New) if self.witness.is_some() => {
                return Err("a mirror is made over another".into());
            }
            Ok(Opening::New) => {
                let Some(start) = self.create() else { return Ok(None) };
                start
            }
            Ok(Opening::Serve { start, .. }) => start,
            Err(refusal) if must_open => return Err(format!("it is refused: {refusal}")),
            Err(_) => {
                self.seldom.refusals += 1;
                return Ok(None);
            }
        };
        self.seldom.without_witness += u64::from(!self.witness_up);
        self.seldom.recoveries += u64::from(!start.map.is_empty());
        Ok(Some(Life {
            state: State::new(start, self.plant),
            clients: Vec::new(),
            pending: Vec::new(),
            lanes: LaneJobs::default(),
        }))
    }

    /// Returns whether a half is there and has the newest generation.
    pub(super) fn is_current(&self, half: usize) -> bool {
        let disk = &self.disks[half];
        let is_newest = |newest: Generation| {
            let is_newest =
                |header: &Header| [header.generation, header.previous].contains(&newest);
            newest.halves.contains(half) && disk.header().is_some_and(is_newest)
        };
        disk.up && self.witness.is_some_and(is_newest)
    }

    /// Puts a new disk in the place of a half, where another one is as new.
    fn replace_disk(&mut self) {
        let half = self.random.random_range(0..self.disks.len());
        let is_other = |other: usize| other != half && self.is_current(other);
        let is_rotten = |disk: &Disk| (0..self.sectors()).any(|at| disk.read(at) & ROT != 0);
        let is_sound = !self.disks.iter().any(is_rotten);
        if self.witness_up && is_sound && (0..self.disks.len()).any(is_other) {
            self.disks[half] = Disk::new(self.sectors(), &mut self.random);
        }
    }

    /// Makes the mirror, as far as the power lasts.
    fn create(&mut self) -> Option<Start> {
        let count = self.shape.count;
        let generation = Generation { number: 1, halves: Halves::first(count) };
        let map = Regions::all(self.shape.regions());
        let header = |sequence, previous, map| {
            let known = [0; Halves::MAX];
            Header { sequence, generation, previous, known, map }
        };
        for (sequence, previous) in [(1, Generation::default()), (2, generation)] {
            for half in 0..count {
                if self.chance(3) {
                    return None;
                }
                let op = DiskOp::Header(header(sequence, previous, map.clone()));
                self.disks[half].carry_out(&op);
            }
            if !self.witness_up || self.chance(3) {
                return None;
            }
            self.witness = Some(generation);
        }
        Some(Start {
            count,
            order: (0..count).collect(),
            generation,
            missing: Halves::NONE,
            unconfirmed: false,
            sequence: 2,
            known: [0; Halves::MAX],
            regions: self.shape.regions(),
            map,
        })
    }
}

pub(super) const REGION_SECTORS: usize = 3;

/// The process of a mirror, until it crashes.
pub(super) struct Life {
    pub(super) state: State,
    pub(super) clients: Vec<Client>,
    pub(super) pending: Vec<Pending>,
    pub(super) lanes: LaneJobs,
}

/// The owner of an operation on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Client(usize),
    Header,
    Copy,
    /// It was given up: nothing waits for it.
    Nothing,
}

#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) half: usize,
    pub(super) op: DiskOp,
    pub(super) owner: Owner,
}

#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) id: usize,
    pub(super) what: ClientAction,
    pub(super) stage: Stage,
    /// The step at which it began.
    pub(super) begun: u64,
}

#[derive(Debug, Clone)]
pub(super) enum ClientAction {
    Read(usize),
    Write(Range<usize>, u64),
    /// A write of what another half has.
    Mend(usize, u64),
    Flush,
}

#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// It asks until more is refused than was then.
    Held {
        refusals: u64,
    },
    Running {
        left: usize,
        sent: Halves,
        missed: Halves,
        read: Option<u64>,
    },
    /// It has read a flipped bit, and looks for an intact copy.
    Search,
    /// It waits until these halves have left.
    Settling(Halves),
    Ended {
        acknowledged: bool,
    },
}

/// The jobs under way.
#[derive(Debug, Default)]
pub(super) struct LaneJobs {
    pub(super) header: Option<Ends>,
    pub(super) copy: Option<(Copy, Ends)>,
    /// A question to the witness that has no answer yet.
    pub(super) witness: Option<Job>,
}

/// Operations that end, and the halves on which some failed.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub(super) left: usize,
    pub(super) missed: Halves,
}

#[derive(Debug)]
pub(super) enum Copy {
    Read { region: usize, from: usize, to: Halves },
    Write,
    Flush,
}

/// The counts.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Seldom {
    pub(super) crashes: u64,
    pub(super) refusals: u64,
    pub(super) leaves: u64,
    pub(super) returns: u64,
    pub(super) recoveries: u64,
    pub(super) without_witness: u64,
    pub(super) writes: u64,
    pub(super) flushes: u64,
    pub(super) rots: u64,
    pub(super) mends: u64,
    pub(super) mended_copies: u64,
}

impl Seldom {
    pub(super) fn counts(self) -> [(&'static str, u64); 11] {
        [
            ("a crash", self.crashes),
            ("a refusal", self.refusals),
            ("a leave", self.leaves),
            ("a return", self.returns),
            ("a recovery", self.recoveries),
            ("an opening without witness", self.without_witness),
            ("a write", self.writes),
            ("a flush", self.flushes),
            ("a flipped bit", self.rots),
            ("a mended read", self.mends),
            ("a mended copy", self.mended_copies),
        ]
    }
}

impl AddAssign for Seldom {
    fn add_assign(&mut self, other: Seldom) {
        self.crashes += other.crashes;
        self.refusals += other.refusals;
        self.leaves += other.leaves;
        self.returns += other.returns;
        self.recoveries += other.recoveries;
        self.without_witness += other.without_witness;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.rots += other.rots;
        self.mends += other.mends;
        self.mended_copies += other.mended_copies;
    }
}
