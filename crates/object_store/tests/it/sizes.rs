//! The learned size of fetches beside fixed ones, in virtual time: equal on every machine.

#[path = "../../examples/fetch_sizes/loads.rs"]
mod loads;

use floe_object_store::FetchSize;

use loads::{Load, Scale, run};

/// All that a load reads fits into memory: the drive has no virtual time.
const MEMORY: u64 = 1 << 29;
const SCALE: Scale = Scale { points: 60, scans: 1, files: 5, other_files: 6 };
const FIXED: [FetchSize; 3] =
    [FetchSize::Fixed(64 << 10), FetchSize::Fixed(1 << 20), FetchSize::Fixed(4 << 20)];

/// Returns the time with the learned size as a share of that with the best fixed one.
fn share(load: Load, is_shared: bool) -> f64 {
    let time = |fetch| {
        let outcome = run(load, Some(fetch), is_shared, MEMORY, SCALE);
        assert!(outcome.requests > 0 && outcome.bytes > 0, "nothing was requested");
        outcome.time.as_secs_f64()
    };
    time(FetchSize::Adaptive) / FIXED.map(time).into_iter().fold(f64::INFINITY, f64::min)
}

#[test]
fn the_learned_size_is_as_good_as_the_best_fixed_one() {
    for is_shared in [false, true] {
        for load in [Load::Points, Load::Scans, Load::Columns, Load::OtherColumns, Load::All] {
            // The planner was not adjusted on the last columns.
            let most = if load == Load::OtherColumns { 1.1 } else { 1.05 };
            let share = share(load, is_shared);
            assert!(share <= most, "{load:?}, one link: {is_shared}: {share:.2}");
        }
    }
}
