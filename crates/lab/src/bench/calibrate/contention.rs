//! Derives service times from throughputs: the time of a visit to the list, alone and with other
//! threads.
//!
//! Threads that repeat the same operations are a closed network: each computes for a while by
//! itself and then visits the list. Two runs of the same threads have two unknown times, and so
//! determine them. In one run they compute for long between two visits, so that they seldom meet.
//! It gives the time of a visit without contention, by a thread that finds the list in another
//! processor's memory. In the other they compute as briefly as possible, so that they meet all the
//! time. The model is solved for both, so that its inputs give back the measured throughputs.

use floe_model::{Load, ModelError, Network, RequestOutcome, RouteStep, Station, Time, Visit, mva};

/// Halvings: as many as a number has digits.
const HALVINGS: usize = 50;

/// The time found with others there changes the one found without a little, and the other way
/// round: so often, each time by a small part of the change before.
const ROUNDS: usize = 12;

/// A run of threads that visit the list with some or all of their requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meeting {
    /// The number of threads, above 1.
    pub(super) threads: u32,
    /// The share of requests that visit the list, above 0.
    pub(super) share: f64,
    /// The computing time of each request beside its visit, in microseconds.
    pub(super) compute_us: f64,
    /// Of all together, in million requests a second.
    pub(super) throughput_mrps: f64,
}

/// Returns the time of a visit alone and with others there: from one run of threads that seldom
/// meet, and from runs of threads that meet, with growing numbers of them. No time is below
/// `least_us`, or above that of a request of the run it is found from.
///
/// # Errors
/// A time is none.
pub(super) fn visit(
    apart: &Meeting,
    together: &[Meeting],
    least_us: f64,
) -> Result<Time, ModelError> {
    let alone = |time: &Time| found(apart, least_us, |us| Time { alone_us: us, ..time.clone() });
    let mut time = Time::of(least_us);
    time.alone_us = alone(&time)?;
    for _ in 0..ROUNDS {
        time = contended(time.alone_us, together, least_us)?;
        time.alone_us = alone(&time)?;
    }
    contended(time.alone_us, together, least_us)
}

/// Returns the time of a visit with others there when the time alone is known.
fn contended(alone_us: f64, together: &[Meeting], least_us: f64) -> Result<Time, ModelError> {
    let mut time = Time::of(alone_us);
    for run in together {
        let with = |us: f64| {
            let mut time = time.clone();
            time.contended.push((run.threads, us));
            time
        };
        let us = found(run, least_us, with)?;
        time.contended.push((run.threads, us));
    }
    Ok(time)
}

/// Returns the computing time of each request that explains the measured throughput of several
/// threads when a share of them visits the list; at least 0.
///
/// # Errors
/// A time is none.
pub(super) fn computing(
    visit: &Time,
    share: f64,
    threads: u32,
    throughput_mrps: f64,
) -> Result<f64, ModelError> {
    let contended = visit.contended.iter().map(|&(queue, us)| (queue, share * us)).collect();
    let visit = Time { alone_us: share * visit.alone_us, contended, ..Time::default() };
    let (mut low, mut high) = (0.0, f64::from(threads) / throughput_mrps);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        let run = Meeting { threads, share: 1.0, compute_us: middle, throughput_mrps };
        let is_faster = run.throughput_of(visit.clone())? > throughput_mrps;
        if is_faster { low = middle } else { high = middle }
    }
    Ok(high)
}

/// The one number that is free in a time, for the throughput that was measured.
fn found(run: &Meeting, least_us: f64, with: impl Fn(f64) -> Time) -> Result<f64, ModelError> {
    let is_faster =
        |us: f64| Ok::<_, ModelError>(run.throughput_of(with(us))? > run.throughput_mrps);
    let mut low = least_us;
    // No visit takes longer than the requests of which one visits.
    let mut high = (run.request_us() / run.share).max(low);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if is_faster(middle)? { low = middle } else { high = middle }
    }
    Ok(high)
}

impl Meeting {
    /// From the beginning of a request to its end.
    fn request_us(&self) -> f64 {
        f64::from(self.threads) / self.throughput_mrps
    }

