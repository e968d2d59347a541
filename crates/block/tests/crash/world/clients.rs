//! Requests under way, from clients to the cache and back, and the oracle told of each.

use std::ops::Range;

use floe_block::{Driver, Fault, Request, RequestId, RequestKind};
use floe_device::Buffer;

use super::{Failure, UNITS_A_SECTOR, World, units_of};
use crate::history::Event;
use crate::oracle::{Content, Outcome, Violation};
use crate::stamp::fill;

/// A request that has no answer yet.
pub struct Pending {
    pub id: RequestId,
    pub request: Request,
    /// When it came, which names it.
    pub name: u64,
    pub buffer: Option<Buffer>,
}

impl World {
    /// When the oldest request under way came.
    pub(super) fn oldest(&self) -> u64 {
        self.pending.iter().map(|pending| pending.name).min().unwrap_or(u64::MAX)
    }

    pub(super) fn submit(&mut self, request: Request) -> Result<(), Failure> {
        let volume = request.volume.0 as usize;
        let (units, oldest) = (units_of(&request), self.oldest());
        let name = match request.kind {
            RequestKind::Write { .. } => {
                self.versions += 1;
                self.oracle.begin(volume, units.clone(), Content::Is(self.versions), oldest)
            }
            RequestKind::Zero { .. } => {
                self.oracle.begin(volume, units.clone(), Content::Is(0), oldest)
            }
            RequestKind::Trim => {
                self.oracle.begin(volume, self.trimmed(&request), Content::Anything, oldest)
            }
            RequestKind::Read
            | RequestKind::Flush
            | RequestKind::Drain
            | RequestKind::Prefetch
            | RequestKind::Warm
            | RequestKind::Evict
            | RequestKind::DirtyMap => self.oracle.tick(),
        };
        let version = self.versions;
        let Range { start: first, end } = units;
        self.history.note(Event::Submitted {
            name,
            volume,
            first,
            end,
            kind: request.kind,
            version,
        });
        self.survived.requests += 1;
        let buffer = (request.buffer_bytes() > 0).then(|| self.driver().buffer(&request));
        if let (RequestKind::Write { .. }, Some(buffer)) = (request.kind, &buffer) {
            self.bytes.resize(request.len as usize, 0);
            fill(&mut self.bytes, volume, first, version);
            Driver::payload(&request, buffer).copy_from(&self.bytes);
        }
        if let (RequestKind::Read, Some(buffer)) = (request.kind, &buffer) {
            let mut hit = [false];
            self.driver().top_mut().read_memory(&[(request, buffer.clone())], &mut hit);
            if hit == [true] {
                let pending =
                    Pending { id: RequestId(0), request, name, buffer: Some(buffer.clone()) };
                return self.answered(pending, Ok(()));
            }
        }
        let id = self.driver().submit(request, buffer.clone());
        self.pending.push(Pending { id, request, name, buffer });
        Ok(())
    }

    /// The units that a trim may forget: of whole sectors.
    fn trimmed(&self, request: &Request) -> Range<u32> {
        let Range { start, end } = units_of(request);
        let start = start.next_multiple_of(UNITS_A_SECTOR);
        let whole = end / UNITS_A_SECTOR * UNITS_A_SECTOR;
        let end = if end == self.sizes[request.volume.0 as usize] { end } else { whole };
        start.min(end)..end
    }

    pub(super) fn answered(
        &mut self,
        pending: Pending,
        result: Result<(), Fault>,
    ) -> Result<(), Failure> {
        let Pending { request, name, buffer, .. } = pending;
        let (volume, units) = (request.volume.0 as usize, units_of(&request));
        self.history.note(Event::Answered { name, ok: result.is_ok() });
        let refused = result == Err(Fault::Unsupported)
            && matches!(request.kind, RequestKind::Zero { fast: true, .. });
        if let Err(fault) = result
            && !refused
        {
            self.survived.failed_requests += 1;
            if fault != Fault::Io || !self.may_fail() {
                let what = format!("{name}, {request:?}, fails without a reason: {fault}");
                return Err(self.failure(what, volume, units));
            }
        }
        let outcome = |durable| match result {
            Ok(()) => Outcome::Done { durable },
            Err(_) if refused => Outcome::Refused,
            Err(_) => Outcome::Failed,
        };
        match request.kind {
            RequestKind::Write { durable } | RequestKind::Zero { durable, .. } => {
                self.oracle.end(volume, units, name, outcome(durable));
            }
            RequestKind::Trim => {
                self.oracle.end(volume, self.trimmed(&request), name, outcome(false))
            }
            RequestKind::Flush | RequestKind::Drain if result.is_ok() => {
                let oldest = self.oldest();
                self.oracle.flushed(volume, name, oldest);
            }
            RequestKind::Read if result.is_ok() => {
                let buffer = buffer.expect("a read has a buffer");
                self.bytes.resize(request.len as usize, 0);
                Driver::payload(&request, &buffer).copy_to(&mut self.bytes);
                self.survived.checked_units += units.len() as u64;
                let checked = self.oracle.check(volume, units.start, &self.bytes, name);
                return checked.map_err(|violation| {
                    let Violation { volume, unit, .. } = violation;
                    self.failure(format!("{name}: {violation}"), volume, unit..unit + 1)
                });
            }
            RequestKind::Read
            | RequestKind::Flush
            | RequestKind::Drain
            | RequestKind::Prefetch
            | RequestKind::Warm
            | RequestKind::Evict
            | RequestKind::DirtyMap => {}
        }
        Ok(())
    }

    /// Whether devices have failed so that requests may.
    fn may_fail(&self) -> bool {
        let cache_failed = self.cache.failed() > 0 || self.cache.flipped() > 0;
        self.backings.iter().any(|disk| disk.failed() > 0)
            || self.may_be_dirty && cache_failed
            || self.kept.lossy
    }
}
