//! Counts the list operations of policies over a trace by the outcome of each request.
//!
//! The loop of [`super::objects`] over the same policy code, compiled once more with counters in
//! its lists (`floe-policy-counted`). The trace runs twice, and the second pass is counted: by then
//! the cache is full, so that each insertion evicts. If everything fits, the hit ratio is 1.

use std::collections::BTreeMap;

use floe_model::counted::{Counted, Counts};
use floe_model::{Operation, counted};
use floe_policy_counted::count::{self, Operation as Done};
use floe_policy_counted::owner::{DenseIndex, SlotOwner};
use floe_policy_counted::registry::{Choice, Visitor};
use floe_policy_counted::{Access, Direction, HitKind, Marks, POLICIES, Policy, Touch, mix};

use super::stream::Stream;

/// Number of entries drawn for one sample of Redis, the unit of sampling costs in a service file.
const DRAWS_PER_SAMPLE: f64 = 5.0;

/// A policy whose operations can be counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    choice: Choice,
    kind: HitKind,
}

/// Errors of choosing a policy to count.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CandidateError {
    /// The registry has no such policy.
    #[error(transparent)]
    Choice(#[from] floe_policy_counted::registry::ChoiceError),
    /// The policy depends on more than the sequence of keys: on next uses or on streams.
    #[error(
        "policy {0} uses more than the sequence of keys, so its operations cannot be counted here"
    )]
    LooksAtMore(&'static str),
}

impl std::str::FromStr for Candidate {
    type Err = CandidateError;

    fn from_str(text: &str) -> Result<Self, CandidateError> {
        let choice: Choice = text.parse()?;
        let entry = POLICIES.iter().find(|entry| entry.info.name == choice.name());
        let entry = entry.expect("a choice names a registered policy");
        if entry.info.next_uses || entry.info.streams {
            return Err(CandidateError::LooksAtMore(entry.info.name));
        }
        Ok(Self { choice, kind: entry.kind })
    }
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.choice.fmt(f)
    }
}

impl Candidate {
    /// Returns the name of the policy, without parameters.
    pub fn name(&self) -> &'static str {
        self.choice.name()
    }

    /// Returns whether hits can require a promotion, which takes the policy's lock.
    pub fn promotes(&self) -> bool {
        self.kind == HitKind::LruLike
    }

    /// Runs the policy twice over a stream at a capacity in entries, and returns the operations of
    /// the second pass.
    pub fn count(&self, stream: &Stream, size: u64) -> Operations {
        let capacity = ((size as f64 * stream.rate).round() as u64).max(1);
        floe_policy_counted::with(&self.choice, Run { stream, capacity })
    }
}

/// Operations that a policy performed in a pass over a trace.
#[derive(Debug, Clone)]
pub struct Operations {
    /// Operations by outcome: hits, misses, and misses on keys that were evicted recently.
    pub counted: Counted,
    /// Share of hits that asked for a promotion. This takes the lock even where nothing then has to
    /// be done.
    pub hits_promoting: f64,
}

struct Run<'a> {
    stream: &'a Stream,
    capacity: u64,
}

impl Visitor for Run<'_> {
    type Out = Operations;

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Operations {
        let slots = self.capacity.min(self.stream.distinct as u64) as usize;
        let index = DenseIndex::new(self.stream.distinct);
        let mut owner = SlotOwner::<P, DenseIndex>::new(make(), index, self.capacity, slots);
        self.pass(&mut owner, |_| ());
        let mut counts = OutcomeCounts::default();
        self.pass(&mut owner, |touch| counts.request(touch));
        counts.finish()
    }
}

impl Run<'_> {
    /// Serves all requests of the stream. The operations of deletions are not counted.
    fn pass<P: Policy>(
        &self,
        owner: &mut SlotOwner<P, DenseIndex>,
        mut answered: impl FnMut(Option<Touch>),
    ) {
        count::drain(|_, _, _| {});
        let mut changes = self.stream.changes.iter().peekable();
        for at in 0..self.stream.keys.len() {
            while let Some(change) = changes.next_if(|change| change.at as usize == at) {
                owner.find(change.key).into_iter().for_each(|slot| owner.remove(slot));
                count::drain(|_, _, _| {});
            }
            answered(self.request(owner, at));
        }
    }

    /// Serves a request. Returns the policy's answer to a hit, and `None` for a miss.
    fn request<P: Policy>(&self, owner: &mut SlotOwner<P, DenseIndex>, at: usize) -> Option<Touch> {
        let key = self.stream.keys[at];
        if let Some(slot) = owner.find(key) {
            let touch = owner.policy().marks().touch(slot);
            if touch != Touch::Noted {
                owner.policy_mut().promote(slot);
            }
            return Some(touch);
        }
        let direction = if self.stream.writes(at) { Direction::Write } else { Direction::Read };
        let access = Access { direction, ..Access::new(mix(u64::from(key))) };
        owner.insert(key, &access, |_, _, _| ());
        None
    }
}

