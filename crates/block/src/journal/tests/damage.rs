//! Tests flipped bits anywhere in the metadata: opening gives an error that names the place, or an
//! unchanged map. The salvage of a damaged journal is the whole map, or less of it where more than
//! a page of a batch is lost, and never another map.

use floe_testkit::faults::{Fault, OperationKind};
use rand::Rng;
use rand::rngs::SmallRng;

use super::model::{Model, random, random_change};

use super::*;

const GROUPS: u64 = 8;

/// A cache with one shard, and its expected content.
struct Used {
    disk: Disk,
    journal: ShardJournal,
    random: SmallRng,
    model: Model,
}

impl Used {
    fn new() -> Used {
        let layout = layout(GROUPS, 1);
        let mut disk = Disk::new(layout.end_bytes());
        disk.io(|io| create(io, new_cache(7, layout))).unwrap();
        let mut opened = disk.open().unwrap().unwrap();
        disk.io(|io| begin_session(io, &mut opened.superblock)).unwrap();
        let journal = opened.shards.pop().unwrap().journal;
        Used { disk, journal, random: random(4), model: Model::default() }
    }

    /// Writes `batches` batches, each a page of the log and its parity, durably, one after the
    /// other.
    fn log(&mut self, batches: u64) {
        for _ in 0..batches {
            let number = self.journal.pages_so_far();
            for _ in 0..3 {
                let change = random_change(&mut self.random, &self.model, GROUPS);
                let sum = |place: u64| (place << 32) + number + 1;
                self.model.change(&change, sum);
                self.journal.log(&change, sum);
            }
            let mut pages = Vec::new();
            assert!(self.journal.commit(&mut pages));
            assert_eq!(pages.len(), 2);
            assert!(self.disk.write(&pages) && self.disk.flush());
            self.journal.committed();
        }
    }

    /// Dumps everything, durably. The header is returned, not written.
    fn dump(&mut self) -> PageWrite {
        self.journal.begin_checkpoint();
        for block in &self.model.blocks {
            for change in block.changes() {
                assert!(self.journal.dump(&change, |place| block.sum(place)));
            }
        }
        let mut pages = Vec::new();
        let header = self.journal.finish_checkpoint(&mut pages).unwrap();
        assert!(!pages.is_empty() && self.disk.write(&pages) && self.disk.flush());
        header
    }

    fn checkpoint(&mut self) -> PageWrite {
        let header = self.dump();
        assert!(self.disk.write(std::slice::from_ref(&header)) && self.disk.flush());
        self.journal.checkpoint_written();
        header
    }
}

/// Returns a cache after three checkpoints and some log, with its expected content.
fn used() -> (Disk, Layout, Model) {
    let mut used = Used::new();
    for batches in [21, 30, 30] {
        used.log(batches);
        used.checkpoint();
    }
    used.log(19);
    assert_eq!(used.journal.pages_so_far(), 200);
    (used.disk, layout(GROUPS, 1), used.model)
}

fn found(disk: &mut Disk) -> Result<Model, StoreError> {
    let opened = disk.open()?.expect("a damaged cache is not taken for none");
    Ok(Model::restored(&opened.shards[0].blocks, &opened.shards[0].sums))
}

/// Returns the trusted part of a damaged cache, and the salvage of its only shard.
fn salvaged(disk: &mut Disk) -> (Model, Salvage) {
    let (opened, mut salvages) = disk.io(|io| salvage(io, &mut |_, _| {})).unwrap().unwrap();
    (
        Model::restored(&opened.shards[0].blocks, &opened.shards[0].sums),
        salvages.pop().expect("it is damaged"),
    )
}

