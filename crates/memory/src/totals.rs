//! Adding up what threads and shards have counted.

use floe_policy::Replacement;

use crate::inner::Inner;
use crate::shard::Shard;
use crate::stats::{AdmissionStats, Stats};
use crate::sync::Ordering;

impl<K, V, P: Replacement, S> Inner<K, V, P, S> {
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            loads: self.loads.begun.load(Ordering::Relaxed), // counts, as all of these
            failed_loads: self.loads.failed.load(Ordering::Relaxed),
            capacity: self.budget.entries_limit(),
            weight_capacity: self.budget.weight_limit(),
            policy: self.about.name,
            shards: self.shards.len() as u64,
            admission: self
                .admission
                .clone()
                .map(|name| AdmissionStats { name, ..AdmissionStats::default() }),
            freezing: self.frozen.stats(),
            memory_bytes: self.frozen.index_bytes() as u64,
            ..Stats::default()
        };
        stats = self.threads.records.fold(stats, |stats, record| Stats {
            hits: stats.hits + record.hits(),
            frozen_hits: stats.frozen_hits + record.frozen_hits(),
            misses: stats.misses + record.misses.get(),
            promotions_skipped: stats.promotions_skipped + record.promotions_skipped.get(),
            ..stats
        });
        for shard in self.shards.iter() {
            let owner = shard.owner();
            let (counts, seldom) = (&owner.counts, &owner.counts.seldom);
            stats.insertions += counts.insertions;
            stats.replacements += counts.replacements;
            stats.rejections += seldom.rejections;
            stats.evictions += counts.evictions;
            stats.expirations += seldom.expirations;
            stats.removals += seldom.removals;
            stats.promotions += seldom.promotions;
            if let (Some(sum), Some(admission)) = (&mut stats.admission, &owner.admission) {
                let (offered, bypassed) = admission.offers();
                sum.offered += offered;
                sum.admitted += offered - bypassed;
                sum.bypassed += bypassed;
            }
            stats.entries += owner.room.held().entries as u64;
            stats.weight += owner.room.held().weight as u64;
            stats.frozen += owner.frozen.count() as u64;
            stats.pinned += owner.slots.pinned() as u64;
            stats.waiting += owner.limbo.len() as u64;
            stats.memory_bytes += (owner.memory_bytes()
                + shard.table().memory_bytes()
                + size_of::<Shard<K, V, P>>()) as u64;
        }
        stats
    }
}
