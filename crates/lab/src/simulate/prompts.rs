//! Caches of the keys and values of language models, over traces of prompts.
//!
//! A block of a prompt is useful only if all blocks before it are cached, too: a model computes
//! each token from all tokens before it. So a prompt reuses its longest cached prefix, and
//! recomputes all that follows, cached or not.

use floe_policy::owner::{DenseIndex, SlotOwner};
use floe_policy::registry::{Choice, Visitor};
use floe_policy::{Access, Policy, mix};
use floe_trace::{Numbering, Request};
use serde::Serialize;

/// The end of a prompt whose blocks a cache uses last, so that it keeps them for longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeptLongest {
    /// Blocks are used from the first to the last, as the model reads them. Under LRU the first
    /// blocks leave first, and what follows them can no longer be reused.
    Tail,
    /// Blocks are used from the last to the first, as vLLM frees them. Under LRU the last blocks
    /// leave first.
    Head,
}

impl KeptLongest {
    /// Both ends.
    pub const ALL: [Self; 2] = [Self::Tail, Self::Head];

    /// Returns the word for the end.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tail => "tail",
            Self::Head => "head",
        }
    }
}

/// Prompts in memory, with blocks numbered from 0 in the order in which they first appear.
#[derive(Debug, Default)]
pub struct Prompts {
    blocks: Vec<u32>,
    /// Number of blocks of all prompts up to the end of each.
    ends: Vec<usize>,
    distinct: usize,
    /// Prompts at the start that are not counted.
    warmup: usize,
}

impl Prompts {
    /// Returns the number of prompts with at least one block.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether no prompt has a block.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the number of different blocks.
    pub fn distinct(&self) -> usize {
        self.distinct
    }

    /// Excludes this number of prompts at the start from the counts.
    pub fn count_from(&mut self, warmup: usize) {
        self.warmup = warmup;
    }

    fn iter(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.blocks[start..end])
    }
}

/// Collects the requests of a trace of prompts.
#[derive(Debug, Default)]
pub struct PromptsBuilder {
    prompts: Prompts,
    numbering: Numbering,
    last: Option<u32>,
}

impl PromptsBuilder {
    /// Adds a block of a prompt. Requests of one prompt follow each other, and have its number as
    /// their volume.
    ///
    /// # Errors
    /// When the trace has too many different blocks.
    pub fn add(&mut self, request: &Request) -> Result<(), TooManyBlocks> {
        let block = self.numbering.number(0, request.key).ok_or(TooManyBlocks)?;
        if self.last.replace(request.volume) != Some(request.volume) {
            self.prompts.ends.push(self.prompts.blocks.len());
        }
        self.prompts.blocks.push(block);
        *self.prompts.ends.last_mut().expect("one was added") += 1;
        Ok(())
    }

    /// Returns the prompts.
    pub fn finish(self) -> Prompts {
        Prompts { distinct: self.numbering.distinct() as usize, ..self.prompts }
    }
}

/// The error of a trace with 2³² − 1 different blocks or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the trace has more different blocks than can be numbered")]
pub struct TooManyBlocks;

/// The error of a policy that cannot be used for prompts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{policy} needs to know {needs}, which a cache of prompts does not")]
pub struct Unsuited {
    policy: String,
    needs: &'static str,
}

/// Results of one policy at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptsResult {
    /// Name of the trace.
    pub trace: String,
    /// The policy, with its parameters.
    pub policy: String,
    /// The end of prompts that is kept for longest.
    pub keeps: KeptLongest,
    /// Capacity in blocks.
    pub size: u64,
    /// Number of prompts that count.
    pub prompts: u64,
    /// Number of prompts all of whose blocks were reused.
    pub whole: u64,
    /// Number of blocks of all these prompts.
    pub blocks: u64,
    /// Blocks that were reused: cached, and all blocks before them too.
    pub reused: u64,
    /// Blocks that were computed.
    pub recomputed: u64,
    /// Blocks among these that were cached behind one that was not.
    pub behind_a_gap: u64,
    /// Share of blocks that were computed.
    pub recompute_ratio: f64,
}

/// Simulates a cache of `size` blocks.
///
/// # Errors
/// When the policy needs the next use of each block, or sequences of positions.
pub fn simulate(
    trace: &str,
    prompts: &Prompts,
    policy: &Choice,
    keeps: KeptLongest,
    size: u64,
) -> Result<PromptsResult, Unsuited> {
    let unsuited = |needs| Unsuited { policy: policy.to_string(), needs };
    let counts =
        floe_policy::with(policy, Simulation { prompts, keeps, size }).map_err(unsuited)?;
    Ok(PromptsResult {
        trace: trace.to_owned(),
        policy: policy.to_string(),
        keeps,
        size,
        prompts: counts.prompts,
        whole: counts.whole,
        blocks: counts.blocks,
        reused: counts.reused,
        recomputed: counts.blocks - counts.reused,
        behind_a_gap: counts.behind_a_gap,
        recompute_ratio: (counts.blocks - counts.reused) as f64 / counts.blocks.max(1) as f64,
    })
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    prompts: u64,
    whole: u64,
    blocks: u64,
    reused: u64,
    behind_a_gap: u64,
}

