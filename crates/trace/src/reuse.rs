//! Measures the popularity of keys and the distance between touches of one key.
//!
//! The reuse distance of a touch is the size of the smallest LRU cache that hits it: the distinct
//! keys since the last touch of its key, with the key itself (Mattson et al., 1970). It is counted
//! exactly with a Fenwick tree over last touches, or, for long traces, over a sample of keys by
//! hash (SHARDS, Waldspurger et al., FAST '15), whose distances are scaled up.

use std::collections::BinaryHeap;

use serde::Serialize;

use crate::dense::{DenseKeys, Numbering, deleted, touches};
use crate::error::{Error, ErrorKind};
use crate::request::{Request, TraceKind};

/// Maximum number of touches for which distances are exact, by default.
const EXACT_TOUCHES_MAX: u64 = 50_000_000;
/// Number of groups of a sample, from whose differences the error is estimated.
const GROUPS: usize = 8;
/// Minimum number of touches of a key that is used to fit the Zipf exponent.
const TOUCHES_MIN: u32 = 5;

/// Popularity and reuse of a trace's keys, or blocks of 4 KiB.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reuse {
    /// Share of touches that go to the most popular 1 % of keys.
    pub top_1_percent_share: f64,
    /// Share of touches that go to the most popular 10 % of keys.
    pub top_10_percent_share: f64,
    /// Exponent of Zipf's law fitted to keys touched five times or more: least squares over the
    /// logarithms of touches and rank, each factor of rank weighing the same. `None` if there are
    /// fewer than ten such keys.
    pub zipf_exponent: Option<f64>,
    /// Share of keys that are touched only once.
    pub one_hit_share: f64,
    /// 10th percentile of the reuse distances; `None` if nothing is reused.
    pub reuse_p10: Option<u64>,
    /// Median of the reuse distances; `None` if nothing is reused.
    pub reuse_p50: Option<u64>,
    /// 90th percentile of the reuse distances; `None` if nothing is reused.
    pub reuse_p90: Option<u64>,
    /// Share of keys whose distances were measured, from 0 to 1.
    pub reuse_sample: f64,
    /// Relative standard error of the median distance due to sampling, estimated from eight groups
    /// of the sample; 0 if all keys were measured.
    pub reuse_error: f64,
}

/// Collects the touches of a trace, at 4 bytes each, and computes popularity and reuse.
#[derive(Debug)]
pub struct ReuseStats {
    kind: TraceKind,
    numbering: Numbering,
    keys: Vec<u32>,
    /// Deleted keys, each with the number of touches before its deletion.
    deletes: Vec<(usize, u32)>,
    exact_touches_max: u64,
}

impl ReuseStats {
    /// Creates empty statistics for a trace of this kind.
    pub fn new(kind: TraceKind) -> Self {
        Self {
            kind,
            numbering: Numbering::new(),
            keys: Vec::new(),
            deletes: Vec::new(),
            exact_touches_max: EXACT_TOUCHES_MAX,
        }
    }

    /// Sets the number of touches above which only a sample of keys is measured; the default is 50
    /// million.
    pub fn exact_up_to(self, touches: u64) -> Self {
        Self { exact_touches_max: touches.max(1), ..self }
    }

    /// Adds a request. The first touch of a key after its deletion is no reuse.
    ///
    /// # Errors
    /// When more than 2³² − 2 keys are distinct.
    pub fn add(&mut self, request: &Request) -> Result<(), Error> {
        let known = |(volume, key)| self.numbering.find(volume, key);
        let deletes = deleted(self.kind, request).filter_map(known);
        self.deletes.extend(deletes.map(|key| (self.keys.len(), key)));
        for (volume, key) in touches(self.kind, request) {
            let number = self.numbering.number(volume, key);
            self.keys
                .push(number.ok_or_else(|| ErrorKind::TooManyKeys { path: "reuse".to_owned() })?);
        }
        Ok(())
    }

    /// Returns popularity and reuse of the collected touches.
    pub fn reuse(self) -> Reuse {
        let distinct = self.numbering.distinct();
        let dense = DenseKeys { keys: self.keys, distinct };
        Reuse::with_deletes(&dense, &self.deletes, self.exact_touches_max)
    }
}

impl Reuse {
    /// Computes popularity and reuse of keys; distances come from a sample if there are more than
    /// `exact_touches_max` touches.
    pub fn of(dense: &DenseKeys, exact_touches_max: u64) -> Self {
        Self::with_deletes(dense, &[], exact_touches_max)
    }

