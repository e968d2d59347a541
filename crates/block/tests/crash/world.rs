//! A machine with a cache and its clients, from its first start through crash after crash.
//!
//! All its choices come from one seed. A life: the cache is started, clients ask for this and that
//! at once, devices answer when chance wants it, and at some moment the power fails, the process is
//! killed, or all is flushed and ended. Then the disks are what they are, and the next life begins
//! with clients reading what they may have lost.

mod bypass;
mod clients;
mod mend;
mod size;
mod start;
mod wishes;

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use floe_block::{Answer, Driver, Request, RequestKind, SECTOR_BYTES, VolumeId};
use floe_device::Pool;
use rand::Rng;
use rand::rngs::SmallRng;

use bypass::Bypassing;
use clients::Pending;
use start::Kept;
use wishes::Temper;

use crate::boot::Format;
use crate::disk::{Disk, Lie};
use crate::history::{End, Event, History};
use crate::machine::Machine;
use crate::oracle::Oracle;
use crate::stamp::{UNIT, Version};

const UNITS_A_SECTOR: u32 = (SECTOR_BYTES / UNIT as u64) as u32;

/// Requests under way at once.
const MOST_CLIENTS: usize = 6;

/// Events told of a failure.
const TOLD: usize = 60;

/// What differs between kinds of worlds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Which disks lie, and how.
    pub lie: Option<(Where, Lie)>,
    /// Whether the cache begins to serve before what it has found on its devices would survive a
    /// power cut.
    pub hasty: bool,
    /// The cache device is a mirror, and bits flip in one of its halves.
    pub mirror: bool,
    /// A fault of the cache itself.
    #[cfg(floe_crash)]
    pub planted: Option<floe_block::planted::Planted>,
}

/// A disk of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    Cache,
    Backing,
}

/// What a world has been through.
#[derive(Debug, Default, Clone, Copy)]
pub struct Survived {
    pub power_cuts: u64,
    pub kills: u64,
    pub ended: u64,
    pub cuts_while_starting: u64,
    pub requests: u64,
    pub failed_requests: u64,
    pub failed_operations: u64,
    pub rotten_bits: u64,
    /// Of them, in pages of a log's last batch.
    pub last_pages: u64,
    /// Bytes of one half of a mirror that were written anew.
    pub mended_bytes: u64,
    /// Pages of the journal, on copies of the cache device that were salvaged.
    pub lost_pages: u64,
    pub checked_units: u64,
    pub checkpoints: u64,
    /// Journals that could not be written: how often requests went past the cache, and how often
    /// nothing of it counted.
    pub bypassed: u64,
    pub retired: u64,
    /// How often a cache became smaller.
    pub smaller: u64,
}

/// What went wrong.
#[derive(Debug)]
pub struct Failure {
    pub what: String,
    story: String,
}

pub struct World {
    machine: Rc<Machine>,
    pool: Pool,
    format: Format,
    sizes: Vec<u32>,
    hasty: bool,
    /// Its disks lie.
    lies: bool,
    cache: Disk,
    backings: Vec<Disk>,
    driver: Option<Driver>,
    kept: Kept,
    pending: Vec<Pending>,
    oracle: Oracle,
    history: History,
    versions: Version,
    life: u32,
    /// Whether a failing cache device may cost data in this life.
    may_be_dirty: bool,
    bypassing: Bypassing,
    /// The bytes of a cache that becomes smaller, before.
    shrinks_from: Option<u64>,
    survived: Survived,
    answers: Vec<Answer>,
    bytes: Vec<u8>,
}

fn units_of(request: &Request) -> Range<u32> {
    let first = (request.offset / UNIT as u64) as u32;
    first..first + (request.len / UNIT as u64) as u32
}

