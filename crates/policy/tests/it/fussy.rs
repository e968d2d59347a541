//! FussyCache against its text: a table that is scanned, and the checks as they are described.

use std::collections::VecDeque;

use floe_policy::admission::{Admission, Fussy, Orders, Room, Traffic, Verdict, Window};
use floe_policy::{Access, Direction, Tick, mix};
use proptest::prelude::*;

const POPULAR: u64 = 4;
const CHECK: u64 = 200;
const WARM_UP: u64 = 2000;
/// Beyond this many accesses blocks are alike.
const COUNT_MAX: u64 = 31;

fn access(key: u64) -> Access {
    Access { position: key, ..Access::new(mix(key)) }
}

fn blocks(blocks: u64) -> Traffic {
    Traffic { blocks, bytes: blocks }
}

fn fussy(entries: usize) -> Fussy {
    let mut fussy = Fussy::default();
    fussy.reserve(&Room { entries, weight: entries as u64, above: 0 });
    fussy
}

fn fetched(fussy: &mut Fussy) -> Vec<u64> {
    let mut orders = Orders::default();
    fussy.tick(Tick::default(), &mut orders);
    let mut positions: Vec<_> = orders.fetch.iter().map(|fetch| fetch.position).collect();
    positions.sort();
    positions
}

/// So many requests of which so many hit, and what is fetched then.
fn interval(fussy: &mut Fussy, hits: u64) -> Vec<u64> {
    fussy.observe(&Window { lookups: blocks(CHECK), hits: blocks(hits), ..Window::default() });
    fetched(fussy)
}

/// One past its warm-up in which so many requests missed.
fn warm(entries: usize, misses: u64) -> Fussy {
    let mut fussy = fussy(entries);
    for key in 0..misses {
        assert_eq!(
            fussy.admit(&access(1_000_000 + key), None),
            Verdict::Admit,
            "the warm-up populates the cache"
        );
    }
    fussy.observe(&Window {
        lookups: blocks(WARM_UP),
        hits: blocks(WARM_UP - misses),
        ..Window::default()
    });
    assert_eq!(fetched(&mut fussy), [0_u64; 0]);
    assert!(!fussy.admits_all());
    fussy
}

/// The text. Entries of the table are (block, accesses, time of the last one).
struct Text {
    table: Vec<(u64, u64, u64)>,
    table_max: usize,
    now: u64,
    is_warm: bool,
    is_plain: bool,
    requests: u64,
    hits: u64,
    misses: u64,
    hit_ratio: Option<f64>,
    times: u64,
    patience: u64,
}

impl Text {
    fn remember(&mut self, key: u64) {
        if self.table.len() == self.table_max {
            let old = self
                .table
                .iter()
                .enumerate()
                .min_by_key(|(_, block)| (block.1.min(COUNT_MAX), block.2));
            let (at, _) = old.expect("a full table has an oldest");
            self.table.remove(at);
        }
        self.table.push((key, 1, self.now));
    }

    fn miss(&mut self, key: u64) -> bool {
        self.now += 1;
        self.misses += 1;
        if !self.is_warm {
            return true;
        }
        match self.table.iter_mut().find(|block| block.0 == key) {
            Some(block) => (block.1, block.2) = (block.1 + 1, self.now),
            None => self.remember(key),
        }
        self.is_plain
    }

    fn evicted(&mut self, key: u64) {
        self.now += 1;
        if self.table.iter().all(|block| block.0 != key) {
            self.remember(key);
        }
    }

    fn switch(&mut self) {
        self.is_plain = !self.is_plain;
        self.patience *= 2;
        (self.hit_ratio, self.times) = (None, 0);
    }

