//! W-TinyLFU: a candidate replaces the main list's victim only if it was requested more often.
//!
//! New entries enter a small LRU window. An entry that falls out of it competes with the coldest
//! entry of the main part, a segmented LRU, by the frequencies in a sketch that also remembers keys
//! which are not cached. The size of the window climbs towards the better hit ratio (Einziger,
//! Friedman, Manes, "TinyLFU", TOS '17; Einziger, Eytan, Friedman, Manes, "Adaptive Software Cache
//! Management", Middleware '18).
//!
//! Constants are Caffeine's. Differences from it: hits in the window are not counted, as in
//! libCacheSim, because several in a row say little about later (`window-hits=1` counts them; on
//! the trace P3 with 200,000 entries that alone takes the miss ratio from 0.448 to 0.462); no
//! candidate is admitted by chance; the climb starts upwards, where Caffeine's first step makes a
//! window of 1 % smaller; a window that grows takes room from the next victims, not all at once.
//! libCacheSim's window never adapts. Its counters are wide, count again when a key leaves the
//! window, and age so late that on the traces compared they never do.
//!
//! Do not use it where only recency matters: the window has to grow before new entries stand a
//! chance.

use crate::ghosts::Tag;
use crate::listed::Listed;
use crate::sketch::Sketch;
use crate::{Access, AlwaysPromote, Lists, Parameter, Parameters, Policy, PolicyInfo, Slot};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

/// Share of the main part that is protected (Caffeine).
const PROTECTED_SHARE: f64 = 0.8;
/// First step of the climb, as a share of the cache (Caffeine).
const STEP: f64 = 0.0625;
/// Factor by which each step of the climb shrinks (Caffeine).
const STEP_DECAY: f64 = 0.98;
/// Change of the hit ratio that restarts the climb with the first step (Caffeine).
const RESTART: f64 = 0.05;
/// Number of requests per entry between steps of the climb (Caffeine).
const REQUESTS_PER_STEP: u64 = 10;
/// Largest share of the cache that the window may have (Caffeine keeps a main part).
const WINDOW_MAX: f64 = 0.8;
/// Maximum number of entries that one eviction moves out of a window that has become too large.
const MOVES_MAX: usize = 16;

/// W-TinyLFU (`w-tinylfu`): admits a new key if a sketch counts more requests for it than for the
/// victim. LRU-like.
#[derive(Debug, Clone)]
pub struct WTinyLfu {
    segments: Lists<3>,
    tags: Vec<Tag>,
    sketch: Sketch,
    window_share: f64,
    adapts: bool,
    counts_window_hits: bool,
    step: f64,
    window_target: u64,
    protected_target: u64,
    /// True since the first eviction.
    is_full: bool,
    hits: u64,
    requests: u64,
    hit_ratio: Option<f64>,
}

impl WTinyLfu {
    /// Counts a request, and takes a step of the climb when one is due. Ignores requests while the
    /// cache fills.
    #[inline]
    fn count(&mut self, hit: bool) {
        if !self.is_full {
            return;
        }
        self.hits += u64::from(hit);
        self.requests += 1;
        if self.adapts && self.requests >= REQUESTS_PER_STEP * self.segments.len() as u64 {
            self.climb();
        }
    }

    #[cold]
    fn climb(&mut self) {
        let hit_ratio = self.hits as f64 / self.requests as f64;
        if let Some(before) = self.hit_ratio {
            let change = hit_ratio - before;
            let step = if change >= 0.0 { self.step } else { -self.step };
            self.step =
                if change.abs() >= RESTART { STEP.copysign(step) } else { step * STEP_DECAY };
            self.window_share = (self.window_share + step).clamp(0.01, WINDOW_MAX);
            self.resized();
        }
        self.hit_ratio = Some(hit_ratio);
        (self.hits, self.requests) = (0, 0);
    }

