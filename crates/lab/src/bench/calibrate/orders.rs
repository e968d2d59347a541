//! Measures changes of an order by themselves: without lock, cache and other threads.

use std::hint::black_box;
use std::time::Instant;

use floe_policy::registry::{Choice, Visitor};
use floe_policy::{Access, HitKind, Marks, Policy, Slot, mix};

use crate::bench::statistics::Estimate;

/// Slots of the order: enough that looks at the clock do not count, and few enough that its arrays
/// fit into the first cache of a processor, as the ends of a list do that is in use.
const SLOTS: u32 = 1024;

/// Rounds over all slots that make a batch.
const ROUNDS: u64 = 32;

/// Times of changes in nanoseconds, one of each batch.
#[derive(Debug, Clone, Default)]
pub(super) struct OrderTimes {
    /// Of putting in.
    pub(super) insert: Vec<f64>,
    /// Of choosing a victim.
    pub(super) evict: Vec<f64>,
    /// Of a promotion, where hits owe one.
    pub(super) promote: Option<Vec<f64>>,
    /// Of passing one by that was hit, where that happens.
    pub(super) step: Option<Vec<f64>>,
}

/// Measures so many batches. Entries hit `touches` times are passed by once.
pub(super) fn orders(choice: &Choice, touches: Option<u32>, batches: usize) -> OrderTimes {
    floe_policy::with(choice, Batches { touches, batches })
}

struct Batches {
    touches: Option<u32>,
    batches: usize,
}

/// Returns the access that a slot is inserted with.
fn access(round: u64, slot: u32) -> Access {
    Access::new(mix(round << 32 | u64::from(slot)))
}

/// Time for each slot when something is done with all.
fn each(mut what: impl FnMut(u32)) -> f64 {
    let began = Instant::now();
    (0..SLOTS).for_each(|slot| what(black_box(slot)));
    began.elapsed().as_nanos() as f64 / f64::from(SLOTS)
}

/// The medians over the rounds of a batch of several times: a thread that is stopped now and then
/// makes single rounds long.
fn batch<const N: usize>(mut round: impl FnMut(u64) -> [f64; N]) -> [f64; N] {
    let rounds: Vec<[f64; N]> = (0..ROUNDS).map(&mut round).collect();
    std::array::from_fn(|at| Estimate::of(rounds.iter().map(|times| times[at])).median)
}

impl Visitor for Batches {
    type Out = OrderTimes;

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> OrderTimes {
        let mut order = make();
        order.reserve(SLOTS as usize);
        order.set_capacity(u64::from(SLOTS));
        let mut times = OrderTimes::default();
        let promotes = <P::Marks as Marks>::KIND == HitKind::LruLike;
        for number in 0..self.batches as u64 {
            let first = number * ROUNDS;
            let [nothing, insert, promote, evict] = batch(|round| {
                let nothing = each(|slot| _ = black_box(access(first + round, slot)));
                let insert = each(|slot| order.insert(Slot(slot), &access(first + round, slot)));
                let promote = if promotes { each(|slot| order.promote(Slot(slot))) } else { 0.0 };
                let evict = each(|_| _ = black_box(order.evict(None)));
                [nothing, insert, promote, evict]
            });
            times.insert.push(insert - nothing);
            times.evict.push(evict - nothing);
            if promotes {
                times.promote.get_or_insert_default().push(promote - nothing);
            }
            let Some(touches) = self.touches else { continue };
            let [past] = batch(|round| {
                for slot in (0..SLOTS).map(Slot) {
                    order.insert(slot, &access(first + round, slot.0));
                    (0..touches).for_each(|_| _ = order.marks().touch(slot));
                }
                [each(|_| _ = black_box(order.evict(None)))]
            });
            times.step.get_or_insert_default().push(past - evict);
        }
        times
    }
}
