//! A request under way: split into sub-requests, and joined again from their answers.
//!
//! A request is split at region ends, so that each sub-request belongs to one shard. Long requests
//! (a trim can cover gigabytes) are split step by step: only so many sub-requests are under way at
//! once. The request has its answer when all sub-requests have theirs and, where it is to be
//! durable, the backing device has been flushed. It is over when no sub-request uses its buffer.

use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};

/// Maximum number of sub-requests of one request under way at once: enough for the largest read or
/// write of an NBD client.
pub(crate) const PIECES_AT_ONCE: u32 = 128;

/// Maximum number of sub-requests of a prefetch under way at once. Each takes a buffer as long as a
/// region: 8 MiB with the largest blocks.
const PREFETCHED_AT_ONCE: u32 = 8;

/// The router's next action for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinAction {
    /// Nothing to do: the request waits for more answers.
    Not,
    /// Flush the backing device.
    Flush,
    /// Answer the request with this result. With `over`, all its sub-requests have finished.
    Answer { result: Result<(), Fault>, over: bool },
    /// Remove the request: it was answered before, and its last sub-request has finished.
    Over,
}

/// A request whose sub-requests are under way.
#[derive(Debug, Clone)]
pub(crate) struct Join {
    pub(crate) request: Request,
    /// The first sector not submitted in a sub-request yet, and the end of the request's sectors.
    next: u64,
    end: u64,
    /// Bytes of the last sector that lie beyond the request and keep their content.
    tail: u16,
    /// Set for the first and the last sector while they still have to be written, where a fast
    /// zeroing covers them in part. They follow the whole sectors, so that a device without fast
    /// zeroing is detected before anything has changed.
    edges: [bool; 2],
    /// Awaited answers: of sub-requests, of drains, of the backing device's flush.
    unanswered: u32,
    /// Sub-requests that may still use the request's buffer.
    unfinished: u32,
    /// Set while the request is in the queue of long requests.
    pub(crate) queued: bool,
    fault: Option<Fault>,
    has_succeeded: bool,
    pub(crate) hit: bool,
    flushing: bool,
    answered: bool,
    /// Set for a persistent cache, whose parts make a flush durable by themselves.
    is_kept: bool,
    /// The first sector of the stream that the request continues, where streams are tracked.
    pub(crate) stream: Option<u64>,
}