    /// What is fetched.
    fn check(&mut self) -> Vec<u64> {
        if self.requests < if self.is_warm { CHECK } else { WARM_UP } {
            return Vec::new();
        }
        let hit_ratio = self.hits as f64 / self.requests as f64;
        let mut popular: Vec<_> =
            self.table.iter().filter(|block| block.1 >= POPULAR).map(|block| block.0).collect();
        popular.sort();
        let misses = std::mem::take(&mut self.misses);
        (self.requests, self.hits) = (0, 0);
        if !self.is_warm {
            self.is_warm = true;
            self.table_max = self.table_max.min((misses * POPULAR) as usize);
            while self.table.len() > self.table_max {
                let old = self.table.iter().enumerate().min_by_key(|(_, block)| (block.1, block.2));
                let (at, _) = old.expect("it is not empty");
                self.table.remove(at);
            }
            Vec::new()
        } else if self.is_plain {
            self.times += 1;
            if popular.len() * 2 > self.table.len() || self.times == self.patience {
                self.switch();
            }
            Vec::new()
        } else {
            self.table.retain(|block| block.1 < POPULAR);
            self.times = if self.hit_ratio.is_some_and(|before| hit_ratio < before) {
                self.times + 1
            } else {
                0
            };
            self.hit_ratio = Some(hit_ratio);
            if self.times == self.patience {
                self.switch();
            }
            popular
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 48,
        ..ProptestConfig::default()
    })]

    /// An LRU cache that does as it is told, under a load whose locality changes with every phase.
    #[test]
    fn it_is_the_text(
        phases in proptest::collection::vec((1..400u64, 1..600u64), 4..24),
        entries in 1..60usize,
        every in 1..50u64,
        seed in any::<u64>(),
    ) {
        let mut fussy = fussy(entries);
        let mut text = Text {
            table: Vec::new(), table_max: entries * 4, now: 0, is_warm: false, is_plain: false,
            requests: 0, hits: 0, misses: 0, hit_ratio: None, times: 0, patience: 5,
        };
        let (mut cache, mut window) = (VecDeque::new(), Window::default());
        let insert = |cache: &mut VecDeque<u64>, key, fussy: &mut Fussy, text: &mut Text| {
            if cache.len() == entries {
                let victim = cache.pop_front().expect("it is full");
                fussy.evicted(&access(victim));
                text.evicted(victim);
            }
            cache.push_back(key);
        };
        let mut draw = seed;
        for (phase, (span, requests)) in phases.into_iter().enumerate() {
            for at in 0..requests {
                draw = mix(draw);
                // Half of a phase goes to an eighth of its blocks.
                let blocks_of_it = if draw >> 63 == 0 { span / 8 + 1 } else { span };
                let key = phase as u64 / 4 * 300 + draw % blocks_of_it;
                window.lookups += blocks(1);
                text.requests += 1;
                if let Some(place) = cache.iter().position(|&held| held == key) {
                    cache.remove(place);
                    cache.push_back(key);
                    window.hits += blocks(1);
                    text.hits += 1;
                } else {
                    let admits = fussy.admit(&access(key), None).admits();
                    prop_assert_eq!(admits, text.miss(key));
                    if admits {
                        insert(&mut cache, key, &mut fussy, &mut text);
                    }
                }
                if at % every == 0 {
                    fussy.observe(&std::mem::take(&mut window));
                    let fetch = fetched(&mut fussy);
                    prop_assert_eq!(&fetch, &text.check());
                    prop_assert_eq!(fussy.admits_all(), text.is_plain || !text.is_warm);
                    prop_assert_eq!(fussy.patience(), text.patience);
                    for key in fetch {
                        if !cache.contains(&key) {
                            insert(&mut cache, key, &mut fussy, &mut text);
                        }
                    }
                }
            }
            fussy.observe(&std::mem::take(&mut window));
            let fetch = fetched(&mut fussy);
            prop_assert_eq!(&fetch, &text.check());
            for key in fetch {
                if !cache.contains(&key) {
                    insert(&mut cache, key, &mut fussy, &mut text);
                }
            }
        }
    }
}

#[test]
fn a_block_is_fetched_at_the_check_after_its_fourth_access() {
    let mut fussy = warm(100, 100);
    for key in [1, 1, 1, 2, 2, 2, 2, 3] {
        assert_eq!(
            fussy.admit(&access(key), None),
            Verdict::Bypass,
            "it is served from below until it is fetched"
        );
    }
    assert_eq!(fetched(&mut fussy), [0_u64; 0], "no check is due");
    assert_eq!(interval(&mut fussy, 0), [2]);
    fussy.admit(&access(1), None);
    assert_eq!(interval(&mut fussy, 0), [1], "who was fetched is not in the table any more");
}

