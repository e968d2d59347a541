//! How a life begins, and a session in good order ends.

use floe_block::{KeptCache, MemoryWrite, StoreError, Superblock, VolumeId, WriteMode};
use rand::Rng;
use rand::rngs::SmallRng;

use super::bypass::Bypassing;
use super::{Failure, UNITS_A_SECTOR, World};
use crate::boot::{Boot, NoBoot, Service, make_sure};
use crate::history::{End, Event};
use crate::rot::{self, Rotten};
use crate::runner::LIVES;
use crate::stamp::UNIT;

/// What is known of a kept cache.
#[derive(Default)]
pub struct Kept {
    /// The cache that is certainly on the device.
    id: Option<[u8; 16]>,
    /// Those that may have taken its place.
    attempted: Vec<[u8; 16]>,
    /// Nothing is dirty, so another cache may take its place.
    drained: bool,
    /// Bytes that it holds at least.
    warm: u64,
    /// Where its metadata has rotted since it was last opened.
    rotten: Option<Rotten>,
    /// Of the session under way.
    pub superblock: Option<Superblock>,
    /// The sizes that the superblock on the device may have.
    pub sizes: Vec<Option<u64>>,
    /// When it was last opened, all that was dirty had checksums; and no device has failed since.
    sealed: bool,
    /// Something that only the cache has is not what was stored.
    pub lossy: bool,
    /// Reads of its device may find a bit flipped in this life.
    flips: bool,
    /// Bytes in which it is not, and what is around them since.
    rotten_dirty: Vec<(usize, Vec<u8>)>,
    /// Some sector on its device may not be what was stored, through no crash.
    pub harmed: bool,
    /// Nothing that it holds counts: another cache takes its place at the next start.
    forsaken: bool,
}

impl Kept {
    /// Whether it has to tell what it stored from what it finds, so that its device must not lose
    /// writes besides.
    pub fn is_rotten(&self) -> bool {
        self.flips || !self.rotten_dirty.is_empty()
    }
}

