//! A session that a server of one client drives, and its bounds.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use floe_block::RequestKind;
use floe_device::{Buffer, Extent, Pool, Slice};
use floe_nbd::export::{Export, Exports};

use super::cut::{Cut, Random};
use super::{LONGEST_BYTES, exports};
use crate::limits::{Limits, MOST_REQUESTS, RECEIVE_BUSY_BYTES};
use crate::protocol::{Answer, ProtocolFactory, Request};
use crate::session::{Budget, Common, Session, SessionError, Want};

/// The longest comparison, and short ones that go first.
const LONGEST_TRANSFER_BYTES: usize = 2 * (2 << 20);

/// A server of one client, on a disk whose bytes encode their position.
struct Host {
    session: Session,
    pool: Pool,
    budget: Rc<Budget>,
    said: Vec<u8>,
    /// Unanswered requests and an unfinished send, where answers are delayed.
    open: Vec<(Request, Option<Buffer>)>,
    sending: bool,
}

/// Returns a session's answers to some input, and whether the input broke the protocol. With
/// `delays`, the server answers late and in any order.
pub(super) fn answers(
    protocol: &dyn ProtocolFactory,
    sent: &[u8],
    cut: &mut Cut,
    mut delays: Option<Random>,
) -> (Vec<u8>, bool) {
    let now = Instant::now();
    let pool = Pool::new(0);
    let budget = Rc::new(Budget::new(2 * LONGEST_BYTES as usize, 1));
    let common = Common {
        pool: pool.clone(),
        budget: Rc::clone(&budget),
        throttle: Rc::default(),
        tls: None,
        limits: Limits::default(),
    };
    let nowhere = OwnedFd::from(std::fs::File::open("/dev/null").expect("/dev/null is there"));
    let session = Session::new(0, nowhere, protocol, &exports(), &common, now);
    let mut host =
        Host { session, pool, budget, said: Vec::new(), open: Vec::new(), sending: false };
    let mut rest = sent;
    let mut place: Option<Slice> = None;
    let mut broken = false;
    loop {
        let wanted = if place.is_none() { host.session.next(now) } else { Ok(None) };
        match wanted {
            Ok(Some(Want::Serve(request))) => host.serve(request),
            Ok(Some(Want::ServeWrite(request, buffer))) => host.open.push((request, Some(buffer))),
            Ok(Some(Want::Receive { into, .. })) => place = Some(into),
            Ok(Some(Want::Pause | Want::End) | None) => {}
            Err(error) => {
                broken = true;
                if !matches!(error, SessionError::Told(_)) {
                    host.session.break_off();
                }
                host.open.drain(..).for_each(|(request, _)| host.session.reply(&request, Ok(None)));
                host.session.sent(now);
                host.session.break_off();
                break;
            }
        }
        if let Some(work) = host.session.take_deferred() {
            work.run();
        }
        if host.budget.next_in_turn().is_some() {
            host.session.turn_has_come();
        }
        if let Some(delays) = &mut delays {
            host.interfere(delays);
        }
        let moved = host.answer(delays.as_mut(), now);
        host.check_bounds();
        let idle = delays.as_mut().is_none_or(|delays| delays.next().is_multiple_of(3));
        if let Some(into) = place.take_if(|_| idle) {
            let piece = cut.next(&mut rest, into.len());
            into.slice(0..piece.len()).copy_from(piece);
            let hung_up = host.session.received(piece.len(), now).is_err();
            if hung_up || piece.is_empty() {
                host.session.end();
            }
        } else if !moved && host.session.is_over() {
            break;
        }
    }
    assert_eq!(host.budget.used(), 0, "something taken is not given back");
    (host.said, broken)
}

impl Host {
    fn serve(&mut self, request: Request) {
        if request.has_payload() && request.length > 0 {
            let buffer = self.pool.allocate(request.length as usize);
            let into = buffer.whole();
            self.session.begin_payload(request, buffer, into);
        } else {
            self.open.push((request, None));
        }
    }

    /// Rarely changes the server's list of exports, or ends the session.
    fn interfere(&mut self, random: &mut Random) {
        let sizes =
            |bytes| Export { maximum_block_bytes: LONGEST_BYTES, ..Export::new("disk", bytes) };
        let changed = match random.next() % 256 {
            0 => vec![sizes(1 << 30)],
            1 => vec![sizes(4096)],
            2 => vec![],
            3 => return self.session.break_off(),
            4 => return self.session.end(),
            _ => return,
        };
        self.session.exports_changed(&Arc::new(Exports::new(changed).expect("good exports")));
    }

    /// Answers requests and sends replies that are due. Returns whether there was anything to wait
    /// for.
    fn answer(&mut self, delays: Option<&mut Random>, now: Instant) -> bool {
        let mut next = match delays {
            None => 0,
            Some(delays) => delays.next(),
        };
        let waiting = !self.open.is_empty() || self.sending;
        if !self.open.is_empty() && next.is_multiple_of(2) {
            next /= 2;
            let (request, _) = self.open.remove(next as usize % self.open.len());
            match request.kind {
                RequestKind::DirtyMap => {
                    self.session.answer(&request, Ok(Answer::Extents(&[Extent::data(4096)])))
                }
                RequestKind::Read if request.compares && next % 4 < 2 => {
                    self.session.answer(&request, Ok(Answer::Differs));
                }
                RequestKind::Read if !request.compares => {
                    let data = self
                        .pool
                        .allocate(request.length as usize)
                        .slice(0..request.length as usize);
                    data.fill_zero();
                    self.session.reply(&request, Ok(Some(data)));
                }
                _ => self.session.reply(&request, Ok(None)),
            }
        }
        if self.sending && next.is_multiple_of(2) {
            self.sending = false;
            self.session.sent(now);
        }
        if let Some(slices) = self.session.next_send(now) {
            slices.iter().for_each(|slice| self.said.extend(slice.to_vec()));
            self.sending = true;
        }
        waiting || self.sending
    }

    fn check_bounds(&self) {
        let most = 2 * LONGEST_BYTES as usize + LONGEST_TRANSFER_BYTES;
        assert!(self.budget.used() <= most);
        assert!(self.open.len() <= MOST_REQUESTS);
        // Of each request its buffer and a page for its header or extents, and what is received and
        // sent at once.
        let most = most + (MOST_REQUESTS + 8) * 4096 + RECEIVE_BUSY_BYTES;
        assert!(self.pool.stats().fallback_bytes <= most, "{:?}", self.pool.stats());
    }
}