#[test]
fn flipped_bits_are_an_error_or_harmless() {
    let (disk, layout, model) = used();
    let whole = disk.memory;
    let clean = Disk::of(whole.clone()).open().unwrap().unwrap();
    assert_eq!(clean.superblock.session, 1);
    let mut random = random(9);
    let (mut errors, mut harmless) = (0, 0);
    let mut bytes = vec![0; layout.end_bytes() as usize];
    whole.read_at(0, &mut bytes);
    for round in 0..700 {
        // Mostly in used places.
        let at = loop {
            let at = random.random_range(0..layout.data_offset_bytes(0));
            if bytes[at as usize] != 0 || round % 8 == 0 {
                break at;
            }
        };
        let bit = 1 << random.random_range(0..8);
        whole.write_at(at, &[bytes[at as usize] ^ bit]);
        match found(&mut Disk::of(whole.clone())) {
            Err(StoreError::Io { .. }) => panic!("nothing failed"),
            Err(error) => {
                assert!(error.to_string().contains(" at offset "), "{error}");
                errors += 1;
                let (found, Salvage { mended, gone, lost, .. }) =
                    salvaged(&mut Disk::of(whole.clone()));
                assert_eq!(found.sectors(), model.sectors(), "byte {at} was damaged");
                assert_eq!(
                    (mended.len(), gone.len(), lost.len()),
                    (1, 0, 0),
                    "{mended:?}, {gone:?}"
                );
            }
            Ok(found) => {
                assert_eq!(found.sectors(), model.sectors(), "byte {at} was damaged");
                harmless += 1;
            }
        }
        whole.write_at(at, &[bytes[at as usize]]);
    }
    assert!(errors > 100 && harmless > 100, "{errors} errors, {harmless} harmless");
}

#[test]
fn any_page_of_a_journal_may_be_lost_as_a_whole() {
    let (disk, layout, model) = used();
    let whole = disk.memory;
    let start = layout.slot_offset(0, 0);
    let mut mended_pages = 0;
    for offset in (start..layout.ring(0).end).step_by(4096) {
        let mut page = [0; 4096];
        whole.read_at(offset, &mut page);
        whole.write_at(offset, &[0x5a; 4096]);
        let is_header = [0, 1].map(|slot| layout.slot_offset(0, slot)).contains(&offset);
        match found(&mut Disk::of(whole.clone())) {
            Ok(found) => {
                assert_eq!(found.sectors(), model.sectors(), "the page at {offset} is lost")
            }
            Err(_) if is_header => {} // nothing says what it was
            Err(_) => {
                let (found, Salvage { mended, gone, lost, .. }) =
                    salvaged(&mut Disk::of(whole.clone()));
                assert_eq!(found.sectors(), model.sectors(), "the page at {offset} is lost");
                assert_eq!(
                    (mended.len(), gone.len(), lost.len()),
                    (1, 0, 0),
                    "{mended:?}, {gone:?}"
                );
                mended_pages += 1;
            }
        }
        whole.write_at(offset, &page);
    }
    assert!(mended_pages > 30, "{mended_pages}");
}

#[test]
fn a_damaged_page_of_the_last_batch_is_made_again_and_told() {
    let (disk, layout, model) = used();
    let (whole, last) = (disk.memory, layout.page_offset(0, 199));
    let mut page = [0; 4096];
    whole.read_at(last, &mut page);
    for is_clean in [false, true] {
        if is_clean {
            let mut disk = Disk::of(whole.clone());
            let mut superblock = disk.open().unwrap().unwrap().superblock;
            superblock.clean = true;
            disk.io(|io| write_superblock(io, &mut superblock)).unwrap();
        }
        for byte in (0..4096).step_by(97).chain(0..70) {
            let mut damaged = page;
            damaged[byte] ^= 1 << (byte % 8);
            whole.write_at(last, &damaged);
            let mut disk = Disk::of(whole.clone());
            let opened = disk.open().unwrap().expect("there is a cache");
            let found = Model::restored(&opened.shards[0].blocks, &opened.shards[0].sums);
            assert_eq!(found.sectors(), model.sectors(), "byte {byte} was damaged");
            let [mend] = &opened.mends[..] else { panic!("{:?}", opened.mends) };
            assert!((mend.offset, &mend.bytes[..]) == (last, &page[..]), "byte {byte}");
            assert_eq!(opened.restored.len(), 1);
            let report = disk.io(|io| scan(io, &mut |_, _| {})).unwrap();
            let salvage = report.shards[0].salvage.as_ref().expect("it is told");
            assert_eq!((salvage.mended.len(), salvage.gone.len()), (1, 0), "{salvage:?}");
            assert!(report.has_problems() && report.shards[0].untold.is_none());
        }
        whole.write_at(last, &page);
    }
}

