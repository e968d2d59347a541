//! [`Prices`]: the time of a request and of a byte, learned from the times of requests.

use std::collections::VecDeque;

/// First guesses, before a store has been measured: 30 ms and 75 MB/s are usual for S3.
const GUESSED_REQUEST: f64 = 0.030;
const GUESSED_BYTE: f64 = 1.0 / 75e6;
/// Size of the larger of the two guessed requests, in bytes.
const GUESSED_BYTES: f64 = (4 << 20) as f64;
/// Weight of each of the two guesses: they outweigh one sample, not two. The first request to a
/// store often makes the connection.
const GUESS_WEIGHT: f64 = 1.5;
/// Samples of a line.
const SAMPLES: usize = 100;
/// Steps in which a line is moved from the least squares to the least deviations, and the
/// deviation in seconds below which all count alike.
const STEPS: usize = 20;
const ALIKE: f64 = 1e-4;
/// Share of its weight that a sample of requests at once keeps when the next one comes: half is
/// gone after 70.
const KEPT: f64 = 0.99;
/// A request was alone if fewer bodies than this arrived at once, in the mean over its own body.
const ALONE: f64 = 1.1;
/// Samples beside other requests from which the gain of parallel requests is known.
const ENOUGH: f64 = 8.0;
/// Requests beside others do not hinder each other if they take at most so many times as long.
const UNHINDERED: f64 = 1.2;
/// A request beside others counts at most as so many times the time that it would take alone, so
/// that one stall teaches little.
const LONGEST: f64 = 8.0;

/// A straight line through the last samples by least absolute deviations: single requests that
/// took long do not move it.
#[derive(Debug, Clone, Default)]
struct Line {
    /// Bytes and seconds.
    samples: VecDeque<(f64, f64)>,
}

impl Line {
    fn add(&mut self, bytes: f64, seconds: f64) {
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((bytes, seconds));
    }

    /// Returns the ordinate at zero and the slope. The guesses count for ever: requests of one size
    /// alone do not tell a slope.
    fn solve(&self) -> (f64, f64) {
        let guesses = [
            (0.0, GUESSED_REQUEST, GUESS_WEIGHT),
            (GUESSED_BYTES, GUESSED_REQUEST + GUESSED_BYTES * GUESSED_BYTE, GUESS_WEIGHT),
        ];
        let (mut request, mut byte) = (GUESSED_REQUEST, GUESSED_BYTE);
        for _ in 0..STEPS {
            let (mut weights, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
            let samples = self.samples.iter().map(|&(bytes, seconds)| (bytes, seconds, 1.0));
            for (bytes, seconds, weight) in samples.chain(guesses) {
                let weight = weight / (seconds - request - bytes * byte).abs().max(ALIKE);
                weights += weight;
                x += weight * bytes;
                y += weight * seconds;
                xx += weight * bytes * bytes;
                xy += weight * bytes * seconds;
            }
            let (mean_x, mean_y) = (x / weights, y / weights);
            let variance = xx / weights - mean_x * mean_x;
            byte = (xy / weights - mean_x * mean_y) / variance;
            request = mean_y - byte * mean_x;
        }
        (request, byte)
    }
}

/// Seconds of a request and of a byte on one connection, and the gain of parallel requests.
#[derive(Debug, Clone)]
pub(crate) struct Prices {
    /// Requests without others beside them.
    alone: Line,
    /// Requests beside others.
    beside: Line,
    /// Time beyond the latency that requests beside others took, in seconds.
    taken: f64,
    /// Time that each would have taken alone, beyond the latency.
    alone_time: f64,
    /// Sum of those times, each multiplied by the number of bodies at once: the time that they
    /// take on a link that all share.
    in_turn: f64,
    /// Sum of the weights of the samples of `beside`, without the guesses.
    beside_samples: f64,
    request: f64,
    byte: f64,
}

impl Prices {
    pub(crate) fn new() -> Self {
        Self {
            alone: Line::default(),
            beside: Line::default(),
            taken: 0.0,
            alone_time: 0.0,
            in_turn: 0.0,
            beside_samples: 0.0,
            request: GUESSED_REQUEST,
            byte: GUESSED_BYTE,
        }
    }

    /// Adds the time of a request, from its start to its last byte. `at_once` is the harmonic mean
    /// of the number of bodies that arrived while its own did, this one included.
    pub(crate) fn add(&mut self, bytes: u64, seconds: f64, at_once: f64) {
        let bytes = bytes as f64;
        let line = if at_once < ALONE { &mut self.alone } else { &mut self.beside };
        line.add(bytes, seconds);
        if at_once >= ALONE {
            // Where no request was alone, the guess stands for them: if it is wrong, fewer requests
            // at once follow, which shows it.
            let (request, byte) = self.alone.solve();
            let seconds = seconds.min((request + bytes * byte) * LONGEST);
            let taken = (seconds - request).max(0.0);
            self.taken = self.taken * KEPT + taken;
            let alone = bytes * byte.max(1e-12);
            self.alone_time = self.alone_time * KEPT + alone;
            self.in_turn = self.in_turn * KEPT + at_once * alone;
            self.beside_samples = self.beside_samples * KEPT + 1.0;
        }
        // Beside others a request may wait for the link, which is not its price.
        let line = match self.alone.samples.len() < 2 && self.beside_samples > 2.0 {
            true => &self.beside,
            false => &self.alone,
        };
        let (request, byte) = line.solve();
        // A store without a price for one of the two is measured badly: keep them apart from zero.
        self.byte = byte.clamp(1e-12, 1e-5);
        self.request = request.clamp(1e-6, 60.0);
    }

