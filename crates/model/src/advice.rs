//! Advice for a running cache: its bottleneck, the gain of more hits, and alternatives.
//!
//! A [`Situation`] describes a cache: its policy, hit ratio, requests in flight, cores, shards, and
//! the time of its misses. [`advise`] evaluates the model for it and computes four things: how busy
//! the busiest station is, the hit ratio p* at which throughput would peak if nothing else changed,
//! the gain of freezing the hits, and the gain of another policy at the same hit ratio. "Can
//! Increasing the Hit Ratio Hurt Cache Throughput?", sections 4 and 5; freezing is FrozenHot's.
//!
//! Gains are those of the model, all else being equal. Another policy has another hit ratio in the
//! same room, which a simulation shows (`floe simulate`). The gain of freezing is an upper limit,
//! with all hits on frozen entries.

use std::fmt;

use crate::peak::{Class, peak};
use crate::policies::{POLICIES, Policy, Setting};
use crate::{Load, ModelError, Service, mva};

/// The state of a running cache: its policy, load and hit ratio.
#[derive(Debug, Clone, Copy)]
pub struct Situation {
    /// Modelled policy of the cache.
    pub policy: Policy,
    /// Hit ratio, time of a miss, computing time of requests, and the share of hits on frozen
    /// entries.
    pub setting: Setting,
    /// Requests in flight, and the cores they share.
    pub load: Load,
    /// Number of shards of the cache, each with its own lists and locks; at least 1. Each list
    /// operation is in one of them at random.
    pub shards: u32,
}

/// A resource that requests wait for, and how busy it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Busy {
    /// Name of a list operation, or `cores`.
    pub name: &'static str,
    /// Share of time for which the resource is busy. Where an operation takes longer the more
    /// requests wait, this is the share with all of them waiting: an upper limit.
    pub utilisation: f64,
}

/// A different policy or setting, and its gain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alternative {
    /// Name of the policy.
    pub policy: &'static str,
    /// Share of hits that skips the list, for policies in which the user chooses it.
    pub q: Option<f64>,
    /// Throughput of the alternative, in million requests a second.
    pub throughput_mrps: f64,
    /// Gain in throughput as a share of the present one; negative for a loss.
    pub gain: f64,
}

/// The advice of the model for a [`Situation`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advice {
    /// Name of the cache's policy.
    pub policy: &'static str,
    /// Hit ratio of the cache, from 0 to 1.
    pub hit_ratio: f64,
    /// Requests in flight.
    pub mpl: u32,
    /// Present throughput, in million requests a second.
    pub throughput_mrps: f64,
    /// Busiest station; `None` when requests wait for nothing but the disk.
    pub bottleneck: Option<Busy>,
    /// The hit ratio p* past which throughput falls; 1 if it never does.
    pub p_star: f64,
    /// Throughput at the hit ratio p*, in million requests a second.
    pub peak_mrps: f64,
    /// True if the hit ratio is past p* and throughput is lower than at p*.
    pub is_past_p_star: bool,
    /// Effect of freezing all hits; `None` if the time of a lookup in a frozen index is unknown.
    pub frozen: Option<Alternative>,
    /// Best other policy at the same hit ratio; `None` if no other policy's times are known.
    pub other: Option<Alternative>,
}

/// Minimum relative change in throughput that is reported; the model is no more precise.
const NOTABLE: f64 = 0.005;