    fn with_deletes(dense: &DenseKeys, deletes: &[(usize, u32)], exact_touches_max: u64) -> Self {
        let touches = dense.keys.len() as u64;
        let mut counts = vec![0u32; dense.distinct as usize];
        dense
            .keys
            .iter()
            .for_each(|&key| counts[key as usize] = counts[key as usize].saturating_add(1));
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let share =
            |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let top = |part: usize| {
            let keys = counts.len().div_ceil(part);
            share(counts[..keys].iter().map(|&count| u64::from(count)).sum(), touches)
        };
        let once = counts.iter().rev().take_while(|&&count| count == 1).count();
        let sample = if touches <= exact_touches_max {
            1.0
        } else {
            exact_touches_max as f64 / touches as f64
        };
        let groups = distances(dense, deletes, sample);
        let mut all = groups.concat();
        // The key itself is not subject to sampling.
        let scaled = |distance: u32| 1 + (f64::from(distance - 1) / sample).round() as u64;
        let mut at = |share| percentile(&mut all, share).map(scaled);
        let (reuse_p10, reuse_p50, reuse_p90) = (at(0.1), at(0.5), at(0.9));
        let reuse_error = if sample < 1.0 { median_error(groups) } else { 0.0 };
        Self {
            top_1_percent_share: top(100),
            top_10_percent_share: top(10),
            zipf_exponent: exponent(&counts),
            one_hit_share: share(once as u64, counts.len() as u64),
            reuse_p10,
            reuse_p50,
            reuse_p90,
            reuse_sample: sample,
            reuse_error,
        }
    }
}

/// Fits touches ∝ rank^-θ to counts in descending order, and returns θ.
fn exponent(counts: &[u32]) -> Option<f64> {
    let popular = counts.partition_point(|&count| count >= TOUCHES_MIN);
    if popular < 10 {
        return None;
    }
    let [mut weights, mut x_sum, mut y_sum, mut xx_sum, mut xy_sum] = [0.0; 5];
    for (&count, rank) in counts[..popular].iter().zip(1u32..) {
        let (weight, x, y) = (1.0 / f64::from(rank), f64::from(rank).ln(), f64::from(count).ln());
        weights += weight;
        x_sum += weight * x;
        y_sum += weight * y;
        xx_sum += weight * x * x;
        xy_sum += weight * x * y;
    }
    Some(-(weights * xy_sum - x_sum * y_sum) / (weights * xx_sum - x_sum * x_sum))
}

/// Returns the smallest distance that a given share of distances does not exceed.
fn percentile(distances: &mut [u32], share: f64) -> Option<u32> {
    let at = (distances.len() as f64 * share).ceil() as usize;
    let index = at.checked_sub(1).filter(|&index| index < distances.len())?;
    Some(*distances.select_nth_unstable(index).1)
}

/// Returns the relative standard error of the median, from the medians of groups. Groups are
/// divided by key, because the touches of one key are not independent.
fn median_error(groups: [Vec<u32>; GROUPS]) -> f64 {
    let medians = groups.map(|mut group| f64::from(percentile(&mut group, 0.5).unwrap_or(0)));
    let mean = medians.iter().sum::<f64>() / GROUPS as f64;
    let squares: f64 = medians.iter().map(|median| (median - mean) * (median - mean)).sum();
    let error = (squares / (GROUPS * (GROUPS - 1)) as f64).sqrt();
    if mean > 0.0 { error / mean } else { 0.0 }
}

/// Returns the reuse distances of a sample of keys, in groups by key. Distances are counted within
/// the sample and not scaled up.
fn distances(dense: &DenseKeys, deletes: &[(usize, u32)], sample: f64) -> [Vec<u32>; GROUPS] {
    let until = (sample * f64::from(u32::MAX)) as u32;
    let mut last = LastTouches::new(dense.distinct as usize);
    let mut groups = [const { Vec::new() }; GROUPS];
    let mut deletes = deletes.iter().peekable();
    for (at, &key) in dense.keys.iter().enumerate() {
        while let Some((_, deleted)) = deletes.next_if(|&&(before, _)| before == at) {
            last.delete(*deleted);
        }
        let mixed = mix(key);
        if mixed <= until
            && let Some(distance) = last.touch(key)
        {
            groups[mixed as usize % GROUPS].push(distance);
        }
    }
    groups
}