/// Names of outcomes, and whether they are misses, by their index in the arrays of
/// [`OutcomeCounts`].
const OUTCOMES: [(&str, bool); 3] = [("hit", false), ("miss", true), ("ghost", true)];
const HIT: usize = 0;
const MISS: usize = 1;
const GHOST: usize = 2;

#[derive(Default)]
struct OutcomeCounts {
    requests: [u64; OUTCOMES.len()],
    operations: [BTreeMap<(&'static str, Operation), f64>; OUTCOMES.len()],
    promoting: u64,
    /// The operations of the current request.
    done: Vec<(&'static str, Done, u64)>,
}

impl OutcomeCounts {
    fn request(&mut self, hit: Option<Touch>) {
        self.done.clear();
        count::drain(|list, done, times| self.done.push((list, done, times)));
        let found = self.done.iter().any(|&(_, done, _)| done == Done::GhostFound);
        let outcome = match hit {
            Some(_) => HIT,
            None if found => GHOST,
            None => MISS,
        };
        self.requests[outcome] += 1;
        for &(list, done, times) in &self.done {
            let (operation, times) = match done {
                Done::Delink => (Operation::Delink, times as f64),
                Done::Head => (Operation::Head, times as f64),
                Done::Tail => (Operation::Tail, times as f64),
                Done::Step => (Operation::Step, times as f64),
                Done::GhostLookup => (Operation::GhostLookup, times as f64),
                Done::Draw => (Operation::Sample, times as f64 / DRAWS_PER_SAMPLE),
                Done::WriteMark => (Operation::WrittenMark, times as f64),
                Done::GhostFound => continue,
            };
            *self.operations[outcome].entry((list, operation)).or_default() += times;
        }
        match hit {
            Some(Touch::Noted) => {
                *self.operations[HIT].entry(("", Operation::Mark)).or_default() += 1.0
            }
            Some(_) => self.promoting += 1,
            None => {}
        }
    }

    fn finish(self) -> Operations {
        let hits_promoting = self.promoting as f64 / self.requests[HIT].max(1) as f64;
        let outcomes = OUTCOMES.iter().zip(self.requests).zip(self.operations);
        let there = outcomes.filter(|((_, requests), _)| *requests > 0);
        let outcomes = there.map(|((&(outcome, is_miss), requests), operations)| Counts {
            outcome,
            is_miss,
            requests,
            operations,
        });
        Operations { counted: counted::Counted { outcomes: outcomes.collect() }, hits_promoting }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::{Builder, Keep};
    use super::*;
    use floe_trace::{Op, Request};

    fn stream(keys: impl IntoIterator<Item = u64>) -> Stream {
        let mut builder = Builder::new(
            floe_trace::Kind::Key,
            Keep { rate: 1.0, sizes: false, next_use: false },
            4096,
        );
        for key in keys {
            builder.add(&Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read }).unwrap();
        }
        builder.finish().unwrap()
    }

    /// Returns a skewed stream without repeated keys in a row: a hit on the head of a list would
    /// have nothing to move.
    fn skewed() -> Stream {
        let mut last = 0;
        stream((0..20_000u64).map(|at| {
            let draw = mix(at);
            let key = (draw % 400).min(draw / 400 % 400);
            last = if key == last { key + 400 } else { key };
            last
        }))
    }

    fn counted(policy: &str, stream: &Stream, size: u64) -> Operations {
        policy.parse::<Candidate>().unwrap().count(stream, size)
    }

    fn outcome<'a>(operations: &'a Operations, name: &str) -> &'a Counts {
        operations.counted.outcomes.iter().find(|counts| counts.outcome == name).unwrap()
    }

    fn each(counts: &Counts) -> [f64; 4] {
        [Operation::Delink, Operation::Head, Operation::Tail, Operation::Step]
            .map(|of| counts.each(of))
    }

    #[test]
    fn lru_and_fifo_visit_what_the_paper_draws() {
        let stream = skewed();
        let lru = counted("lru", &stream, 150);
        assert!((0.2..0.9).contains(&lru.counted.hit_ratio()), "{}", lru.counted.hit_ratio());
        assert_eq!(each(outcome(&lru, "hit")), [1.0, 1.0, 0.0, 0.0]);
        assert_eq!(each(outcome(&lru, "miss")), [0.0, 1.0, 1.0, 0.0]);
        assert_eq!(lru.hits_promoting, 1.0);
        let fifo = counted("fifo", &stream, 150);
        assert_eq!(each(outcome(&fifo, "hit")), [0.0; 4]);
        assert_eq!(each(outcome(&fifo, "miss")), [0.0, 1.0, 1.0, 0.0]);
        assert_eq!(fifo.hits_promoting, 0.0);
    }

    #[test]
    fn hits_of_fifo_like_policies_touch_no_list_and_those_of_lru_like_ones_do() {
        let stream = skewed();
        for entry in POLICIES.iter().filter(|entry| !entry.info.next_uses && !entry.info.streams) {
            let operations = counted(entry.info.name, &stream, 150);
            let hit = outcome(&operations, "hit");
            let moves = hit.list_operations() + hit.each(Operation::Step);
            match entry.kind {
                HitKind::FifoLike => assert_eq!(moves, 0.0, "{}", entry.info.name),
                HitKind::LruLike => assert!(moves > 0.1, "{}: {moves}", entry.info.name),
            }
            let misses = operations.counted.outcomes.iter().filter(|counts| counts.is_miss);
            for miss in misses {
                assert!(miss.list_operations() >= 1.0, "{}: {miss:?}", entry.info.name);
            }
        }
    }

    #[test]
    fn hits_are_those_that_the_simulator_counts() {
        use super::super::objects;
        let stream = skewed();
        let twice = stream.rearranged(
            (0..stream.keys.len()).chain(0..stream.keys.len()).collect::<Vec<_>>().into_iter(),
        );
        let hits = |policy: &str, stream: &Stream| {
            let run =
                objects::Run { policy: policy.parse().unwrap(), size: 150, admit: Vec::new() };
            objects::simulate("", stream, &run, None, &std::sync::atomic::AtomicU64::new(0)).hits
        };
        for policy in ["lru", "arc", "lirs", "lecar", "cacheus", "sieve", "qdlp", "2q", "lhd"] {
            let second = hits(policy, &twice) - hits(policy, &stream);
            let counted = counted(policy, &stream, 150).counted;
            let of = counted.outcomes.iter().find(|counts| !counts.is_miss).unwrap();
            assert_eq!(of.requests, second, "{policy}");
        }
    }

    #[test]
    fn a_hand_passes_entries_by_only_when_they_were_hit() {
        let loops = stream((0..2000).map(|at| at % 20));
        for policy in ["clock", "sieve", "qdlp"] {
            let never_hit = counted(policy, &loops, 5);
            assert_eq!(outcome(&never_hit, "miss").each(Operation::Step), 0.0, "{policy}");
        }
        let hit = counted("clock", &skewed(), 150);
        assert!(outcome(&hit, "miss").each(Operation::Step) > 0.1);
    }

    #[test]
    fn ghosts_are_an_outcome_of_their_own() {
        let arc = counted("arc", &skewed(), 100);
        let ghost = outcome(&arc, "ghost");
        assert!(ghost.is_miss && ghost.requests > 100, "{ghost:?}");
        let taken: f64 = ["B1", "B2"]
            .iter()
            .filter_map(|list| ghost.operations.get(&(*list, Operation::Delink)))
            .sum();
        assert_eq!(taken, ghost.requests as f64, "each is taken out of its ghost list");
        assert_eq!(ghost.operations.get(&("T2", Operation::Head)), Some(&taken), "and goes to T2");
    }

    #[test]
    fn policies_that_look_at_more_than_keys_are_refused() {
        for policy in ["belady", "sarc"] {
            assert_eq!(policy.parse::<Candidate>(), Err(CandidateError::LooksAtMore(policy)));
        }
        assert!("magic".parse::<Candidate>().unwrap_err().to_string().contains("magic"));
    }
}
