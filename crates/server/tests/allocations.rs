//! Serving allocates nothing once everything has grown to its size. Alone in its process, whose
//! allocations it counts.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "it/rig.rs"]
mod rig;

use std::time::Duration;

use floe_block::{MemoryWrite, WriteMode};
use floe_testkit::allocations::{Counting, of_other_threads};
use rig::Setup;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Of three requests each: a tenth of an allocation a round is far below one a request.
const ROUNDS: u64 = 500;

/// Hits and overwrites, one at a time, over two threads: half of them are served by the other one,
/// unless memory has them. A tier in memory that is to hold writes keeps an account of them that
/// grows and shrinks; its copies cost nothing.
#[test]
fn requests_allocate_nothing() {
    for (mode, memory) in [
        (WriteMode::Through, None),
        (WriteMode::Back, None),
        (WriteMode::Through, Some(MemoryWrite::Through)),
        (WriteMode::Back, Some(MemoryWrite::Through)),
    ] {
        let mut setup = Setup::new(mode).memory(memory);
        // Samples for the live page are no requests.
        setup.config.limits.sample_interval = Duration::from_secs(86400);
        let rig = setup.start().unwrap();
        let mut client = rig.client();
        let mut data = vec![7; 4096];
        let mut round = |requests: u64| {
            for at in 0..requests {
                let offset = at % 64 * 16384;
                client.read(offset, &mut data).unwrap();
                client.read(offset, &mut data).unwrap(); // from memory, if there is any
                client.write(offset, &data, false).unwrap();
            }
        };
        round(1000);
        let before = of_other_threads();
        round(ROUNDS);
        let made = of_other_threads() - before;
        // Left for what still grows when more meets there than ever before, which is a matter of
        // timing, and for pages that have left memory, which are dropped in batches.
        assert!(
            made < ROUNDS / 10,
            "{mode:?}, memory {memory:?}: {made} allocations for {ROUNDS} rounds"
        );
        let hits = rig.status().memory.map_or(0, |memory| memory.read_hits);
        assert_eq!(hits >= ROUNDS, memory.is_some());
        rig.end();
    }
}
