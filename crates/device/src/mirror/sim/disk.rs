//! A half's disk: sectors with a volatile write cache, two slots for headers, and power.

use rand::Rng;
use rand::rngs::SmallRng;

use super::super::state::Header;

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