    /// Returns the modelled throughput of such threads with another time of the list.
    fn throughput_of(&self, time: Time) -> Result<f64, ModelError> {
        let station = Station { name: "list", servers: 1, copies: 1 };
        let visit = RouteStep::Visit(Visit { station: 0, time, is_limit: false });
        let request = |probability: f64, visit: Option<RouteStep>| RequestOutcome {
            name: if visit.is_some() { "visit" } else { "no visit" },
            probability,
            is_miss: false,
            steps: std::iter::once(RouteStep::Compute(self.compute_us)).chain(visit).collect(),
        };
        let mut requests = vec![request(self.share, Some(visit))];
        if self.share < 1.0 {
            requests.push(request(1.0 - self.share, None));
        }
        mva::throughput(&Network::new(vec![station], requests)?, &Load::of(self.threads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST_US: f64 = 1e-4;

    /// A run of which the model says what is measured.
    fn run(threads: u32, share: f64, compute_us: f64, time: &Time) -> Meeting {
        let run = Meeting { threads, share, compute_us, throughput_mrps: 1.0 };
        Meeting { throughput_mrps: run.throughput_of(time.clone()).unwrap(), ..run }
    }

    #[test]
    fn the_times_of_a_list_are_found_from_what_threads_do_with_it() {
        for (alone_us, two_us) in
            [0.05, 0.3, 1.0].into_iter().flat_map(|one| [0.3, 0.5, 1.2].map(|two| (one, two)))
        {
            for (four_us, share) in [(0.5, 1.0), (2.0, 1.0), (2.0, 0.5)] {
                let contended = vec![(2, two_us), (4, four_us)];
                let time = Time { alone_us, contended, ..Time::default() };
                let apart = run(4, share, 5.0, &time);
                let together = [run(2, share, 0.02, &time), run(4, share, 0.02, &time)];
                let found = visit(&apart, &together, LEAST_US).unwrap();
                for queue in [1, 2, 4] {
                    let (found, us) = (found.at_us(queue), time.at_us(queue));
                    assert!((found / us - 1.0).abs() < 1e-3, "{time:?}: {found} with {queue}");
                }
            }
        }
    }

    #[test]
    fn a_list_that_nobody_leaves_takes_the_reciprocal_of_its_throughput() {
        let run = |threads, throughput_mrps| Meeting {
            threads,
            share: 1.0,
            compute_us: 0.0,
            throughput_mrps,
        };
        let time = contended(0.05, &[run(2, 4.0), run(4, 2.0)], LEAST_US).unwrap();
        assert!(
            (time.at_us(2) - 0.25).abs() < 1e-9 && (time.at_us(4) - 0.5).abs() < 1e-9,
            "{time:?}"
        );
        assert_eq!(time.alone_us, 0.05);
    }

    #[test]
    fn what_requests_compute_is_found_beside_a_list_that_some_visit() {
        let visit = Time { alone_us: 0.4, contended: vec![(2, 0.6)], ..Time::default() };
        for share in [0.0, 0.3, 1.0] {
            let part = Time {
                alone_us: share * 0.4,
                contended: vec![(2, share * 0.6)],
                ..Time::default()
            };
            let measured = run(2, 1.0, 0.7, &part).throughput_mrps;
            let found = computing(&visit, share, 2, measured).unwrap();
            assert!((found - 0.7).abs() < 1e-6, "{share}: {found}");
        }
    }

    #[test]
    fn runs_that_do_not_fit_together_give_times_no_longer_than_requests() {
        let run = |compute_us, throughput_mrps| Meeting {
            threads: 2,
            share: 1.0,
            compute_us,
            throughput_mrps,
        };
        let time = visit(&run(2.0, 0.1), &[run(0.1, 8.0)], LEAST_US).unwrap();
        assert!(time.alone_us <= 20.0 && time.at_us(2) <= 0.25, "{time:?}");
    }

    #[test]
    fn no_time_is_below_the_least_however_fast_threads_are() {
        let run =
            |compute_us| Meeting { threads: 2, share: 1.0, compute_us, throughput_mrps: 100.0 };
        let time = visit(&run(1.0), &[run(0.1)], LEAST_US).unwrap();
        assert!(
            time.alone_us >= LEAST_US
                && time.at_us(2) >= LEAST_US
                && time.at_us(2) < 2.0 * LEAST_US,
            "{time:?}"
        );
    }
}
