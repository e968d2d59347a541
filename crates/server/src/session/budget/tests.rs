//! Tests of budgets with clients that never give memory back, beside others that do.

use floe_testkit::Random;

use super::*;
use crate::limits::{Limits, MOST_CONNECTIONS};

/// Longest request of a client, in bytes.
const LONGEST: usize = 32 << 20;

fn as_served() -> Budget {
    Budget::new(Limits::default().budget_bytes, MOST_CONNECTIONS)
}

/// Makes a client take memory for requests of random sizes, until one has to wait.
fn fill(budget: &Budget, client: u32, random: &mut Random) {
    let most = [4 << 10, 128 << 10, 2 << 20, LONGEST][random.below(4)];
    while budget.take(client, 512 + random.below(most)) {}
    while budget.next_in_turn().is_some() {}
}

/// Returns the least part of the common memory that `clients` clients leave free. The result is
/// halved, since one client may have a request beyond its share.
fn free_after(clients: usize) -> f64 {
    (0..clients).fold(1.0, |free, _| free - free * free / COMMON_SHARE as f64) / 2.0
}

#[test]
fn small_requests_are_granted_at_once_whoever_else_stalls_for_ever() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let (limit, clients) =
            ([1 << 20, 64 << 20, 256 << 20][random.below(3)], 2 + random.below(300));
        let budget = Budget::new(limit, clients);
        let stalled = random.below(clients);
        for step in 0..20 * clients {
            let client = random.below(clients) as u32;
            if (client as usize) < stalled {
                // It may stand in line already, as a session that asks for nothing more until it is
                // served.
                if !budget.state.borrow().waiting.contains_key(&client) {
                    budget.take(client, 1 + random.below(LONGEST));
                }
                continue;
            }
            let bytes = 1 + random.below(budget.own);
            assert!(
                budget.take(client, bytes),
                "seed {seed}, step {step}: {bytes} of {}",
                budget.own
            );
            budget.give_back(client, bytes);
            while budget.next_in_turn().is_some() {}
        }
        assert!(budget.state.borrow().used <= budget.common.max(LONGEST), "seed {seed}");
    }
}

#[test]
fn what_greedy_clients_leave_free_falls_as_their_number_grows_and_no_faster() {
    for (clients, promised) in
        [(1, 3 << 20), (8, 640 << 10), (24, 192 << 10), (200, 64 << 10), (1023, 64 << 10)]
    {
        for seed in 0..20 {
            let (budget, mut random) = (as_served(), Random(seed));
            (0..clients).for_each(|client| fill(&budget, client, &mut random));
            let free = budget.free(&budget.state.borrow());
            let least = free_after(clients as usize) * budget.common as f64;
            assert!(
                free as f64 >= least,
                "{clients} clients, seed {seed}: {free} bytes, not {least}"
            );
            let honest = 1023;
            for _ in 0..3 {
                assert!(
                    budget.take(honest, promised),
                    "{clients} clients, seed {seed}, {free} bytes free"
                );
                budget.give_back(honest, promised);
            }
        }
    }
}

#[test]
fn the_memory_of_a_thread_is_its_limit() {
    for seed in 0..20 {
        let (budget, mut random) = (as_served(), Random(seed));
        (0..MOST_CONNECTIONS as u32).for_each(|client| fill(&budget, client, &mut random));
        assert!(budget.used() <= Limits::default().budget_bytes, "seed {seed}: {}", budget.used());
    }
}

