//! The calendar of events: each request has one event ahead of it, and the earliest is next.
//!
//! A tournament over a fixed number of players, each with a time: changing one replays only its own
//! matches, log₂ n of them, on a path that is known beforehand. Requests that wait for somebody
//! else are at infinity.

use std::hint::select_unpredictable;

/// The time that never comes.
pub(super) const NEVER: f64 = f64::INFINITY;

/// Times of a fixed number of requests.
pub(super) struct Calendar {
    /// `matches[1]` is the earliest of all, `matches[n]` of `matches[2 n]` and `matches[2 n + 1]`;
    /// the second half are the requests, and some that never come to make them a power of two. A
    /// winner's time stands beside it: the path up then depends on nothing that has to be looked up
    /// first.
    matches: Vec<Event>,
}

#[derive(Clone, Copy)]
struct Event {
    /// The bits of the time: none is negative, so they are in the same order.
    time: u64,
    request: u64,
}

impl Calendar {
    /// All at 0.
    pub(super) fn new(requests: u32) -> Self {
        let places = (requests as usize).next_power_of_two();
        let mut calendar =
            Self { matches: vec![Event { time: NEVER.to_bits(), request: 0 }; 2 * places] };
        (0..requests as usize).for_each(|request| calendar.set(request, 0.0));
        calendar
    }

    /// The earliest event, and whose it is.
    #[inline]
    pub(super) fn first(&self) -> (f64, usize) {
        let Event { time, request } = self.matches[1];
        (f64::from_bits(time), request as usize)
    }

    /// A request's next event.
    #[inline]
    pub(super) fn set(&mut self, request: usize, time: f64) {
        let mut place = self.matches.len() / 2 + request;
        let mut winner = Event { time: time.to_bits(), request: request as u64 };
        self.matches[place] = winner;
        while place > 1 {
            let other = self.matches[place ^ 1];
            // As likely as not: a branch would be guessed wrong half the time.
            let is_other = other.time < winner.time;
            winner.time = select_unpredictable(is_other, other.time, winner.time);
            winner.request = select_unpredictable(is_other, other.request, winner.request);
            place /= 2;
            self.matches[place] = winner;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_wins_whatever_changes() {
        for requests in [1u32, 2, 3, 7, 64, 72] {
            let mut calendar = Calendar::new(requests);
            let mut plain = vec![0.0; requests as usize];
            let mut random = super::super::shape::Random::new(u64::from(requests));
            for _ in 0..2000 {
                let request = (random.unit() * f64::from(requests)) as usize;
                let time = if random.unit() < 0.1 { NEVER } else { random.unit() };
                calendar.set(request, time);
                plain[request] = time;
                let earliest = plain.iter().fold(NEVER, |a, &b| a.min(b));
                let (time, first) = calendar.first();
                assert_eq!(time, earliest, "{requests} requests");
                assert!(time == NEVER || plain[first] == time, "{requests} requests");
            }
        }
    }
}
