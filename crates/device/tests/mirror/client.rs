//! Clients of a world: each begins one operation.

use std::ops::Range;

use rand::Rng;
use rand::rngs::SmallRng;

use super::world::{
    Client, ClientAction, Copy, Ends, Life, Owner, Pending, REGION_SECTORS, Stage, World,
};
use crate::device::Halves;
use crate::mirror::layout::Header;
use crate::mirror::state::{Begin, Job, Plant, Raised, Span};

/// Operations at a time.
const CLIENTS: usize = 6;

fn span(sectors: &Range<usize>) -> Span {
    sectors.start / REGION_SECTORS..=(sectors.end - 1) / REGION_SECTORS
}

impl World {
    pub(super) fn begin_client(&mut self, life: &mut Life) {
        if life.clients.len() == CLIENTS || self.is_calm() {
            return;
        }
        let sectors = self.focus;
        let what = match self.random.random_range(0..10) {
            0..2 => ClientAction::Flush,
            kind => {
                let start = self.random.random_range(0..sectors);
                let len = if kind < 5 { 1 } else { self.random.random_range(1..5) };
                let range = start..(start + len).min(sectors);
                let locked = range.clone().take_while(|at| self.oracle.lock(*at)).count();
                if locked < range.len() {
                    range.take(locked).for_each(|at| self.oracle.unlock(at));
                    return;
                }
                if kind < 5 {
                    ClientAction::Read(start)
                } else {
                    let content = self.next_content;
                    self.next_content += 1;
                    range.clone().for_each(|at| {
                        self.unrot(at);
                        self.oracle.begin(at, content);
                    });
                    ClientAction::Write(range, content)
                }
            }
        };
        self.next_content += 1;
        let stage = Stage::Held { refusals: life.state.refusals() };
        let (id, begun) = (self.next_content as usize, self.step);
        life.clients.push(Client { id, what, stage, begun });
    }

    /// Clients that wait ask again.
    pub(super) fn step_clients(&mut self, life: &mut Life) -> Result<(), String> {
        let mut clients = std::mem::take(&mut life.clients);
        for client in &mut clients {
            if matches!(client.stage, Stage::Search) {
                self.search(life, client)?;
            }
            if let Stage::Held { refusals } = client.stage {
                self.ask(life, client, refusals);
            }
            if let Stage::Settling(missed) = client.stage {
                if life.state.is_fenced() {
                    client.stage = Stage::Ended { acknowledged: false };
                } else if life.state.may_acknowledge(missed) {
                    client.stage = Stage::Ended { acknowledged: true };
                }
            }
            if let Stage::Ended { acknowledged } = client.stage {
                self.end(client, acknowledged);
            }
        }
        clients.retain(|client| !matches!(client.stage, Stage::Ended { .. }));
        life.clients = clients;
        Ok(())
    }

    /// Flips bits back: nothing could tell them while a sector that is written has no checksum.
    fn unrot(&mut self, sector: usize) {
        for disk in self.disks.iter_mut().filter(|disk| disk.read(sector) & ROT != 0) {
            disk.rot(sector);
        }
    }

    /// Returns the write of intact contents over flipped bits.
    pub(super) fn mend(&self, sectors: Vec<(usize, u64)>) -> DiskOp {
        let is_cached = self.plant == Some(Plant::MendUnflushed);
        DiskOp::Write(sectors, if is_cached { Way::Cached } else { Way::Durable })
    }

    /// Reads each half in turn, as whatever finds a wrong checksum does.
    fn search(&mut self, life: &mut Life, client: &mut Client) -> Result<(), String> {
        let ClientAction::Read(sector) = client.what else { panic!("{client:?} reads") };
        for half in 0..self.disks.len() {
            match life.state.begin_read_copy(half, span(&(sector..sector + 1))) {
                Some(Begin::Go(_)) => {}
                Some(Begin::Hold) => return Ok(()),
                Some(Begin::Fenced) | None => continue,
            }
            let found = self.disks[half].try_read(sector).filter(|content| content & ROT == 0);
            if let Some(content) = found {
                self.seldom.mends += 1;
                client.what = ClientAction::Mend(sector, content);
                client.stage = Stage::Held { refusals: life.state.refusals() };
                return self.oracle.read(sector, content, self.step);
            }
        }
        client.stage = Stage::Ended { acknowledged: false };
        Ok(())
    }

