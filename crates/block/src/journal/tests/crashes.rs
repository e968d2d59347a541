//! Tests a shard's journal through many crashes, against a list of blocks.
//!
//! After a crash each sector must have a state that it had at some moment since the last commit
//! known to be durable. When nothing was lost, everything must be exactly as before. The recovered
//! state is binding from then on: the next crash may not change it.

use floe_testkit::faults::{AfterTear, Fault, OperationKind};
use rand::Rng;
use rand::rngs::SmallRng;

use super::model::{Model, Sectors, random, random_change};
use super::*;

const GROUPS: u64 = 12;

/// A shard under test, with its expected states.
struct Shard {
    journal: ShardJournal,
    model: Model,
    /// All states since the last commit known to be durable.
    moments: Vec<Sectors>,
    /// Blocks that a checkpoint still has to dump, coldest last.
    to_dump: Option<Vec<BlockAt>>,
    changes: u64,
    /// Set shortly before the crash: nothing becomes durable any more.
    dying: bool,
}

impl Shard {
    fn new(opened: Opened) -> Shard {
        let [Restored { blocks, sums, journal, .. }] = <[_; 1]>::try_from(opened.shards).unwrap();
        let model = Model::restored(&blocks, &sums);
        let moments = vec![model.sectors()];
        Shard { journal, model, moments, to_dump: None, changes: 0, dying: false }
    }

    fn change(&mut self, random: &mut SmallRng) {
        let change = random_change(random, &self.model, GROUPS);
        self.changes += 1;
        let changes = self.changes;
        let sum = |place: u64| changes << 20 | place | 1 << 60;
        self.model.change(&change, sum);
        self.journal.log(&change, sum);
        self.moments.push(self.model.sectors());
    }

    /// Commits, and reports success or failure to the journal.
    fn commit(&mut self, disk: &mut Disk, random: &mut SmallRng) {
        let mut pages = Vec::new();
        let whole = self.journal.commit(&mut pages);
        let batch = self.moments.len() - 1;
        if random.random_range(0..20) == 0 {
            disk.faults.inject(OperationKind::Write, Fault::Fail);
        }
        if self.dying {
            disk.store_some(&pages, random);
            return self.journal.failed();
        }
        if disk.write(&pages) && random.random_range(0..20) > 0 && disk.flush() {
            self.journal.committed();
            if whole {
                self.moments.drain(..batch);
            }
        } else {
            self.journal.failed();
        }
    }

    /// Takes a step of a checkpoint: begins it, dumps a block, or ends it.
    fn checkpoint(&mut self, disk: &mut Disk, random: &mut SmallRng) {
        let Some(to_dump) = &mut self.to_dump else {
            self.journal.begin_checkpoint();
            let coldest_last = self.model.blocks.iter().rev().map(|block| block.at.clone());
            self.to_dump = Some(coldest_last.collect());
            return;
        };
        if let Some(at) = to_dump.pop() {
            if let Some(block) = self.model.blocks.iter().find(|block| block.at == at) {
                for change in block.changes() {
                    assert!(
                        self.journal.dump(&change, |place| block.sum(place)),
                        "a checkpoint has room"
                    );
                }
            }
            return;
        }
        self.to_dump = None;
        let mut pages = Vec::new();
        let header = self.journal.finish_checkpoint(&mut pages).expect("a checkpoint has room");
        match random.random_range(0..6) {
            0 => self.journal.abandon_checkpoint(),
            _ if self.dying => {
                disk.store_some(&pages, random);
                self.journal.abandon_checkpoint();
            }
            // The pages, and perhaps the header, were written for nothing; so it seems.
            1 => {
                disk.write(&pages);
                if disk.flush() {
                    disk.write(&[header]);
                }
                self.journal.abandon_checkpoint();
            }
            _ => {
                if disk.write(&pages) && disk.flush() && disk.write(&[header]) && disk.flush() {
                    self.journal.checkpoint_written();
                } else {
                    self.journal.abandon_checkpoint();
                }
            }
        }
    }

