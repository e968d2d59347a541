//! The session of one hardware queue of a local block device.
//!
//! Unlike a client's session, a queue has no socket, no protocol and no part in the memory budget:
//! the kernel limits the number and the sizes of its requests.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use floe_block::{Fault, Request as CacheRequest, RequestKind, VolumeId};
use floe_device::{Ring, Slice};
use floe_ublk::{Action, Character, Queue, Request, UblkError};
use rustix::io::Errno;

/// The order to a worker to serve a queue.
#[derive(Debug)]
pub(crate) struct QueueOrder {
    pub(crate) character: Arc<Character>,
    pub(crate) number: u16,
    /// Maximum number of requests in flight.
    pub(crate) depth: u16,
    pub(crate) volume: VolumeId,
    pub(crate) read_only: bool,
    /// Receives the result once the worker serves the queue or has failed to.
    pub(crate) begun: Sender<Result<(), UblkError>>,
}

/// A hardware queue that a worker serves.
#[derive(Debug)]
pub(crate) struct LocalQueue {
    queue: Queue,
    volume: VolumeId,
    read_only: bool,
    /// Requests handed to the cache and not yet completed.
    under_way: usize,
    /// The queue hands no more requests to the cache. The device's next server gets them.
    ending: bool,
    /// All requests are completed with an error at once, including those in the cache.
    failing: bool,
    arrived: Vec<Request>,
}

/// A request for the cache, with its tag in the hardware queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalRequest {
    pub(crate) tag: u16,
    pub(crate) wanted: CacheRequest,
}

impl LocalQueue {
    /// Begins to serve a queue on the ring of this thread.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn begin(ring: &Ring, order: &QueueOrder) -> Result<Self, UblkError> {
        let queue = Queue::begin(ring, &order.character, order.number, order.depth)?;
        Ok(Self {
            queue,
            volume: order.volume,
            read_only: order.read_only,
            under_way: 0,
            ending: false,
            failing: false,
            arrived: Vec::new(),
        })
    }

    /// Appends the requests that have arrived. Those that cannot be served are completed with an
    /// error.
    pub(crate) fn poll(&mut self, requests: &mut Vec<LocalRequest>) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.queue.poll(&mut arrived);
        for request in arrived.drain(..).filter(|_| !self.ending || self.failing) {
            let wanted = match self.failing {
                true => Err(Errno::IO),
                false => to_cache(&request, self.volume, self.read_only),
            };
            match wanted {
                Ok(wanted) => {
                    self.under_way += 1;
                    requests.push(LocalRequest { tag: request.tag, wanted });
                }
                Err(error) => self.queue.complete(request.tag, -error.raw_os_error()),
            }
        }
        self.arrived = arrived;
    }

    /// Copies the data of a write from the kernel.
    ///
    /// # Errors
    /// When the kernel refuses. The caller then completes the request.
    pub(crate) fn take_data(&self, tag: u16, into: &Slice) -> Result<(), Fault> {
        if self.failing {
            return Err(Fault::Io); // the kernel may use the tag for another request
        }
        self.queue.take_data(tag, into).map_err(|_| Fault::Io)
    }

    /// Completes a request, with the data of a successful read.
    pub(crate) fn complete(
        &mut self,
        request: &LocalRequest,
        result: Result<Option<Slice>, Fault>,
    ) {
        self.under_way -= 1;
        if self.failing {
            return; // it was completed
        }
        let given = result.map_err(errno).and_then(|data| match data {
            Some(data) => self.queue.give_data(request.tag, &data).map_err(|_| Errno::IO),
            None => Ok(()),
        });
        let number = match given {
            Ok(()) if moves_data(request.wanted.kind) => request.wanted.len as i32,
            Ok(()) => 0,
            Err(error) => -error.raw_os_error(),
        };
        self.queue.complete(request.tag, number);
    }

    /// Stops handing requests to the cache.
    pub(crate) fn end(&mut self) {
        self.ending = true;
    }

    /// Completes all present and future requests with an error, including those in the cache.
    pub(crate) fn fail(&mut self) {
        if !std::mem::replace(&mut self.failing, true) {
            self.queue.complete_all(-Errno::IO.raw_os_error());
        }
    }

    pub(crate) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Returns whether the cache has no request of this queue.
    pub(crate) fn is_quiet(&self) -> bool {
        self.under_way == 0
    }

    /// Returns whether the device was stopped.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.is_over()
    }
}

/// Converts a request of the kernel for the cache.
///
/// Every change is durable before it is acknowledged. The reason is that the device outlives a
/// killed server without the kernel noticing: the kernel believes that its writes are stored, and
/// does not repeat them. A network client, in contrast, notices that its connection has ended.
fn to_cache(request: &Request, volume: VolumeId, read_only: bool) -> Result<CacheRequest, Errno> {
    let kind = match request.action.ok_or(Errno::OPNOTSUPP)? {
        Action::Read => RequestKind::Read,
        Action::Flush => RequestKind::Flush,
        _ if read_only => return Err(Errno::ROFS),
        Action::Write => RequestKind::Write { durable: true },
        Action::Discard => RequestKind::Trim,
        Action::Zero { may_unmap } => RequestKind::Zero { durable: true, may_unmap, fast: false },
    };
    let is_flush = kind == RequestKind::Flush;
    let (offset, len) = if is_flush { (0, 0) } else { (request.offset, request.bytes.into()) };
    Ok(CacheRequest { volume, kind, offset, len })
}

fn moves_data(kind: RequestKind) -> bool {
    matches!(kind, RequestKind::Read | RequestKind::Write { .. })
}

fn errno(fault: Fault) -> Errno {
    match fault {
        Fault::Io | Fault::OutOfRange => Errno::IO,
        Fault::NoSpace => Errno::NOSPC,
        Fault::Unsupported => Errno::OPNOTSUPP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(action: Option<Action>, read_only: bool) -> Result<CacheRequest, Errno> {
        let request = Request { tag: 3, action, offset: 8192, bytes: 4096 };
        to_cache(&request, VolumeId(2), read_only)
    }

    #[test]
    fn each_action_is_a_request_of_the_cache() {
        let zero = Action::Zero { may_unmap: false };
        for (action, kind) in [
            (Action::Read, RequestKind::Read),
            (Action::Write, RequestKind::Write { durable: true }),
            (Action::Discard, RequestKind::Trim),
            (zero, RequestKind::Zero { durable: true, may_unmap: false, fast: false }),
        ] {
            let expected = CacheRequest { volume: VolumeId(2), kind, offset: 8192, len: 4096 };
            assert_eq!(cached(Some(action), false), Ok(expected));
        }
        let flush = cached(Some(Action::Flush), true).expect("a flush is a request");
        assert_eq!((flush.kind, flush.offset, flush.len), (RequestKind::Flush, 0, 0));
        assert_eq!(cached(None, false), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn a_device_to_read_only_refuses_changes() {
        let zero = Action::Zero { may_unmap: true };
        for action in [Action::Write, Action::Discard, zero] {
            assert_eq!(cached(Some(action), true), Err(Errno::ROFS));
        }
        assert!(cached(Some(Action::Read), true).is_ok());
    }
}
