//! As `linearizable`, where the system has no barrier for whole processes and hits fence: alone in
//! its process, which cannot go back.

mod history;

use floe_memory::Cache;
use floe_memory::policy::Lru;
use history::{Room, frozen_round, round, rounds};

#[test]
fn operations_on_a_key_have_an_order_where_hits_fence() {
    floe_memory::without_membarrier();
    assert!(!floe_memory::hits_are_fenceless());
    for seed in 0..rounds() / 2 {
        round(&Cache::builder().capacity(100).build(), seed, Room::Enough, 0);
        round(&Cache::builder().capacity(4).shards(1).build(), seed, Room::Scarce, 2);
        round(&Cache::builder().capacity(4).policy(Lru::default()).build(), seed, Room::Scarce, 2);
        frozen_round(&Cache::builder().capacity(100).build(), seed, Room::Enough, 0);
        frozen_round(&Cache::builder().capacity(4).shards(1).build(), seed, Room::Scarce, 2);
        let cache =
            Cache::builder().weight_capacity(1 << 40).weigher(|_: &u64, _: &u64| 1u32).shards(1);
        round(&cache.build(), seed, Room::Enough, 20);
    }
}