/// Mixes the bits of a number, one to one.
fn mix(key: u32) -> u32 {
    let mixed = (key ^ key >> 16).wrapping_mul(0x7feb_352d);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x846c_a68b);
    mixed ^ mixed >> 16
}

/// Placeholder for the key of a hole; `FILLED` marks a hole that was filled since.
const HOLE: u32 = u32::MAX;
const FILLED: u32 = u32::MAX - 1;

/// The order of keys by last touch, in which reuse distances are counted.
///
/// A Fenwick tree over twice as many places as there are keys counts the keys that were last
/// touched after a place. Touch, drop and count take logarithmic time. When all places are used,
/// the last touches move to the front.
///
/// A deleted key leaves a hole, which counts as a key: a cache that has evicted another key does
/// not get it back because of the free room. The next key that moves to the front from behind the
/// hole, or is new, fills the hole, and leaves its own place as a hole.
///
/// Invariant: a place counts 1 in the tree if it is that of its key's last touch or a hole, else 0,
/// so that all places together count `live`.
#[derive(Debug)]
pub(crate) struct LastTouches {
    /// Place of each key's last touch, counted from 1; 0 before the first.
    place: Vec<u32>,
    /// Key at each place.
    keys: Vec<u32>,
    tree: Vec<u32>,
    /// Places of holes, the latest first.
    holes: BinaryHeap<u32>,
    used: usize,
    live: u32,
}

impl LastTouches {
    /// Creates an order of `distinct` keys, none of them touched yet.
    pub(crate) fn new(distinct: usize) -> Self {
        let places = (2 * distinct).max(64) + 1;
        Self {
            place: vec![0; distinct],
            keys: vec![0; places],
            tree: vec![0; places],
            holes: BinaryHeap::new(),
            used: 0,
            live: 0,
        }
    }

    /// Moves a key to the front. Returns the number of distinct keys touched since its last touch,
    /// itself included; `None` for the first touch.
    pub(crate) fn touch(&mut self, key: u32) -> Option<u32> {
        if self.used + 1 == self.tree.len() {
            self.compact();
        }
        let before = self.place[key as usize] as usize;
        let distance = (before > 0).then(|| self.live - self.up_to(before) + 1);
        match self.holes.peek().copied() {
            Some(hole) if hole as usize > before => {
                self.holes.pop();
                self.keys[hole as usize] = FILLED;
                self.add(hole as usize, u32::MAX);
                self.live -= 1;
                self.delete(key);
            }
            _ => self.forget(key),
        }
        self.used += 1;
        self.place[key as usize] = self.used as u32;
        self.keys[self.used] = key;
        self.add(self.used, 1);
        self.live += 1;
        distance
    }

    /// Removes a key as if it had never been touched.
    pub(crate) fn forget(&mut self, key: u32) {
        let place = std::mem::take(&mut self.place[key as usize]) as usize;
        if place > 0 {
            self.add(place, u32::MAX);
            self.live -= 1;
        }
    }

    /// Removes a key and leaves a hole in its place.
    pub(crate) fn delete(&mut self, key: u32) {
        let place = std::mem::take(&mut self.place[key as usize]);
        if place > 0 {
            self.keys[place as usize] = HOLE;
            self.holes.push(place);
        }
    }

    /// Returns the bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        let of_keys = self.place.capacity() + self.holes.capacity();
        4 * (of_keys + self.keys.capacity() + self.tree.capacity())
    }

    fn up_to(&self, mut place: usize) -> u32 {
        let mut sum = 0u32;
        while place > 0 {
            sum = sum.wrapping_add(self.tree[place]);
            place &= place - 1;
        }
        sum
    }

    fn add(&mut self, mut place: usize, difference: u32) {
        while let Some(node) = self.tree.get_mut(place) {
            *node = node.wrapping_add(difference);
            place += place & place.wrapping_neg();
        }
    }

    fn compact(&mut self) {
        let mut front = 0;
        self.holes.clear();
        for place in 1..=self.used {
            let key = self.keys[place];
            let last = self.place.get_mut(key as usize);
            match last {
                Some(last) if *last as usize == place => *last = front as u32 + 1,
                None if key == HOLE => self.holes.push(front as u32 + 1),
                _ => continue,
            }
            front += 1;
            self.keys[front] = key;
        }
        self.used = front;
        self.tree.fill(0);
        self.tree[1..=front].fill(1);
        for place in 1..self.tree.len() {
            let parent = place + (place & place.wrapping_neg());
            if parent < self.tree.len() {
                self.tree[parent] += self.tree[place];
            }
        }
    }
}