    /// Moves entries that no longer fit into the window to the main part without a contest: while
    /// the cache fills, or when the window shrinks.
    #[inline]
    fn overflow(&mut self) {
        for _ in 0..MOVES_MAX {
            match self.segments.tail(WINDOW) {
                Some(coldest) if self.segments.size(WINDOW) > self.window_target => {
                    self.segments.move_to_head(PROBATION, coldest);
                }
                _ => break,
            }
        }
    }

    #[inline]
    fn limit_protected(&mut self) {
        while self.segments.size(PROTECTED) > self.protected_target {
            match self.segments.tail(PROTECTED) {
                Some(coldest) => self.segments.move_to_head(PROBATION, coldest),
                None => break,
            }
        }
    }

    #[inline]
    fn frequency(&self, slot: Slot) -> u64 {
        self.sketch.estimate(self.tags[slot.index()].bits())
    }
}

impl Policy for WTinyLfu {
    const INFO: PolicyInfo = PolicyInfo::new(
        "w-tinylfu",
        "a candidate must be requested more often than the victim, by a sketch",
        "Einziger et al., TOS '17, Middleware '18",
    )
    .with(&[
        Parameter::share("window", 0.01, "share of the window at the start"),
        Parameter::count("adapt", 1, 0..=1, "whether the window adapts"),
        Parameter::count("window-hits", 0, 0..=1, "whether hits in the window count as uses"),
    ]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            segments: Lists::named(["window", "probation", "protected"]),
            tags: Vec::new(),
            sketch: Sketch::default(),
            window_share: parameters.get("window"),
            adapts: parameters.count("adapt") == 1,
            counts_window_hits: parameters.count("window-hits") == 1,
            step: STEP,
            window_target: 0,
            protected_target: 0,
            is_full: false,
            hits: 0,
            requests: 0,
            hit_ratio: None,
        }
    }
}

impl Listed for WTinyLfu {
    type Marks = AlwaysPromote;
    type Lists = Lists<3>;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<3> {
        &self.segments
    }

    fn lists_mut(&mut self) -> &mut Lists<3> {
        &mut self.segments
    }

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        let Some(segment) = self.segments.list_of(slot) else { return };
        if segment != WINDOW || self.counts_window_hits {
            self.sketch.add(self.tags[slot.index()].bits());
        }
        self.count(true);
        self.segments.move_to_head(if segment == WINDOW { WINDOW } else { PROTECTED }, slot);
        self.limit_protected();
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        self.sketch.add(tag.bits());
        self.count(false);
        self.tags[slot.index()] = tag;
        self.segments.set_weight(slot, access.weight);
        self.segments.push_head(WINDOW, slot);
        self.overflow();
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.is_full = true;
        self.overflow();
        let victim = self.segments.tail(PROBATION).or(self.segments.tail(PROTECTED));
        let candidate =
            self.segments.tail(WINDOW).filter(|_| self.segments.size(WINDOW) >= self.window_target);
        let loser = match (candidate, victim) {
            (Some(candidate), Some(victim))
                if self.frequency(candidate) > self.frequency(victim) =>
            {
                self.segments.move_to_head(PROBATION, candidate);
                victim
            }
            (Some(candidate), _) => candidate,
            (None, Some(victim)) => victim,
            (None, None) => self.segments.tail(WINDOW)?,
        };
        self.segments.delink(loser);
        Some(loser)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [PROTECTED, PROBATION, WINDOW]
    }
    fn expect(&mut self, slots: usize) {
        self.sketch.reserve(slots);
    }

    fn resized(&mut self) {
        let slots = self.segments.slots();
        self.tags.resize(slots, Tag::default());
        self.sketch.reserve(slots);
        let capacity = self.segments.capacity() as f64;
        self.window_target = ((capacity * self.window_share) as u64).max(1);
        self.protected_target = (capacity * (1.0 - self.window_share) * PROTECTED_SHARE) as u64;
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn reweighed(&mut self, _: Slot) {
        self.limit_protected();
    }

    fn other_memory_bytes(&self) -> usize {
        self.tags.capacity() * size_of::<Tag>() + self.sketch.memory_bytes()
    }
}