    fn step(&mut self, disk: &mut Disk, random: &mut SmallRng) {
        match random.random_range(0..10) {
            0..4 => {
                for _ in 0..random.random_range(1..25) {
                    self.change(random);
                }
            }
            4..7 => self.commit(disk, random),
            _ if self.journal.wants_checkpoint() || self.to_dump.is_some() => {
                for _ in 0..random.random_range(1..20) {
                    self.checkpoint(disk, random);
                    if self.to_dump.is_none() {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
}

/// Opens the cache again, with crashes during the attempts.
fn reopen(disk: &mut Disk, random: &mut SmallRng) -> Shard {
    loop {
        let crash = random.random_range(0..3) == 0;
        let mut opened = disk.open().expect("the cache opens").expect("there is a cache");
        if crash {
            let (units, then) = (random.random_range(0..12), AfterTear::PowerCut);
            disk.faults.inject(OperationKind::Write, Fault::Tear { units, then });
        }
        let begun = disk.io(|io| {
            opened.mends.iter().try_for_each(|mend| io.mend(mend))?;
            begin_session(io, &mut opened.superblock)
        });
        if begun.is_ok() {
            return Shard::new(opened);
        }
        assert!(crash);
        disk.crash(random.random());
    }
}

fn made(layout: Layout) -> Disk {
    let mut disk = Disk::new(layout.end_bytes());
    disk.io(|io| create(io, new_cache(1, layout))).unwrap();
    disk
}

#[test]
fn what_was_durable_before_a_crash_is_there_after_it() {
    let (mut wrapped, mut lost) = (0, 0);
    for seed in 0..24 {
        let mut random = random(seed);
        let layout = layout(GROUPS, 1);
        let ring_pages = layout.ring_pages;
        let mut disk = made(layout);
        let mut shard = reopen(&mut disk, &mut random);
        let mut pages = 0;
        for _ in 0..12 {
            for _ in 0..random.random_range(0..160) {
                shard.step(&mut disk, &mut random);
            }
            shard.dying = true;
            for _ in 0..random.random_range(0..10) {
                shard.step(&mut disk, &mut random);
            }
            let before = shard.moments;
            disk.crash(random.random());
            shard = reopen(&mut disk, &mut random);
            let after = shard.model.sectors();
            lost += u64::from(before.last() != Some(&after));
            for (number, found) in after.iter().enumerate() {
                let legal = before.iter().any(|moment| moment[number] == *found);
                assert!(legal, "seed {seed}: sector {number} is {found:?}");
            }
            pages = shard.journal.pages_so_far();
        }
        wrapped += u64::from(pages > 2 * ring_pages);
    }
    assert!(
        wrapped > 5 && lost > 50,
        "{wrapped} runs went round the ring twice, {lost} crashes lost something"
    );
}

#[test]
fn after_a_clean_end_everything_is_as_it_was_and_in_the_same_order() {
    for seed in 0..24 {
        let mut random = random(1000 + seed);
        let mut disk = made(layout(GROUPS, 1));
        let mut shard = reopen(&mut disk, &mut random);
        for _ in 0..4 {
            for _ in 0..random.random_range(0..150) {
                shard.step(&mut disk, &mut random);
            }
            while shard.moments.len() > 1 || shard.journal.has_pending() {
                shard.commit(&mut disk, &mut random);
                if shard.journal.wants_checkpoint() || shard.to_dump.is_some() {
                    shard.checkpoint(&mut disk, &mut random);
                }
            }
            let before = shard.model;
            disk.crash(random.random());
            shard = reopen(&mut disk, &mut random);
            assert_eq!(shard.model.sectors(), before.sectors(), "seed {seed}");
            assert_eq!(shard.model.order(), before.order(), "seed {seed}");
        }
    }
}

#[test]
fn a_full_ring_takes_pages_again_after_a_checkpoint() {
    let mut random = random(1);
    let layout = layout(GROUPS, 1);
    let ring_pages = layout.ring_pages as usize;
    let mut disk = made(layout);
    let mut shard = reopen(&mut disk, &mut random);
    while shard.journal.pending_pages() <= ring_pages {
        shard.change(&mut random);
    }
    let mut pages = Vec::new();
    assert!(!shard.journal.commit(&mut pages), "there is more than the ring holds");
    assert_eq!(pages.len(), ring_pages);
    assert!(shard.journal.is_committing());
    shard.journal.committed();
    assert_eq!(shard.journal.pending_pages(), 2, "one page of the ring is for the parity");
    pages.clear();
    assert!(!shard.journal.commit(&mut pages) && pages.is_empty(), "a full ring takes nothing");
    assert!(shard.journal.wants_checkpoint());
    shard.journal.begin_checkpoint();
    assert!(!shard.journal.wants_checkpoint());
    shard.journal.finish_checkpoint(&mut pages).unwrap();
    shard.journal.checkpoint_written();
    assert!(shard.journal.commit(&mut pages) && pages.len() == 3);
}

/// Tests the longest dumps: small blocks, every sector clean, or all kinds of sectors side by side.
#[test]
fn the_longest_dump_fits() {
    for (size, standings) in [
        (1, &[Standing::Clean][..]),
        (1, &[Standing::Dirty][..]),
        (4, &[Standing::Clean, Standing::Dirty][..]),
        (4, &[Standing::Clean, Standing::Clean, Standing::Invalid][..]),
        (4, &[Standing::Clean][..]),
    ] {
        let layout = layout(200, 1);
        let sectors = layout.shard_sectors();
        let mut disk = made(layout);
        let mut journal = disk.open().unwrap().unwrap().shards.pop().unwrap().journal;
        journal.begin_checkpoint();
        // Some blocks are stated twice, as those that move while the others are dumped.
        let again = sectors / 20 / size * size;
        for place in (0..sectors).chain(0..again).step_by(size as usize) {
            let block = BlockAt { volume: VolumeId(0), sectors: place..place + size, place };
            let kinds: Vec<_> =
                (0..size).map(|number| standings[number as usize % standings.len()]).collect();
            let mut start = place;
            for run in kinds.chunk_by(|one, next| one == next) {
                let run_of = start..start + run.len() as u64;
                start = run_of.end;
                let change = Change::Run { block: block.clone(), run: run_of, standing: run[0] };
                assert!(journal.dump(&change, |_| 1), "{standings:?} at {place}");
            }
        }
        assert!(journal.finish_checkpoint(&mut Vec::new()).is_some(), "{standings:?}");
    }
}

/// Tests a crash that leaves only the second of two pages being written: that page does not belong
/// to the log.
#[test]
fn what_a_crash_left_beyond_the_end_of_a_log_is_not_taken_for_a_part_of_it() {
    let mut random = random(2);
    let mut disk = made(layout(GROUPS, 1));
    let mut shard = reopen(&mut disk, &mut random);
    while shard.journal.pending_pages() < 2 {
        shard.change(&mut random);
    }
    let mut pages = Vec::new();
    assert!(shard.journal.commit(&mut pages));
    assert!(disk.write(&pages[1..2]) && disk.flush(), "its parity is missing");
    disk.crash(0);
    let mut shard = reopen(&mut disk, &mut random);
    assert!(shard.model.blocks.is_empty());
    shard.change(&mut random);
    pages.clear();
    assert!(shard.journal.commit(&mut pages));
    assert!(disk.write(&pages) && disk.flush());
    disk.crash(0);
    assert_eq!(reopen(&mut disk, &mut random).model.sectors(), shard.model.sectors());
}

#[test]
fn a_session_begins_behind_a_log_that_fills_its_ring() {
    let layout = layout(GROUPS, 1);
    let mut disk = Disk::new(layout.end_bytes());
    disk.io(|io| create(io, new_cache(1, layout))).unwrap();
    let mut opened = disk.open().unwrap().unwrap();
    disk.io(|io| begin_session(io, &mut opened.superblock)).unwrap();
    let (mut shard, mut random) = (Shard::new(opened), random(5));
    let mut has_room = true;
    while has_room {
        shard.change(&mut random);
        let mut pages = Vec::new();
        has_room = shard.journal.commit(&mut pages);
        assert!(disk.write(&pages) && disk.flush());
        shard.journal.committed();
    }
    let found = |disk: &mut Disk| {
        let opened = disk.open().unwrap().unwrap();
        (Model::restored(&opened.shards[0].blocks, &opened.shards[0].sums).sectors(), opened)
    };
    let (before, opened) = found(&mut disk);
    let places: Vec<u64> =
        opened.shards.iter().filter_map(|shard| shard.journal.free_page_offset()).collect();
    assert!(places.is_empty(), "the ring is full");
    disk.io(|io| clear_torn_pages(io, places.into_iter())).unwrap();
    assert_eq!(found(&mut disk).0, before);
}