impl World {
    pub fn new(seed: u64, pool: &Pool, options: Options) -> World {
        #[cfg(floe_crash)]
        floe_block::planted::plant(options.planted);
        let machine = Machine::new(seed);
        let (format, sizes, zeroes_fast) = machine.draw(|rng| {
            let sizes = ["4KiB,8KiB,16KiB", "4KiB,8KiB,16KiB", "4KiB,16KiB", "4KiB", "8KiB"];
            let format = Format {
                sizes: sizes[rng.random_range(0..sizes.len())]
                    .parse()
                    .expect("these are block sizes"),
                groups: rng.random_range(1..=4),
                shards: rng.random_range(1..=3),
                kept: rng.random_ratio(3, 4),
            };
            let volumes = rng.random_range(1..=2);
            let size = |rng: &mut SmallRng| match rng.random_range(0..3) {
                0 => rng.random_range(1..600),
                _ => UNITS_A_SECTOR * rng.random_range(8..64),
            };
            (format, (0..volumes).map(|_| size(rng)).collect::<Vec<u32>>(), rng.random())
        });
        let format = Format { kept: format.kept || options.mirror, ..format };
        let bytes = format.device_bytes() as usize;
        let cache = match options.mirror {
            true => Disk::mirror(&machine, bytes, 0xc5),
            false => Disk::new(&machine, bytes, 0xc5, true),
        };
        let backing = |&units: &u32| Disk::new(&machine, units as usize * UNIT, 0, zeroes_fast);
        let backings: Vec<Disk> = sizes.iter().map(backing).collect();
        match options.lie {
            Some((Where::Cache, lie)) => cache.set_lie(lie),
            Some((Where::Backing, lie)) => backings.iter().for_each(|disk| disk.set_lie(lie)),
            None => {}
        }
        World {
            machine,
            pool: pool.clone(),
            format,
            oracle: Oracle::new(&sizes),
            sizes,
            hasty: options.hasty,
            lies: options.lie.is_some(),
            cache,
            backings,
            driver: None,
            kept: Kept::default(),
            pending: Vec::new(),
            history: History::default(),
            versions: 0,
            life: 0,
            may_be_dirty: false,
            bypassing: Bypassing::Not,
            shrinks_from: None,
            survived: Survived::default(),
            answers: Vec::new(),
            bytes: Vec::new(),
        }
    }

    fn draw<T>(&self, ask: impl FnOnce(&mut SmallRng) -> T) -> T {
        self.machine.draw(ask)
    }

    /// What it has been through, and a number that tells its history from others.
    pub fn survived(&self) -> (Survived, u64) {
        (self.survived, self.history.digest())
    }

    fn disks(&self) -> impl Iterator<Item = &Disk> {
        self.backings.iter().chain([&self.cache])
    }

    /// One life, and how it ends.
    pub fn live(&mut self) -> Result<(), Failure> {
        self.life += 1;
        let fuse = self.draw(|rng| match rng.random_range(0..10) {
            0 => Some(rng.random_range(1..12)),
            1 | 2 => Some(rng.random_range(1..400)),
            _ => None,
        });
        self.machine.power_on(fuse);
        let end = if self.start()? { self.serve()? } else { self.not_started() };
        self.history.note(Event::Ended(end));
        self.note_harm()?;
        self.driver = None;
        self.pending.clear();
        self.survived.failed_operations += self.disks().map(Disk::failed).sum::<u64>();
        self.survived.rotten_bits += self.cache.flipped();
        self.survived.mended_bytes = self.cache.mended();
        match end {
            End::Power => self.disks().for_each(Disk::lose_power),
            End::Kill | End::Orderly => self.disks().for_each(Disk::lose_user),
        }
        match end {
            End::Orderly => self.survived.ended += 1,
            End::Power => self.survived.power_cuts += 1,
            End::Kill => self.survived.kills += 1,
        }
        if end != End::Orderly {
            self.oracle.crash();
        }
        Ok(())
    }

    fn serve(&mut self) -> Result<End, Failure> {
        let (temper, reads, requests, clients) = self.draw(|rng| {
            let temper = Temper::draw(rng);
            let requests: usize = rng.random_range(1..90);
            (temper, rng.random_range(0..12), requests, rng.random_range(1..=MOST_CLIENTS))
        });
        if self.draw(|rng| rng.random_ratio(1, 8)) {
            self.read_all()?;
        }
        for number in 0..reads + requests {
            while self.pending.len() >= clients {
                self.turn()?;
            }
            let doubtful = number < reads || self.draw(|rng| rng.random_ratio(1, 6));
            let request = if doubtful { self.doubtful() } else { self.any_request(&temper) };
            let Some(request) = request else { continue };
            self.submit(request)?;
            for _ in 0..self.draw(|rng| rng.random_range(0..4)) {
                self.turn()?;
            }
            if self.draw(|rng| rng.random_bool(temper.cleans)) {
                self.history.note(Event::Cleaned);
                self.driver().clean();
            }
            if self.draw(|rng| rng.random_bool(temper.shares)) {
                self.change_share();
            }
            if self.draw(|rng| rng.random_bool(temper.resizes)) {
                self.change_size()?;
            }
            self.let_die();
            if self.draw_if_mirror(40) {
                self.rot_half(None);
            }
            if !self.machine.has_power() {
                return Ok(End::Power);
            }
        }
        let end = self.draw(|rng| match rng.random_range(0..10) {
            0 => End::Orderly,
            1 | 2 => End::Kill,
            _ => End::Power,
        });
        if end == End::Orderly {
            return self.shut_down();
        }
        if self.draw(|rng| rng.random_ratio(1, 5)) {
            self.settle()?;
        }
        Ok(if self.machine.has_power() { end } else { End::Power })
    }