    /// Seconds from the start of a request to its first byte.
    pub(crate) fn request(&self) -> f64 {
        self.request
    }

    /// Seconds of a byte on one connection.
    pub(crate) fn byte(&self) -> f64 {
        self.byte
    }

    /// Bytes that cost as much as a request.
    pub(crate) fn bytes_of_a_request(&self) -> f64 {
        self.request / self.byte
    }

    /// Number of requests at once that are worth it for one range, at most `most`. It is 1 where
    /// the connections share one link that a single one fills, and `most` before enough is known.
    pub(crate) fn lanes(&self, most: u64) -> u64 {
        self.known_lanes(most).unwrap_or(most.max(1))
    }

    /// Returns [`lanes`](Self::lanes), or `None` before enough is known.
    pub(crate) fn known_lanes(&self, most: u64) -> Option<u64> {
        if self.beside_samples < ENOUGH {
            return None;
        }
        let gain = self.in_turn / self.taken.max(1e-9);
        let lanes = match self.taken <= self.alone_time * UNHINDERED {
            true => 2.0 * gain, // more at once may be better still
            false if gain < 1.3 => 1.0,
            false => gain,
        };
        Some((lanes.round() as u64).clamp(1, most.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(prices: &mut Prices, request: f64, byte: f64, at_once: f64) {
        for at in 0..300u64 {
            let bytes = (at % 10) * 400_000 + 4096;
            prices.add(bytes, request + bytes as f64 * byte, at_once);
        }
    }

    #[test]
    fn prices_of_a_store_are_learned() {
        let mut prices = Prices::new();
        learn(&mut prices, 0.005, 1e-9, 1.0);
        assert!((prices.request() / 0.005 - 1.0).abs() < 0.1, "{prices:?}");
        assert!((prices.byte() / 1e-9 - 1.0).abs() < 0.5, "{prices:?}");
    }

    #[test]
    fn requests_of_one_size_do_not_hide_the_price_of_a_byte() {
        let mut prices = Prices::new();
        for _ in 0..100 {
            prices.add(4096, 0.030, 1.0);
        }
        assert!((prices.request() / 0.030 - 1.0).abs() < 0.05, "{prices:?}");
        assert!(prices.byte() > 0.3 * GUESSED_BYTE && prices.byte() < 3.0 * GUESSED_BYTE);
    }

    #[test]
    fn one_stall_teaches_little() {
        let mut prices = Prices::new();
        learn(&mut prices, 0.030, GUESSED_BYTE, 1.0);
        prices.add(4096, 60.0, 1.0);
        assert!(prices.request() < 0.045, "{prices:?}");
    }

    #[test]
    fn a_first_request_that_makes_the_connection_teaches_little() {
        for slow in [0.1, 0.3, 3.0] {
            let mut prices = Prices::new();
            prices.add(4096, slow, 1.0);
            for bytes in [60_000u64, 2_600_000, 2_600_000, 4096, 60_000, 2_600_000] {
                prices.add(bytes, 0.033 + bytes as f64 * GUESSED_BYTE, 1.0);
                assert!((0.029..0.037).contains(&prices.request()), "{slow}: {prices:?}");
                assert!((prices.byte() / GUESSED_BYTE - 1.0).abs() < 0.2, "{slow}: {prices:?}");
            }
        }
    }

    #[test]
    fn a_store_far_from_the_guesses_is_known_after_some_requests() {
        for (request, byte) in [(0.0005, 1e-9), (2.0, 1e-7)] {
            let mut prices = Prices::new();
            for at in 0..16u64 {
                let bytes = (at % 4) * 2_000_000 + 4096;
                prices.add(bytes, request + bytes as f64 * byte, 1.0);
            }
            assert!((prices.request() / request - 1.0).abs() < 0.5, "{request}: {prices:?}");
            assert!((prices.byte() / byte - 1.0).abs() < 0.5, "{byte}: {prices:?}");
        }
    }

    #[test]
    fn a_shared_link_takes_one_request_at_a_time() {
        let mut shared = Prices::new();
        learn(&mut shared, 0.030, GUESSED_BYTE, 1.0);
        assert_eq!(shared.lanes(8), 8); // before it is measured
        let mut own = shared.clone();
        learn(&mut shared, 0.030, 4.0 * GUESSED_BYTE, 4.0);
        learn(&mut own, 0.030, GUESSED_BYTE, 4.0);
        assert_eq!((shared.lanes(8), own.lanes(8)), (1, 8));
        let mut never_alone = Prices::new();
        learn(&mut never_alone, 0.030, 4.0 * GUESSED_BYTE, 4.0);
        assert_eq!(never_alone.lanes(8), 1);
    }
}