#[test]
fn writes_count_as_reads_do() {
    let mut fussy = warm(100, 100);
    for direction in [Direction::Read, Direction::Write, Direction::Write, Direction::Read] {
        fussy.admit(&Access { direction, ..access(5) }, None);
    }
    assert_eq!(interval(&mut fussy, 0), [5]);
}

/// Falls in a row from a high hit ratio on; the first check has nothing to compare with.
fn fall(fussy: &mut Fussy, times: u64) {
    for hits in (0..=times).rev() {
        assert!(!fussy.admits_all());
        interval(fussy, hits);
    }
}

#[test]
fn it_is_plain_after_five_falls_in_a_row_and_no_fewer() {
    let mut fussy = warm(100, 100);
    for hits in [100, 99, 98, 97, 96, 96, 95, 94, 93, 92, 150] {
        interval(&mut fussy, hits);
        assert!(
            !fussy.admits_all(),
            "an interval as good as the one before begins the count afresh"
        );
    }
    // From 150 to 4 is the first fall, to 0 the fifth.
    for hits in [4, 3, 2, 1, 0] {
        assert!(!fussy.admits_all());
        interval(&mut fussy, hits);
    }
    assert!(fussy.admits_all());
    assert_eq!(fussy.admit(&access(1), None), Verdict::Admit);
}

#[test]
fn it_turns_back_after_twice_as_many_checks_and_is_twice_as_patient_then() {
    let mut fussy = warm(100, 100);
    fussy.admit(&access(1), None); // not popular, so the table is no reason to turn back
    fall(&mut fussy, 5);
    for (checks, patience) in [(10, 20), (40, 80)] {
        for _ in 1..checks {
            interval(&mut fussy, 0);
            assert!(fussy.admits_all());
        }
        interval(&mut fussy, 0);
        assert!(!fussy.admits_all(), "after {checks} checks");
        assert_eq!(fussy.patience(), patience);
        fall(&mut fussy, patience);
        assert!(fussy.admits_all(), "after {patience} falls");
    }
}

#[test]
fn it_turns_back_at_once_when_most_of_the_table_is_popular() {
    let mut fussy = warm(100, 100);
    fall(&mut fussy, 5);
    let mut access_four_times =
        |key| (0..4).for_each(|_| assert!(fussy.admit(&access(key), None).admits()));
    access_four_times(1);
    fussy.admit(&access(2), None);
    interval(&mut fussy, 0);
    assert!(fussy.admits_all(), "half is not more than half");
    (0..4).for_each(|_| {
        fussy.admit(&access(3), None);
    });
    assert_eq!(interval(&mut fussy, 0), [0_u64; 0], "who turns back fetches at the next check");
    assert!(!fussy.admits_all());
    assert_eq!(interval(&mut fussy, 0), [1, 3]);
}

#[test]
fn who_was_evicted_counts_one_access() {
    let mut fussy = warm(100, 100);
    fussy.evicted(&access(1));
    (0..2).for_each(|_| {
        fussy.admit(&access(1), None);
    });
    assert_eq!(interval(&mut fussy, 0), [0_u64; 0]);
    fussy.admit(&access(1), None);
    assert_eq!(interval(&mut fussy, 0), [1]);
}

#[test]
fn the_table_forgets_the_oldest_of_the_least_accessed() {
    // Two misses in the warm-up, times four accesses: eight blocks.
    let mut fussy = warm(100, 2);
    for key in [1, 1, 1, 2, 3] {
        fussy.admit(&access(key), None);
    }
    // 2 goes, 3 stays.
    (10..16).for_each(|key| {
        fussy.admit(&access(key), None);
    });
    for key in [1, 2, 2, 2, 3, 3, 3] {
        fussy.admit(&access(key), None);
    }
    assert_eq!(interval(&mut fussy, 0), [1]);
}
