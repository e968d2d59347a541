//! The order of last touches, in which reuse distances are counted.
//!
//! A Fenwick tree over places in the order of touches counts the keys that were last touched after
//! a place. Touch, drop and count take logarithmic time.
//!
//! A deleted key leaves a hole, which counts as a key: no cache that has evicted another key takes
//! that back because of the room. The next key that comes to the front from behind the hole or from
//! nowhere fills it, and leaves its own place as a hole.
//!
//! Invariant: a place counts 1 in the tree if it is that of its key's last touch or a hole, else 0,
//! so that all places together count `live`.

use std::collections::BinaryHeap;

/// Stand for a key at a place that is a hole, or was one.
const HOLE: u32 = u32::MAX;
const FILLED: u32 = u32::MAX - 1;

/// When each key was last touched, and how many were touched since a time: a Fenwick tree over
/// twice as many places as there are keys. When all are used, the touches that still count move to
/// the front.
#[derive(Debug)]
pub(crate) struct LastTouches {
    /// The place of each key's last touch, counted from 1; 0 before the first.
    place: Vec<u32>,
    /// The key at each place.
    keys: Vec<u32>,
    tree: Vec<u32>,
    /// The places of holes, the latest first.
    holes: BinaryHeap<u32>,
    used: usize,
    live: u32,
}

impl LastTouches {
    /// Nothing touched yet, with room for so many keys.
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

    /// Notes a touch. Returns the distinct keys touched since the key's last touch, with itself.
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

    /// Drops a key, as if it had never been touched.
    pub(crate) fn forget(&mut self, key: u32) {
        let place = std::mem::take(&mut self.place[key as usize]) as usize;
        if place > 0 {
            self.add(place, u32::MAX);
            self.live -= 1;
        }
    }

    /// Drops a key, which leaves a hole.
    pub(crate) fn delete(&mut self, key: u32) {
        let place = std::mem::take(&mut self.place[key as usize]);
        if place > 0 {
            self.keys[place as usize] = HOLE;
            self.holes.push(place);
        }
    }

    /// Bytes of memory taken.
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