#[test]
fn a_last_batch_that_cannot_be_made_again_is_told_as_far_as_it_can_be() {
    let (disk, layout, model) = used();
    let whole = disk.memory;
    for seq in [199, 200] {
        whole.write_at(layout.page_offset(0, seq) + 1000, b"no records");
    }
    let mut disk = Disk::of(whole.clone());
    let opened = disk.open().unwrap().expect("the power may have failed");
    let report = disk.io(|io| scan(io, &mut |_, _| {})).unwrap();
    assert!(!report.has_problems(), "{:?}", report.shards[0].problems);
    let untold = report.shards[0].untold.clone().expect("it may be damaged");
    assert!(untold.contains("ends before page 199") && untold.contains("a part of it"), "{untold}");
    // A session that has ended well leaves nothing half written.
    let mut superblock = opened.superblock;
    superblock.clean = true;
    disk.io(|io| write_superblock(io, &mut superblock)).unwrap();
    let error = found(&mut disk).unwrap_err().to_string();
    assert!(error.contains("page 199, at offset") && error.contains("closed cleanly"), "{error}");
    let (trusted, Salvage { gone, .. }) = salvaged(&mut disk);
    assert_eq!(gone.len(), 1, "{gone:?}");
    for (found, is) in trusted.sectors().into_iter().zip(model.sectors()) {
        if let Some((_, standing, _)) = found.filter(|found| Some(*found) != is) {
            assert_eq!(standing, Standing::Lost);
        }
    }
}

#[test]
fn a_batch_that_a_later_session_took_for_missing_stays_missing() {
    let (disk, layout, _) = used();
    let last = layout.page_offset(0, 199);
    disk.memory.write_at(last + 1000, b"torn");
    let mut disk = Disk::of(disk.memory);
    let mut superblock = disk.open().unwrap().unwrap().superblock;
    disk.io(|io| begin_session(io, &mut superblock)).unwrap();
    let opened = disk.open().unwrap().unwrap();
    assert!(opened.mends.is_empty() && opened.restored.is_empty(), "{:?}", opened.restored);
    let report = disk.io(|io| scan(io, &mut |_, _| {})).unwrap();
    assert_eq!(report.shards[0].log_pages, 199 - 163);
}

#[test]
fn what_is_salvaged_around_a_gap_is_true_and_the_rest_is_called_lost() {
    let (disk, layout, model) = used();
    let whole = disk.memory;
    let (mut trusted, mut condemned) = (0, 0);
    for first in (163..197).step_by(2) {
        let offset = layout.page_offset(0, first);
        // A page and its parity.
        let offsets = [offset, layout.page_offset(0, first + 1)];
        let pages = offsets.map(|offset| {
            let mut page = [0; 4096];
            whole.read_at(offset, &mut page);
            whole.write_at(offset, &[0; 4096]);
            page
        });
        let mut disk = Disk::of(whole.clone());
        match found(&mut disk) {
            Ok(_) => panic!("page {first} is not missed"),
            Err(error) => {
                assert!(error.to_string().contains(&format!("page {first},")), "{error}");
                let (found, Salvage { mended, gone, lost, .. }) = salvaged(&mut disk);
                let named =
                    format!("pages {first} to {} of the log, from offset {offset} on", first + 1);
                assert_eq!(gone, [named], "{mended:?}");
                for (found, is) in found.sectors().into_iter().zip(model.sectors()) {
                    match found {
                        Some((_, Standing::Lost, _)) => condemned += 1,
                        Some(_) => {
                            assert_eq!(found, is, "after losing page {first}");
                            trusted += 1;
                        }
                        None => {} // forgotten, or known to the lost page alone
                    }
                }
                let said: u64 = lost.iter().map(|(_, run)| run.end - run.start).sum();
                let suspects = model.sectors().len() as u64;
                assert!(said <= suspects, "{said} sectors of {suspects}");
            }
        }
        offsets.iter().zip(&pages).for_each(|(offset, page)| whole.write_at(*offset, page));
    }
    assert!(trusted > 20 && condemned > 20, "{trusted} sectors trusted, {condemned} lost");
}

