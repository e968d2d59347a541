//! A session's requests that wait for the limits of their volumes.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use floe_block::{Fault, RequestKind, VolumeId};
use floe_device::peer_user;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::getpeername;

use super::budget::bytes_of;
use super::receiving::Incoming;
use super::{Payloads, Session, Want, is_owed_payload, line_up};
use crate::client_name::ClientName;
use crate::protocol::{Reply, Request};

/// Number of requests for which a client that waits for no limit keeps memory.
const HELD_KEPT: usize = 4;

/// A request that waits for the limit of its volume.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) request: Request,
    since: Instant,
    stage: Stage,
}

/// The memory and the payload of a request that waits.
#[derive(Debug)]
pub(super) enum Stage {
    /// The request has neither memory nor payload.
    Bare,
    /// The payload is being received into the client's own memory.
    Filling,
    /// The payload is complete. Boxed, because clients can have many bare requests.
    Filled(Box<Incoming>),
}

/// Returns the bytes of a request that count against the limit of its volume; `None` if the request
/// has no limit. A flush has none, because what it makes durable has been let through.
pub(super) fn limited_bytes(request: &Request) -> Option<u64> {
    match request.kind {
        RequestKind::Flush | RequestKind::Drain | RequestKind::Warm | RequestKind::Evict => None,
        RequestKind::Trim | RequestKind::DirtyMap => Some(0),
        RequestKind::Read
        | RequestKind::Write { .. }
        | RequestKind::Zero { .. }
        | RequestKind::Prefetch => Some(request.length.into()),
    }
}

/// Returns the name of a session's client: that of an NVMe host, or the address of an NBD client's
/// machine. Must be called when the name is known, after the handshake.
fn client_name(session: &Session) -> &ClientName {
    session.client.get_or_init(|| match session.protocol.client() {
        Some(name) => ClientName::Host(name.into()),
        None => peer_name(&session.socket),
    })
}

/// Returns the name of the machine on the other side of a connection. On a Unix socket it is the
/// user of the other side.
fn peer_name(socket: &OwnedFd) -> ClientName {
    let address = getpeername(socket).ok().flatten();
    match address.and_then(|address| SocketAddr::try_from(address).ok()) {
        Some(address) => ClientName::of_machine(address.ip()),
        None => peer_user(socket).map_or(ClientName::Unknown, ClientName::User),
    }
}

/// Returns whether a request must wait for the limit of its volume. If so, the session stands
/// in line, and [`limit_passed`] is called when its turn has come.
pub(super) fn waits_for_limit(session: &Session, request: &Request, now: Instant) -> bool {
    let Some(bytes) = limited_bytes(request) else { return false };
    session.payloads.next_held(request.volume).is_some()
        || !session.common.throttle.take(
            session.key,
            || client_name(session),
            request.volume,
            bytes,
            now,
        )
}

/// Keeps a request until its volume's limit lets it through. If its payload follows and fits
/// into the client's own memory, which nobody else waits for, the payload is received first, so
/// that later requests can be read.
pub(super) fn hold(session: &mut Session, request: Request, now: Instant) -> Option<Want> {
    let receives = request.payload_follows
        && request.length > 0
        && session.common.budget.take_own(session.key, bytes_of(&request));
    let stage = if receives { Stage::Filling } else { Stage::Bare };
    session.protocol.held_back(&request);
    session.payloads.held.push_back(Held { request, since: now, stage });
    session.serving += usize::from(receives);
    receives.then_some(Want::Serve(request))
}

/// Begins to receive the payload that holds up the client's bytes, if payload of an earlier write
/// is behind it, because only that one may free memory.
pub(super) fn unblock(session: &mut Session) -> Option<Want> {
    if !session.payloads.is_blocked() || !is_owed_payload(session) {
        return None;
    }
    let held = session.payloads.held.back_mut()?;
    session.common.budget.take_at_once(session.key, bytes_of(&held.request));
    held.stage = Stage::Filling;
    session.serving += 1;
    Some(Want::Serve(held.request))
}

/// Ends the session if its client has closed the connection, or the one that this one belongs to
/// has ended, and the session receives nothing that tells it. Returns whether it has. So a client
/// that comes back is not overtaken by what it sent before.
pub(crate) fn end_if_vanished(session: &mut Session) -> bool {
    let has_vanished = !session.end.ended
        && !session.input.receiving
        && (session.protocol.has_parent() == Some(false) || is_closed(&session.socket));
    if has_vanished {
        session.end();
    }
    has_vanished
}

