//! Reads of known versions: parts from the cache, the rest in as few requests as pay.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::{BoxFuture, join, join_all};
use futures_util::{FutureExt, StreamExt};
use object_store::{Error, GetOptions, GetRange};

use crate::catalog::lock;
use crate::failure::{Failure, Fault};
use crate::fetches::{Answer, Fetch, FetchGuard, NewFetch, Pieces, Waiting, ranges};
use crate::identity::{Known, if_match};
use crate::inner::Inner;
use crate::parts::{Absent, Part, Survey, align, allocate, overlap, survey, union, without};
use crate::planner::{Advice, Read};

impl Inner {
    /// Reads ranges of a version, which are not empty and end in the object. The result has them,
    /// and maybe more. `extend` lets misses fetch more than they need.
    pub(crate) async fn read(
        self: &Arc<Self>,
        known: &Arc<Known>,
        wanted: &[Range<u64>],
        extend: bool,
    ) -> Result<Pieces, Failure> {
        let len = known.meta.size;
        let needed = union(wanted.iter().map(|range| align(range, len)).collect());
        let read = Read {
            object: known.hash,
            prefix: Self::prefix_of(&known.meta.location),
            len,
            ranges: &needed,
            room: self.in_flight_bytes.saturating_sub(self.fetches.bytes()),
        };
        let advice = Some(lock(&self.planner).read(&read)).filter(|_| extend);
        let advice = advice.as_ref();
        if let Some(ahead) = advice.and_then(|advice| advice.ahead.clone()) {
            self.fetch_ahead(known, &ahead);
        }
        let mut absent = Absent::new();
        let mut pieces = Pieces::new();
        let mut is_hit = true;
        loop {
            let left = without(&needed, &ranges(&pieces));
            if left.is_empty() {
                break;
            }
            let found = self.survey(known, &left, &absent);
            let (old, new) = match found.missing.is_empty() {
                true => (Vec::new(), Vec::new()),
                false => {
                    is_hit = false;
                    self.join_fetches(known, &found.missing, advice, &absent)
                }
            };
            let newer = join_all(new.iter().map(|waiting| self.wait(waiting, &left)));
            let older = join_all(old.iter().map(|waiting| self.wait(waiting, &left)));
            let cached = self.cached_parts(known, &found.cached);
            let ((cached, new_ends), old_ends) = join(join(cached, newer), older).await;
            for (part, bytes) in found.cached.iter().zip(cached) {
                match bytes {
                    Some(bytes) => {
                        self.counters.cached_bytes.fetch_add(bytes.len() as u64, Relaxed);
                        pieces.insert(part.range(len).start, bytes);
                    }
                    None => drop(absent.insert(*part)),
                }
            }
            for (waiting, end) in new.iter().chain(&old).zip(new_ends.into_iter().chain(old_ends)) {
                end?;
                waiting.fetch.take(&left, &mut pieces);
            }
        }
        let counter = if is_hit { &self.counters.hits } else { &self.counters.misses };
        counter.fetch_add(1, Relaxed);
        Ok(pieces)
    }

    /// Waits for what a read needs of a fetch. Without a task that drives the request, the read
    /// does so to its end.
    async fn wait(&self, waiting: &Waiting, needed: &[Range<u64>]) -> Result<(), Failure> {
        match &self.spawn {
            Some(_) => waiting.wait_for(needed).await,
            None => waiting.finish().await,
        }
    }

    fn survey(&self, known: &Known, ranges: &[Range<u64>], absent: &Absent) -> Survey {
        let mut all = Survey::default();
        for range in ranges {
            let found = survey(range, known.meta.size, |part| {
                !absent.contains(&part) && self.has_part(&known.part_key(part))
            });
            for part in found.cached {
                // A part may reach into the next range.
                if all.cached.last() != Some(&part) {
                    all.cached.push(part);
                }
            }
            all.missing.extend(found.missing);
        }
        all
    }

    /// Returns parts from the cache. `None` for one that was evicted meanwhile.
    async fn cached_parts(&self, known: &Known, parts: &[Part]) -> Vec<Option<Bytes>> {
        let len = known.meta.size;
        let keys: Vec<Vec<u8>> = parts.iter().map(|part| known.part_key(*part)).collect();
        let mut values = match &keys[..] {
            [] => Vec::new(),
            [key] => vec![self.catalog.hybrid.get(&key[..]).await],
            keys => {
                let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                self.catalog.hybrid.get_many(&keys).await
            }
        };
        for ((value, part), key) in values.iter_mut().zip(parts).zip(&keys) {
            if value.is_none() {
                *value = self.pins.get(key);
            }
            let range = part.range(len);
            *value = value.take().filter(|bytes| bytes.len() as u64 == range.end - range.start);
        }
        values
    }

