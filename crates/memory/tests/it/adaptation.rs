//! The settings that a policy such as `auto` chooses from, as a user sees them.

use floe_memory::Cache;

/// Looks keys up of which each comes twice, far apart, and inserts those that are missing.
fn serve(cache: &Cache<u64, (), floe_memory::policy::AnyPolicy>) {
    for at in 0..20_000u64 {
        for key in [1_000_000 + at, 1_000_000 + at.saturating_sub(40)] {
            if cache.get(&key).is_none() {
                cache.insert(key, ());
            }
        }
    }
}

#[test]
fn statistics_say_which_settings_a_policy_uses_and_why() {
    let builder = || Cache::<u64, ()>::builder().capacity(100);
    for shards in [1, 2] {
        let cache = builder().shards(shards).policy_named("auto").expect("it is a policy").build();
        let before = cache.stats().adaptation.expect("its settings change");
        assert_eq!((before.switches, before.settings[0].orders), (0, shards as u64));
        serve(&cache);
        let after = cache.stats().adaptation.expect("its settings change");
        let orders: u64 = after.settings.iter().map(|setting| setting.orders).sum();
        assert_eq!(orders, shards as u64, "{after}");
        let (used, baseline) = (after.in_use().expect("one is used"), &after.settings[0]);
        assert!(after.switches >= orders && used.name != baseline.name, "{after}");
        assert!(used.miss_ratio + 0.2 < baseline.miss_ratio, "{after}");
        assert!(after.sampled_requests > 1000.0, "{after}");
    }
    let cache = builder().policy_named("lru").expect("it is a policy").build();
    serve(&cache);
    assert_eq!(cache.stats().adaptation, None);
}