/// Returns whether the other side of a connection has closed it.
fn is_closed(socket: &OwnedFd) -> bool {
    let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::new(socket, closed)];
    let result = poll(&mut polled, Some(&Timespec::default()));
    result.is_ok() && polled[0].revents().intersects(closed)
}

/// Lets the oldest request that waits for this volume's limit go on. Returns how long it has
/// waited; `None` if the request is gone.
pub(crate) fn limit_passed(
    session: &mut Session,
    volume: VolumeId,
    now: Instant,
) -> Option<Duration> {
    let at = session.payloads.held.iter().position(|held| held.request.volume == volume)?;
    let Held { request, since, stage } = session.payloads.held.remove(at)?;
    let waited = now.saturating_duration_since(since);
    let bytes = limited_bytes(&request).unwrap_or(0);
    session.common.throttle.waited(client_name(session), volume, bytes, waited);
    match stage {
        Stage::Bare if request.has_payload() || session.protocol.may_start(&request) => {
            line_up(session, request, now);
        }
        Stage::Bare => {
            let out = Reply::new(&mut session.output.outbox, &session.common.pool, 0);
            session.protocol.reply(&request, Err(Fault::Io), out);
        }
        Stage::Filling => {} // it is served when its payload is complete
        Stage::Filled(write) => session.payloads.filled.push_back(*write),
    }
    if session.payloads.held.is_empty() {
        session.payloads.held.shrink_to(HELD_KEPT);
    }
    if let Some(bytes) = session.payloads.next_held(volume) {
        let client = || client_name(session);
        session.common.throttle.wait(session.key, client, volume, bytes, now);
    }
    Some(waited)
}

/// Forgets that the write with this tag, whose payload is damaged, waits for a limit.
pub(super) fn release(session: &mut Session, tag: u64, now: Instant) {
    let Some(at) = session.payloads.held.iter().position(|held| held.is_filling(tag)) else {
        return;
    };
    let removed = session.payloads.held.remove(at).expect("it was found there");
    let volume = removed.request.volume;
    if session.payloads.next_held(volume).is_none() {
        session.common.throttle.leave_line(session.key, volume, now);
    }
}

/// Drops the requests that wait for limits.
pub(super) fn end_held(session: &mut Session) {
    if !session.payloads.held.is_empty() {
        session.common.throttle.leave(session.key, Instant::now());
    }
    for Held { request, stage, .. } in session.payloads.held.drain(..) {
        if let Stage::Filled(_) = stage {
            session.serving -= 1;
            session.common.budget.give_back(session.key, bytes_of(&request));
        }
    }
}

impl Payloads {
    /// Handles the completion of a payload. The request is served next, or waits on for its limit.
    pub(super) fn complete(&mut self, write: Incoming) {
        let tag = write.request.tag;
        match self.held.iter_mut().find(|held| held.is_filling(tag)) {
            Some(held) => held.stage = Stage::Filled(Box::new(write)),
            None => self.filled.push_back(write),
        }
    }

    /// Returns whether nothing can be received until the newest request is let through.
    pub(super) fn is_blocked(&self) -> bool {
        self.held
            .back()
            .is_some_and(|held| held.request.payload_follows && matches!(held.stage, Stage::Bare))
    }

    /// Returns the bytes of the oldest request that waits for this volume's limit.
    fn next_held(&self, volume: VolumeId) -> Option<u64> {
        let held = self.held.iter().find(|held| held.request.volume == volume)?;
        limited_bytes(&held.request)
    }
}

impl Held {
    fn is_filling(&self, tag: u64) -> bool {
        self.request.tag == tag && matches!(self.stage, Stage::Filling)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn connections_of_one_machine_and_of_one_user_have_one_name() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let names = [(); 2].map(|()| {
            let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            peer_name(&listener.accept().unwrap().0.into())
        });
        assert_eq!(names, [ClientName::Loopback, ClientName::Loopback]);
        let (socket, _client) = UnixStream::pair().unwrap();
        let user = rustix::process::getuid().as_raw();
        assert_eq!(peer_name(&socket.into()), ClientName::User(user));
        let file = tempfile::tempfile().unwrap();
        assert_eq!(peer_name(&file.into()), ClientName::Unknown);
    }
}
