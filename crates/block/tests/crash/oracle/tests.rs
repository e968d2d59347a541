//! What the oracle allows, in small.

use super::*;
use crate::stamp::fill;

const SURVIVES: Outcome = Outcome::Done { durable: true };
const HAPPENS: Outcome = Outcome::Done { durable: false };

/// One volume of one unit, on which everything happens one after the other.
struct Unit(Oracle);

impl Unit {
    fn new() -> Unit {
        Unit(Oracle::new(&[1]))
    }

    fn changes(&mut self, content: Content, outcome: Outcome) -> &mut Unit {
        let name = self.0.begin(0, 0..1, content, u64::MAX);
        self.0.end(0, 0..1, name, outcome);
        self
    }

    fn write(&mut self, version: Version, outcome: Outcome) -> &mut Unit {
        self.changes(Content::Is(version), outcome)
    }

    fn flush(&mut self) -> &mut Unit {
        let submitted = self.0.tick();
        self.0.flushed(0, submitted, u64::MAX);
        self
    }

    fn crash(&mut self) -> &mut Unit {
        self.0.crash();
        self
    }

    fn reads(&mut self, version: Version) -> bool {
        let submitted = self.0.tick();
        self.0.check(0, 0, &bytes(version), submitted).is_ok()
    }

    /// What it may hold, each found in a copy of its own.
    fn may_hold(&self, versions: impl IntoIterator<Item = Version>) -> Vec<Version> {
        let copy = || Unit(Oracle { volumes: self.0.volumes.clone(), now: self.0.now });
        versions.into_iter().filter(|&version| copy().reads(version)).collect()
    }
}

fn bytes(version: Version) -> [u8; UNIT] {
    let mut bytes = [0; UNIT];
    if version != ZEROS {
        fill(&mut bytes, 0, 0, version);
    }
    bytes
}

#[test]
fn a_running_cache_has_what_was_answered_last() {
    let mut unit = Unit::new();
    assert_eq!(unit.may_hold(0..5), [0]);
    unit.write(1, HAPPENS).write(2, HAPPENS);
    assert_eq!(unit.may_hold(0..5), [2]);
    unit.write(3, Outcome::Failed);
    assert_eq!(unit.may_hold(0..5), [2, 3]);
    assert!(unit.reads(2));
    assert_eq!(unit.may_hold(0..5), [2]);
    unit.write(4, Outcome::Refused);
    assert_eq!(unit.may_hold(0..5), [2]);
}

#[test]
fn while_changes_are_under_way_each_may_show() {
    let mut unit = Unit::new();
    let names = [1, 2].map(|version| unit.0.begin(0, 0..1, Content::Is(version), 0));
    assert_eq!(unit.may_hold(0..3), [0, 1, 2]);
    let read = unit.0.tick();
    unit.0.end(0, 0..1, names[1], HAPPENS);
    assert_eq!(unit.may_hold(0..3), [1, 2]);
    assert!(unit.0.check(0, 0, &bytes(0), read).is_ok(), "it came before the answer");
    unit.0.end(0, 0..1, names[0], HAPPENS);
    assert_eq!(unit.may_hold(0..3), [1, 2], "they overlapped");
}

#[test]
fn a_crash_may_lose_what_was_not_flushed_and_nothing_else() {
    let mut unit = Unit::new();
    unit.write(1, HAPPENS).crash();
    assert_eq!(unit.may_hold(0..3), [0, 1]);
    let mut unit = Unit::new();
    unit.write(1, HAPPENS).flush().crash();
    assert_eq!(unit.may_hold(0..3), [1]);
    unit.write(2, SURVIVES).crash();
    assert_eq!(unit.may_hold(0..3), [2]);
    unit.write(3, HAPPENS).write(4, HAPPENS).crash();
    assert_eq!(unit.may_hold(0..6), [2, 3, 4]);
    unit.write(5, Outcome::Failed).flush().crash();
    assert_eq!(unit.may_hold(0..6), [2, 3, 4, 5], "nobody knows whether it happened");
}

#[test]
fn a_flush_covers_what_was_answered_before_it_came() {
    let mut unit = Unit::new();
    let write = unit.0.begin(0, 0..1, Content::Is(1), 0);
    let flush = unit.0.tick();
    unit.0.end(0, 0..1, write, HAPPENS);
    unit.0.flushed(0, flush, 0);
    assert_eq!(unit.crash().may_hold(0..3), [0, 1]);
}

#[test]
fn the_first_read_after_a_crash_settles_what_it_left() {
    let mut unit = Unit::new();
    unit.write(1, HAPPENS).write(2, HAPPENS).crash();
    assert!(unit.reads(1));
    assert_eq!(unit.may_hold(0..3), [1]);
    assert_eq!(unit.crash().may_hold(0..3), [1], "also after the next one");
    unit.write(3, HAPPENS).crash();
    assert_eq!(unit.may_hold(0..5), [1, 3]);
}

#[test]
fn what_a_crash_left_is_settled_also_while_it_is_being_replaced() {
    let mut unit = Unit::new();
    unit.write(1, HAPPENS).crash();
    unit.0.begin(0, 0..1, Content::Is(2), 0);
    assert_eq!(unit.may_hold(0..3), [0, 1, 2]);
    assert!(unit.reads(0));
    assert_eq!(unit.may_hold(0..3), [0, 2]);
    assert_eq!(unit.crash().may_hold(0..3), [0, 2]);
}

#[test]
fn a_read_settles_a_failed_write_for_good_only_with_a_flush() {
    let mut unit = Unit::new();
    unit.write(1, SURVIVES).write(2, Outcome::Failed);
    assert!(unit.reads(1));
    assert_eq!(
        Unit(Oracle { volumes: unit.0.volumes.clone(), now: unit.0.now }).crash().may_hold(0..3),
        [1, 2]
    );
    assert_eq!(unit.flush().crash().may_hold(0..3), [1]);
}

#[test]
fn a_trim_leaves_anything_that_was_there_once_and_nothing_foreign() {
    let mut unit = Unit::new();
    unit.write(1, SURVIVES).write(2, SURVIVES).changes(Content::Anything, HAPPENS).flush();
    assert_eq!(unit.may_hold(0..3), [0, 1, 2]);
    let mut foreign = [0; UNIT];
    fill(&mut foreign, 0, 1, 1);
    let now = unit.0.tick();
    assert!(unit.0.check(0, 0, &foreign, now).is_err(), "another unit's");
    foreign[..8].copy_from_slice(&bytes(1)[..8]);
    assert!(unit.0.check(0, 0, &foreign, now).is_err(), "torn");
    assert!(unit.reads(1));
    assert_eq!(unit.may_hold(0..3), [1]);
    assert_eq!(unit.flush().crash().may_hold(0..3), [1]);
}
