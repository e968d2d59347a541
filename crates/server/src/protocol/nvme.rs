//! Adapts the [`Connection`] of NVMe over TCP to [`Protocol`] and to the types of the cache.
//!
//! All connections of a listener share a [`Subsystem`], which manages the controllers of all hosts.
//! They also share the list of namespaces, which is built once for each list of exports.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use floe_block::{Fault, RequestKind, VolumeId};
use floe_device::Slice;
use floe_nbd::export::{Export, Exports};
use floe_nvme::target::access::Paths;
use floe_nvme::target::connection::{Connection, Event as NvmeEvent, Violation};
use floe_nvme::target::io::{BlockSize, Namespace, Namespaces};
use floe_nvme::target::request::{Failure, Request as NvmeRequest, RequestKind as NvmeKind};
use floe_nvme::target::subsystem::{Subsystem, number_of};
use floe_nvme::target::{Deferred, Digest};

use super::{
    Answer, Broken, Event, NoPlace, NotWelcome, Outbox, Protocol, ProtocolFactory, ProtocolName,
    Reply, Request, in_parts,
};
use crate::tls::TlsConfig;

/// Creates the protocol state of NVMe over TCP connections.
#[derive(Debug)]
pub(crate) struct NvmeTcp {
    subsystem: Arc<Subsystem>,
    known: Arc<Mutex<Known>>,
}

/// A cache of the namespaces for the latest list of exports.
#[derive(Debug, Default)]
struct Known {
    exports: Option<Arc<Exports>>,
    /// The value of [`Paths::access_changes`] when the namespaces were built.
    access_changes: u64,
    namespaces: Arc<Namespaces>,
}

/// The state of one NVMe over TCP connection.
#[derive(Debug)]
struct NvmeClient {
    connection: Connection,
    known: Arc<Mutex<Known>>,
    paths: Arc<Paths>,
    /// Buffer for answers before they enter the outbox; empty between calls.
    answers: Vec<u8>,
    has_failed: bool,
}

impl NvmeTcp {
    pub(crate) fn new(subsystem: Arc<Subsystem>) -> Self {
        Self { subsystem, known: Arc::default() }
    }
}

/// Returns a name for a subsystem without a configured one, derived from the machine and the
/// addresses. It differs between machines, and between servers of one machine.
pub(crate) fn subsystem_name(addresses: &[String]) -> String {
    let machine = std::fs::read_to_string("/etc/machine-id")
        .or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"))
        .unwrap_or_default();
    let texts: Vec<&str> =
        [machine.trim()].into_iter().chain(addresses.iter().map(String::as_str)).collect();
    let hex = format!("{:032x}", number_of(&texts));
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..]);
    format!("nqn.2014-08.org.nvmexpress:uuid:{a}-{b}-8{c}-8{d}-{e}")
}

impl ProtocolFactory for NvmeTcp {
    fn begin(
        &self,
        address: Option<SocketAddr>,
        exports: &Arc<Exports>,
        _: Option<&TlsConfig>,
        _: &mut Outbox,
    ) -> Box<dyn Protocol> {
        let namespaces = namespaces_of(&self.known, exports, self.subsystem.paths());
        let mut connection = Connection::new(Arc::clone(&self.subsystem), namespaces, address);
        connection.defer_work();
        let (known, paths) = (Arc::clone(&self.known), Arc::clone(self.subsystem.paths()));
        Box::new(NvmeClient { connection, known, paths, answers: Vec::new(), has_failed: false })
    }
}

/// Returns the namespaces for a list of exports, with the hosts' access to them.
fn namespaces_of(known: &Mutex<Known>, exports: &Arc<Exports>, paths: &Paths) -> Arc<Namespaces> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let access_changes = paths.access_changes();
    let is_known = known.exports.as_ref().is_some_and(|same| Arc::ptr_eq(same, exports));
    if !is_known || known.access_changes != access_changes {
        let namespace = |export: &Arc<Export>| Namespace {
            volume: export.volume,
            name: export.name.clone(),
            bytes: export.size_bytes,
            block_size: BlockSize::of(export.logical_block_bytes.into()).unwrap_or_default(),
            read_only: export.read_only,
            access: paths.access(&export.name),
        };
        let list = exports.iter().map(namespace).collect();
        known.namespaces = Arc::new(known.namespaces.followed_by(list, access_changes));
        known.exports = Some(Arc::clone(exports));
        known.access_changes = access_changes;
    }
    Arc::clone(&known.namespaces)
}

impl Protocol for NvmeClient {
    fn advance(&mut self, input: &[u8], out: &mut Outbox) -> Result<(usize, Event), Broken> {
        let advanced = self.connection.advance(input, &mut self.answers);
        self.send(out);
        let (used, event) = advanced.map_err(|violation| self.broken(violation))?;
        let event = match event {
            NvmeEvent::NeedMore => Event::NeedMore,
            NvmeEvent::Nothing => Event::Nothing,
            NvmeEvent::Request(request) => Event::Request(of_nvme(&request)),
            NvmeEvent::Payload { tag, bytes } => Event::Payload { tag: tag.into(), bytes },
            NvmeEvent::Checked { tag, intact } => Event::Checked { tag: tag.into(), intact },
            NvmeEvent::Refused => Event::Refused,
        };
        Ok((used, event))
    }

    fn ready(&mut self, write: &Request, out: &mut Outbox) {
        self.connection.ready(write.tag as u16, &mut self.answers);
        self.send(out);
    }

