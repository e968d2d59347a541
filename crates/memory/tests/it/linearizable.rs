//! Threads see a cache as if operations on a key came one after the other. Where hits do without a
//! fence.

use crate::history::{Room, frozen_round, round, rounds};
use floe_memory::Cache;
use floe_memory::policy::{Lfu, Lru, RelaxedLru, S3Fifo};

#[test]
fn operations_on_a_key_have_an_order_while_nothing_is_evicted() {
    for seed in 0..rounds() {
        round(&Cache::builder().capacity(100).shards(1).build(), seed, Room::Enough, 0);
        round(
            &Cache::builder().capacity(100).policy(Lru::default()).build(),
            seed,
            Room::Enough,
            0,
        );
    }
}

#[test]
fn operations_on_a_key_have_an_order_while_others_evict_it() {
    for seed in 0..rounds() {
        round(&Cache::builder().capacity(4).shards(1).build(), seed, Room::Scarce, 2);
        round(&Cache::builder().capacity(16).shards(4).build(), seed, Room::Scarce, 4);
        round(
            &Cache::builder().capacity(2).policy(RelaxedLru::default()).build(),
            seed,
            Room::Scarce,
            1,
        );
    }
}

#[test]
fn operations_on_a_key_have_an_order_while_tables_grow() {
    for seed in 0..rounds() / 4 {
        let cache = Cache::builder().weight_capacity(1 << 40).weigher(|_, _| 1u32).shards(1);
        round(&cache.policy(S3Fifo::default()).build(), seed, Room::Enough, 40);
    }
}

#[test]
fn operations_on_a_key_have_an_order_while_it_is_frozen_and_thawed() {
    for seed in 0..rounds() {
        frozen_round(&Cache::builder().capacity(100).shards(1).build(), seed, Room::Enough, 0);
        frozen_round(
            &Cache::builder().capacity(100).policy(Lru::default()).build(),
            seed,
            Room::Enough,
            0,
        );
    }
}

#[test]
fn operations_on_a_key_have_an_order_while_it_is_frozen_and_thawed_and_others_evict_it() {
    for seed in 0..rounds() {
        frozen_round(&Cache::builder().capacity(4).shards(1).build(), seed, Room::Scarce, 2);
        frozen_round(&Cache::builder().capacity(16).shards(4).build(), seed, Room::Scarce, 4);
        frozen_round(
            &Cache::builder().capacity(4).policy(Lfu::default()).build(),
            seed,
            Room::Scarce,
            1,
        );
    }
}

#[test]
fn operations_on_a_key_have_an_order_while_it_is_frozen_and_tables_grow() {
    for seed in 0..rounds() / 4 {
        let cache = Cache::builder().weight_capacity(1 << 40).weigher(|_, _| 1u32).shards(1);
        frozen_round(&cache.policy(S3Fifo::default()).build(), seed, Room::Enough, 40);
    }
}