    /// Finds fetches for missing ranges, and begins others. Returns the old and the new ones.
    fn join_fetches(
        self: &Arc<Self>,
        known: &Arc<Known>,
        missing: &[Range<u64>],
        advice: Option<&Advice>,
        absent: &Absent,
    ) -> (Vec<Waiting>, Vec<Waiting>) {
        let len = known.meta.size;
        let launch = |under_way: &[Range<u64>]| {
            let rest = without(missing, under_way);
            // A fetch may have ended since the cache was searched.
            let rest = self.survey(known, &rest, absent).missing;
            if rest.is_empty() {
                return Vec::new();
            }
            let has_room = self.fetches.bytes() < self.in_flight_bytes;
            let mut fetched = rest.clone();
            if let Some(advice) = advice.filter(|_| has_room) {
                let more = lock(&self.planner).extend(advice, &rest, len);
                let more = without(&without(&more, &rest), under_way);
                fetched.extend(self.survey(known, &more, absent).missing);
                fetched = union(fetched);
            }
            let groups = lock(&self.planner).requests(&fetched);
            groups.into_iter().map(|covers| self.launch(known, covers, None)).collect()
        };
        let (old, new) = self.fetches.join_fetches(known.key(), missing, launch);
        self.drive(&new);
        (old, new)
    }

    /// Requests what is missing of a range, as far as the bytes of all requests stay within their
    /// limit. Tasks carry the requests out.
    fn fetch_ahead(self: &Arc<Self>, known: &Arc<Known>, range: &Range<u64>) {
        let launch = |under_way: &[Range<u64>]| {
            let rest = without(std::slice::from_ref(range), under_way);
            let rest = self.survey(known, &rest, &Absent::new()).missing;
            let groups = lock(&self.planner).requests(&rest);
            // Reads on other threads may have taken the room since it was looked at.
            let fits = |covers: &Vec<Range<u64>>| {
                let bytes = covers[covers.len() - 1].end - covers[0].start;
                self.fetches.bytes().saturating_add(bytes) <= self.in_flight_bytes
            };
            let groups = groups.into_iter().take_while(fits);
            groups.map(|covers| self.launch(known, covers, None)).collect()
        };
        let (_, new) = self.fetches.join_fetches(known.key(), &[], launch);
        self.drive(&new);
    }

    /// Hands the requests of new fetches to tasks, where there are some.
    fn drive(&self, new: &[Waiting]) {
        if let Some(spawn) = &self.spawn {
            for waiting in new {
                spawn(waiting.driver.clone().map(drop).boxed());
            }
        }
    }

    /// Makes the fetch of a request whose answer has begun. Its bytes are kept from
    /// the first whole unit on.
    pub(crate) fn join_answer(
        self: &Arc<Self>,
        known: &Arc<Known>,
        answer: Answer,
    ) -> Option<Waiting> {
        let sent = &answer.result.range;
        let start = sent.start.next_multiple_of(crate::parts::UNIT);
        let end = match sent.end == known.meta.size {
            true => sent.end,
            false => sent.end / crate::parts::UNIT * crate::parts::UNIT,
        };
        if start >= end {
            return None;
        }
        let covers = vec![start..end];
        let (_, new) = self
            .fetches
            .join_fetches(known.key(), &[], |_| vec![self.launch(known, covers, Some(answer))]);
        self.drive(&new);
        new.into_iter().next()
    }

    /// Makes the fetch of a request.
    fn launch(
        self: &Arc<Self>,
        known: &Arc<Known>,
        covers: Vec<Range<u64>>,
        answer: Option<Answer>,
    ) -> NewFetch {
        let asked = match &answer {
            Some(answer) => answer.result.range.clone(),
            None => covers[0].start..covers[covers.len() - 1].end,
        };
        let guard = self.fetches.prepare(known.key(), asked.end - asked.start);
        let id = guard.id();
        let fetch = Arc::new(Fetch::new(covers));
        let driver = carry_out(
            Arc::clone(self),
            Arc::clone(known),
            Arc::clone(&fetch),
            asked,
            answer,
            guard,
        );
        NewFetch { id, fetch, driver }
    }
}

