//! Memory for requests that all clients of a thread share.
//!
//! A session takes from the budget before a request gets a buffer, and gives back when the reply
//! has been sent. Some of the memory is each client's own, a reserve that no other client can take.
//! The rest is common. A client's share of it is a sixth while all of it is free, and falls with
//! the square of the free part ([`Budget::need`]). So n clients that take all they can and never
//! give back leave about 1 / (1 + n / 6) of the common memory free, in whatever order they come.
//! The idea is that of dynamic thresholds in packet switches (Choudhury and Hahne 1998), which fall
//! linearly: queues there drain, while a client here may hold its memory for ever.
//!
//! Requests that find no room wait in line. The request that needs the least free memory is served
//! first, which belongs to the client that holds the least; among equals, the first to arrive. Such
//! a line could pass over a large request for ever. So the oldest waiting request of a client that
//! holds nothing has a *claim*: a quarter of the free memory is kept from other clients, until the
//! request finds twice as much room as it needs. In this way one request at a time may exceed its
//! client's share. The kept part is no more than a quarter, because stalled clients may never leave
//! enough for the claim.
//!
//! Invariants: `used` is the sum of the clients' memory beyond their own. It exceeds the common
//! memory only by a single request that is larger, and by short writes whose payload must be read
//! before the server can read on ([`Budget::take_at_once`]). A request within a client's own memory
//! is granted at once. A client stands in line at most once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use floe_block::{MOST_MAPPED_BYTES, RequestKind, SECTOR_BYTES};

use crate::limits::{COMMON_SHARE, OWN_BYTES_LEAST, OWN_PART};
use crate::protocol::Request;

/// The memory budget of a thread's clients.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Bytes that each client may hold regardless of the others.
    own: usize,
    /// Bytes that all clients share beyond their own.
    common: usize,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that each client holds, indexed by client.
    held: Vec<usize>,
    used: usize,
    waiting: BTreeMap<u32, Waiting>,
    /// Waiting clients, ordered by the free memory that each needs, then by arrival.
    line: BTreeSet<(usize, u64, u32)>,
    /// Waiting clients that hold nothing, ordered by arrival.
    claims: BTreeSet<(u64, u32)>,
    /// The client whose request exceeds its share, and the bytes of the excess not yet given back.
    beyond: Option<(u32, usize)>,
    arrivals: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    bytes: usize,
    arrival: u64,
    need: usize,
}

impl Budget {
    /// Creates a budget of `limit` bytes for up to `clients` clients.
    pub(crate) fn new(limit: usize, clients: usize) -> Self {
        let reserve = limit / OWN_PART;
        let own = (reserve / clients.max(1)).max(OWN_BYTES_LEAST);
        Self { own, common: (limit - reserve).max(1), state: RefCell::default() }
    }

    /// Takes `bytes` for a client. If they are not free, the client waits in line until
    /// [`Budget::next_in_turn`] returns it. Returns whether the bytes were taken at once.
    pub(crate) fn take(&self, client: u32, bytes: usize) -> bool {
        if self.take_own(client, bytes) {
            return true;
        }
        let mut state = self.state.borrow_mut();
        let beyond_own = self.beyond_own(state.held(client) + bytes);
        let is_first =
            || state.line.first().is_none_or(|(least, ..)| *least > self.need(beyond_own));
        if self.fits(beyond_own, self.free_beside_claim(&state)) && is_first() {
            self.grant(&mut state, client, bytes);
            return true;
        }
        let arrival = state.arrivals;
        state.arrivals += 1;
        state.enter(client, Waiting { bytes, arrival, need: self.need(beyond_own) });
        if self.first_due(&state) == Some(client) {
            self.admit(&mut state, client);
            return true;
        }
        false
    }

    /// Takes `bytes` for a client if they are within its own part, and does nothing otherwise.
    /// Returns whether they were taken.
    pub(crate) fn take_own(&self, client: u32, bytes: usize) -> bool {
        let mut state = self.state.borrow_mut();
        let is_own = state.held(client) + bytes <= self.own || bytes == 0;
        if is_own {
            self.grant(&mut state, client, bytes);
        }
        is_own
    }

    /// Takes `bytes` for a client even if they are not free, because only the end of this request
    /// frees more memory.
    pub(crate) fn take_at_once(&self, client: u32, bytes: usize) {
        self.grant(&mut self.state.borrow_mut(), client, bytes);
    }