    fn ask(&mut self, life: &mut Life, client: &mut Client, refusals: u64) {
        let begin = match &client.what {
            ClientAction::Read(sector) => life.state.begin_read(span(&(*sector..sector + 1))),
            ClientAction::Write(sectors, _) => life.state.begin_write(span(sectors)),
            ClientAction::Mend(sector, _) => life.state.begin_write(span(&(*sector..sector + 1))),
            ClientAction::Flush => life.state.begin_flush(),
        };
        match begin {
            Begin::Go(sent) => {
                for half in sent.iter() {
                    let op = match &client.what {
                        ClientAction::Read(sector) => DiskOp::Read(vec![*sector]),
                        ClientAction::Write(sectors, content) => {
                            let sectors = sectors.clone().map(|at| (at, *content));
                            DiskOp::Write(sectors.collect(), Way::Cached)
                        }
                        ClientAction::Mend(sector, content) => self.mend(vec![(*sector, *content)]),
                        ClientAction::Flush => DiskOp::Flush(self.disks[half].written),
                    };
                    life.pending.push(Pending { half, op, owner: Owner::Client(client.id) });
                }
                let missed = Halves::NONE;
                client.stage = Stage::Running { left: sent.len(), sent, missed, read: None };
            }
            Begin::Hold if life.state.refusals() == refusals => {}
            Begin::Hold | Begin::Fenced => client.stage = Stage::Ended { acknowledged: false },
        }
    }

    /// An operation of a client has ended on a half; `None` if it failed.
    pub(super) fn client_ended(
        &mut self,
        life: &mut Life,
        id: usize,
        half: usize,
        result: Option<Vec<u64>>,
    ) -> Result<(), String> {
        let client = life.clients.iter_mut().find(|client| client.id == id);
        let client = client.expect("an operation belongs to a client");
        let Stage::Running { left, sent, missed, read } = &mut client.stage else {
            panic!("{client:?} runs")
        };
        *left -= 1;
        match result {
            None => *missed = missed.with(Halves::one(half)),
            Some(contents) => *read = contents.first().copied(),
        }
        if *left > 0 {
            return Ok(());
        }
        let (sent, missed, read) = (*sent, *missed, *read);
        let done = match &client.what {
            ClientAction::Read(sector) => {
                let Some(content) = read else {
                    let again = life.state.read_failed(half, span(&(*sector..sector + 1)));
                    client.stage = match again {
                        true => Stage::Held { refusals: life.state.refusals() },
                        false => Stage::Ended { acknowledged: false },
                    };
                    return Ok(());
                };
                if content & ROT != 0 {
                    client.stage = Stage::Search;
                    return Ok(());
                }
                client.stage = Stage::Ended { acknowledged: true };
                return self.oracle.read(*sector, content, self.step);
            }
            ClientAction::Write(sectors, _) => life.state.end_write(span(sectors), sent, missed),
            ClientAction::Mend(sector, _) => {
                life.state.end_write(span(&(*sector..sector + 1)), sent, missed)
            }
            ClientAction::Flush => life.state.end_flush(sent, missed),
        };
        client.stage =
            if done { Stage::Settling(missed) } else { Stage::Ended { acknowledged: false } };
        Ok(())
    }

