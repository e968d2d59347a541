//! The state machine against a model that reads raw commands, as the specification's tables do.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::wire::io as opcode;

const HOSTS: u8 = 4;

fn id(host: u8) -> HostId {
    [host; 16]
}

/// A command of a host, before its encoding.
#[derive(Debug, Clone, Copy)]
struct Raw {
    host: u8,
    opcode: u8,
    action: u32,
    ignores_key: bool,
    kind: u8,
    /// CPTPL of Reservation Register.
    persistence: u32,
    keys: [u64; 2],
}

impl Raw {
    fn encode(&self) -> (NvmeCommand, Vec<u8>) {
        let mut word = self.action | u32::from(self.ignores_key) << 3;
        word |= match self.opcode {
            opcode::RESERVATION_REGISTER => self.persistence << 30,
            _ => u32::from(self.kind) << 8,
        };
        let command = NvmeCommand::new(self.opcode, 1).with(40, &word.to_le_bytes());
        let data = self.keys.map(u64::to_le_bytes).concat();
        let bytes = if self.opcode == opcode::RESERVATION_RELEASE { 8 } else { 16 };
        (command, data[..bytes].to_vec())
    }
}

fn raw() -> impl Strategy<Value = Raw> {
    let opcodes = prop_oneof![
        3 => Just(opcode::RESERVATION_REGISTER),
        4 => Just(opcode::RESERVATION_ACQUIRE),
        1 => Just(opcode::RESERVATION_RELEASE),
    ];
    let action = prop_oneof![8 => 0..3_u32, 1 => 3..8_u32];
    let kind = prop_oneof![12 => 1..7_u8, 1 => Just(0), 1 => 7..=255_u8];
    let keys = [0..3_u64, 0..3_u64];
    let ignores = prop::bool::weighted(0.15);
    (0..HOSTS, opcodes, action, ignores, kind, 0..4_u32, keys).prop_map(
        |(host, opcode, action, ignores_key, kind, persistence, keys)| Raw {
            host,
            opcode,
            action,
            ignores_key,
            kind,
            persistence,
            keys,
        },
    )
}

/// The access that each type leaves: that of the holder, of other registrants and of other hosts,
/// each as `r` and `w`.
const ACCESS: [(u8, [&str; 3]); 6] = [
    (1, ["rw", "r", "r"]),
    (2, ["rw", "", ""]),
    (3, ["rw", "rw", "r"]),
    (4, ["rw", "rw", ""]),
    (5, ["rw", "rw", "r"]),
    (6, ["rw", "rw", ""]),
];

/// Key of each host, if it is registered; the type and the hosts that hold it.
#[derive(Debug, Default, Clone, PartialEq)]
struct Model {
    keys: [Option<u64>; HOSTS as usize],
    kind: u8,
    holders: Vec<u8>,
    generation: u32,
    persists: bool,
}

impl Model {
    fn registrants(&self) -> Vec<u8> {
        (0..HOSTS).filter(|&host| self.key(host).is_some()).collect()
    }

    fn key(&self, host: u8) -> Option<u64> {
        self.keys[usize::from(host)]
    }

    fn is_of_all(kind: u8) -> bool {
        kind >= 5
    }

    fn hold(&mut self, kind: u8, host: u8) {
        self.kind = kind;
        self.holders = if Self::is_of_all(kind) { self.registrants() } else { vec![host] };
    }

    fn remove(&mut self, host: u8) {
        self.keys[usize::from(host)] = None;
        self.holders.retain(|&other| other != host);
        if self.holders.is_empty() {
            self.kind = 0;
        }
    }

