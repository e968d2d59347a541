//! Disks that are cut off.

use floe_device::Pool;

use super::*;

const UNITS: usize = 16;

/// A disk and what its units hold, each full of one byte.
struct Rig {
    disk: Disk,
    handle: Handle,
    pool: Pool,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let disk = Disk::new(&Machine::new(seed), UNITS * UNIT, 0, true);
        Rig { handle: disk.handle(), disk, pool: Pool::new(0) }
    }

    fn ask(&mut self, offset: u64, action: Action) {
        self.handle.carry_out(offset, action).expect("there is power").unwrap();
    }

    fn write(&mut self, byte: u8, durable: bool) {
        let from = self.pool.allocate(UNITS * UNIT).whole();
        from.copy_from(&[byte; UNITS * UNIT]);
        self.ask(0, Action::Write { from, durable });
    }

    fn units(&mut self) -> Vec<u8> {
        let into = self.pool.allocate(UNITS * UNIT).whole();
        self.ask(0, Action::Read(into.clone()));
        let bytes = into.to_vec();
        bytes
            .chunks(UNIT)
            .map(|unit| {
                assert!(unit.iter().all(|byte| *byte == unit[0]), "a unit is torn");
                unit[0]
            })
            .collect()
    }
}

/// The bytes that the units of some worlds hold after a power cut.
fn after_power_cuts(prepare: impl Fn(&mut Rig)) -> Vec<u8> {
    let mut found = Vec::new();
    for seed in 0..100 {
        let mut rig = Rig::new(seed);
        prepare(&mut rig);
        rig.disk.lose_power();
        let units = rig.units();
        rig.disk.lose_power();
        assert_eq!(rig.units(), units, "what was there after a power cut is safe");
        found.extend(units);
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn a_power_cut_leaves_any_version_since_the_last_flush() {
    let found = after_power_cuts(|rig| {
        rig.write(1, false);
        rig.ask(0, Action::Flush);
        rig.write(2, false);
        rig.write(3, false);
    });
    assert_eq!(found, [1, 2, 3]);
}

#[test]
fn a_durable_write_survives_and_replaces_what_was_before() {
    assert_eq!(
        after_power_cuts(|rig| {
            rig.write(1, false);
            rig.write(2, true);
        }),
        [2]
    );
}

#[test]
fn a_flush_does_not_cover_what_ends_after_it_came() {
    let found = after_power_cuts(|rig| {
        rig.handle.submit(Operation { token: 1, offset: 0, action: Action::Flush });
        rig.write(1, false);
        rig.disk.0.borrow().machine.pass_until(10_000);
        rig.handle.poll(&mut Vec::new());
        assert_eq!(rig.disk.next_due(), None);
    });
    assert_eq!(found, [0, 1]);
}

#[test]
fn what_is_under_way_may_happen_in_part_when_the_power_fails_and_when_its_user_dies() {
    let begin = |rig: &mut Rig| {
        let from = rig.pool.allocate(UNITS * UNIT).whole();
        from.copy_from(&[1; UNITS * UNIT]);
        rig.handle.submit(Operation {
            token: 1,
            offset: 0,
            action: Action::Write { from, durable: true },
        });
    };
    assert_eq!(after_power_cuts(begin), [0, 1]);
    let mut found = Vec::new();
    for seed in 0..100 {
        let mut rig = Rig::new(seed);
        begin(&mut rig);
        rig.disk.lose_user();
        found.extend(rig.units());
    }
    assert!(found.contains(&0) && found.contains(&1));
}

#[test]
fn a_killed_user_loses_nothing_that_has_ended() {
    let mut rig = Rig::new(1);
    rig.write(1, false);
    rig.disk.lose_user();
    assert_eq!(rig.units(), [1; UNITS]);
}

#[test]
fn a_dead_disk_fails_and_keeps_what_it_has() {
    let mut rig = Rig::new(1);
    rig.write(1, false);
    rig.disk.set_dead(true);
    let from = rig.pool.allocate(UNITS * UNIT).whole();
    assert!(rig.handle.carry_out(0, Action::Write { from, durable: true }).unwrap().is_err());
    assert_eq!(rig.disk.failed(), 1);
    rig.disk.set_dead(false);
    assert_eq!(rig.units(), [1; UNITS]);
}

#[test]
fn without_power_nothing_happens() {
    let mut rig = Rig::new(1);
    rig.disk.0.borrow().machine.power_on(Some(1));
    assert!(rig.handle.carry_out(0, Action::Flush).is_none());
    rig.disk.0.borrow().machine.power_on(Some(2));
    assert!(rig.handle.carry_out(0, Action::Flush).is_some());
}