    /// The client has its answer.
    fn end(&mut self, client: &Client, acknowledged: bool) {
        match &client.what {
            ClientAction::Read(sector) | ClientAction::Mend(sector, _) => {
                self.oracle.unlock(*sector)
            }
            ClientAction::Write(sectors, _) => {
                self.seldom.writes += 1;
                for sector in sectors.clone() {
                    if acknowledged {
                        self.oracle.acknowledged(sector, self.step);
                    }
                    self.oracle.unlock(sector);
                }
            }
            ClientAction::Flush if acknowledged => {
                self.seldom.flushes += 1;
                self.oracle.flushed(client.begun);
            }
            ClientAction::Flush => {}
        }
    }
}

/// A sector's history since its last flush.
#[derive(Debug, Clone, Default)]
struct Sector {
    /// The contents that it may have had then.
    base: Vec<u64>,
    /// Later contents, in order, with the step at which they were acknowledged or read.
    later: Vec<(u64, Option<u64>)>,
    /// The number of those up to the last one that was acknowledged.
    acknowledged: usize,
    busy: bool,
}

#[derive(Debug)]
pub(super) struct Oracle {
    /// `None` until the first write: a new mirror may have any content, but always the same.
    sectors: Vec<Option<Sector>>,
}

impl Oracle {
    pub(super) fn new(sectors: usize) -> Oracle {
        Oracle { sectors: vec![None; sectors] }
    }

    /// Locks a sector for one operation; false if it is locked.
    pub(super) fn lock(&mut self, sector: usize) -> bool {
        let sector = self.sectors[sector].get_or_insert_default();
        !std::mem::replace(&mut sector.busy, true)
    }

    pub(super) fn unlock(&mut self, sector: usize) {
        self.of(sector).busy = false;
    }

    fn of(&mut self, sector: usize) -> &mut Sector {
        self.sectors[sector].as_mut().expect("a sector that was locked")
    }

    /// A write begins.
    pub(super) fn begin(&mut self, sector: usize, content: u64) {
        self.of(sector).later.push((content, None));
    }

    /// It was acknowledged.
    pub(super) fn acknowledged(&mut self, sector: usize, step: u64) {
        let sector = self.of(sector);
        sector.later.last_mut().expect("a write has begun").1 = Some(step);
        sector.acknowledged = sector.later.len();
    }

    /// The sector was read.
    pub(super) fn read(&mut self, sector: usize, content: u64, step: u64) -> Result<(), String> {
        let history = self.of(sector);
        let known = history.later.iter().rposition(|(_, step)| step.is_some());
        let mut allowed: Vec<u64> = match known {
            Some(at) => history.later[at..].iter().map(|(content, _)| *content).collect(),
            None => history.later.iter().map(|(content, _)| *content).collect(),
        };
        if known.is_none() {
            allowed.extend(&history.base);
        }
        let is_new = history.base.is_empty() && known.is_none();
        if !allowed.contains(&content) && !is_new {
            return Err(format!("sector {sector} reads as {content}, not as one of {allowed:?}"));
        }
        history.later.push((content, Some(step)));
        Ok(())
    }

    /// A flush that began at this step was acknowledged.
    pub(super) fn flushed(&mut self, begun: u64) {
        for sector in self.sectors.iter_mut().flatten() {
            let before = |(_, step): &(u64, Option<u64>)| step.is_some_and(|step| step <= begun);
            if let Some(at) = sector.later.iter().rposition(before) {
                sector.base = vec![sector.later[at].0];
                sector.later.drain(..=at);
                sector.acknowledged = sector.acknowledged.saturating_sub(at + 1);
            }
        }
    }

    /// The program has ended. A content that was read, and never acknowledged or flushed, may be
    /// gone with a half that has not left. After a power cut, what was not flushed may be lost.
    pub(super) fn crashed(&mut self, power_cut: bool) {
        for sector in self.sectors.iter_mut().flatten() {
            sector.busy = false;
            if !power_cut {
                let later = sector.later.iter_mut().skip(sector.acknowledged);
                later.for_each(|(_, step)| *step = None);
                continue;
            }
            sector.acknowledged = 0;
            let was_known = !sector.base.is_empty();
            let later = sector.later.drain(..).map(|(content, _)| content);
            if was_known {
                sector.base.extend(later);
            }
        }
    }
}