    /// Returns the notices, or false for a conflict and true for an invalid field.
    fn apply(&mut self, raw: &Raw) -> Result<Vec<(u8, u8)>, bool> {
        const CONFLICT: bool = false;
        const INVALID: bool = true;
        let host = raw.host;
        let mut told = Vec::new();
        if raw.action > 2 {
            return Err(INVALID);
        }
        if raw.opcode == opcode::RESERVATION_REGISTER {
            // Linux unregisters by replacing its key with 0.
            let action = if raw.action == 2 && raw.keys[1] == 0 { 1 } else { raw.action };
            if raw.persistence == 1 || action == 0 && raw.keys[1] == 0 {
                return Err(INVALID);
            }
            let matches = raw.ignores_key || self.key(host) == Some(raw.keys[0]);
            match action {
                0 if self.key(host).is_some_and(|key| key != raw.keys[1]) => return Err(CONFLICT),
                1 if !matches || self.key(host).is_none() => return Err(CONFLICT),
                2 if !matches => return Err(CONFLICT),
                1 => {
                    let kind = self.kind;
                    self.remove(host);
                    if kind >= 3 && self.kind == 0 {
                        told.extend(self.registrants().into_iter().map(|other| (other, 2)));
                    }
                }
                _ => {
                    self.keys[usize::from(host)] = Some(raw.keys[1]);
                    if Self::is_of_all(self.kind) {
                        self.holders = self.registrants();
                    }
                }
            }
            self.generation += 1;
            self.persists = match raw.persistence {
                0 => self.persists,
                given => given == 3,
            };
            return Ok(told);
        }
        let acquires = raw.opcode == opcode::RESERVATION_ACQUIRE;
        if raw.ignores_key || acquires && !(1..=6).contains(&raw.kind) {
            return Err(INVALID);
        }
        if !acquires && raw.action == 2 {
            return Err(INVALID);
        }
        if self.key(host) != Some(raw.keys[0]) {
            return Err(CONFLICT);
        }
        let others =
            |model: &Self| model.registrants().into_iter().filter(|&it| it != host).collect();
        match (acquires, raw.action) {
            (true, 0) if self.kind == 0 => self.hold(raw.kind, host),
            (true, 0) if self.kind == raw.kind && self.holders.contains(&host) => {}
            (true, 0) => return Err(CONFLICT),
            (true, _) => {
                let victim = raw.keys[1];
                let was = self.kind;
                let all: Vec<u8> = others(self);
                let has_victim = |it: &u8| self.key(*it) == Some(victim);
                let gone: Vec<u8> = match victim {
                    0 if Self::is_of_all(was) => all,
                    0 if was > 0 => return Err(INVALID),
                    _ => all.into_iter().filter(has_victim).collect(),
                };
                let takes = match was {
                    0 => false,
                    5 | 6 => victim == 0,
                    _ => self.key(self.holders[0]) == Some(victim),
                };
                if !takes && gone.is_empty() && self.key(host) != Some(victim) {
                    return Err(CONFLICT);
                }
                for other in gone {
                    self.remove(other);
                    told.push((other, 1));
                }
                if takes {
                    self.hold(raw.kind, host);
                    if was != raw.kind {
                        let left: Vec<u8> = others(self);
                        told.extend(left.into_iter().map(|other| (other, 2)));
                    }
                }
                self.generation += 1;
            }
            (false, 0) => {
                if self.holders.contains(&host) {
                    if self.kind != raw.kind {
                        return Err(INVALID);
                    }
                    if self.kind >= 3 {
                        let left: Vec<u8> = others(self);
                        told.extend(left.into_iter().map(|other| (other, 2)));
                    }
                    (self.kind, self.holders) = (0, Vec::new());
                }
            }
            (false, _) => {
                let left: Vec<u8> = others(self);
                told.extend(left.into_iter().map(|other| (other, 3)));
                (0..HOSTS).for_each(|other| self.remove(other));
                self.generation += 1;
            }
        }
        Ok(told)
    }

    fn allows(&self, host: u8, letter: char) -> bool {
        let Some((_, access)) = ACCESS.iter().find(|(kind, _)| *kind == self.kind) else {
            return true;
        };
        let class = match (self.holders.contains(&host), self.key(host)) {
            (true, _) => 0,
            (false, Some(_)) => 1,
            (false, None) => 2,
        };
        access[class].contains(letter)
    }
}

