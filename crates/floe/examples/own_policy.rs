//! A policy of one's own, and its hits beside those of others.
//!
//! "Middle" is LRU, but new entries come in half-way down the list, so that entries that are used
//! once leave before they push out those that were hit. The list and its bookkeeping are `Lists`; a
//! policy says what a hit, an insertion and an eviction do to them.
//!
//! `cargo run --release -p floe --example own_policy`

use floe::Cache;
use floe::policy::{
    Access, AlwaysPromote, Listed, Lists, Lru, Parameters, Policy, PolicyInfo, Replacement, S3Fifo,
    Slot,
};

/// Entries that were hit.
const HOT: usize = 0;
/// Entries that were not hit since they came in or cooled down.
const COLD: usize = 1;

/// LRU with insertion half-way down the list.
#[derive(Debug, Clone, Default)]
struct Middle {
    lists: Lists<2>,
}

impl Policy for Middle {
    const INFO: PolicyInfo =
        PolicyInfo::new("middle", "LRU, but new entries come in half-way down", "an example");

    fn new(_: &Parameters) -> Self {
        Self::default()
    }
}

impl Listed for Middle {
    /// Each hit promotes.
    type Marks = AlwaysPromote;
    type Lists = Lists<2>;

    fn lists(&self) -> &Lists<2> {
        &self.lists
    }

    fn lists_mut(&mut self) -> &mut Lists<2> {
        &mut self.lists
    }

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [HOT, COLD]
    }

    fn promote(&mut self, slot: Slot) {
        self.lists.move_to_head(HOT, slot);
        // At most half of the entries are hot: the one unused for longest cools down.
        if self.lists.size(HOT) > self.lists.capacity() / 2
            && let Some(coolest) = self.lists.tail(HOT)
        {
            self.lists.move_to_head(COLD, coolest);
        }
    }

    fn insert(&mut self, slot: Slot, _: &Access) {
        self.lists.push_head(COLD, slot);
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.lists.pop_tail(COLD).or_else(|| self.lists.pop_tail(HOT))
    }
}

/// Requests popular keys, and between them keys that never come back. Returns the hit ratio.
fn hit_ratio(policy: impl Replacement) -> f64 {
    let cache = Cache::builder().capacity(1000).policy(policy).build();
    for request in 0..1_000_000u64 {
        let random = request.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let key = if request % 2 == 0 { random % 900 } else { 1_000_000 + request };
        if cache.get(&key).is_none() {
            cache.insert(key, ());
        }
    }
    cache.stats().hit_ratio().unwrap_or(0.0)
}

fn main() {
    for (name, ratio) in [
        ("middle", hit_ratio(Middle::default())),
        ("lru", hit_ratio(Lru::default())),
        ("s3-fifo", hit_ratio(S3Fifo::default())),
    ] {
        println!("{name:<8} {:4.1} % hits", 100.0 * ratio);
    }
}

#[test]
fn popular_keys_stay_beside_a_scan() {
    let (middle, lru) = (hit_ratio(Middle::default()), hit_ratio(Lru::default()));
    assert!(middle > lru, "{middle} {lru}");
}
