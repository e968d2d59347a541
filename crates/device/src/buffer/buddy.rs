//! The buddy allocator: which pages of an arena are free.
//!
//! A block of order `k` is `2^k` pages starting at a multiple of `2^k`; its buddy is the block
//! whose number differs in that one bit. Allocation takes the smallest large-enough free block and
//! splits it; freeing merges with the buddy as long as that is free too (Knowlton, "A fast storage
//! allocator", CACM 1965). Pure bookkeeping: it never touches the memory it describes.
//!
//! Invariants: `order_of[p]` is the order of a free block starting at `p` and `TAKEN` for every
//! other page; free blocks of one order form a doubly linked list through `next` and `previous`;
//! two free buddies never coexist.

const NONE: u32 = u32::MAX;
const TAKEN: u8 = u8::MAX;
/// Blocks have fewer than 2^32 pages.
pub(super) const ORDERS: usize = 32;

#[derive(Debug)]
pub(crate) struct Buddy {
    heads: [u32; ORDERS],
    next: Vec<u32>,
    previous: Vec<u32>,
    order_of: Vec<u8>,
}

impl Buddy {
    /// All of `pages` free; their number need not be a power of two.
    pub(crate) fn new(pages: usize) -> Buddy {
        assert!(pages < NONE as usize, "an arena has fewer than 2^32 pages");
        let mut buddy = Buddy {
            heads: [NONE; ORDERS],
            next: vec![NONE; pages],
            previous: vec![NONE; pages],
            order_of: vec![TAKEN; pages],
        };
        let mut page = 0;
        while page < pages {
            let order = page.trailing_zeros().min((pages - page).ilog2());
            buddy.link(page as u32, order);
            page += 1 << order;
        }
        buddy
    }

    /// The first page of a block of `2^order` pages, if there is one.
    pub(crate) fn allocate(&mut self, order: u32) -> Option<u32> {
        let found = (order..ORDERS as u32).find(|&o| self.heads[o as usize] != NONE)?;
        let page = self.heads[found as usize];
        self.unlink(page);
        for half in (order..found).rev() {
            self.link(page + (1 << half), half);
        }
        Some(page)
    }

    /// Takes back a block that `allocate(order)` gave out.
    pub(crate) fn free(&mut self, mut page: u32, mut order: u32) {
        debug_assert_eq!(self.order_of[page as usize], TAKEN, "freed twice");
        loop {
            let buddy = page ^ (1 << order);
            if self.order_of.get(buddy as usize) != Some(&(order as u8)) {
                break;
            }
            self.unlink(buddy);
            page &= buddy;
            order += 1;
        }
        self.link(page, order);
    }

    fn link(&mut self, page: u32, order: u32) {
        let head = std::mem::replace(&mut self.heads[order as usize], page);
        self.next[page as usize] = head;
        self.previous[page as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = page;
        }
        self.order_of[page as usize] = order as u8;
    }

    fn unlink(&mut self, page: u32) {
        let (next, previous) = (self.next[page as usize], self.previous[page as usize]);
        let order = std::mem::replace(&mut self.order_of[page as usize], TAKEN);
        match previous {
            NONE => self.heads[order as usize] = next,
            _ => self.next[previous as usize] = next,
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_never_overlap_and_everything_merges_back(
            pages in 1usize..200,
            steps in proptest::collection::vec(
                (0u32..5, any::<bool>(), any::<proptest::sample::Index>()), 0..200,
            ),
        ) {
            let mut buddy = Buddy::new(pages);
            let mut taken = vec![false; pages];
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (order, free, which) in steps {
                if free && !held.is_empty() {
                    let (page, order) = held.swap_remove(which.index(held.len()));
                    taken[page as usize..][..1 << order].fill(false);
                    buddy.free(page, order);
                } else if let Some(page) = buddy.allocate(order) {
                    prop_assert_eq!(page % (1 << order), 0);
                    for mark in &mut taken[page as usize..][..1 << order] {
                        prop_assert!(!std::mem::replace(mark, true));
                    }
                    held.push((page, order));
                } else {
                    // Refused: then no aligned free run of that size exists.
                    let run = 1 << order;
                    prop_assert!((0..pages / run).all(|i| taken[i * run..][..run].contains(&true)));
                }
            }
            for (page, order) in held {
                buddy.free(page, order);
            }
            let largest = pages.ilog2();
            prop_assert!(buddy.allocate(largest).is_some());
        }
    }
}
