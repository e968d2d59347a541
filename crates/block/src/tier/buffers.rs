//! The buffers of a tier: those of its requests, those that other parts have lent, and scratch
//! buffers.
//!
//! The cache names buffers in its orders, and never sees them. A request's buffer stays here until
//! the cache releases it, which may be after the answer. A lent buffer stays until its last
//! sub-request here has finished.
//!
//! Invariant: an id is free only while no request under way has it.

use floe_device::{Buffer, Lent, Pool, Slice};
use hashbrown::HashMap;

use crate::exchange::PartId;
use crate::geometry::SECTOR_BYTES;
use crate::join::{Request, RequestId, RequestKind};
use crate::order::{BufferId, ScratchId, Span};

/// The buffers of a tier in one part.
pub(crate) struct Buffers {
    part: PartId,
    pool: Pool,
    /// The buffer of each request under way.
    requests: Vec<Option<Buffer>>,
    free_requests: Vec<RequestId>,
    /// The buffers of other parts' requests, by part and number.
    guests: Vec<Vec<Option<Guest>>>,
    scratches: HashMap<ScratchId, Buffer, foldhash::fast::FixedState>,
}

/// A buffer that another part has lent for sub-requests of its request.
struct Guest {
    buffer: Buffer,
    /// Unfinished sub-requests here that use the buffer.
    pieces: u32,
}