proptest! {
    #[test]
    fn commands_do_what_the_tables_say(commands in prop::collection::vec(raw(), 1..60)) {
        let (mut real, mut model) = (Reservation::default(), Model::default());
        for raw in &commands {
            let before = (real.clone(), model.clone());
            let (command, data) = raw.encode();
            let done = ReservationOrder::parse(&command, &data).and_then(|order| {
                real.apply(&id(raw.host), order)
            });
            let expected = model.apply(raw);
            match (&done, &expected) {
                (Ok(notices), Ok(told)) => {
                    let mut notices: Vec<(u8, u8)> =
                        notices.iter().map(|(host, notice)| (host[0], *notice as u8)).collect();
                    let mut told = told.clone();
                    notices.sort_unstable();
                    told.sort_unstable();
                    prop_assert_eq!(notices, told, "{:?}", raw);
                }
                (Err(refusal), Err(is_invalid)) => {
                    let wanted = [Refusal::Conflict, Refusal::InvalidField];
                    prop_assert_eq!(*refusal, wanted[usize::from(*is_invalid)], "{:?}", raw);
                    prop_assert_eq!((&real, &model), (&before.0, &before.1));
                }
                _ => prop_assert!(false, "{raw:?}: {done:?}, but {expected:?} of {before:?}"),
            }
            let report = real.report();
            prop_assert_eq!(&report[..4], &model.generation.to_le_bytes());
            prop_assert_eq!((report[4], report[9]), (model.kind, u8::from(model.persists)));
            let entry = |host: &u8| {
                let mut entry = vec![0xff, 0xff, u8::from(model.holders.contains(host))];
                entry.resize(8, 0);
                entry.extend(model.key(*host).unwrap().to_le_bytes());
                entry.extend(id(*host));
                entry.resize(64, 0);
                entry
            };
            let entries: Vec<u8> = model.registrants().iter().flat_map(entry).collect();
            prop_assert_eq!(usize::from(report[5]) * 64, entries.len());
            prop_assert_eq!(&report[64..], &entries[..]);
            for host in 0..HOSTS {
                let rights = [false, true].map(|writes| real.allows(&id(host), writes));
                prop_assert_eq!(rights, ['r', 'w'].map(|letter| model.allows(host, letter)));
            }
            let parts = (real.registrants().clone(), real.held(), real.generation());
            let again = Reservation::restore(parts.0, parts.1, parts.2).expect("it is sound");
            prop_assert_eq!(again, Reservation { persists: true, ..real.clone() });
        }
    }
}

#[test]
fn parts_that_contradict_each_other_are_no_reservation() {
    let hosts = |keys: &[(u8, u64)]| keys.iter().map(|(host, key)| (id(*host), *key)).collect();
    let restore = |keys: &[(u8, u64)], held| Reservation::restore(hosts(keys), held, 1).is_some();
    let (one, all) = (ReservationType::WriteExclusive, ReservationType::WriteExclusiveAll);
    assert!(restore(&[], None));
    assert!(restore(&[(1, 5)], Some((one, Some(id(1))))));
    assert!(restore(&[(1, 5)], Some((all, None))));
    assert!(!restore(&[(1, 0)], None), "a key is not zero");
    assert!(!restore(&[(1, 5)], Some((one, Some(id(2))))), "a holder is registered");
    assert!(!restore(&[(1, 5)], Some((one, None))));
    assert!(!restore(&[(1, 5)], Some((all, Some(id(1))))));
    assert!(!restore(&[], Some((all, None))));
}

#[test]
fn registrants_are_limited() {
    let mut reservation = Reservation::default();
    let register = ReservationOrder { action: Action::Register { key: 1 }, persists: None };
    let host = |number: usize| (number as u128).to_le_bytes();
    for number in 0..REGISTRANTS_MAX {
        assert_eq!(reservation.apply(&host(number), register), Ok(Vec::new()));
    }
    let one_more = reservation.apply(&host(REGISTRANTS_MAX), register);
    assert_eq!(one_more, Err(Refusal::Full));
    assert_eq!(reservation.registrants().len(), REGISTRANTS_MAX);
}