#[test]
fn a_journal_that_is_written_anew_says_what_could_be_trusted() {
    let (disk, layout, _) = used();
    for (pages, is_whole) in [(1, true), (2, false)] {
        let copy = MemoryDevice::new(layout.end_bytes());
        let mut bytes = vec![0; layout.end_bytes() as usize];
        disk.memory.read_at(0, &mut bytes);
        copy.write_at(0, &bytes);
        copy.write_at(layout.page_offset(0, 181), &vec![0; pages * 4096]);
        let mut disk = Disk::of(copy);
        let (expected, said) = salvaged(&mut disk);
        assert_eq!(said.gone.is_empty(), is_whole);
        let (mut opened, _) = disk.io(|io| salvage(io, &mut |_, _| {})).unwrap().unwrap();
        disk.io(|io| begin_session(io, &mut opened.superblock)).unwrap();
        disk.io(|io| rewrite(io, &mut opened.shards[0])).unwrap();
        assert_eq!(found(&mut disk).unwrap().sectors(), expected.sectors());
        let report = disk.io(|io| scan(io, &mut |_, _| {})).unwrap();
        assert!(!report.has_problems(), "{:?}", report.shards[0].problems);
    }
}

#[test]
fn a_lost_page_of_the_log_is_named() {
    let (disk, layout, _) = used();
    let offset = layout.page_offset(0, 171);
    disk.memory.write_at(offset, &[0; 4096]);
    let mut disk = Disk::of(disk.memory);
    let error = found(&mut disk).unwrap_err().to_string();
    let expected = format!(
        "the log of shard 0 is damaged: page 171, at offset {offset}, is missing, though page 173 \
         records that it was written"
    );
    assert_eq!(error, expected);
    let report = disk.io(|io| scan(io, &mut |_, _| {})).unwrap();
    assert_eq!(report.shards[0].problems, [expected]);
    assert_eq!(
        (report.shards[0].checkpoint_generation, report.shards[0].log_pages),
        (3, 171 - 163)
    );
}

#[test]
fn damaged_superblocks_are_named_and_one_of_two_is_enough() {
    let (mut disk, _, model) = used();
    let good = disk.io(|io| scan(io, &mut |_, _| {})).unwrap();
    assert!(!good.has_problems(), "{:?}", good.problems);
    let shard = &good.shards[0];
    let sectors: Vec<_> = model.sectors().into_iter().flatten().collect();
    assert_eq!(shard.valid_bytes, sectors.len() as u64 * 4096);
    assert_eq!(
        shard.dirty_bytes,
        sectors.iter().filter(|sector| sector.1.is_dirty()).count() as u64 * 4096
    );
    assert_eq!((shard.checkpoint_generation, shard.log_pages), (3, 200 - 162));

    disk.memory.write_at(50, &[0xee]);
    assert_eq!(found(&mut disk).unwrap().sectors(), model.sectors());
    let report = disk.io(|io| scan(io, &mut |_, _| {})).unwrap();
    assert!(report.problems[0].starts_with("the copy of the superblock at offset 0 has checksum"));

    disk.memory.write_at(32_768 + 50, &[0xee]);
    let error = disk.open().unwrap_err().to_string();
    assert!(
        error.starts_with("no copy of the superblock is intact: the one at offset 0 has checksum"),
        "{error}"
    );
    let report = disk.io(|io| scan(io, &mut |_, _| {})).unwrap();
    assert_eq!((report.problems, report.shards.len()), (vec![error], 0));
}

#[test]
fn one_copy_of_the_superblock_may_be_unreadable() {
    let (whole, _, model) = used();
    let failing = |reads: &[u64]| {
        let plan = reads
            .iter()
            .fold(FaultPlan::none(), |plan, nth| plan.on(OperationKind::Read, *nth, Fault::Fail));
        let mut disk = Disk::of(whole.memory.clone());
        (disk.device, disk.faults) = FaultDevice::new(disk.memory.clone(), plan);
        disk
    };
    for (nth, offset) in [(0, 0), (1, 32_768)] {
        assert_eq!(found(&mut failing(&[nth])).unwrap().sectors(), model.sectors());
        let report = failing(&[nth]).io(|io| scan(io, &mut |_, _| {})).unwrap();
        let expected = format!("the copy of the superblock at offset {offset} cannot be read");
        assert!(report.problems[0].starts_with(&expected), "{:?}", report.problems);
    }
    let error = failing(&[0, 1]).open().unwrap_err().to_string();
    assert!(error.starts_with("reading 32768 bytes at offset 0 of the cache device"), "{error}");

    let mut disk = failing(&[0, 1]);
    disk.io(|io| create(io, new_cache(9, layout(4, 2)))).unwrap_err();
    assert_eq!(found(&mut failing(&[])).unwrap().sectors(), model.sectors());
}