impl Join {
    /// Creates the state of a request for a volume of this many bytes; `None` when there is no such
    /// volume.
    pub(crate) fn new(request: Request, volume_bytes: Option<u64>) -> Self {
        let end = request.offset.checked_add(request.len);
        let fault = match (volume_bytes, end) {
            (Some(_), _) if matches!(request.kind, RequestKind::Flush | RequestKind::Drain) => None,
            _ if request.kind == RequestKind::DirtyMap && request.len > MOST_MAPPED_BYTES => {
                Some(Fault::OutOfRange)
            }
            (Some(bytes), Some(end)) if end <= bytes => None,
            _ => Some(Fault::OutOfRange),
        };
        let end = end.unwrap_or(0);
        // The bytes of the volume's last sector beyond the volume's end belong to no request.
        let ends_volume = volume_bytes == Some(end);
        let sectors = match request.kind {
            RequestKind::Flush | RequestKind::Drain => 0..0,
            _ if fault.is_some() || request.len == 0 => 0..0,
            RequestKind::Trim | RequestKind::Zero { fast: true, .. } => {
                let last =
                    if ends_volume { end.div_ceil(SECTOR_BYTES) } else { end / SECTOR_BYTES };
                request.offset.div_ceil(SECTOR_BYTES)..last
            }
            _ => request.offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES),
        };
        let tail = if ends_volume { 0 } else { within_sector(SECTOR_BYTES - end % SECTOR_BYTES) };
        let mut join = Self {
            request,
            next: sectors.start,
            end: sectors.end.max(sectors.start),
            tail,
            edges: [false; 2],
            unanswered: 0,
            unfinished: 0,
            queued: false,
            fault,
            has_succeeded: false,
            hit: true,
            flushing: false,
            answered: false,
            is_kept: false,
            stream: None,
        };
        if let RequestKind::Zero { fast: true, .. } = request.kind {
            join.set_edges_apart();
        }
        join
    }

    /// Separates the sectors that a fast zeroing covers in part from the whole ones. Refuses a
    /// request without whole sectors.
    fn set_edges_apart(&mut self) {
        if self.fault.is_some() || self.request.len == 0 {
            return;
        }
        if self.next >= self.end {
            self.fault = Some(Fault::Unsupported);
            return;
        }
        self.edges = [!self.request.offset.is_multiple_of(SECTOR_BYTES), self.tail > 0];
    }

    /// Returns the next sector to write that a fast zeroing covers in part.
    fn next_edge(&mut self) -> Option<(PieceKind, Sectors)> {
        let RequestKind::Zero { durable, .. } = self.request.kind else { return None };
        let offset = self.request.offset;
        let (head, tail, sector) = if std::mem::take(&mut self.edges[0]) {
            (within_sector(offset), 0, offset / SECTOR_BYTES)
        } else if std::mem::take(&mut self.edges[1]) {
            (0, self.tail, self.end)
        } else {
            return None;
        };
        Some((PieceKind::ZeroPart { durable, head, tail }, sector..sector + 1))
    }

    /// Skips the sub-requests not submitted yet.
    pub(crate) fn skip(&mut self) {
        self.next = self.end;
    }

    /// Returns whether the request is for a volume, and reaches beyond this byte.
    pub(crate) fn reaches(&self, volume: VolumeId, byte: u64) -> bool {
        self.request.volume == volume && self.request.offset.saturating_add(self.request.len) > byte
    }

    /// Returns whether the request was refused at once.
    pub(crate) fn is_refused(&self) -> bool {
        self.fault.is_some()
    }

    /// Returns the next sub-request to submit; `None` when all are submitted or enough are under
    /// way.
    #[inline]
    pub(crate) fn next_piece(&mut self, id: RequestId, region_sectors: u64) -> Option<Piece> {
        let all_out = self.next >= self.end && self.edges == [false; 2]; // most are one piece
        if all_out { None } else { self.cut_piece(id, region_sectors) }
    }

    fn cut_piece(&mut self, id: RequestId, region_sectors: u64) -> Option<Piece> {
        if self.unfinished >= self.at_once() {
            return None;
        }
        let (kind, sectors) = if self.next < self.end {
            let cut = self.cut(region_sectors);
            self.next = cut.1.end;
            cut
        } else if self.unanswered == 0 && self.fault.is_none() {
            self.next_edge()?
        } else {
            return None;
        };
        self.unanswered += 1;
        self.unfinished += 1;
        let first = self.request.offset / SECTOR_BYTES;
        let unit = if self.request.kind == RequestKind::DirtyMap { 1 } else { SECTOR_BYTES };
        let buffer_offset = (sectors.start - first) * unit;
        Some(Piece {
            request: id,
            volume: self.request.volume,
            kind,
            sectors,
            buffer_offset,
            stream: self.stream,
        })
    }

    /// Returns the number of sub-requests that may be under way.
    fn at_once(&self) -> u32 {
        match self.request.kind {
            // the first shows whether the device supports it
            RequestKind::Zero { fast: true, .. } if !self.has_succeeded => 1,
            RequestKind::Prefetch | RequestKind::Warm => PREFETCHED_AT_ONCE,
            _ => PIECES_AT_ONCE,
        }
    }

    fn cut(&self, region_sectors: u64) -> (PieceKind, Sectors) {
        let (start, offset) = (self.next, self.request.offset);
        let mut end = (start + 1).next_multiple_of(region_sectors).min(self.end);
        let head = if start == offset / SECTOR_BYTES { within_sector(offset) } else { 0 };
        let tail = |end| if end == self.end { self.tail } else { 0 };
        let kind = match self.request.kind {
            RequestKind::Read => PieceKind::Read,
            RequestKind::Write { durable } => PieceKind::Write { durable, head, tail: tail(end) },
            RequestKind::Trim => PieceKind::Trim,
            RequestKind::Zero { durable, fast: false, .. } if head > 0 || tail(start + 1) > 0 => {
                end = start + 1;
                PieceKind::ZeroPart { durable, head, tail: tail(end) }
            }
            RequestKind::Zero { may_unmap, fast, .. } => {
                end -= u64::from(!fast && tail(end) > 0);
                PieceKind::Zero { may_unmap, fast }
            }
            RequestKind::Prefetch => PieceKind::Prefetch { asks: true },
            RequestKind::Warm => PieceKind::Prefetch { asks: false },
            RequestKind::DirtyMap => PieceKind::DirtyMap,
            RequestKind::Evict => PieceKind::Evict,
            RequestKind::Flush | RequestKind::Drain => unreachable!("a flush has no pieces"),
        };
        (kind, start..end)
    }

    /// Leaves a flush to the parts of a persistent cache.
    pub(crate) fn leave_to_parts(&mut self) {
        self.is_kept = true;
    }

    /// Counts one more awaited answer: of a part that drains, or of the backing device's flush.
    pub(crate) fn await_answer(&mut self) {
        self.unanswered += 1;
    }

    /// Handles one of the awaited answers.
    pub(crate) fn answered(&mut self, result: Result<(), Fault>, hit: bool) {
        self.unanswered -= 1;
        self.fault = self.fault.or(result.err());
        self.has_succeeded |= result.is_ok();
        self.hit &= hit;
        if result == Err(Fault::Unsupported) {
            self.skip();
        }
    }

    /// Counts down the sub-requests that need the buffer.
    pub(crate) fn finished(&mut self) {
        self.unfinished -= 1;
    }

    /// Returns the next action, after something has changed.
    pub(crate) fn next_action(&mut self) -> JoinAction {
        let has_edges = self.fault.is_none() && self.edges != [false; 2];
        if self.unanswered > 0 || self.next < self.end || has_edges {
            return JoinAction::Not;
        }
        let over = self.unfinished == 0;
        if self.answered {
            return if over { JoinAction::Over } else { JoinAction::Not };
        }
        let durable_zero = matches!(self.request.kind, RequestKind::Zero { durable: true, .. });
        let flushes = match self.request.kind {
            RequestKind::Flush => !self.is_kept,
            RequestKind::Drain => true,
            _ => durable_zero,
        };
        if flushes && !self.flushing && self.fault.is_none() {
            self.flushing = true;
            self.unanswered = 1;
            return JoinAction::Flush;
        }
        self.answered = true;
        JoinAction::Answer { result: self.fault.map_or(Ok(()), Err), over }
    }
}