    fn payload_received(&mut self, payload: &Slice) {
        if self.connection.has_data_digest() {
            in_parts(payload, |part| self.connection.digest_payload(part));
        }
        self.connection.payload_received(payload.len());
    }

    fn checks_payload(&self) -> bool {
        self.connection.has_data_digest()
    }

    fn unanswered(&mut self, request: &Request) {
        self.connection.reply(request.tag as u16, Ok(()), || 0);
    }

    fn may_start(&mut self, request: &Request) -> bool {
        self.connection.may_start(request.tag as u16)
    }

    fn held_back(&mut self, request: &Request) {
        self.connection.hold_back(request.tag as u16);
    }

    fn reservations_changed(&mut self, out: &mut Outbox) {
        self.connection.reservations_changed(&mut self.answers);
        if self.has_failed {
            self.answers.clear(); // nothing may follow the request to terminate
        }
        self.send(out);
    }

    fn end_of_input(&self) -> Result<(), Broken> {
        Ok(self.connection.end_of_input()?)
    }

    fn reply(&mut self, request: &Request, result: Result<Answer<'_>, Fault>, out: Reply<'_>) {
        if self.has_failed {
            self.unanswered(request);
            return out.send_nothing(); // nothing may follow the request to terminate
        }
        // A discard is a hint, and may be beyond a device.
        let is_hint =
            request.kind == RequestKind::Trim && matches!(result, Err(Fault::Unsupported));
        let outcome = match &result {
            Err(_) if is_hint => Ok(()),
            Ok(Answer::Differs) => Err(Failure::Differs),
            Ok(_) => Ok(()),
            Err(fault) => Err(failure_of(*fault)),
        };
        let digest = || match &result {
            Ok(Answer::Data(payload)) => {
                let mut digest = Digest::default();
                in_parts(payload, |part| digest.update(part));
                digest.value()
            }
            _ => 0,
        };
        let Some(answer) = self.connection.reply(request.tag as u16, outcome, digest) else {
            return out.send_nothing();
        };
        let payload = match result {
            Ok(Answer::Data(payload)) if answer.payload => Some(payload),
            _ => None,
        };
        out.send_around(answer.before.as_slice(), payload, answer.after.as_slice());
    }

    fn exports_changed(&mut self, exports: &Arc<Exports>, out: &mut Outbox) -> bool {
        let namespaces = namespaces_of(&self.known, exports, &self.paths);
        self.connection.namespaces_changed(&namespaces, &mut self.answers);
        self.send(out);
        true
    }

    fn is_established(&self) -> bool {
        self.connection.is_connected()
    }

    fn name(&self) -> ProtocolName {
        ProtocolName::NvmeTcp
    }

    fn client(&self) -> Option<&str> {
        self.connection.host()
    }

    fn volume(&self) -> Option<VolumeId> {
        None // a host uses all of them
    }

    fn volumes_in_use(&self) -> Vec<VolumeId> {
        let namespaces = self.connection.namespaces_in_use().into_iter().flat_map(Namespaces::iter);
        namespaces.map(|namespace| VolumeId(namespace.volume)).collect()
    }

    fn longest_silence(&self) -> Option<Duration> {
        // Twice the time: a host that is late once is not gone.
        let promised = self.connection.keep_alive_ms()?;
        Some(2 * Duration::from_millis(promised.into()))
    }

    fn has_parent(&self) -> Option<bool> {
        self.connection.has_controller()
    }

    fn deferred(&self) -> Option<&Deferred> {
        self.connection.deferred()
    }

    fn has_last_words(&self) -> bool {
        self.has_failed
    }
}

impl NvmeClient {
    /// Converts a violation into the error that ends the session. A host that is not allowed to
    /// connect is distinguished from one that broke the protocol.
    fn broken(&mut self, violation: Violation) -> Broken {
        self.has_failed = true;
        match (violation, self.connection.host()) {
            (Violation::NotAllowed | Violation::NotAuthenticated, Some(host)) => {
                NotWelcome(format!("NVMe host {host}: {violation}")).into()
            }
            (Violation::NoPlace, Some(host)) => {
                NoPlace(format!("NVMe host {host}: {violation}")).into()
            }
            _ => violation.into(),
        }
    }

    fn send(&mut self, out: &mut Outbox) {
        out.push_bytes(&self.answers);
        self.answers.clear();
        self.answers.shrink_to(256);
    }
}

fn of_nvme(request: &NvmeRequest) -> Request {
    let kind = match request.kind {
        NvmeKind::Read | NvmeKind::Verify | NvmeKind::Compare => RequestKind::Read,
        NvmeKind::Write { durable } => RequestKind::Write { durable },
        NvmeKind::Flush => RequestKind::Flush,
        NvmeKind::Deallocate => RequestKind::Trim,
        NvmeKind::WriteZeroes { durable, deallocate } => {
            RequestKind::Zero { durable, may_unmap: deallocate, fast: false }
        }
    };
    Request {
        tag: request.tag.into(),
        flags: 0,
        volume: VolumeId(request.volume),
        kind,
        offset: request.offset,
        length: request.length,
        compares: request.kind == NvmeKind::Compare,
        payload_follows: request.in_capsule,
    }
}

fn failure_of(fault: Fault) -> Failure {
    match fault {
        Fault::Io => Failure::Device,
        Fault::NoSpace => Failure::NoSpace,
        Fault::OutOfRange => Failure::OutOfRange,
        Fault::Unsupported => Failure::Unsupported,
    }
}