#[test]
fn records_that_cannot_be_are_refused_with_their_place() {
    let layout = layout(GROUPS, 1);
    for (sectors, place, what) in [
        (0..8, 0, "names a block of a size that the cache does not have"),
        (0..4, GROUPS * 4, "names a block in a place that the shard does not have"),
        (0..4, 2, "names a block in a place that the shard does not have"),
    ] {
        let mut disk = Disk::new(layout.end_bytes());
        disk.io(|io| create(io, new_cache(7, layout.clone()))).unwrap();
        let mut opened = disk.open().unwrap().unwrap();
        let block = BlockAt { volume: VolumeId(0), sectors, place };
        let mut pages = Vec::new();
        let journal = &mut opened.shards[0].journal;
        journal.log(&Change::Run { block, run: 0..1, standing: Standing::Dirty }, |_| NO_SUM);
        journal.commit(&mut pages);
        assert!(disk.write(&pages));
        let error = disk.open().unwrap_err().to_string();
        let offset = layout.page_offset(0, 1);
        let expected = format!(
            "the log of shard 0 is damaged: page 1, at offset {offset}, at byte 16, {what}"
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn a_damaged_checkpoint_is_made_up_for_by_the_log_or_refused() {
    let mut used = Used::new();
    used.log(10);
    used.checkpoint();
    used.log(10);
    let header = used.checkpoint();
    let dump_offset = header.offset + 4096;
    used.disk.memory.write_at(dump_offset + 70, &[0xff; 3]);
    let restored = found(&mut used.disk).unwrap();
    assert_eq!(
        restored.sectors(),
        used.model.sectors(),
        "all of it is in the log since the checkpoint before"
    );
    // Without the last batch of that, nothing but the header knows that there was one.
    used.disk.memory.write_at(layout(GROUPS, 1).page_offset(0, 39), &[0; 2 * 4096]);
    let error = found(&mut used.disk).unwrap_err().to_string();
    let expected = format!(
        "the checkpoint of shard 0 is damaged: page 0, at offset {dump_offset}, is not the page \
         that was written there"
    );
    assert_eq!(error, expected);
}

#[test]
fn a_slot_may_be_used_again_after_its_header_seemed_to_fail() {
    let mut used = Used::new();
    used.log(10);
    used.checkpoint();
    used.log(10);
    let header = used.dump();
    assert!(used.disk.write(std::slice::from_ref(&header)) && used.disk.flush());
    used.journal.abandon_checkpoint();
    used.log(5);
    let again = used.dump();
    assert_eq!(again.offset, header.offset, "the good checkpoint is left alone");
    assert_eq!(found(&mut used.disk).unwrap().sectors(), used.model.sectors());
    assert!(used.disk.write(&[again]) && used.disk.flush());
    used.journal.checkpoint_written();
    assert_eq!(found(&mut used.disk).unwrap().sectors(), used.model.sectors());
}

#[test]
fn salvage_uses_the_older_checkpoint_while_the_slot_of_the_newer_is_written_again() {
    let mut used = Used::new();
    used.log(10);
    used.checkpoint();
    used.log(10);
    let header = used.dump();
    assert!(used.disk.write(std::slice::from_ref(&header)) && used.disk.flush());
    used.journal.abandon_checkpoint();
    used.log(5);
    used.dump();
    // A page that has parity, between the older checkpoint and the newer one.
    used.disk.memory.write_at(layout(GROUPS, 1).page_offset(0, 31), &[0; 4096]);
    found(&mut used.disk).unwrap_err();
    let (model, salvage) = salvaged(&mut used.disk);
    assert_eq!((salvage.gone, salvage.lost), (vec![], vec![]));
    assert_eq!(model.sectors(), used.model.sectors());
}
