//! Tests of moving keys from one index to a larger one, without a shard.

use crate::index::{Hash32, Index, Places, Renewals, Table};
use crate::owner::Tenant;
use crate::owner::slots::{IndexGrowth, MOVED_AT_ONCE};
use crate::sync::Arc;

/// Returns a place for a key's entry. It is only compared.
fn place(key: u32) -> u32 {
    key + 1
}

/// Returns the slot of the entry at a place.
fn slot_at(place: u32) -> u32 {
    place - 1
}

fn hash(key: u32) -> Hash32 {
    Hash32(key.wrapping_mul(0x9e37_79b9))
}

/// Inserts a key into the newest index.
fn insert(growth: &IndexGrowth, table: &Table<()>, key: u32) -> Tenant {
    let lane = table.index.insert(hash(key), place(key));
    Tenant::new(hash(key), lane, growth.era())
}

fn table(index: Index, old: Option<Index>) -> Table<()> {
    Table { index, places: Arc::new(Places::new()), old, marks: (), renewals: Renewals::none() }
}

fn finds(table: &Table<()>, key: u32) -> bool {
    table.indexes().any(|index| index.find(hash(key), |found| found == place(key)).is_some())
}

#[test]
fn an_index_is_as_large_as_all_slots_after_some_doublings() {
    for slots in [1, 64, 1000, 1024, 1025, 5000, 65_536, 100_000] {
        let mut growth = IndexGrowth::new(slots);
        assert!(growth.keys_max() <= 1024, "{slots} slots");
        while growth.keys_max() < slots {
            let (before, old) = (growth.keys_max(), Some(growth.index()));
            let table = table(growth.begin(growth.doubled(slots)), old);
            assert!(growth.keys_max() * 4 > before * 7, "{before} of {slots} slots");
            assert!(growth.advance(&mut [], &table, slot_at), "there are no keys to move");
        }
        assert_eq!(growth.keys_max(), slots);
    }
}

#[test]
fn keys_are_found_at_every_step_of_a_move_and_only_in_the_new_index_after_it() {
    const KEYS: u32 = 50;
    let mut growth = IndexGrowth::new(KEYS as usize);
    let mut table = self::table(growth.index(), None);
    let mut tenants: Vec<_> = (0..KEYS).map(|key| insert(&growth, &table, key)).collect();
    let gone = std::mem::replace(&mut tenants[7], Tenant::NONE);
    let (spot, _) = table.index.spot(gone.hash, gone.lane(), |found| found == place(7));
    table.index.remove(spot);
    table = self::table(growth.begin(growth.doubled(1000)), Some(table.index));
    assert_eq!(growth.keys_max(), 2 * KEYS as usize);
    for step in 1.. {
        tenants.push(insert(&growth, &table, KEYS + step));
        let is_done = growth.advance(&mut tenants, &table, slot_at);
        let keys = (0..KEYS).chain(KEYS + 1..=KEYS + step).filter(|&key| key != 7);
        keys.for_each(|key| assert!(finds(&table, key), "{key} after step {step}"));
        assert_eq!(is_done, growth.moved() == tenants.len());
        assert!(growth.moved() <= step as usize * MOVED_AT_ONCE);
        if is_done {
            break;
        }
    }
    assert!(!growth.is_moving());
    table = Table { old: None, ..table };
    let keys = (0..KEYS).chain(KEYS + 1..);
    for (tenant, key) in tenants.iter().zip(keys).filter(|(tenant, _)| tenant.is_some()) {
        assert!(std::ptr::eq(growth.index_of(tenant, &table), &raw const table.index));
        let (_, found) = table.index.spot(tenant.hash, tenant.lane(), |found| found == place(key));
        assert_eq!(found, place(key));
    }
}