impl World {
    pub(super) fn boot(&self) -> Boot<'_> {
        let (machine, format, pool) = (&self.machine, &self.format, &self.pool);
        Boot { machine, format, cache: &self.cache, backings: &self.backings, pool }
    }

    /// Starts the cache; `false` when the power failed before it had, or a device.
    pub(super) fn start(&mut self) -> Result<bool, Failure> {
        let life = self.life;
        self.disks().for_each(|disk| disk.set_failing(0.0));
        self.cache.set_flipping(0.0, 0);
        let service = self.draw(draw_service);
        (self.bypassing, self.shrinks_from) = (Bypassing::Not, None);
        self.may_be_dirty =
            service.mode.keeps_writes() || service.memory == Some(MemoryWrite::Back);
        let may_fail = self.format.kept && !self.cache.is_mirror();
        if may_fail && self.draw(|rng| rng.random_ratio(1, 20)) {
            self.cache.set_failing(0.02);
        }
        match self.begin(service) {
            Ok(()) => self.history.note(Event::Begun { life, service }),
            Err(NoBoot::Power) => {
                self.survived.cuts_while_starting += 1;
                self.history.note(Event::NotBegun { life });
                return Ok(false);
            }
            Err(NoBoot::Device(_)) if self.cache.failed() > 0 => {
                self.history.note(Event::NotBegun { life });
                return Ok(false);
            }
            Err(NoBoot::Device(error)) => {
                return Err(self.failure(format!("the cache does not start: {error}"), 0, 0..0));
            }
            Err(NoBoot::Unsealed(volume, sector)) => {
                let first = sector as u32 * UNITS_A_SECTOR;
                let what =
                    format!("sector {sector} of volume {volume} was flushed and has no checksum");
                return Err(self.failure(what, volume, first..first + UNITS_A_SECTOR));
            }
            Err(NoBoot::Refused(error)) => {
                return Err(self.failure(format!("the cache does not start: {error}"), 0, 0..0));
            }
            Err(NoBoot::Salvaged(what)) => return Err(self.failure(what, 0, 0..0)),
        }
        let (cache, backing, flips) = self.draw(|rng| {
            let rate = |rng: &mut SmallRng| [0.0, 0.01, 0.03, 0.1][rng.random_range(0..4)];
            let flips = if rng.random_ratio(1, 6) { 0.05 } else { 0.0 };
            if rng.random_bool(0.7) { (0.0, 0.0, flips) } else { (rate(rng), rate(rng), flips) }
        });
        let (cache, flips) = if self.cache.is_mirror() { (0.0, 0.0) } else { (cache, flips) };
        self.cache.set_failing(cache);
        // What a failed write has left has no checksum, so that nothing could tell a flipped bit in
        // it.
        let flips = if cache > 0.0 { 0.0 } else { flips };
        self.kept.flips = flips > 0.0;
        if cache > 0.0 {
            self.spare(); // a write that fails leaves no checksum either
        }
        if self.format.kept {
            self.cache.set_flipping(flips, self.format.data_start());
        }
        self.backings.iter().for_each(|disk| disk.set_failing(backing));
        Ok(true)
    }

    /// How a life ends that has not begun.
    pub(super) fn not_started(&self) -> End {
        if self.machine.has_power() { End::Kill } else { End::Power }
    }

    fn begin(&mut self, service: Service) -> Result<(), NoBoot> {
        if !self.hasty {
            make_sure(&self.backings)?;
        }
        if !self.format.kept {
            self.driver = Some(self.boot().begin_volatile(service));
            return Ok(());
        }
        self.rot_metadata();
        if self.draw_if_mirror(2) {
            self.rot_half(None);
        }
        let found = match self.open() {
            Err(NoBoot::Refused(
                StoreError::Superblocks(..)
                | StoreError::Log { .. }
                | StoreError::Checkpoint { .. },
            )) if self.kept.rotten.is_some_and(|rotten| !rotten.is_last) => {
                self.flip_back();
                self.open()?
            }
            Ok(_) if self.kept.rotten.is_some_and(|rotten| rotten.is_checkpoint) => {
                self.flip_back();
                self.open()?
            }
            found => found?,
        };
        self.kept.rotten = None;
        if let Some(kept) = &found
            && !self.cache.is_mirror()
        {
            self.lose_pages(kept)?;
        }
        let kept = match found {
            Some(kept)
                if !(self.kept.forsaken
                    || self.kept.drained && self.draw(|rng| rng.random_ratio(1, 3))) =>
            {
                kept
            }
            _ => self.create()?,
        };
        self.find_sealed(&kept)?;
        let volumes = (0..self.sizes.len()).map(|volume| VolumeId(volume as u16));
        self.may_be_dirty |= volumes.map(|volume| kept.dirty_bytes(volume)).sum::<u64>() > 0;
        self.rot_data(&kept);
        if self.draw_if_mirror(2) {
            self.rot_half(Some(&kept));
        }
        let (driver, superblock) = self.boot().begin(kept, service)?;
        (self.kept.drained, self.kept.warm) = (false, 0);
        let (serves, may) = (driver.top().cache().config().cache_bytes, superblock.data_bytes());
        assert_eq!(serves, may, "the cache has not the size of its superblock");
        self.kept.sizes = vec![superblock.cache_bytes];
        self.kept.superblock = Some(superblock);
        self.driver = Some(driver);
        Ok(())
    }

    /// Opens the kept cache, which has to be there once it was made.
    fn open(&mut self) -> Result<Option<KeptCache>, NoBoot> {
        let found = self.boot().open()?;
        let id = found.as_ref().map(|kept| kept.superblock().id);
        assert!(
            id.is_none() && self.kept.id.is_none()
                || id == self.kept.id
                || id.is_some_and(|id| self.kept.attempted.contains(&id)),
            "the device has had cache {:?} and holds {id:?}",
            self.kept.id
        );
        if id.is_some() {
            self.note_found(id);
        }
        if let Some(kept) = &found {
            let size = kept.superblock().cache_bytes;
            assert!(
                self.kept.sizes.contains(&size),
                "the cache has size {size:?}, and had one of {:?}",
                self.kept.sizes
            );
            let volumes = (0..self.sizes.len()).map(|volume| VolumeId(volume as u16));
            let warm: u64 = volumes.map(|volume| kept.valid_bytes(volume)).sum();
            assert!(warm >= self.kept.warm, "of {} bytes cached {warm} are left", self.kept.warm);
        }
        Ok(found)
    }

    fn note_found(&mut self, id: Option<[u8; 16]>) {
        if id != self.kept.id {
            self.kept.warm = 0;
        }
        self.kept.id = id;
        self.kept.attempted.clear();
    }

    fn create(&mut self) -> Result<KeptCache, NoBoot> {
        let id: [u8; 16] = self.draw(|rng| rng.random());
        self.history.note(Event::Created);
        self.kept.attempted.push(id);
        self.kept.sizes.push(None);
        let made = self.boot().create(id)?;
        self.note_found(Some(id));
        (self.kept.forsaken, self.kept.sizes) = (false, vec![None]);
        Ok(made)
    }

    /// The cache is not used again.
    pub(super) fn forsake(&mut self) {
        (self.kept.forsaken, self.kept.warm) = (true, 0);
    }

    /// Writes down that what the cache holds as clean does not count.
    pub(super) fn note_void(&mut self) -> Result<(), NoBoot> {
        let mut superblock = self.kept.superblock.take().expect("a session is under way");
        superblock.void = true;
        let written = self.boot().write(&mut superblock);
        self.kept.superblock = Some(superblock);
        written
    }

    /// A bit flips in the superblock or the journal.
    fn rot_metadata(&mut self) {
        let Some(id) = self.kept.id.filter(|_| self.kept.attempted.is_empty()) else { return };
        if self.cache.is_mirror() || self.kept.rotten.is_some() {
            return;
        }
        if !self.draw(|rng| rng.random_ratio(1, 12)) {
            return;
        }
        let metadata = 0..self.format.data_start() as usize;
        let (now, durable) = (self.cache.peek(metadata.clone()), self.cache.peek_durable(metadata));
        let rotten = self.draw(|rng| rot::in_metadata(&now, &durable, &id, rng));
        let Some(rotten) = rotten else { return };
        self.cache.rot(rotten.byte);
        self.survived.rotten_bits += 1;
        self.survived.last_pages += u64::from(rotten.is_last);
        self.history.note(Event::Rotten { byte: rotten.byte });
        (self.kept.warm, self.kept.rotten) = (0, Some(rotten));
    }

    /// The bit that rotted is as it was.
    fn flip_back(&mut self) {
        let Rotten { byte, .. } = self.kept.rotten.take().expect("a bit has flipped");
        self.cache.rot(byte);
        self.history.note(Event::Rotten { byte });
    }

    /// What was flushed, and not overwritten since, and only the cache has, it can tell from
    /// anything else.
    fn find_sealed(&mut self, kept: &KeptCache) -> Result<(), NoBoot> {
        let unsealed = |volume: usize| {
            let runs = kept.unsealed_runs(VolumeId(volume as u16));
            runs.into_iter().flatten().map(move |sector| (volume, sector))
        };
        let unsealed: Vec<(usize, u64)> = (0..self.sizes.len()).flat_map(unsealed).collect();
        if self.kept.sealed {
            for (volume, sector) in &unsealed {
                let first = *sector as u32 * UNITS_A_SECTOR;
                let units = first..(first + UNITS_A_SECTOR).min(self.sizes[*volume]);
                if self.oracle.was_certain(*volume, units) {
                    return Err(NoBoot::Unsealed(*volume, *sector));
                }
            }
        }
        self.oracle.found();
        self.kept.sealed = unsealed.is_empty();
        Ok(())
    }

    /// What is written as a whole or not at all around a byte.
    fn unit_of(&self, byte: usize) -> Vec<u8> {
        let start = byte / UNIT * UNIT;
        self.cache.peek(start..start + UNIT)
    }

    /// What only the cache has is as it was before it rotted.
    fn spare(&mut self) {
        for (byte, now) in std::mem::take(&mut self.kept.rotten_dirty) {
            if self.unit_of(byte) == now {
                self.cache.rot(byte);
                self.history.note(Event::Rotten { byte });
            }
        }
    }

    /// A life has ended: whether devices have done as they were told.
    pub(super) fn note_harm(&mut self) -> Result<(), Failure> {
        let failed =
            self.disks().any(|disk| disk.failed() > 0) || self.cache.flipped() > 0 || self.lies;
        self.kept.sealed &= !failed;
        self.kept.harmed |= failed;
        let corrupt = self.driver.as_ref().map_or(0, |driver| driver.top().stats().corrupt_sectors);
        match corrupt {
            0 => Ok(()),
            _ if self.kept.harmed => Ok(()),
            _ => Err(self.failure(
                format!("{corrupt} sectors are held against a device that is well"),
                0,
                0..0,
            )),
        }
    }

    /// Draws a chance that only a mirror has.
    pub(super) fn draw_if_mirror(&mut self, one_of: u32) -> bool {
        self.cache.is_mirror() && self.draw(|rng| rng.random_ratio(1, one_of))
    }

    /// Bits of one half flip, where the other one is intact: in superblocks and the journal, and of
    /// a cache that was opened in its data.
    pub(super) fn rot_half(&mut self, kept: Option<&KeptCache>) {
        let Some(id) = self.kept.id else { return };
        let (start, end) = (self.format.data_start(), self.format.device_bytes());
        for _ in 0..self.draw(|rng| rng.random_range(1..6)) {
            let byte = match kept {
                None => {
                    let metadata = self.cache.peek(0..start as usize);
                    self.draw(|rng| rot::anywhere_in_metadata(&metadata, &id, rng))
                }
                Some(kept) => {
                    let volumes = self.sizes.len();
                    let found = self.draw(|rng| rot::in_data(kept, start..end, volumes, rng));
                    // What is being overwritten as a life ends has no checksum in the next one.
                    let is_last = self.life == LIVES;
                    found.filter(|(_, is_dirty)| !is_dirty || is_last).map(|(byte, _)| byte)
                }
            };
            let second = self.draw(|rng| rng.random());
            if let Some(byte) = byte.filter(|byte| self.cache.rot_half(second, *byte)) {
                self.survived.rotten_bits += 1;
                self.history.note(Event::Rotten { byte });
            }
        }
    }

    /// Bits flip in data.
    fn rot_data(&mut self, kept: &KeptCache) {
        if self.cache.is_mirror() || !self.draw(|rng| rng.random_ratio(1, 8)) {
            return;
        }
        let data = self.format.data_start()..self.format.device_bytes();
        for _ in 0..4 {
            let volumes = self.sizes.len();
            let rotten = self.draw(|rng| rot::in_data(kept, data.clone(), volumes, rng));
            // What only the cache has rots in the last life: what is about to be overwritten as one
            // ends has no checksum in the next.
            let is_last = self.life == LIVES;
            if let Some((byte, is_dirty)) = rotten.filter(|(_, is_dirty)| !is_dirty || is_last) {
                self.cache.rot(byte);
                self.kept.harmed = true;
                if is_dirty {
                    self.kept.lossy = true;
                    self.kept.rotten_dirty.push((byte, self.unit_of(byte)));
                }
                self.survived.rotten_bits += 1;
                self.history.note(Event::Rotten { byte });
            }
        }
    }

    /// All volumes have been flushed, or even drained: so ends a session. All that is cached is to
    /// be there in the next.
    pub(super) fn end_session(&mut self, drained: bool) -> Result<End, Failure> {
        if !self.format.kept {
            return Ok(End::Orderly);
        }
        self.driver().clean();
        self.settle()?;
        self.driver().clean(); // what became clean may be noted after what was dirty
        self.settle()?;
        let unharmed = self.disks().all(|disk| disk.failed() == 0) && self.cache.flipped() == 0;
        if !self.machine.has_power() {
            return Ok(End::Power);
        }
        if unharmed {
            self.kept.warm = self.driver().top().stats().valid_bytes;
        }
        self.kept.drained = drained;
        let is_dirty = self.driver().tiers().any(|tier| tier.cache().condition().has_dirty_data());
        if drained && is_dirty {
            return Err(self.failure("a drain leaves something dirty".to_owned(), 0, 0..0));
        }
        if self.driver().top().cache().condition().has_lost_journal() {
            self.kept.drained = false;
            return Ok(End::Orderly);
        }
        let Some(superblock) =
            self.kept.superblock.take().filter(|_| self.draw(|rng| rng.random()))
        else {
            return Ok(End::Orderly);
        };
        self.cache.set_failing(0.0);
        match self.boot().end_session(superblock) {
            Ok(()) => Ok(End::Orderly),
            Err(NoBoot::Power) => Ok(End::Power),
            Err(error) => {
                Err(self.failure(format!("the session does not end: {error:?}"), 0, 0..0))
            }
        }
    }

    /// Counts the checkpoints there have been, at the end of the world.
    pub fn count_checkpoints(&mut self) -> Result<(), Failure> {
        if self.kept.id.is_none() {
            return Ok(());
        }
        self.machine.power_on(None);
        self.disks().for_each(|disk| disk.set_failing(0.0));
        self.cache.set_flipping(0.0, 0);
        match self.boot().checkpoints() {
            Ok(checkpoints) => self.survived.checkpoints += checkpoints,
            Err(error) => return Err(self.failure(format!("no scan: {error:?}"), 0, 0..0)),
        }
        Ok(())
    }
}

fn draw_service(rng: &mut SmallRng) -> Service {
    Service {
        mode: match rng.random_range(0..10) {
            0 => WriteMode::Pass,
            1 => WriteMode::Around,
            2 | 3 => WriteMode::Through,
            4 => WriteMode::Only,
            _ => WriteMode::Back,
        },
        // With windows so short that they do something in a life.
        admit: match rng.random_range(0..12) {
            0 => "never",
            1 => "probability:p=0.5",
            2 => "second-access",
            3 => "obp:target=0.3:half-life=200:fill=0:invalidate=1",
            4 => "duel",
            5 => "fussy:popular=2:check=100:warm-up=1:patience=1",
            6 => "until-full",
            _ => "always",
        },
        memory: match rng.random_range(0..24) {
            0 => Some(MemoryWrite::Through),
            1 | 2 => Some(MemoryWrite::Back),
            _ => None,
        },
        paced: rng.random(),
        most_dirty: rng.random_ratio(1, 3).then(|| rng.random_range(0..3)),
        evict: match rng.random_range(0..10) {
            0 => "fifo",
            1 => "s3-fifo",
            2 => "arc",
            3 | 4 => "sarc:threshold=2",
            _ => "lru",
        },
    }
}
