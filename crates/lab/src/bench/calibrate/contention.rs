//! From throughputs to service times: how long an operation takes with several threads at it.
//!
//! Threads that do the same again and again are a closed network: each computes for a while by itself and then visits the list. With
//! the time of one thread known, the throughput of two leaves one time free, that with two at the list; then of four, and so on.
//! The model is solved for it, so that what it is told in the end is what gives back the throughputs.

use floe_model::{Load, ModelError, Network, Outcome, Station, Step, Time, Visit, mva};

/// Halvings: as many as a number has digits.
const HALVINGS: usize = 60;

/// How long a visit takes alone and with others there.
///
/// `alone_us` is the time of a visit of one thread; `runs` are a number of threads above 1, growing, what each request of theirs computes
/// beside its visit, and their throughput together in million requests a second. The visit is never taken as shorter than if
/// all threads could be served side by side.
///
/// # Errors
/// A time is none.
pub(super) fn contended(alone_us: f64, runs: &[(u32, f64, f64)]) -> Result<Time, ModelError> {
    let mut time = Time::of(alone_us);
    for &(threads, compute_us, throughput_mrps) in runs {
        let with = |us: f64| {
            let mut time = time.clone();
            time.contended.push((threads, us));
            time
        };
        let faster =
            |us: f64| Ok::<_, ModelError>(throughput(compute_us, with(us), threads)? > throughput_mrps);
        let mut low = alone_us / f64::from(threads);
        // Were there nothing but the list, it would be that.
        let mut high = (1.0 / throughput_mrps).max(low);
        while faster(high)? {
            high *= 2.0;
        }
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if faster(middle)? { low = middle } else { high = middle }
        }
        time = with(high);
    }
    Ok(time)
}

/// What each request of several threads computes when a share of them visits the list, for the throughput that was measured; at least 0.
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
        let is_faster = throughput(middle, visit.clone(), threads)? > throughput_mrps;
        if is_faster { low = middle } else { high = middle }
    }
    Ok(high)
}

/// Of threads that compute and visit a list.
fn throughput(compute_us: f64, time: Time, threads: u32) -> Result<f64, ModelError> {
    let station = Station { name: "list", servers: 1, copies: 1 };
    let visit = Step::Visit(Visit { station: 0, time, is_limit: false });
    let request = Outcome {
        name: "request",
        probability: 1.0,
        is_miss: false,
        steps: vec![Step::Compute(compute_us), visit],
    };
    mva::throughput(&Network::new(vec![station], vec![request])?, &Load::of(threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_nobody_leaves_takes_the_reciprocal_of_its_throughput() {
        let time = contended(0.05, &[(2, 0.0, 4.0), (4, 0.0, 2.0)]).unwrap();
        assert!((time.at_us(2) - 0.25).abs() < 1e-9 && (time.at_us(4) - 0.5).abs() < 1e-9, "{time:?}");
        assert_eq!(time.alone_us, 0.05);
    }

    #[test]
    fn the_times_found_give_back_the_throughputs() {
        for compute_us in [0.01, 0.1, 1.0] {
            for (two, four) in [(1.2, 1.0), (1.9, 2.5), (0.4, 0.3)] {
                let alone = 1.0 / (compute_us + 0.2);
                let runs = [(2, compute_us, two * alone), (4, compute_us, four * alone)];
                let time = contended(0.2, &runs).unwrap();
                for (threads, _, measured) in runs {
                    let found = throughput(compute_us, time.clone(), threads).unwrap();
                    let side_by_side = time.at_us(threads) <= 0.2 / f64::from(threads) * (1.0 + 1e-9);
                    assert!(
                        (found / measured - 1.0).abs() < 1e-6 || side_by_side,
                        "{compute_us}: {found} for {measured}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_requests_compute_is_found_beside_a_list_that_some_visit() {
        let visit = contended(0.2, &[(2, 0.1, 4.0)]).unwrap();
        for share in [0.0, 0.3, 1.0] {
            let scaled = |us: f64| share * us;
            let part = Time {
                alone_us: scaled(0.2),
                contended: vec![(2, scaled(visit.at_us(2)))],
                ..Time::default()
            };
            let measured = throughput(0.7, part, 2).unwrap();
            let found = computing(&visit, share, 2, measured).unwrap();
            assert!((found - 0.7).abs() < 1e-6, "{share}: {found}");
        }
    }

    #[test]
    fn threads_that_never_meet_are_served_side_by_side() {
        let time = contended(0.2, &[(2, 0.3, 2.0 / 0.5 * 1.5)]).unwrap();
        assert!((time.at_us(2) - 0.1).abs() < 1e-9, "{time:?}");
    }
}