    /// Flushes or drains all volumes, and waits for the end of everything.
    fn shut_down(&mut self) -> Result<End, Failure> {
        self.disks().for_each(|disk| disk.set_dead(false));
        self.settle()?;
        let failed = self.survived.failed_requests;
        let kind =
            if self.draw(|rng| rng.random()) { RequestKind::Flush } else { RequestKind::Drain };
        for volume in 0..self.sizes.len() {
            let volume = VolumeId(volume as u16);
            self.submit(Request { volume, kind, offset: 0, len: 0 })?;
        }
        self.settle()?;
        let all_well = self.machine.has_power() && self.survived.failed_requests == failed;
        if !all_well {
            return Ok(End::Power);
        }
        self.end_session(kind == RequestKind::Drain)
    }

    fn settle(&mut self) -> Result<(), Failure> {
        while self.machine.has_power() && !(self.pending.is_empty() && self.driver().is_idle()) {
            self.turn()?;
        }
        Ok(())
    }

    fn read_all(&mut self) -> Result<(), Failure> {
        for (volume, units) in self.sizes.clone().into_iter().enumerate() {
            for first in (0..units).step_by(64) {
                let request = request(volume, RequestKind::Read, first..units.min(first + 64));
                self.submit(request)?;
                while self.machine.has_power() && self.pending.len() >= MOST_CLIENTS {
                    self.turn()?;
                }
            }
        }
        Ok(())
    }

    /// Now and then a whole device dies, or comes back.
    fn let_die(&mut self) {
        let (dies, cache, dead) = self
            .draw(|rng| (rng.random_ratio(1, 1000), rng.random_bool(0.7), rng.random_bool(0.3)));
        let devices_fail = self.disks().any(|disk| disk.failed() > 0);
        let cache_stays = self.kept.is_rotten() || self.cache.is_mirror();
        if dies && (dead || devices_fail) && !(cache && cache_stays) {
            self.history.note(Event::DeviceDead { cache, dead });
            match cache {
                true => self.cache.set_dead(dead),
                false => self.backings.iter().for_each(|disk| disk.set_dead(dead)),
            }
            if !dead {
                self.driver().top_mut().restore();
            }
        }
    }

    fn driver(&mut self) -> &mut Driver {
        self.driver.as_mut().expect("the cache has been started")
    }

    /// Lets the cache do what it can, clients hear, and time pass until the next operation ends.
    fn turn(&mut self) -> Result<(), Failure> {
        self.driver().advance();
        while self.machine.has_power() && self.driver().has_orders() {
            self.driver().advance();
        }
        if !self.machine.has_power() {
            self.pending.clear(); // no client hears anything any more
            return Ok(());
        }
        self.see_to_journal()?;
        self.see_to_size()?;
        let mut answers = std::mem::take(&mut self.answers);
        self.driver().take_answers(&mut answers);
        for Answer { request: id, result, .. } in answers.drain(..) {
            let Some(at) = self.pending.iter().position(|pending| pending.id == id) else {
                return Err(self.failure(format!("an answer to nobody: {id:?}"), 0, 0..0));
            };
            let pending = self.pending.swap_remove(at);
            self.answered(pending, result)?;
        }
        self.answers = answers;
        let turn = self.driver().next_due().map(|due| self.machine.moment(due));
        match self.disks().filter_map(Disk::next_due).chain(turn).min() {
            Some(due) => self.machine.pass_until(due.max(self.machine.now())),
            None if self.pending.is_empty() && self.driver().is_idle() => {}
            None if self.driver().has_orders() => {} // it goes on without a device
            None => {
                let before = self.bypassing;
                for _ in 0..100 {
                    self.see_to_journal()?; // a device that fails now and then may have failed
                    if self.bypassing != before || !self.machine.has_power() {
                        // what it has answered is taken before a name is given again
                        return self.turn();
                    }
                }
                let units = self.pending.first().map_or(0..0, |pending| units_of(&pending.request));
                let waiting: Vec<_> =
                    self.pending.iter().map(|pending| pending.request.kind).collect();
                let (bypassing, cache) = (self.bypassing, self.driver().top().cache());
                let (lost, empty) =
                    (cache.condition().has_lost_journal(), cache.condition().is_emptied());
                let what = format!(
                    "{} requests wait for nothing: {waiting:?}; journal lost {lost}, \
                     {bypassing:?}, emptied {empty}",
                    waiting.len()
                );
                return Err(self.failure(what, 0, units));
            }
        }
        Ok(())
    }

    fn failure(&self, what: String, volume: usize, units: Range<u32>) -> Failure {
        let story = self.history.about(volume, units, TOLD);
        let story = format!("{:?}, volumes of {:?} units\n{story}", self.format, self.sizes);
        Failure { what, story }
    }
}

fn request(volume: usize, kind: RequestKind, units: Range<u32>) -> Request {
    let (offset, len) = (u64::from(units.start) * UNIT as u64, units.len() as u64 * UNIT as u64);
    Request { volume: VolumeId(volume as u16), kind, offset, len }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "life by life:\n{}\n{}", self.story, self.what)
    }
}