/// A flipped bit of a content.
pub(super) const ROT: u64 = 1 << 63;

/// Work for a disk.
#[derive(Debug, Clone)]
pub(super) enum DiskOp {
    /// Sectors and their content.
    Write(Vec<(usize, u64)>, Way),
    /// Sectors.
    Read(Vec<usize>),
    /// Of all writes up to this number.
    Flush(u64),
    Header(Header),
}

/// The way in which sectors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By a client: into the volatile cache.
    Cached,
    /// By a copy, into the volatile cache. It does not read what it overwrites, so no mirror can
    /// know of a flipped bit below it that a power cut shows again: such a bit flips back.
    Unread,
    /// By whatever mends flipped bits. It knows of them, so nothing may show them again.
    Durable,
}

#[derive(Debug)]
pub(super) struct Disk {
    durable: Vec<u64>,
    /// Writes that are not flushed, in their order: number, sector, content.
    cached: Vec<(u64, usize, u64)>,
    /// Writes so far.
    pub(super) written: u64,
    slots: [Option<Header>; 2],
    /// The slot for the next header.
    next_slot: usize,
    pub(super) up: bool,
    /// Its power was cut: it works again when it was opened again.
    pub(super) broken: bool,
}

impl Disk {
    /// A disk with any content, and no header.
    pub(super) fn new(sectors: usize, random: &mut SmallRng) -> Disk {
        let durable = (0..sectors).map(|_| random.random_range(1 << 40..1 << 41)).collect();
        Disk {
            durable,
            cached: vec![],
            written: 0,
            slots: [None, None],
            next_slot: 0,
            up: true,
            broken: false,
        }
    }

    pub(super) fn read(&self, sector: usize) -> u64 {
        let cached = self.cached.iter().rev().find(|(_, at, _)| *at == sector);
        cached.map_or(self.durable[sector], |(_, _, content)| *content)
    }

    /// A bit of a sector flips, or flips back.
    pub(super) fn rot(&mut self, sector: usize) {
        self.durable[sector] ^= ROT;
        for (_, _, content) in self.cached.iter_mut().filter(|(_, at, _)| *at == sector) {
            *content ^= ROT;
        }
    }

    /// Returns what a sector certainly has, unless it is about to change.
    pub(super) fn settled(&self, sector: usize) -> Option<u64> {
        let is_cached = self.cached.iter().any(|(_, at, _)| *at == sector);
        (!is_cached).then_some(self.durable[sector])
    }

    /// Returns what a read of a sector finds, if the disk works.
    pub(super) fn try_read(&self, sector: usize) -> Option<u64> {
        (self.up && !self.broken).then(|| self.read(sector))
    }

    /// Returns its newest header.
    pub(super) fn header(&self) -> Option<&Header> {
        self.slots.iter().flatten().max_by_key(|header| header.sequence)
    }

    /// Carries an operation out, and returns what it reads.
    pub(super) fn carry_out(&mut self, op: &DiskOp) -> Vec<u64> {
        match op {
            DiskOp::Write(sectors, Way::Durable) => {
                for (sector, content) in sectors {
                    self.durable[*sector] = *content;
                    self.cached.retain(|(_, at, _)| at != sector);
                }
            }
            DiskOp::Write(sectors, way) => {
                for (sector, content) in sectors {
                    if *way == Way::Unread {
                        self.durable[*sector] &= !ROT;
                    }
                    self.written += 1;
                    self.cached.push((self.written, *sector, *content));
                }
            }
            DiskOp::Read(sectors) => return sectors.iter().map(|at| self.read(*at)).collect(),
            DiskOp::Flush(up_to) => self.flush(*up_to),
            DiskOp::Header(header) => {
                self.slots[self.next_slot] = Some(header.clone());
                self.next_slot = 1 - self.next_slot;
            }
        }
        Vec::new()
    }