/// Returns the bytes of a sector before an offset.
fn within_sector(offset: u64) -> u16 {
    (offset % SECTOR_BYTES) as u16
}

/// The type of a sub-request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceKind {
    Read,
    /// A write. The first `head` bytes of the first sector and the last `tail` bytes of the last
    /// keep their content.
    Write {
        durable: bool,
        head: u16,
        tail: u16,
    },
    /// A zeroing of one sector, except for its first `head` and last `tail` bytes.
    ZeroPart {
        durable: bool,
        head: u16,
        tail: u16,
    },
    Zero {
        may_unmap: bool,
        fast: bool,
    },
    Trim,
    /// A read into the cache; with `asks`, of what the admission lets in.
    Prefetch {
        asks: bool,
    },
    /// Drop the clean copies.
    Evict,
    /// Mark the dirty sectors in the request's buffer.
    DirtyMap,
}

/// The part of a request within one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) request: RequestId,
    pub(crate) volume: VolumeId,
    pub(crate) kind: PieceKind,
    pub(crate) sectors: Sectors,
    /// Offset of the first sector, or of its mark, in the request's buffer.
    pub(crate) buffer_offset: u64,
    /// The first sector of the stream that the request continues, where streams are tracked.
    pub(crate) stream: Option<u64>,
}

/// Longest range of a [`RequestKind::DirtyMap`]: 256 MiB. The request's buffer then takes 64 KiB,
/// and a shard handles it in a short time.
pub const MOST_MAPPED_BYTES: u64 = 256 << 20;

/// The id of a request, chosen by the driver of the part it is submitted to. Ids are small and
/// reused; one is free again after [`Order::Release`](crate::Order::Release).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub u32);