impl Buffers {
    /// Creates the buffers of a part without requests; new ones come from `pool`.
    pub(super) fn new(part: PartId, pool: Pool) -> Self {
        Self {
            part,
            pool,
            requests: Vec::new(),
            free_requests: Vec::new(),
            guests: Vec::new(),
            scratches: HashMap::default(),
        }
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns a buffer for a request, in whole sectors. Bytes that a write does not cover are
    /// zero, and for a dirty map all bytes.
    #[inline]
    pub(crate) fn for_request(&self, request: &Request) -> Buffer {
        let buffer = self.pool.allocate(request.buffer_bytes().max(SECTOR_BYTES) as usize);
        match request.kind {
            RequestKind::Write { .. } => {
                let skew = request.offset % SECTOR_BYTES;
                let end = (skew + request.len) as usize;
                buffer.slice(0..skew as usize).fill_zero();
                buffer.slice(end..buffer.len()).fill_zero();
            }
            RequestKind::DirtyMap => buffer.whole().fill_zero(),
            _ => {}
        }
        buffer
    }

    /// Registers the buffer of a new request. Returns an id that no request under way has.
    #[inline]
    pub(super) fn begin(&mut self, buffer: Option<Buffer>) -> RequestId {
        let id = self.free_requests.pop().unwrap_or_else(|| {
            self.requests.push(None);
            RequestId::new(self.part, self.requests.len() - 1)
        });
        self.requests[id.number()] = buffer;
        id
    }

    #[inline]
    pub(super) fn drop_request(&mut self, id: RequestId) {
        self.requests[id.number()] = None;
    }

    /// Frees the id of a request that has ended, with its buffer dropped.
    #[inline]
    pub(super) fn free(&mut self, id: RequestId) {
        self.free_requests.push(id);
    }

    /// Lends the buffer of a request to another part, if the request has one.
    pub(super) fn lend(&self, id: RequestId) -> Option<Lent> {
        self.requests[id.number()].as_ref().map(Buffer::lend)
    }

    /// Registers a buffer that another part has lent for a sub-request.
    pub(super) fn borrow(&mut self, request: RequestId, buffer: Lent) {
        let (part, number) = (request.part().0 as usize, request.number());
        self.guests.resize_with(self.guests.len().max(part + 1), Vec::new);
        let guests = &mut self.guests[part];
        guests.resize_with(guests.len().max(number + 1), || None);
        guests[number]
            .get_or_insert_with(|| Guest { buffer: buffer.attach(), pieces: 0 })
            .pieces += 1;
    }

    /// Counts the end of a sub-request of another part's request. A lent buffer is returned once no
    /// sub-request uses it; requests that move no data have lent none.
    pub(super) fn piece_finished(&mut self, request: RequestId) {
        let place = self.guests.get_mut(request.part().0 as usize);
        if let Some(place) = place.and_then(|guests| guests.get_mut(request.number()))
            && let Some(guest) = place
        {
            guest.pieces -= 1;
            if guest.pieces == 0 {
                *place = None;
            }
        }
    }

    /// Makes a scratch buffer with arbitrary content.
    pub(super) fn make_scratch(&mut self, scratch: ScratchId, len: u64) {
        self.scratches.insert(scratch, self.pool.allocate(len as usize));
    }

    pub(super) fn drop_scratch(&mut self, scratch: ScratchId) {
        self.scratches.remove(&scratch);
    }

    /// Replaces a scratch buffer by a copy, so that a reader of the original does not see changes.
    /// Other buffers stay.
    pub(super) fn detach(&mut self, buffer: BufferId) {
        let BufferId::Scratch(scratch) = buffer else { return };
        let before =
            self.scratches.get_mut(&scratch).expect("orders speak of buffers that are there");
        let copy = self.pool.allocate(before.len());
        Slice::copy(&before.whole(), &copy.whole());
        *before = copy;
    }

    /// Returns the memory of a span.
    ///
    /// # Panics
    /// When the span's buffer is not there.
    #[inline]
    pub(super) fn slice(&self, span: &Span) -> Slice {
        let buffer = match span.buffer {
            BufferId::Request(request) if request.part() == self.part => {
                self.requests[request.number()].as_ref()
            }
            BufferId::Request(request) => {
                let guest = self.guests[request.part().0 as usize][request.number()].as_ref();
                guest.map(|guest| &guest.buffer)
            }
            BufferId::Scratch(scratch) => self.scratches.get(&scratch),
        };
        let buffer = buffer.expect("orders speak of buffers that are there");
        buffer.slice(span.offset as usize..(span.offset + span.len) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::VolumeId;

    fn buffers() -> Buffers {
        Buffers::new(PartId(0), Pool::new(1 << 20))
    }

    fn filled(buffers: &Buffers, byte: u8) -> Buffer {
        let buffer = buffers.pool().allocate(SECTOR_BYTES as usize);
        buffer.whole().copy_from(&[byte; SECTOR_BYTES as usize]);
        buffer
    }

    fn first_byte(buffers: &Buffers, buffer: BufferId) -> u8 {
        buffers.slice(&Span { buffer, offset: 0, len: 1 }).to_vec()[0]
    }

    #[test]
    fn an_id_is_given_again_only_when_it_is_free() {
        let mut buffers = buffers();
        let (first, second) = (buffers.begin(None), buffers.begin(None));
        assert_ne!(first, second);
        buffers.drop_request(first);
        let third = buffers.begin(None);
        assert!(third != first && third != second, "a dropped buffer does not free the id");
        buffers.free(first);
        assert_eq!(buffers.begin(None), first);
    }

    #[test]
    fn a_write_that_ends_within_a_sector_gets_zeros_around_it() {
        let buffers = buffers();
        let dirty = filled(&buffers, 7);
        drop(dirty); // the pool gives this memory again
        let kind = RequestKind::Write { durable: false };
        let request = Request { volume: VolumeId(0), kind, offset: SECTOR_BYTES + 100, len: 200 };
        let bytes = buffers.for_request(&request).whole().to_vec();
        assert_eq!(bytes.len() as u64, SECTOR_BYTES);
        let outside = bytes[..100].iter().chain(&bytes[300..]);
        assert!(outside.copied().all(|byte| byte == 0));
    }

    #[test]
    fn a_lent_buffer_stays_until_its_last_sub_request_has_finished() {
        let (mut own, mut other) = (buffers(), Buffers::new(PartId(1), Pool::new(1 << 20)));
        let lender = own.begin(Some(filled(&own, 5)));
        for _ in 0..2 {
            other.borrow(lender, own.lend(lender).unwrap());
        }
        other.piece_finished(lender);
        assert_eq!(first_byte(&other, BufferId::Request(lender)), 5);
        other.piece_finished(lender);
        assert!(other.guests[0][lender.number()].is_none());
        other.piece_finished(own.begin(None)); // moved no data, and has lent nothing
    }

    #[test]
    fn a_detached_scratch_buffer_changes_alone() {
        let mut buffers = buffers();
        let id = ScratchId(3);
        buffers.make_scratch(id, SECTOR_BYTES);
        let span = Span { buffer: BufferId::Scratch(id), offset: 0, len: SECTOR_BYTES };
        let before = buffers.slice(&span);
        before.copy_from(&[9; SECTOR_BYTES as usize]);
        buffers.detach(span.buffer);
        assert_eq!(first_byte(&buffers, span.buffer), 9);
        buffers.slice(&span).fill_zero();
        assert_eq!((before.to_vec()[0], first_byte(&buffers, span.buffer)), (9, 0));
    }
}