    fn flush(&mut self, up_to: u64) {
        for (number, sector, content) in &self.cached {
            if *number <= up_to {
                self.durable[*sector] = *content;
            }
        }
        self.cached.retain(|(number, _, _)| *number > up_to);
    }

    /// Part of an operation happens at a crash; a header may tear.
    pub(super) fn tear(&mut self, op: &DiskOp, random: &mut SmallRng) {
        match op {
            DiskOp::Write(sectors, way) => {
                let some = sectors.iter().filter(|_| random.random()).copied().collect();
                drop(self.carry_out(&DiskOp::Write(some, *way)));
            }
            DiskOp::Header(_) => match random.random_range(0..3) {
                0 => drop(self.carry_out(op)),
                1 => self.slots[self.next_slot] = None,
                _ => {}
            },
            DiskOp::Flush(up_to) if random.random() => self.flush(*up_to),
            DiskOp::Read(_) | DiskOp::Flush(_) => {}
        }
    }

    /// The power fails: of each sector's cached writes any first part has reached the medium.
    pub(super) fn cut_power(&mut self, random: &mut SmallRng) {
        for sector in 0..self.durable.len() {
            for (_, at, content) in &self.cached {
                if *at == sector && random.random() {
                    self.durable[sector] = *content;
                }
            }
        }
        self.cached.clear();
        self.broken = true;
    }

    /// The program opens it and looks at the headers.
    pub(super) fn open(&mut self) {
        self.broken = false;
        let newest = self.header().map(|header| header.sequence);
        let is_older = |slot: &Option<Header>| slot.as_ref().map(|slot| slot.sequence) != newest;
        self.next_slot = self.slots.iter().position(is_older).unwrap_or(0);
    }
}

fn sectors_of(region: usize) -> std::ops::Range<usize> {
    region * REGION_SECTORS..(region + 1) * REGION_SECTORS
}

impl World {
    /// Lanes do something, each perhaps.
    pub(super) fn step_lanes(&mut self, life: &mut Life) {
        let lanes: [fn(&mut World, &mut Life); 3] =
            [World::begin_header, World::step_witness, World::begin_copy];
        for lane in lanes {
            if self.random.random() {
                lane(self, life);
            }
        }
    }

    fn begin_header(&mut self, life: &mut Life) {
        let Some(Job::Header(header, halves)) = life.state.next_header() else { return };
        life.lanes.header = Some(Ends { left: halves.len(), missed: Halves::NONE });
        for half in halves.iter() {
            let op = DiskOp::Header(header.clone());
            life.pending.push(Pending { half, op, owner: Owner::Header });
        }
    }

    fn step_witness(&mut self, life: &mut Life) {
        let Some(Job::Raise { from, to, anew }) = life.lanes.witness.take() else {
            life.lanes.witness = life.state.next_witness();
            return;
        };
        life.state.witness_done(match self.raise(from, to, anew) {
            Some(true) => Raised::Done,
            Some(false) => Raised::Refused,
            None => Raised::Unknown,
        });
    }

    fn begin_copy(&mut self, life: &mut Life) {
        let job = match life.state.next_copy() {
            Some(Job::Copy { region, from, to }) => {
                let op = DiskOp::Read(sectors_of(region).collect());
                life.pending.push(Pending { half: from, op, owner: Owner::Copy });
                (Copy::Read { region, from, to }, Ends { left: 1, missed: Halves::NONE })
            }
            Some(Job::Flush(halves)) => {
                for half in halves.iter() {
                    let op = DiskOp::Flush(self.disks[half].written);
                    life.pending.push(Pending { half, op, owner: Owner::Copy });
                }
                if halves.is_empty() {
                    life.state.flush_done(Halves::NONE);
                    return;
                }
                (Copy::Flush, Ends { left: halves.len(), missed: Halves::NONE })
            }
            _ => return,
        };
        life.lanes.copy = Some(job);
    }