/// A store that counts what it saves, and fails on demand.
#[derive(Debug, Default, Clone)]
struct Counting(Arc<Mutex<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    saves: usize,
    fails: bool,
    kept: BTreeMap<String, Reservation>,
}

impl ReservationStore for Counting {
    fn save(&self, reservations: &BTreeMap<String, Reservation>) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.fails {
            return Err(io::Error::other("full"));
        }
        state.saves += 1;
        state.kept = reservations.clone();
        Ok(())
    }
}

fn change(all: &Arc<Reservations>, host: u8, action: Action, persists: Option<bool>) -> Status {
    let order = ReservationOrder { action, persists };
    let change = ReservationChange::new(all, "disk", id(host), order);
    change.run();
    match change.result().expect("no queue has to acknowledge it") {
        Ok(()) => Status::SUCCESS,
        Err(status) => status,
    }
}

#[test]
fn only_what_survives_is_saved_and_a_change_that_cannot_be_saved_is_none() {
    let store = Counting::default();
    let all = Arc::new(Reservations::new(BTreeMap::new(), Some(Box::new(store.clone()))));
    let saved = || store.0.lock().unwrap().saves;
    let register = |key| Action::Register { key };
    assert!(change(&all, 1, register(5), None).is_success());
    assert_eq!(saved(), 0, "nothing survives");
    assert!(change(&all, 1, register(5), Some(true)).is_success());
    assert_eq!(saved(), 1);
    store.0.lock().unwrap().fails = true;
    let before = all.of("disk");
    let kind = ReservationType::ExclusiveAccess;
    let failed = change(&all, 1, Action::Acquire { key: 5, kind }, None);
    assert_eq!(failed, Status::INTERNAL_ERROR.final_());
    assert_eq!(all.of("disk"), before);
    assert!(all.forget("disk").is_err());
    store.0.lock().unwrap().fails = false;
    assert!(change(&all, 1, Action::Acquire { key: 5, kind }, None).is_success());
    let kept = store.0.lock().unwrap().kept.clone();
    let again = Reservations::new(kept, None);
    assert_eq!(again.of("disk"), all.of("disk"));
    assert!(change(&all, 1, Action::Persist, Some(false)).is_success());
    assert!(store.0.lock().unwrap().kept.is_empty(), "it no longer survives");
    assert_eq!(saved(), 3);
    let volatile = Arc::new(Reservations::new(BTreeMap::new(), None));
    let refused = change(&volatile, 1, register(5), Some(true));
    assert_eq!(refused, Status::INVALID_FIELD.final_(), "nothing could keep it");
    assert_eq!((all.capabilities("disk"), volatile.capabilities("disk")), (0xff, 0xfe));
    all.exclude(["disk".to_owned()]);
    assert_eq!(all.capabilities("disk"), 0);
}

#[test]
fn a_host_that_does_not_look_for_long_sees_the_latest_notices() {
    let all = Arc::new(Reservations::default());
    let mut log = ReservationLog::new(Some(&all));
    let register = |host| change(&all, host, Action::Register { key: host.into() }, None);
    for _ in 0..600 {
        assert!(register(1).is_success() && register(2).is_success());
        assert!(change(&all, 1, Action::Clear { key: 1 }, None).is_success());
    }
    let id_of = |volume: &str| (volume == "disk").then_some(7);
    assert!(log.look(&all, &id(2), id_of));
    assert!(!log.look(&all, &id(2), id_of), "it has seen them");
    let page = log.page();
    assert_eq!((page[8], page[9], page[12]), (3, 254, 7));
    assert_eq!(page[..8], 346_u64.to_le_bytes(), "older ones are lost, and the number says so");
    for _ in 0..254 {
        assert!(log.read());
    }
    assert!(!log.read());
    assert_eq!(log.page(), [0; 64]);
    log.set_mask(7, 1 << 3);
    assert!(register(1).is_success() && register(2).is_success());
    assert!(change(&all, 1, Action::Clear { key: 1 }, None).is_success());
    assert!(!log.look(&all, &id(2), id_of), "it does not want them");
}
