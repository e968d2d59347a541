//! The clients of one thread: which can go on, and which wait for the disk.
//!
//! A closed loop. A client whose lookup misses is *parked* until the disk answers, and then brings
//! what it waited for into the cache and goes on; the disk serves any number at once. Clients are
//! alike, so those that can go on are only counted. Invariant: clients that can go on and clients
//! that are parked are always as many as there were at first.

use std::collections::VecDeque;

/// A client that waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parked {
    /// The key it waits for.
    pub key: u64,
    /// When it began to.
    pub since_ns: u64,
    /// When the disk will have answered.
    pub due_ns: u64,
    /// When its lookup began, if its miss is one whose latency is looked at.
    pub began_ns: Option<u64>,
}

/// The clients of a thread.
#[derive(Debug, Clone)]
pub struct Clients {
    ready: usize,
    /// Those due first in front.
    parked: VecDeque<Parked>,
}

impl Clients {
    /// So many clients, all of which can go on.
    pub fn new(count: usize) -> Self {
        Self { ready: count, parked: VecDeque::with_capacity(count) }
    }

    /// Returns the number of clients that can go on.
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Returns the time of the disk's next answer, if any client waits for it.
    pub fn next_due(&self) -> Option<u64> {
        self.parked.front().map(|parked| parked.due_ns)
    }

    /// A client that could go on waits from now.
    ///
    /// # Panics
    /// When none could.
    pub fn park(&mut self, parked: Parked) {
        self.ready = self.ready.checked_sub(1).expect("only a client that could go on can miss");
        // Where the disk's times are equal, the newest client is due last and passes none.
        let after =
            self.parked.iter().rev().take_while(|other| other.due_ns > parked.due_ns).count();
        self.parked.insert(self.parked.len() - after, parked);
    }

    /// A client whose disk has answered by now; it can go on.
    pub fn wake(&mut self, now_ns: u64) -> Option<Parked> {
        if self.next_due()? > now_ns {
            return None;
        }
        self.ready += 1;
        self.parked.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(key: u64, since_ns: u64, due_ns: u64) -> Parked {
        Parked { key, since_ns, due_ns, began_ns: None }
    }

    #[test]
    fn a_parked_client_goes_on_when_the_disk_has_answered_and_not_before() {
        let mut clients = Clients::new(2);
        clients.park(parked(7, 100, 5100));
        assert_eq!((clients.ready(), clients.next_due()), (1, Some(5100)));
        assert_eq!(clients.wake(5099), None);
        assert_eq!(clients.wake(5100).map(|parked| parked.key), Some(7));
        assert_eq!((clients.ready(), clients.next_due()), (2, None));
    }

    #[test]
    fn clients_go_on_in_the_order_their_disks_answer() {
        let mut clients = Clients::new(5);
        let dues = [40, 10, 30, 10, 20];
        for (key, due) in (0..).zip(dues) {
            clients.park(parked(key, 0, due));
        }
        assert_eq!(clients.ready(), 0);
        let order: Vec<u64> =
            std::iter::from_fn(|| clients.wake(100)).map(|parked| parked.key).collect();
        assert_eq!(order, [1, 3, 4, 2, 0]); // the two due at 10 in the order they came
    }

    #[test]
    fn a_closed_loop_has_the_throughput_that_theory_says() {
        // Four clients, every lookup misses and takes 1 µs, the disk 9: four operations every 10
        // µs. Time is stepped.
        let mut clients = Clients::new(4);
        let (mut now, mut done) = (0, 0);
        while now < 10_000_000 {
            while clients.wake(now).is_some() {
                done += 1;
            }
            if clients.ready() == 0 {
                now = clients.next_due().expect("all are parked");
                continue;
            }
            now += 1000;
            clients.park(parked(0, now, now + 9000));
        }
        assert_eq!(done, 4 * (10_000_000 / 10_000 - 1)); // the last four are still parked
    }

    #[test]
    #[should_panic(expected = "only a client that could go on")]
    fn nobody_can_miss_when_all_are_parked() {
        let mut clients = Clients::new(1);
        clients.park(parked(0, 0, 1));
        clients.park(parked(0, 0, 1));
    }
}