    /// Returns what an intact half has in the place of a flipped bit. A half that is being brought
    /// up to date counts only where it has exactly what was stored.
    fn intact(
        &self,
        sector: usize,
        rotten: u64,
        members: Halves,
        from: usize,
        to: Halves,
    ) -> Option<u64> {
        let others = members.without(Halves::one(from));
        let of_member = others.iter().filter_map(|half| self.disks[half].try_read(sector));
        let of_target = to.without(members).iter();
        let of_target = of_target.filter_map(|half| self.disks[half].try_read(sector));
        let exact = of_target.filter(|content| *content == rotten & !ROT);
        of_member.chain(exact).find(|content| content & ROT == 0)
    }

    /// An operation of a lane has ended; `None` if it failed.
    pub(super) fn lane_ended(
        &mut self,
        life: &mut Life,
        half: usize,
        owner: Owner,
        result: Option<Vec<u64>>,
    ) {
        let failed = if result.is_none() { Halves::one(half) } else { Halves::NONE };
        if owner == Owner::Header {
            let ends = life.lanes.header.as_mut().expect("a header is being written");
            ends.left -= 1;
            ends.missed = ends.missed.with(failed);
            if ends.left == 0 {
                let missed = ends.missed;
                life.lanes.header = None;
                life.state.header_done(missed);
            }
            return;
        }
        let (copy, mut ends) = life.lanes.copy.take().expect("something is being copied");
        ends.left -= 1;
        ends.missed = ends.missed.with(failed);
        match (copy, result) {
            (Copy::Read { from, .. }, None) => life.state.copy_done(Some(from), Halves::NONE),
            (Copy::Read { region, from, to }, Some(contents)) => {
                let mut sectors: Vec<_> = sectors_of(region).zip(contents).collect();
                let members = life.state.members();
                let (mut mended, mut unread) = (Vec::new(), Halves::NONE);
                for (sector, content) in sectors.iter_mut().filter(|(_, it)| it & ROT != 0) {
                    if self.plant == Some(Plant::CopyRot) {
                        continue;
                    }
                    let others = members.with(to).without(Halves::one(from));
                    let is_unread = |half: &usize| self.disks[*half].try_read(*sector).is_none();
                    let of_sector = others.iter().filter(is_unread).map(Halves::one);
                    if let Some(intact) = self.intact(*sector, *content, members, from, to) {
                        *content = intact;
                        mended.push((*sector, intact));
                    } else {
                        unread = of_sector.fold(unread, Halves::with);
                    }
                }
                self.seldom.mended_copies += mended.len() as u64;
                let mends = !mended.is_empty();
                if mends {
                    let op = self.mend(mended);
                    life.pending.push(Pending { half: from, op, owner: Owner::Copy });
                }
                let to = to.without(unread);
                let left = to.len() + usize::from(mends);
                if left == 0 {
                    life.state.copy_done(None, unread);
                    return;
                }
                for half in to.iter() {
                    let op = DiskOp::Write(sectors.clone(), Way::Unread);
                    life.pending.push(Pending { half, op, owner: Owner::Copy });
                }
                life.lanes.copy = Some((Copy::Write, Ends { left, missed: unread }));
            }
            (copy, _) if ends.left > 0 => life.lanes.copy = Some((copy, ends)),
            (Copy::Write, _) => life.state.copy_done(None, ends.missed),
            (Copy::Flush, _) => life.state.flush_done(ends.missed),
        }
    }
}

/// All faults that can be planted.
pub(super) const PLANTS: [Plant; 11] = [
    Plant::AcknowledgeEarly,
    Plant::RaiseNothing,
    Plant::WriteUnmarked,
    Plant::ClearUnflushed,
    Plant::CopyUnguarded,
    Plant::RecoverNothing,
    Plant::JoinUnflushed,
    Plant::TrustHeaders,
    Plant::SkipReturning,
    Plant::CopyRot,
    Plant::MendUnflushed,
];
