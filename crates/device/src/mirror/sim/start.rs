//! The start of a process: the mirror opens, is made or is refused.

use rand::Rng;

use super::super::layout::{Label, Seen};
use super::super::state::{Header, Start, State};
use super::disk::{Disk, DiskOp, ROT};
use super::life::{LaneJobs, Life};
use super::world::World;
use crate::device::Halves;
use crate::mirror::source::{Facts, Opening};
use crate::mirror::state::Regions;
use crate::mirror::witness::Generation;

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