/// Carries out the request of a fetch.
fn carry_out(
    inner: Arc<Inner>,
    known: Arc<Known>,
    fetch: Arc<Fetch>,
    asked: Range<u64>,
    answer: Option<Answer>,
    guard: FetchGuard,
) -> BoxFuture<'static, Result<(), Failure>> {
    async move {
        let guard = guard; // lives as long as the request
        let answer = match answer {
            Some(answer) => answer,
            None => {
                let options = GetOptions {
                    range: Some(GetRange::Bounded(asked.clone())),
                    if_match: if_match(&known.meta),
                    ..GetOptions::default()
                };
                match inner.request(&known.meta.location, options).await {
                    Err(Error::Precondition { .. } | Error::NotFound { .. }) => {
                        return Err(Failure::Changed);
                    }
                    answer => answer?,
                }
            }
        };
        if !known.is_same(&answer.result.meta) {
            return Err(Failure::Changed);
        }
        let sent = answer.result.range.clone();
        let location = known.meta.location.clone();
        if sent != asked {
            return Err(Error::from(Fault::Range { location, expected: asked, sent }).into());
        }
        let started = answer.started;
        receive(&inner, &known, &fetch, asked, answer).await?;
        known.validate(started);
        drop(guard);
        Ok(())
    }
    .boxed()
}

/// Receives the body of an answer. Each part goes to those that wait, and into the cache.
async fn receive(
    inner: &Inner,
    known: &Known,
    fetch: &Fetch,
    asked: Range<u64>,
    answer: Answer,
) -> Result<(), Failure> {
    let Answer { result, started, transfer } = answer;
    let len = known.meta.size;
    let mut parts: Vec<(Part, Range<u64>)> = Vec::new();
    for range in &fetch.covers {
        parts.extend(allocate(range, len).into_iter().map(|part| (part, part.range(len))));
    }
    let mut parts = parts.into_iter().peekable();
    let mut body = result.into_stream();
    let mut at = asked.start;
    let mut buffer = BytesMut::new();
    // The drive's time is not the store's.
    let mut cached_in = Duration::ZERO;
    while let Some(chunk) = body.next().await {
        let mut chunk = chunk?;
        if chunk.len() as u64 > asked.end - at {
            let sent = at - asked.start + chunk.len() as u64;
            return Err(wrong_length(known, &asked, sent));
        }
        while !chunk.is_empty() {
            let Some((part, range)) = parts.peek() else {
                at += chunk.len() as u64;
                break; // the rest is not kept
            };
            if at < range.start {
                let skipped = chunk.len().min((range.start - at) as usize);
                at += skipped as u64;
                drop(chunk.split_to(skipped));
                continue;
            }
            if buffer.is_empty() {
                // A buffer for each part: a part in memory keeps no other bytes alive.
                buffer.reserve((range.end - range.start) as usize);
            }
            let taken = chunk.len().min((range.end - at) as usize);
            buffer.extend_from_slice(&chunk.split_to(taken));
            at += taken as u64;
            if at == range.end {
                let bytes = std::mem::take(&mut buffer).freeze();
                fetch.arrive(range.start, bytes.clone());
                let (key, full) = (known.part_key(*part), inner.now());
                inner.catalog.hybrid.insert_async(key, bytes).await;
                cached_in += inner.now().saturating_sub(full);
                parts.next();
            }
        }
    }
    if at != asked.end {
        return Err(wrong_length(known, &asked, at - asked.start));
    }
    let time = inner.now().saturating_sub(started).saturating_sub(cached_in);
    let bytes = asked.end - asked.start;
    inner.counters.fetched_bytes.fetch_add(bytes, Relaxed);
    lock(&inner.planner).prices.add(bytes, time.as_secs_f64(), transfer.at_once());
    Ok(())
}

fn wrong_length(known: &Known, asked: &Range<u64>, sent: u64) -> Failure {
    let location = known.meta.location.clone();
    Error::from(Fault::Length { location, expected: asked.end - asked.start, sent }).into()
}

/// Returns a range of pieces that have all of it, without a copy.
pub(crate) fn slices(pieces: &Pieces, range: &Range<u64>) -> Vec<Bytes> {
    let mut slices = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let before = pieces.range(..=at).rev(); // pieces may overlap
        let has = |(offset, bytes): &(&u64, &Bytes)| *offset + bytes.len() as u64 > at;
        let (offset, bytes) = before.into_iter().find(has).expect("the pieces have the range");
        let skip = (at - offset) as usize;
        let taken = (bytes.len() - skip).min((range.end - at) as usize);
        debug_assert!(taken > 0 && overlap(&(*offset..offset + bytes.len() as u64), range));
        slices.push(bytes.slice(skip..skip + taken));
        at += taken as u64;
    }
    slices
}

/// Returns a range of pieces that have all of it, without a copy if one piece has it.
pub(crate) fn concatenate(pieces: &Pieces, range: &Range<u64>) -> Bytes {
    let slices = slices(pieces, range);
    match <[Bytes; 1]>::try_from(slices) {
        Ok([bytes]) => bytes,
        Err(slices) => {
            let mut bytes = BytesMut::with_capacity((range.end - range.start) as usize);
            slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
            bytes.freeze()
        }
    }
}