struct Simulation<'a> {
    prompts: &'a Prompts,
    keeps: KeptLongest,
    size: u64,
}

impl Visitor for Simulation<'_> {
    type Out = Result<Counts, &'static str>;

    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Self::Out {
        if P::INFO.next_uses {
            return Err("the next use of each block");
        }
        if P::INFO.streams {
            return Err("positions on a disk");
        }
        let Self { prompts, keeps, size } = self;
        let slots = prompts.distinct.min(usize::try_from(size).unwrap_or(usize::MAX));
        let index = DenseIndex::new(prompts.distinct);
        let mut cache: SlotOwner<P, DenseIndex> = SlotOwner::new(make(), index, size, slots);
        let mut counts = Counts::default();
        for (at, blocks) in prompts.iter().enumerate() {
            if at == prompts.warmup {
                counts = Counts::default();
            }
            let reused = blocks.iter().take_while(|&&block| cache.find(block).is_some()).count();
            let behind = blocks[reused..].iter().filter(|&&block| cache.find(block).is_some());
            counts.prompts += 1;
            counts.whole += u64::from(reused == blocks.len());
            counts.blocks += blocks.len() as u64;
            counts.reused += reused as u64;
            counts.behind_a_gap += behind.count() as u64;
            let mut request = |&block: &u32| match cache.find(block) {
                Some(slot) => cache.access(slot),
                None => {
                    let access = Access::new(mix(u64::from(block)));
                    cache.insert(block, &access, |_, _, _| {});
                }
            };
            match keeps {
                KeptLongest::Tail => blocks.iter().for_each(&mut request),
                KeptLongest::Head => blocks.iter().rev().for_each(&mut request),
            }
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use floe_trace::Op;

    use super::*;

    fn prompts(of: &[&[u64]]) -> Prompts {
        let mut builder = PromptsBuilder::default();
        for (volume, blocks) in (0..).zip(of) {
            for &key in *blocks {
                let request = Request { time_ns: 0, key, bytes: 1, volume, op: Op::Read };
                builder.add(&request).unwrap();
            }
        }
        builder.finish()
    }

    fn lru(prompts: &Prompts, keeps: KeptLongest, size: u64) -> PromptsResult {
        simulate("test", prompts, &"lru".parse().unwrap(), keeps, size).unwrap()
    }

    #[test]
    fn the_longest_cached_prefix_is_reused_and_no_more() {
        let prompts = prompts(&[&[1, 2, 3], &[1, 2, 4], &[5, 2, 3]]);
        let result = lru(&prompts, KeptLongest::Tail, 100);
        assert_eq!((result.prompts, result.whole, result.blocks), (3, 0, 9));
        // The second reuses 1 and 2. The third reuses nothing, though it has two cached blocks.
        assert_eq!((result.reused, result.recomputed, result.behind_a_gap), (2, 7, 2));
    }

    #[test]
    fn the_end_that_is_kept_decides_what_a_full_cache_can_reuse() {
        let prompts = prompts(&[&[1, 2, 3, 4], &[9], &[1, 2, 3, 4]]);
        // The prompt of one block evicts 1, or 4.
        let tail = lru(&prompts, KeptLongest::Tail, 4);
        assert_eq!((tail.reused, tail.behind_a_gap), (0, 3));
        let head = lru(&prompts, KeptLongest::Head, 4);
        assert_eq!((head.reused, head.behind_a_gap), (3, 0));
    }

    #[test]
    fn prompts_of_the_warm_up_fill_the_cache_and_do_not_count() {
        let mut prompts = prompts(&[&[1, 2], &[1, 2], &[1, 2, 3]]);
        prompts.count_from(1);
        let result = lru(&prompts, KeptLongest::Head, 10);
        assert_eq!((result.prompts, result.whole, result.blocks, result.reused), (2, 1, 5, 4));
    }

    #[test]
    fn policies_that_need_more_than_a_prompt_tells_are_refused() {
        let prompts = prompts(&[&[1]]);
        for policy in ["belady", "sarc"] {
            let policy: Choice = policy.parse().unwrap();
            assert!(simulate("test", &prompts, &policy, KeptLongest::Head, 1).is_err(), "{policy}");
        }
    }

    #[test]
    fn lru_equals_a_list() {
        use proptest::prelude::*;
        let prompt = prop::collection::vec(0..12_u64, 1..6);
        proptest!(|(of in prop::collection::vec(prompt, 1..40), size in 1..9_usize)| {
            let slices: Vec<&[u64]> = of.iter().map(Vec::as_slice).collect();
            for keeps in KeptLongest::ALL {
                let found = lru(&prompts(&slices), keeps, size as u64);
                let (mut list, mut reused) = (Vec::<u64>::new(), 0);
                for prompt in &of {
                    reused += prompt.iter().take_while(|block| list.contains(block)).count() as u64;
                    let mut order = prompt.clone();
                    if keeps == KeptLongest::Head {
                        order.reverse();
                    }
                    for block in order {
                        list.retain(|other| *other != block);
                        list.push(block);
                        list.drain(..list.len().saturating_sub(size));
                    }
                }
                prop_assert_eq!(found.reused, reused);
            }
        });
    }
}