/// The type of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Read into the request's buffer.
    Read,
    /// Write from the request's buffer; with `durable`, answer once it would survive a power cut.
    Write {
        /// Force unit access (FUA): survive a power cut before the answer.
        durable: bool,
    },
    /// Make the range read as zeros.
    Zero {
        /// Force unit access (FUA): survive a power cut before the answer.
        durable: bool,
        /// The device may deallocate the range.
        may_unmap: bool,
        /// Zero only if that is faster than writing zeros: [`Fault::Unsupported`] otherwise, with
        /// nothing changed. The first whole sectors are zeroed on the backing device before
        /// anything else is done. A range without whole sectors is refused.
        fast: bool,
    },
    /// Discard the content, which is no longer needed. Only whole sectors are discarded.
    Trim,
    /// Make all writes answered so far survive a power cut.
    Flush,
    /// Flush, and clean all dirty data, even in a cache that could keep it.
    Drain,
    /// Bring the range into the cache, as a read miss does. Where nothing is cached, because of the
    /// write mode or a failing cache device, it succeeds without doing anything.
    Prefetch,
    /// A prefetch of what an operator wants in the cache: the admission is not asked.
    Warm,
    /// Drop the copies of the range from all tiers; data that the tier below lacks stays.
    Evict,
    /// Report the sectors with data that the backing device lacks. The request's buffer, all zero
    /// at first, has a byte for each sector that the range touches. The bytes of the reported
    /// sectors become 1. The range is at most [`MOST_MAPPED_BYTES`] long ([`Fault::OutOfRange`]).
    ///
    /// Data moves from the cache to the backing device only. So a client that asks which data is
    /// allocated must ask the cache first and the backing device after the answer. In reverse order
    /// it would miss data that moves meanwhile.
    DirtyMap,
}

/// A client's request. Offset and length are in bytes and need no alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The volume that the request addresses.
    pub volume: VolumeId,
    /// The type of the request.
    pub kind: RequestKind,
    /// First byte of the range, as an offset in the volume.
    pub offset: u64,
    /// Length of the range in bytes; ignored for a flush.
    pub len: u64,
}

impl Request {
    /// Returns the size in bytes of the buffer that the request needs; 0 for none.
    pub fn buffer_bytes(&self) -> u64 {
        let sectors = self.len.saturating_add(self.offset % SECTOR_BYTES).div_ceil(SECTOR_BYTES);
        match self.kind {
            RequestKind::Read | RequestKind::Write { .. } => sectors.saturating_mul(SECTOR_BYTES),
            RequestKind::DirtyMap => sectors,
            RequestKind::Zero { .. }
            | RequestKind::Trim
            | RequestKind::Flush
            | RequestKind::Drain
            | RequestKind::Prefetch
            | RequestKind::Warm
            | RequestKind::Evict => 0,
        }
    }
}