#[test]
fn a_large_request_is_not_passed_over_by_many_small_ones() {
    let (budget, busy) = (as_served(), 64);
    let mut held: Vec<Vec<usize>> = vec![Vec::new(); busy];
    // Each of the busy clients always wants more and gives back the oldest as soon as it has to
    // wait.
    let turn = |held: &mut Vec<Vec<usize>>, random: &mut Random| {
        for (client, held) in held.iter_mut().enumerate() {
            let waits =
                |budget: &Budget| budget.state.borrow().waiting.contains_key(&(client as u32));
            while !waits(&budget) {
                let bytes = 4096 * (1 + random.below(256));
                held.push(bytes);
                budget.take(client as u32, bytes);
            }
        }
    };
    let mut random = Random(3);
    turn(&mut held, &mut random);
    assert!(!budget.take(1000, LONGEST), "there is no room for it at once");
    for _ in 0..10 {
        for (client, held) in held.iter_mut().enumerate() {
            let granted = held.len() - 1; // the last is waited for
            held.drain(..granted).for_each(|bytes| budget.give_back(client as u32, bytes));
            while let Some(next) = budget.next_in_turn() {
                if next == 1000 {
                    return;
                }
            }
        }
        turn(&mut held, &mut random);
    }
    panic!("it waits still");
}

#[test]
fn among_equals_the_first_to_come_is_served_first_and_small_requests_pass_large_ones() {
    let budget = Budget::new(1 << 20, 16);
    assert_eq!((budget.own, budget.common), (16 << 10, 768 << 10));
    let own = budget.own;
    (0..6).for_each(|client| assert!(budget.take(client, own)));
    let share = budget.common / COMMON_SHARE;
    assert!(budget.take(0, share), "a sixth of what is common");
    assert!(!budget.take(0, 1), "and no more");
    let less = share - 4096;
    assert!(!budget.take(1, less) && !budget.take(2, less), "it is less by now");
    assert!(budget.take(3, share / 2));
    budget.give_back(3, share / 2);
    budget.give_back(0, share);
    assert_eq!(budget.next_in_turn(), Some(0));
    assert_eq!((budget.next_in_turn(), budget.take(4, less)), (Some(1), false));
    budget.give_back(1, less);
    budget.give_back(0, 1);
    assert_eq!((budget.next_in_turn(), budget.next_in_turn()), (Some(2), None));
    budget.leave(4);
    assert!(!budget.is_waited_for());
}

#[test]
fn a_request_larger_than_all_there_is_is_served_alone() {
    let budget = Budget::new(1 << 20, 16);
    assert!(budget.take(1, 64 << 10));
    assert!(!budget.take(2, 4 << 20));
    assert!(budget.take(3, 32 << 10), "small ones pass it");
    budget.give_back(3, 32 << 10);
    assert_eq!(budget.next_in_turn(), None);
    budget.give_back(1, 64 << 10);
    assert_eq!(budget.next_in_turn(), Some(2));
    assert!(!budget.take(4, 8 << 20), "one at a time");
    assert!(budget.is_in_the_way(2) && !budget.is_in_the_way(4));
    budget.give_back(2, 4 << 20);
    assert_eq!(budget.next_in_turn(), Some(4));
}

#[test]
fn a_client_that_waits_for_itself_is_in_nobodys_way() {
    let budget = as_served();
    while budget.take(1, 1 << 20) {}
    assert!(budget.is_waited_for() && !budget.is_in_the_way(1));
    // Nor is it where there is room for others.
    assert!(budget.take(2, 8 << 20) && !budget.is_in_the_way(1));
    let mut random = Random(1);
    (3..40).for_each(|client| fill(&budget, client, &mut random));
    assert!(budget.is_in_the_way(1) && !budget.is_in_the_way(500));
}

#[test]
fn the_free_memory_a_share_needs_is_the_least_that_gives_it() {
    let budget = as_served();
    let most = budget.common / COMMON_SHARE;
    assert_eq!((most, budget.own), (32 << 20, 64 << 10));
    let mut random = Random(5);
    for _ in 0..10_000 {
        let bytes = 1 + random.below(most);
        let need = budget.need(bytes);
        assert!(budget.share(need) >= bytes && budget.share(need - 1) < bytes, "{bytes}: {need}");
        assert!(budget.fits(bytes, need) && !budget.fits(bytes, need - 1), "{bytes}: {need}");
    }
    assert_eq!(budget.need(most + 1), usize::MAX);
}