/// Evaluates the model for a situation.
///
/// ```
/// use floe_model::{Load, Policy, Service, Setting, Situation, advice::advise};
///
/// let lru = Situation {
///     policy: Policy::named("lru")?,
///     setting: Setting::new(0.9, 100.0), // hit ratio, µs of a miss
///     load: Load::of(72),
///     shards: 1,
/// };
/// let advice = advise(&lru, &Service::paper())?;
/// assert!(advice.is_past_p_star && advice.p_star < 0.8);
/// assert_eq!(advice.bottleneck.map(|busy| busy.name), Some("delink"));
/// // With 16 shards there is no such queue.
/// assert!(!advise(&Situation { shards: 16, ..lru }, &Service::paper())?.is_past_p_star);
/// # Ok::<(), floe_model::ModelError>(())
/// ```
///
/// # Errors
/// When a share is not from 0 to 1, there are no requests or no shards, or the policy's times are
/// unknown.
pub fn advise(situation: &Situation, service: &Service) -> Result<Advice, ModelError> {
    let Situation { policy, setting, load, shards } = *situation;
    if shards == 0 {
        return Err(ModelError::Zero { what: "the number of shards" });
    }
    let service = service.with_shards(shards);
    let network = policy.network(&service, &setting)?;
    let now = mva::throughput(&network, &load)?;
    let highest = peak(&policy, &service, &setting, &load)?;
    let falls = highest.class == Class::LruLike;
    let busy = |(name, us): (&'static str, f64)| Busy { name, utilisation: (now * us).min(1.0) };
    let with = |policy: &Policy, setting: &Setting| {
        let throughput_mrps = mva::throughput(&policy.network(&service, setting)?, &load)?;
        let gain = throughput_mrps / now - 1.0;
        let q = policy.takes_q().then(|| policy.q(&service, setting.q)).flatten();
        Ok(Alternative { policy: policy.name, q, throughput_mrps, gain })
    };
    // What is measured of one policy's outcomes says nothing of another's.
    let others = POLICIES.iter().filter(|other| other.name != policy.name).map(|other| {
        let setting = Setting { q: other.q_chosen(load.mpl), shares: None, ..setting };
        with(other, &setting)
    });
    Ok(Advice {
        policy: policy.name,
        hit_ratio: setting.hit_ratio,
        mpl: load.mpl,
        throughput_mrps: now,
        bottleneck: network.longest(&load).map(busy),
        p_star: highest.hit_ratio,
        peak_mrps: highest.throughput_mrps,
        is_past_p_star: falls
            && setting.hit_ratio > highest.hit_ratio
            && now < highest.throughput_mrps * (1.0 - NOTABLE),
        frozen: known(with(&policy, &Setting { frozen: Some(1.0), ..setting }))?,
        other: others
            .map(known)
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
            .max_by(|a, b| a.throughput_mrps.total_cmp(&b.throughput_mrps)),
    })
}

/// Returns the throughput in million requests a second at hit ratios from 0 to 1, all else in the
/// situation being equal: `steps` equal steps, so `steps + 1` points.
///
/// # Errors
/// Those of [`advise`], and no steps.
pub fn throughputs(
    situation: &Situation,
    service: &Service,
    steps: u32,
) -> Result<Vec<(f64, f64)>, ModelError> {
    let Situation { policy, setting, load, shards } = *situation;
    if shards == 0 || steps == 0 {
        let what = if shards == 0 { "the number of shards" } else { "the number of steps" };
        return Err(ModelError::Zero { what });
    }
    let service = service.with_shards(shards);
    let at = |step| {
        let hit_ratio = f64::from(step) / f64::from(steps);
        let network = policy.network(&service, &setting.at(hit_ratio))?;
        Ok((hit_ratio, mva::throughput(&network, &load)?))
    };
    (0..=steps).map(at).collect()
}

/// Turns the error of missing service times into `None`.
fn known(found: Result<Alternative, ModelError>) -> Result<Option<Alternative>, ModelError> {
    match found {
        Ok(alternative) => Ok(Some(alternative)),
        Err(ModelError::NoTimes { .. } | ModelError::NoTime { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Formats a throughput: in millions from 100,000 requests a second on.
fn rate(mrps: f64) -> String {
    if mrps < 0.1 {
        format!("{:.0} requests/s", mrps * 1e6)
    } else {
        format!("{mrps:.3} M requests/s")
    }
}

impl fmt::Display for Alternative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.policy)?;
        if let Some(q) = self.q {
            write!(f, " (q = {q:.3})")?;
        }
        write!(f, " {:+.1} %", 100.0 * self.gain)
    }
}

impl fmt::Display for Advice {
    /// Writes the advice as one sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, hit_ratio, mpl, .. } = self;
        let now = rate(self.throughput_mrps);
        write!(f, "{policy} at a hit ratio of {hit_ratio:.3} with {mpl} in flight serves {now}")?;
        if let Some(busy) = self.bottleneck {
            write!(f, ", {} {:.0} % busy", busy.name, 100.0 * busy.utilisation)?;
        }
        if self.is_past_p_star {
            write!(
                f,
                "; this is past p* = {:.3}, where it would serve {}",
                self.p_star,
                rate(self.peak_mrps)
            )?;
        } else if self.p_star < 1.0 {
            write!(f, "; this is not past p* = {:.3}", self.p_star)?;
        } else {
            write!(f, "; more hits do not cost throughput")?;
        }
        if let Some(frozen) = self.frozen.filter(|frozen| frozen.gain > NOTABLE) {
            write!(f, "; with all hits frozen {:+.1} %", 100.0 * frozen.gain)?;
        }
        match self.other.filter(|other| other.gain > NOTABLE) {
            Some(other) => write!(f, "; at the same hit ratio {other}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(policy: &str, hit_ratio: f64, disk_us: f64, mpl: u32) -> Situation {
        let policy = Policy::named(policy).unwrap();
        Situation {
            policy,
            setting: Setting::new(hit_ratio, disk_us),
            load: Load::of(mpl),
            shards: 1,
        }
    }

    fn advice(situation: &Situation) -> Advice {
        advise(situation, &Service::paper()).unwrap()
    }

    #[test]
    fn a_slow_server_has_its_rate_in_requests() {
        let mut advice = advice(&at("lru", 0.9, 100.0, 72));
        advice.throughput_mrps = 0.000_847;
        assert!(advice.to_string().contains(" serves 847 requests/s"), "{advice}");
        advice.throughput_mrps = 0.25;
        assert!(advice.to_string().contains(" serves 0.250 M requests/s"), "{advice}");
    }

    #[test]
    fn lru_past_its_peak_is_told_so_and_what_helps() {
        let advice = advice(&at("lru", 0.9, 100.0, 72));
        assert!(advice.is_past_p_star);
        assert!((0.7..0.8).contains(&advice.p_star), "{}", advice.p_star);
        let busy = advice.bottleneck.unwrap();
        assert_eq!(busy.name, "delink");
        assert!((0.95..=1.0).contains(&busy.utilisation), "{}", busy.utilisation);
        assert!(advice.frozen.unwrap().gain > 1.0);
        let other = advice.other.unwrap();
        let policy = Policy::named(other.policy).unwrap();
        let setting = Setting { q: other.q, ..Setting::new(1.0, 100.0) };
        let shape = peak(&policy, &Service::paper(), &setting, &Load::of(72)).unwrap();
        assert!(other.gain > 1.0 && shape.class == Class::FifoLike, "{other:?}");
        let sentence = advice.to_string();
        for part in
            ["lru at a hit ratio of 0.900 with 72 in flight", "delink", "past p*", "frozen +"]
        {
            assert!(sentence.contains(part), "{sentence}");
        }
    }

    #[test]
    fn lru_before_its_peak_is_not_past_it() {
        let advice = advice(&at("lru", 0.5, 100.0, 72));
        assert!(!advice.is_past_p_star && advice.p_star < 1.0);
        assert!(advice.to_string().contains("not past p*"), "{advice}");
    }

    #[test]
    fn fifo_and_a_single_client_are_never_past_their_peak() {
        for at_hundredth in 0..=100 {
            let hit_ratio = f64::from(at_hundredth) / 100.0;
            for situation in [at("fifo", hit_ratio, 5.0, 72), at("lru", hit_ratio, 5.0, 1)] {
                let advice = advice(&situation);
                assert!(!advice.is_past_p_star && advice.p_star == 1.0, "{advice}");
            }
        }
    }

    #[test]
    fn shards_are_queues_of_their_own() {
        let one = at("lru", 0.99, 5.0, 72);
        let many = Situation { shards: 64, ..one };
        let (one, many) = (advice(&one), advice(&many));
        assert!(many.throughput_mrps > 10.0 * one.throughput_mrps);
        assert!(many.bottleneck.unwrap().utilisation < one.bottleneck.unwrap().utilisation);
    }

    #[test]
    fn what_each_request_computes_besides_makes_cores_the_bottleneck() {
        let mut situation = at("lru", 0.99, 5.0, 72);
        situation.load.cores = Some(2);
        situation.setting.compute_us = 8.0;
        let advice = advice(&situation);
        let busy = advice.bottleneck.unwrap();
        assert!(busy.name == "cores" && busy.utilisation > 0.9, "{busy:?}");
        // Two cores and some 10 µs a request.
        assert!((0.19..0.24).contains(&advice.throughput_mrps), "{}", advice.throughput_mrps);
    }

    #[test]
    fn a_machine_that_knows_one_policy_has_no_others_to_offer() {
        let mut service = Service::paper();
        service.policies.retain(|times| times.policy == "lru");
        service.policies[0].times.remove(&crate::Operation::FrozenLookup);
        let advice = advise(&at("lru", 0.9, 100.0, 72), &service).unwrap();
        assert_eq!((advice.frozen, advice.other), (None, None));
    }

    #[test]
    fn impossible_situations_are_refused() {
        let situation = at("lru", 0.9, 100.0, 72);
        let refused = |situation| advise(&situation, &Service::paper()).unwrap_err().to_string();
        assert_eq!(refused(Situation { shards: 0, ..situation }), "the number of shards is 0");
        assert!(refused(at("lru", 1.1, 100.0, 72)).contains("the hit ratio 1.1"));
        assert!(refused(at("lru", 0.9, 100.0, 0)).contains("MPL"));
    }

    #[test]
    fn policies_of_the_cache_have_a_network_that_locks_as_they_do() {
        let by_name = |name| Policy::alike(name).unwrap().name;
        assert_eq!(
            ["lru", "arc", "qd-clock", "w-tinylfu", "lhd"].map(by_name),
            ["lru", "lru", "s3-fifo", "tiny-lru", "sampled"]
        );
        assert!(Policy::alike("belady").is_err());
    }
}