/// The reason for which a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A device failed, and the cache could not recover.
    #[error("input/output error")]
    Io,
    /// The backing device has no space left.
    #[error("no space left on the backing device")]
    NoSpace,
    /// The range reaches beyond the volume, or the volume does not exist.
    #[error("the range is not within the volume")]
    OutOfRange,
    /// The backing device cannot carry out the request, or not as fast as was asked; nothing has
    /// changed.
    #[error("the backing device cannot do that")]
    Unsupported,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(kind: RequestKind, offset: u64, len: u64) -> Join {
        Join::new(Request { volume: VolumeId(0), kind, offset, len }, Some(1 << 30))
    }

    fn pieces(join: &mut Join) -> Vec<(Sectors, u64)> {
        let next = || join.next_piece(RequestId(0), 64);
        std::iter::from_fn(next).map(|piece| (piece.sectors, piece.buffer_offset)).collect()
    }

    #[test]
    fn a_request_is_cut_at_region_ends() {
        let mut read = join(RequestKind::Read, 62 * 4096 + 100, 70 * 4096);
        assert_eq!(pieces(&mut read), [(62..64, 0), (64..128, 2 * 4096), (128..133, 66 * 4096)]);
    }

    #[test]
    fn zeroing_spares_what_its_first_and_last_sectors_hold_besides() {
        let kind = RequestKind::Zero { durable: false, may_unmap: true, fast: false };
        let mut zero = join(kind, 100, 3 * 4096);
        let kinds: Vec<PieceKind> = std::iter::from_fn(|| zero.next_piece(RequestId(0), 64))
            .map(|piece| piece.kind)
            .collect();
        let part = |head, tail| PieceKind::ZeroPart { durable: false, head, tail };
        assert_eq!(
            kinds,
            [part(100, 0), PieceKind::Zero { may_unmap: true, fast: false }, part(0, 3996)]
        );
    }

    const FAST: RequestKind = RequestKind::Zero { durable: false, may_unmap: true, fast: true };

    #[test]
    fn a_fast_zeroing_tries_one_piece_then_the_others_and_its_edges_last() {
        let mut zero = join(FAST, 100, 200 * 4096);
        assert_eq!(pieces(&mut zero), [(1..64, 4096)]);
        let mut given = Vec::new();
        while zero.next_action() == JoinAction::Not {
            zero.answered(Ok(()), false);
            zero.finished();
            given.extend(pieces(&mut zero).into_iter().map(|(sectors, _)| sectors));
        }
        assert_eq!(given, [64..128, 128..192, 192..200, 0..1, 200..201]);
    }

    #[test]
    fn a_fast_zeroing_that_the_device_cannot_do_ends_with_its_first_piece() {
        let mut zero = join(FAST, 100, 200 * 4096);
        assert_eq!(pieces(&mut zero).len(), 1);
        zero.answered(Err(Fault::Unsupported), false);
        zero.finished();
        assert_eq!(pieces(&mut zero), []);
        assert_eq!(
            zero.next_action(),
            JoinAction::Answer { result: Err(Fault::Unsupported), over: true }
        );
        assert!(join(FAST, 100, 4096).is_refused(), "no sector is covered whole");
    }

    #[test]
    fn a_prefetch_of_gigabytes_has_few_pieces_under_way() {
        let mut prefetch = join(RequestKind::Prefetch, 0, 1 << 30);
        assert_eq!(pieces(&mut prefetch).len(), PREFETCHED_AT_ONCE as usize);
    }

    #[test]
    fn a_map_of_dirty_sectors_has_a_byte_for_each_and_an_end() {
        let mut map = join(RequestKind::DirtyMap, 62 * 4096 + 100, 70 * 4096);
        assert_eq!(pieces(&mut map), [(62..64, 0), (64..128, 2), (128..133, 66)]);
        assert!(join(RequestKind::DirtyMap, 0, MOST_MAPPED_BYTES + 1).is_refused());
    }

    #[test]
    fn a_long_trim_is_given_out_bit_by_bit() {
        let mut trim = join(RequestKind::Trim, 0, 1 << 30);
        assert_eq!(pieces(&mut trim).len(), PIECES_AT_ONCE as usize);
        trim.answered(Ok(()), false);
        assert_eq!(pieces(&mut trim).len(), 0);
        trim.finished();
        assert_eq!(pieces(&mut trim).len(), 1);
        assert_eq!(trim.next_action(), JoinAction::Not);
    }

    #[test]
    fn a_request_is_answered_once_and_over_when_no_piece_holds_its_buffer() {
        let mut read = join(RequestKind::Read, 0, 128 * 4096);
        pieces(&mut read);
        read.answered(Ok(()), true);
        assert_eq!(read.next_action(), JoinAction::Not);
        read.answered(Err(Fault::Io), true);
        read.finished();
        assert_eq!(read.next_action(), JoinAction::Answer { result: Err(Fault::Io), over: false });
        assert_eq!(read.next_action(), JoinAction::Not);
        read.finished();
        assert_eq!(read.next_action(), JoinAction::Over);
    }

    #[test]
    fn a_flush_reaches_the_device_after_all_drains_and_only_if_they_went_well() {
        for (drained, settled) in [
            (Ok(()), JoinAction::Flush),
            (Err(Fault::Io), JoinAction::Answer { result: Err(Fault::Io), over: true }),
        ] {
            let mut flush = join(RequestKind::Flush, 0, 0);
            flush.await_answer();
            flush.await_answer();
            flush.answered(drained, true);
            assert_eq!(flush.next_action(), JoinAction::Not);
            flush.answered(Ok(()), true);
            assert_eq!(flush.next_action(), settled);
        }
    }
}