    /// Gives back part of a client's memory.
    pub(crate) fn give_back(&self, client: u32, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut state = self.state.borrow_mut();
        let before = state.held(client);
        let held = before - bytes;
        state.held[client as usize] = held;
        state.used -= self.beyond_own(before) - self.beyond_own(held);
        if let Some((_, left)) = state.beyond.as_mut().filter(|(holder, _)| *holder == client) {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                state.beyond = None;
            }
        }
        if let Some(waiting) = state.leave(client) {
            let need = self.need(self.beyond_own(held + waiting.bytes));
            state.enter(client, Waiting { need, ..waiting });
        }
    }

    /// Returns the waiting client to be served next, for which the memory is now taken; `None` if
    /// no client can be.
    pub(crate) fn next_in_turn(&self) -> Option<u32> {
        let mut state = self.state.borrow_mut();
        let client = self.first_due(&state)?;
        self.admit(&mut state, client);
        Some(client)
    }

    /// Removes a client from the line.
    pub(crate) fn leave(&self, client: u32) {
        self.state.borrow_mut().leave(client);
    }

    /// Returns the bytes a client holds.
    #[cfg(test)]
    pub(crate) fn held(&self, client: u32) -> usize {
        self.state.borrow().held(client)
    }

    /// Returns whether any client waits in line.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.state.borrow().line.is_empty()
    }

    /// Returns whether other clients wait for the memory of this one: more than half of the common
    /// memory is in use, or the client's request is larger than its share.
    pub(crate) fn is_in_the_way(&self, client: u32) -> bool {
        let state = self.state.borrow();
        let others = state.line.len() > usize::from(state.waiting.contains_key(&client));
        let is_scarce = 2 * state.used > self.common;
        let is_beyond = state.beyond.is_some_and(|(holder, _)| holder == client);
        others && state.held(client) > 0 && (is_scarce || is_beyond)
    }

    /// Returns the bytes a client may hold beyond its own while `free` bytes are free.
    #[cfg(test)]
    fn share(&self, free: usize) -> usize {
        let (free, common) = (free as u128, self.common as u128);
        ((self.common / COMMON_SHARE) as u128 * free * free / (common * common)) as usize
    }

    /// Returns whether a client may hold `beyond_own` bytes beyond its own while `free` bytes are
    /// free. The check avoids the square root of [`Budget::need`], because it runs for every
    /// request of a busy client.
    fn fits(&self, beyond_own: usize, free: usize) -> bool {
        let (free, common) = (free as u128, self.common as u128);
        (self.common / COMMON_SHARE) as u128 * free * free >= beyond_own as u128 * common * common
    }

    /// Returns the least free memory with which a client may hold `beyond_own` bytes beyond its
    /// own. A client's share is a sixth of the common memory times the square of the free part. If
    /// no share is that large, the result exceeds the common memory.
    fn need(&self, beyond_own: usize) -> usize {
        let most = self.common / COMMON_SHARE;
        if beyond_own > most {
            return usize::MAX;
        }
        let common = self.common as u128;
        let square = (beyond_own as u128 * common * common).div_ceil(most.max(1) as u128);
        let root = square.isqrt();
        (if root * root < square { root + 1 } else { root }) as usize
    }

    /// Returns the waiting client that is served next, if there is enough memory for any.
    fn first_due(&self, state: &State) -> Option<u32> {
        if let Some((client, claim)) = self.claim(state)
            && (claim <= self.free(state) || state.used == 0)
        {
            return Some(client);
        }
        let (need, _, client) = *state.line.first()?;
        (need <= self.free_beside_claim(state)).then_some(client)
    }

    /// Returns the client that has a claim, and the free bytes that it waits for: twice its
    /// request, so that other clients keep as much again.
    fn claim(&self, state: &State) -> Option<(u32, usize)> {
        let (_, client) = *state.claims.first().filter(|_| state.beyond.is_none())?;
        Some((client, 2 * self.beyond_own(state.waiting[&client].bytes)))
    }

    fn free(&self, state: &State) -> usize {
        self.common.saturating_sub(state.used)
    }

    fn free_beside_claim(&self, state: &State) -> usize {
        let free = self.free(state);
        let claim = self.claim(state).map_or(0, |(_, claim)| claim);
        free - claim.min(free / 4)
    }

    /// Removes a client from the line and takes the memory it waited for.
    fn admit(&self, state: &mut State, client: u32) {
        let waiting = state.leave(client).expect("who is admitted has waited");
        if waiting.need > self.free(state) {
            state.beyond = Some((client, waiting.bytes));
        }
        self.grant(state, client, waiting.bytes);
    }

    fn grant(&self, state: &mut State, client: u32, bytes: usize) {
        let at = client as usize;
        if state.held.len() <= at {
            state.held.resize(at + 1, 0);
        }
        let before = state.held[at];
        state.held[at] += bytes;
        state.used += self.beyond_own(before + bytes) - self.beyond_own(before);
    }

    fn beyond_own(&self, held: usize) -> usize {
        held.saturating_sub(self.own)
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn used(&self) -> usize {
        self.state.borrow().held.iter().sum()
    }
}

impl State {
    fn held(&self, client: u32) -> usize {
        self.held.get(client as usize).copied().unwrap_or(0)
    }

    fn enter(&mut self, client: u32, waiting: Waiting) {
        debug_assert!(!self.waiting.contains_key(&client), "a client waits once");
        self.line.insert((waiting.need, waiting.arrival, client));
        if self.held(client) == 0 {
            self.claims.insert((waiting.arrival, client));
        }
        self.waiting.insert(client, waiting);
    }

    fn leave(&mut self, client: u32) -> Option<Waiting> {
        let waiting = self.waiting.remove(&client)?;
        self.line.remove(&(waiting.need, waiting.arrival, client));
        self.claims.remove(&(waiting.arrival, client));
        Some(waiting)
    }
}

/// Returns the bytes that a request takes from the budget: its buffer in whole sectors. A
/// comparison has two buffers. A block status takes a byte for each sector of its range; those are
/// free again before the reply is made, which fits into one sector.
pub(super) fn bytes_of(request: &Request) -> usize {
    let sectors = |most: u64| {
        let end = request.offset + u64::from(request.length).min(most);
        (end.div_ceil(SECTOR_BYTES) - request.offset / SECTOR_BYTES) as usize
    };
    match request.kind {
        RequestKind::Read if request.compares => 2 * sectors(u64::MAX) * SECTOR_BYTES as usize,
        RequestKind::Read | RequestKind::Write { .. } if request.length > 0 => {
            sectors(u64::MAX) * SECTOR_BYTES as usize
        }
        RequestKind::DirtyMap => sectors(MOST_MAPPED_BYTES).next_multiple_of(SECTOR_BYTES as usize),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
