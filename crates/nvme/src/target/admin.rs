//! An admin queue: the commands that query the controller, configure it, and wait for events.

use std::net::SocketAddr;

use super::access::{CHANGE_MOST_SECONDS, Port};
use super::fabrics::Registers;
use super::io::{BlockSize, Namespace, Namespaces};
use super::reservation::{Action, ReservationChange, ReservationLog, ReservationOrder};
use super::subsystem::{Controller, ControllerLease, NoPlace, QUEUES_MAX, Subsystem};
use super::{
    ASYNC_EVENTS_MAX, IN_CAPSULE_MAX_BYTES, NAMESPACE_ID_MAX, NAMESPACES_MAX, QUEUE_MAX,
    TRANSFER_MAX_BYTES, VERSION,
};
use crate::wire::{
    ALL_NAMESPACES, ANY_CONTROLLER, COMMAND_BYTES, COMPLETION_BYTES, DISCOVERY_NQN, IDENTIFY_BYTES,
    NvmeCommand, Status, admin, fabrics, feature, identifier, identify, io, log, log as page,
};

/// The state of an admin queue.
#[derive(Debug)]
pub(super) struct Admin {
    lease: ControllerLease,
    /// Address that the host has connected to, if known.
    address: Option<SocketAddr>,
    registers: Registers,
    features: Features,
    notices: Notices,
    reservation_log: ReservationLog,
    /// Number of the subsystem's port changes that this queue has already processed.
    port_changes: u64,
}

/// The outcome of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AdminOutcome {
    /// The command succeeded with this result and returns no data.
    Done(u64),
    /// The command succeeded and returns this data.
    Data(Vec<u8>),
    /// The command stays outstanding until an event occurs.
    Held,
    /// The command completes once all namespaces are flushed.
    Flush,
    /// The command completes once a reservation is changed.
    Change(ReservationChange),
}

impl Admin {
    pub(super) fn new(
        lease: ControllerLease,
        address: Option<SocketAddr>,
        keep_alive_ms: u32,
    ) -> Self {
        let port_changes = lease.subsystem().paths().port_changes();
        let reservations = lease.subsystem().reservations();
        Self {
            reservation_log: ReservationLog::new(reservations.map(|it| &**it)),
            lease,
            address,
            registers: Registers::default(),
            features: Features::new(keep_alive_ms),
            notices: Notices::default(),
            port_changes,
        }
    }

    /// Returns the keep-alive timeout in milliseconds; 0 for none.
    pub(super) fn keep_alive_ms(&self) -> u32 {
        match self.features.keep_alive_ms {
            0 if self.lease.controller.discovery => SILENCE_MS,
            promised => promised,
        }
    }

    /// Takes the place of a host that has authenticated, unless it has one.
    pub(super) fn take_place(&mut self) -> Result<(), NoPlace> {
        self.lease.take_place()
    }

    /// Returns whether I/O queues of the controller are connected.
    pub(super) fn has_io_queues(&self) -> bool {
        self.lease.controller.has_queues()
    }

    /// Returns whether the command with this identifier waits for an event.
    pub(super) fn holds(&self, id: u16) -> bool {
        self.notices.holds(id)
    }

    /// Drops all settings of the host and its outstanding event requests.
    fn reset(&mut self) {
        self.features = Features::new(self.features.keep_alive_ms);
        self.notices = Notices::default();
        let reservations = self.lease.subsystem().reservations();
        self.reservation_log = ReservationLog::new(reservations.map(|it| &**it));
    }

    pub(super) fn command(
        &mut self,
        command: &NvmeCommand,
        subsystem: &Subsystem,
        namespaces: &Namespaces,
    ) -> Result<AdminOutcome, Status> {
        let controller = &self.lease.controller;
        if command.opcode() == admin::FABRICS {
            return match command.fabrics_type() {
                fabrics::PROPERTY_GET => self.registers.get(command).map(AdminOutcome::Done),
                fabrics::PROPERTY_SET => {
                    let was_ready = self.registers.is_ready();
                    let shuts_down = self.registers.set(command, controller)?;
                    if was_ready && !self.registers.is_ready() {
                        self.reset();
                    }
                    Ok(if shuts_down { AdminOutcome::Flush } else { AdminOutcome::Done(0) })
                }
                fabrics::CONNECT => Err(Status::SEQUENCE_ERROR.final_()),
                _ => Err(Status::INVALID_OPCODE.final_()),
            };
        }
        if !self.registers.is_ready() {
            return Err(Status::SEQUENCE_ERROR.final_());
        }
        match command.opcode() {
            admin::IDENTIFY => {
                takes(command, IDENTIFY_BYTES)?;
                identify(command, subsystem, controller, namespaces).map(AdminOutcome::Data)
            }
            admin::GET_LOG_PAGE => self.log(command, subsystem, namespaces).map(AdminOutcome::Data),
            admin::SET_FEATURES | admin::GET_FEATURES
                if !controller.discovery && is_of_reservations(command) =>
            {
                self.reservation_feature(command, subsystem, namespaces)
            }
            admin::SET_FEATURES => self.features.set(command, controller).map(AdminOutcome::Done),
            admin::GET_FEATURES => self.features.get(command, controller).map(AdminOutcome::Done),
            admin::KEEP_ALIVE => Ok(AdminOutcome::Done(0)),
            admin::ABORT => Ok(AdminOutcome::Done(1)), // it was not aborted
            admin::ASYNC_EVENT => match self.notices.wait(command.id()) {
                true => Ok(AdminOutcome::Held),
                false => Err(Status::ASYNC_EVENT_LIMIT.final_()),
            },
            _ => Err(Status::INVALID_OPCODE.final_()),
        }
    }

    fn log(
        &mut self,
        command: &NvmeCommand,
        subsystem: &Subsystem,
        namespaces: &Namespaces,
    ) -> Result<Vec<u8>, Status> {
        let number = command.u8(40);
        let part = Part::of(command)?;
        takes(command, part.bytes())?;
        let is_discovery = self.lease.controller.discovery;
        let page = match number {
            page::DISCOVERY if is_discovery => {
                discovery_page(subsystem, self.address, namespaces.generation())
            }
            page::CHANGED_NAMESPACES if !is_discovery => {
                let ids = self.notices.changed().iter();
                let mut bytes: Vec<u8> = ids.flat_map(|id| id.to_le_bytes()).collect();
                bytes.resize(4 * CHANGES_MAX, 0);
                bytes
            }
            page::RESERVATIONS if !is_discovery && subsystem.reservations().is_some() => {
                self.reservation_log.page()
            }
            _ => log_page(number, command, subsystem, &self.lease.controller, namespaces)?,
        };
        let bytes = part.cut(page)?;
        let keeps_event = command.u8(41) & 1 << 7 != 0;
        if let Some(log) = Log::of(number).filter(|_| !keeps_event) {
            self.notices.log_read(log);
            if log == Log::Reservations && self.reservation_log.read() {
                self.notices.log_changed(log);
            }
        }
        Ok(bytes)
    }

    /// Gets or sets a feature of reservations.
    fn reservation_feature(
        &mut self,
        command: &NvmeCommand,
        subsystem: &Subsystem,
        namespaces: &Namespaces,
    ) -> Result<AdminOutcome, Status> {
        let host = self.lease.controller.host.id;
        let sets = command.opcode() == admin::SET_FEATURES;
        let (value, id) = (command.word(11), command.namespace());
        let invalid = Status::INVALID_FIELD.final_();
        if command.u8(40) == feature::HOST_ID {
            return match (sets, value & 1) {
                (true, _) => Err(Status::SEQUENCE_ERROR.final_()), // it comes with Connect
                (false, 0) => Err(Status::HOST_ID_FORMAT.final_()),
                (false, _) => takes(command, host.len()).map(|()| AdminOutcome::Data(host.into())),
            };
        }
        let reservations = subsystem.reservations().ok_or(invalid)?;
        let is_mask = command.u8(40) == feature::RESERVATION_MASK;
        if is_mask && sets && id == ALL_NAMESPACES {
            for namespace in namespaces.iter() {
                self.reservation_log.set_mask(namespace.id(), value & ReservationLog::MASK);
            }
            return Ok(AdminOutcome::Done(0));
        }
        let namespace = match is_mask {
            true => namespaces.find(id).ok_or(Status::INVALID_NAMESPACE.final_())?,
            false => super::io::namespace(command, namespaces)?, // the path that can be used tells
        };
        if !reservations.has(&namespace.name) {
            return Err(invalid);
        }
        if is_mask {
            if sets {
                self.reservation_log.set_mask(id, value & ReservationLog::MASK);
            }
            return Ok(AdminOutcome::Done(self.reservation_log.mask(id).into()));
        }
        if sets {
            let order =
                ReservationOrder { action: Action::Persist, persists: Some(value & 1 != 0) };
            let change = ReservationChange::new(reservations, &namespace.name, host, order);
            return Ok(AdminOutcome::Change(change));
        }
        Ok(AdminOutcome::Done(reservations.of(&namespace.name).persists().into()))
    }

    /// Adds what has happened to the host's reservations to its log.
    pub(super) fn reservations_changed(&mut self, namespaces: &Namespaces) {
        let Controller { host, discovery, .. } = &*self.lease.controller;
        let Some(reservations) = self.lease.subsystem().reservations() else { return };
        let id_of =
            |volume: &str| namespaces.iter().find(|it| it.name == volume).map(Namespace::id);
        if !discovery && self.reservation_log.look(reservations, &host.id, id_of) {
            self.notices.log_changed(Log::Reservations);
        }
    }

    /// Records the differences between two lists of namespaces, and changes of the subsystem's
    /// ports, as notices for the host.
    pub(super) fn namespaces_changed(&mut self, old: &Namespaces, new: &Namespaces) {
        let port_changes = self.lease.subsystem().paths().port_changes();
        let has_new_ports = std::mem::replace(&mut self.port_changes, port_changes) != port_changes;
        if self.lease.controller.discovery {
            if has_new_ports || old.generation() != new.generation() {
                self.notices.log_changed(Log::Discovery);
            }
            return;
        }
        self.notices.namespaces_changed(&old.differences(new));
        if old.differ_in_access(new) {
            self.notices.log_changed(Log::Access);
        }
    }

    /// Returns the next event request to complete: its identifier and the result that describes the
    /// event.
    pub(super) fn event(&mut self) -> Option<(u16, u64)> {
        self.notices.next(self.features.events)
    }
}

/// Returns whether a command is about a feature of reservations.
fn is_of_reservations(command: &NvmeCommand) -> bool {
    let (first, last) = (feature::HOST_ID, feature::RESERVATION_PERSISTENCE);
    (first..=last).contains(&command.u8(40))
}

/// Checks that the host's buffer has exactly the size of the data that a command returns.
fn takes(command: &NvmeCommand, bytes: usize) -> Result<(), Status> {
    let fits = command.descriptor().length as usize == bytes;
    if fits { Ok(()) } else { Err(Status::SGL_LENGTH_INVALID.final_()) }
}

/// The features that a host has set.
#[derive(Debug, Default)]
pub(super) struct Features {
    /// Keep-alive timeout in milliseconds; 0 for none.
    pub(super) keep_alive_ms: u32,
    /// Bit mask of the asynchronous events that the host wants to receive.
    pub(super) events: u32,
    /// Number of granted I/O queues minus one, in the format of the result of Set Features:
    /// submission queues in the low half, completion queues in the high half.
    queues: u32,
}

impl Features {
    pub(super) fn new(keep_alive_ms: u32) -> Self {
        Self { keep_alive_ms, ..Self::default() }
    }

    /// Sets a feature. Returns the result of the command.
    pub(super) fn set(
        &mut self,
        command: &NvmeCommand,
        controller: &Controller,
    ) -> Result<u64, Status> {
        let value = command.word(11);
        match command.u8(40) {
            feature::KEEP_ALIVE => self.keep_alive_ms = value,
            feature::ASYNC_EVENTS => self.events = value,
            feature::QUEUES if !controller.discovery => {
                let (submission, completion) = (value as u16, (value >> 16) as u16);
                if submission == u16::MAX || completion == u16::MAX {
                    return Err(Status::INVALID_FIELD.final_());
                }
                // A queue over TCP has both halves.
                let wanted = submission.min(completion).min(QUEUES_MAX - 1) + 1;
                let less_one = u32::from(controller.grant(wanted)) - 1;
                self.queues = less_one | less_one << 16;
                return Ok(self.queues.into());
            }
            feature::WRITE_CACHE if !controller.discovery && value & 1 != 0 => {}
            feature::WRITE_CACHE if !controller.discovery => {
                return Err(Status::FEATURE_NOT_CHANGEABLE.final_());
            }
            feature::ARBITRATION | feature::POWER | feature::WRITE_ATOMICITY => {} // no effect
            _ => return Err(Status::INVALID_FIELD.final_()),
        }
        Ok(0)
    }

    pub(super) fn get(
        &self,
        command: &NvmeCommand,
        controller: &Controller,
    ) -> Result<u64, Status> {
        let value = match command.u8(40) {
            feature::KEEP_ALIVE => self.keep_alive_ms,
            feature::ASYNC_EVENTS => self.events,
            feature::QUEUES if !controller.discovery => self.queues,
            feature::WRITE_CACHE if !controller.discovery => 1,
            feature::ARBITRATION | feature::POWER | feature::WRITE_ATOMICITY => 0,
            _ => return Err(Status::INVALID_FIELD.final_()),
        };
        Ok(value.into())
    }
}

/// Granularity and alignment of I/O that namespaces recommend, in bytes.
const PREFERRED_BYTES: u64 = 4096;
/// Capabilities of asymmetric access: the controller reports the states optimized, inaccessible and
/// change. The group of a namespace never changes.
const ANA_CAPABILITIES: u8 = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 6;

/// A data structure of fixed size, filled field by field.
pub(super) struct Page(Vec<u8>);

impl Page {
    pub(super) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Writes text to a field and pads it with spaces.
    pub(super) fn text(&mut self, at: usize, len: usize, text: &str) -> &mut Self {
        self.0[at..at + len].fill(b' ');
        let bytes = text.as_bytes();
        self.put(at, &bytes[..bytes.len().min(len)])
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Executes an Identify command: returns the structure that the host asks for.
pub(super) fn identify(
    command: &NvmeCommand,
    subsystem: &Subsystem,
    controller: &Controller,
    namespaces: &Namespaces,
) -> Result<Vec<u8>, Status> {
    let structure = command.u8(40);
    let command_set = command.u8(47);
    let id = command.namespace();
    if structure == identify::CONTROLLER {
        return Ok(controller_page(subsystem, controller));
    }
    if controller.discovery {
        return Err(Status::INVALID_FIELD.final_());
    }
    match structure {
        identify::NAMESPACE => match namespaces.find(id) {
            Some(namespace) => Ok(namespace_page(subsystem, namespace)),
            None if (1..=NAMESPACE_ID_MAX).contains(&id) => Ok(Page::new(IDENTIFY_BYTES).done()),
            None => Err(Status::INVALID_NAMESPACE.final_()),
        },
        identify::ACTIVE_NAMESPACES if id < u32::MAX - 1 => Ok(active_list(namespaces, id)),
        identify::DESCRIPTORS => match namespaces.find(id) {
            Some(namespace) => Ok(descriptors(subsystem, namespace)),
            None => Err(Status::INVALID_NAMESPACE.final_()),
        },
        identify::COMMAND_SET_NAMESPACE if command_set == 0 => match namespaces.find(id) {
            Some(_) => Ok(Page::new(IDENTIFY_BYTES).done()),
            None => Err(Status::INVALID_NAMESPACE.final_()),
        },
        // No limits but those of the transfer.
        identify::COMMAND_SET_CONTROLLER if command_set == 0 => {
            Ok(Page::new(IDENTIFY_BYTES).done())
        }
        _ => Err(Status::INVALID_FIELD.final_()),
    }
}

fn controller_page(subsystem: &Subsystem, controller: &Controller) -> Vec<u8> {
    let transfer_shift = (TRANSFER_MAX_BYTES / 4096).ilog2() as u8;
    let nqn = if controller.discovery { DISCOVERY_NQN } else { subsystem.nqn() };
    let mut page = Page::new(IDENTIFY_BYTES);
    page.text(4, 20, &subsystem.serial())
        .text(24, 40, "Floe")
        .text(64, 8, subsystem.firmware())
        .put(77, &[transfer_shift])
        .put(78, &controller.id.to_le_bytes())
        .put(80, &VERSION.to_le_bytes())
        .put(96, &1_u32.to_le_bytes()) // host identifiers of 128 bits
        .put(111, &[if controller.discovery { 2 } else { 1 }])
        .put(258, &[3]) // commands to abort at once, less one
        .put(259, &[ASYNC_EVENTS_MAX as u8 - 1])
        .put(260, &[0x03]) // one firmware slot, read only
        .put(261, &[1 << 2]) // log pages have offsets
        .put(320, &10_u16.to_le_bytes()) // keep-alive in steps of a second
        .put(514, &QUEUE_MAX.to_le_bytes())
        // SGLs of any alignment, in-capsule offsets, transport descriptors
        .put(536, &(1_u32 << 0 | 1 << 20 | 1 << 21).to_le_bytes())
        .put(768, nqn.as_bytes());
    if controller.discovery {
        page.put(92, &feature::DISCOVERY_NOTICES.to_le_bytes());
        return page.done();
    }
    let can_reserve = u16::from(subsystem.reservations().is_some());
    let capsule = (COMMAND_BYTES + IN_CAPSULE_MAX_BYTES) / 16;
    page.put(76, &[1 << 1 | 1 << 3]) // several controllers, asymmetric access
        .put(92, &(feature::NAMESPACE_NOTICES | feature::ANA_NOTICES).to_le_bytes())
        .put(261, &[1 << 1 | 1 << 2]) // commands and effects too
        .put(342, &[CHANGE_MOST_SECONDS, ANA_CAPABILITIES])
        .put(344, &NAMESPACE_ID_MAX.to_le_bytes()) // groups have the identifiers of namespaces
        .put(348, &(NAMESPACES_MAX as u32).to_le_bytes()) // number of groups
        .put(512, &[0x66, 0x44]) // entries of 64 and of 16 bytes
        .put(516, &NAMESPACE_ID_MAX.to_le_bytes())
        // Compare, Dataset Management, Write Zeroes, Verify, reservations
        .put(520, &(1_u16 << 0 | 1 << 2 | 1 << 3 | 1 << 7 | can_reserve << 5).to_le_bytes())
        .put(525, &[1 | 3 << 1]) // a volatile cache; Flush may name all namespaces
        .put(540, &(NAMESPACES_MAX as u32).to_le_bytes())
        .put(1792, &(capsule as u32).to_le_bytes())
        .put(1796, &((COMPLETION_BYTES / 16) as u32).to_le_bytes())
        .put(1803, &[1]); // one descriptor a command
    page.done()
}

fn namespace_page(subsystem: &Subsystem, namespace: &Namespace) -> Vec<u8> {
    let blocks = namespace.blocks().to_le_bytes();
    let preferred = (PREFERRED_BYTES / namespace.block_size.bytes()) as u16 - 1;
    let preferred = preferred.to_le_bytes();
    let reservations = subsystem.reservations().map_or(0, |it| it.capabilities(&namespace.name));
    let mut page = Page::new(IDENTIFY_BYTES);
    page.put(0, &blocks)
        .put(8, &blocks)
        .put(16, &blocks)
        .put(24, &[1 << 4]) // preferred sizes are reported
        .put(30, &[1, reservations]) // several controllers share it
        .put(33, &[1 << 3]) // Write Zeroes may deallocate
        .put(48, &u128::from(namespace.bytes).to_le_bytes())
        .put(92, &namespace.access_group().to_le_bytes())
        .put(99, &[u8::from(namespace.read_only)])
        .put(104, &identifier_of(subsystem, namespace))
        .put(130, &[namespace.block_size.shift()]);
    for at in [64, 66, 68, 70, 72] {
        page.put(at, &preferred); // to write and to deallocate, granularity and alignment
    }
    page.done()
}

/// Returns the UUID of a namespace. The size of blocks is a part of its identity.
fn identifier_of(subsystem: &Subsystem, namespace: &Namespace) -> [u8; 16] {
    match namespace.block_size {
        BlockSize::Bytes512 => subsystem.identifier(&[&namespace.name]),
        BlockSize::Bytes4096 => subsystem.identifier(&[&namespace.name, "4096"]),
    }
}

fn active_list(namespaces: &Namespaces, after: u32) -> Vec<u8> {
    let ids = namespaces.iter().map(Namespace::id).filter(|&id| id > after);
    let mut page = Page::new(IDENTIFY_BYTES);
    for (at, id) in ids.take(IDENTIFY_BYTES / 4).enumerate() {
        page.put(4 * at, &id.to_le_bytes());
    }
    page.done()
}

fn descriptors(subsystem: &Subsystem, namespace: &Namespace) -> Vec<u8> {
    let id = identifier_of(subsystem, namespace);
    let mut page = Page::new(IDENTIFY_BYTES);
    page.put(0, &[identifier::NGUID, 16])
        .put(4, &id)
        .put(20, &[identifier::UUID, 16])
        .put(24, &id)
        .put(40, &[identifier::COMMAND_SET, 1]);
    page.done()
}

/// Maximum bytes of a log page that one command reads.
const READ_MAX_BYTES: u64 = 64 << 10;
/// Maximum number of namespaces that the Changed Namespace List holds.
pub(super) const CHANGES_MAX: usize = 1024;

/// The part of a log page that a command asks for.
pub(super) struct Part {
    offset: u64,
    bytes: usize,
}

impl Part {
    /// Parses the offset and length from the command.
    pub(super) fn of(command: &NvmeCommand) -> Result<Self, Status> {
        let double_words = u64::from(command.word(11) & 0xffff) << 16;
        let double_words = (double_words | u64::from(command.word(10) >> 16)) + 1;
        let (bytes, offset) = (4 * double_words, command.u64(48));
        if bytes > READ_MAX_BYTES || !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD.final_());
        }
        Ok(Self { offset, bytes: bytes as usize })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Cuts this part out of a log page. Bytes beyond the page's end are zero.
    pub(super) fn cut(&self, mut page: Vec<u8>) -> Result<Vec<u8>, Status> {
        if self.offset > page.len() as u64 {
            return Err(Status::INVALID_FIELD.final_());
        }
        page.drain(..self.offset as usize);
        page.resize(self.bytes, 0);
        Ok(page)
    }
}

/// Builds a log page. The pages of changed namespaces and of discovery are built elsewhere.
fn log_page(
    number: u8,
    command: &NvmeCommand,
    subsystem: &Subsystem,
    controller: &Controller,
    namespaces: &Namespaces,
) -> Result<Vec<u8>, Status> {
    let unknown = Status::INVALID_LOG_PAGE.final_();
    match number {
        log::ERROR => Ok(Page::new(64).done()),
        _ if controller.discovery => Err(unknown),
        log::HEALTH => {
            let mut page = Page::new(512);
            page.put(1, &293_u16.to_le_bytes()).put(3, &[100, 10]); // kelvin; spare, its threshold
            Ok(page.done())
        }
        log::FIRMWARE => {
            let mut page = Page::new(512);
            page.put(0, &[1]); // the first slot is active
            Ok(page.done())
        }
        log::COMMANDS => Ok(commands(subsystem.reservations().is_some())),
        log::ANA => Ok(access(command, namespaces)),
        _ => Err(unknown),
    }
}

/// Returns the log page of supported commands and their effects.
fn commands(can_reserve: bool) -> Vec<u8> {
    const SUPPORTED: u32 = 1 << 0;
    const CHANGES_CONTENT: u32 = 1 << 1;
    let mut page = Page::new(4096);
    let mut set = |at: usize, codes: &[u8], effects: u32| {
        for code in codes {
            page.put(at + 4 * usize::from(*code), &effects.to_le_bytes());
        }
    };
    set(
        0,
        &[
            admin::GET_LOG_PAGE,
            admin::IDENTIFY,
            admin::ABORT,
            admin::SET_FEATURES,
            admin::GET_FEATURES,
            admin::ASYNC_EVENT,
            admin::KEEP_ALIVE,
        ],
        SUPPORTED,
    );
    set(1024, &[io::FLUSH, io::READ, io::COMPARE, io::VERIFY], SUPPORTED);
    set(1024, &[io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT], SUPPORTED | CHANGES_CONTENT);
    if can_reserve {
        set(1024, &io::RESERVATIONS, SUPPORTED);
    }
    page.done()
}

/// Returns the ANA log page. Each namespace is in a group of its own.
fn access(command: &NvmeCommand, namespaces: &Namespaces) -> Vec<u8> {
    const GROUP_BYTES: usize = 32;
    let groups_only = command.u8(41) & 1 != 0;
    let mut page = vec![0; 16];
    page[..8].copy_from_slice(&namespaces.access_changes().to_le_bytes());
    page[8..10].copy_from_slice(&(namespaces.iter().len() as u16).to_le_bytes());
    for namespace in namespaces.iter() {
        let mut group = [0; GROUP_BYTES];
        group[..4].copy_from_slice(&namespace.access_group().to_le_bytes());
        group[4] = u8::from(!groups_only); // namespaces
        group[16] = namespace.access.code();
        page.extend_from_slice(&group);
        if !groups_only {
            page.extend_from_slice(&namespace.id().to_le_bytes());
        }
    }
    page
}

/// Bytes of the discovery log's header, and of each entry.
const ENTRY_BYTES: usize = 1024;
/// Milliseconds of silence after which a discovery host without keep-alive timeout is disconnected.
pub(super) const SILENCE_MS: u32 = 60_000;

/// Returns the discovery log page; empty when the address is unknown. `generation` is that of the
/// list of namespaces.
fn discovery_page(subsystem: &Subsystem, address: Option<SocketAddr>, generation: u64) -> Vec<u8> {
    const TCP: u8 = 3;
    const NVM_SUBSYSTEM: u8 = 2;
    const NO_SECURE_CHANNEL: u8 = 2;
    let paths = subsystem.paths();
    let generation = generation + paths.port_changes() + 1; // each part only grows
    let ports = address.map_or(Vec::new(), |called| paths.ports_for(called));
    let mut page = Page::new(ENTRY_BYTES * (1 + ports.len()));
    page.put(0, &generation.to_le_bytes()).put(8, &(ports.len() as u64).to_le_bytes());
    for (port, at) in ports.iter().zip((1..).map(|entry| entry * ENTRY_BYTES)) {
        let Port { id, address } = port;
        let family = if address.is_ipv4() { 1 } else { 2 };
        page.put(at, &[TCP, family, NVM_SUBSYSTEM, NO_SECURE_CHANNEL])
            .put(at + 4, &id.to_le_bytes())
            .put(at + 6, &ANY_CONTROLLER.to_le_bytes())
            .put(at + 8, &QUEUE_MAX.to_le_bytes())
            .text(at + 32, 32, &address.port().to_string())
            .put(at + 256, subsystem.nqn().as_bytes())
            .text(at + 512, 256, &address.ip().to_string());
    }
    page.done()
}

/// The logs whose changes are announced to hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Log {
    /// The list of changed namespaces.
    Namespaces,
    /// The log of asymmetric namespace access (ANA).
    Access,
    /// The discovery log.
    Discovery,
    /// The log of reservation notifications.
    Reservations,
}

impl Log {
    const ALL: [Self; 4] = [Self::Namespaces, Self::Access, Self::Discovery, Self::Reservations];

    /// Returns the log with this page number.
    pub(super) fn of(page: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|log| log.page() == page)
    }

    fn page(self) -> u8 {
        match self {
            Self::Namespaces => log::CHANGED_NAMESPACES,
            Self::Access => log::ANA,
            Self::Discovery => log::DISCOVERY,
            Self::Reservations => log::RESERVATIONS,
        }
    }

    /// Returns the bits by any of which a host subscribes to notices of this log. Those of
    /// reservations have masks of their own.
    fn wanted(self) -> u32 {
        match self {
            Self::Namespaces => feature::NAMESPACE_NOTICES,
            Self::Access => feature::ANA_NOTICES,
            Self::Discovery => feature::DISCOVERY_NOTICES,
            Self::Reservations => u32::MAX,
        }
    }

    /// Returns the result of an event request: the event type, mostly "notice", the kind of notice
    /// and the log page to read.
    fn event(self) -> u64 {
        let which = match self {
            Self::Namespaces => 0x00,
            Self::Access => 0x03,
            Self::Discovery => 0xf0,
            Self::Reservations => return 0x06 | u64::from(self.page()) << 16, // of a command set
        };
        0x02 | which << 8 | u64::from(self.page()) << 16
    }
}

/// The state of the notice for one log.
#[derive(Debug, Clone, Copy, Default)]
struct Notice {
    /// The log has changed since the host last read it.
    is_due: bool,
    /// The host has been told of the change.
    is_told: bool,
}

/// The pending notices of a controller and the commands that wait for them.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Identifiers of the outstanding event requests.
    waiting: Vec<u16>,
    of_logs: [Notice; Log::ALL.len()],
    /// Namespaces that have changed since the host last read the log.
    changed: Vec<u32>,
}

impl Notices {
    /// Registers an event request. Returns false when too many are outstanding.
    pub(super) fn wait(&mut self, id: u16) -> bool {
        let has_place = self.waiting.len() < ASYNC_EVENTS_MAX;
        if has_place {
            self.waiting.push(id);
        }
        has_place
    }

    /// Returns whether the command with this identifier waits for an event.
    pub(super) fn holds(&self, id: u16) -> bool {
        self.waiting.contains(&id)
    }

    /// Records that a log has changed.
    pub(super) fn log_changed(&mut self, log: Log) {
        self.of_logs[log as usize].is_due = true;
    }

    /// Records that namespaces have changed.
    pub(super) fn namespaces_changed(&mut self, ids: &[u32]) {
        for id in ids {
            if let Err(at) = self.changed.binary_search(id)
                && self.changed.len() <= CHANGES_MAX
            {
                self.changed.insert(at, *id);
            }
        }
        if !ids.is_empty() {
            self.log_changed(Log::Namespaces);
        }
    }

    /// Returns the changed namespaces as the log lists them.
    pub(super) fn changed(&self) -> &[u32] {
        if self.changed.len() > CHANGES_MAX { &[u32::MAX] } else { &self.changed }
    }

    /// Records that the host has read a log.
    pub(super) fn log_read(&mut self, log: Log) {
        self.of_logs[log as usize] = Notice::default();
        if log == Log::Namespaces {
            self.changed.clear();
        }
    }

    /// Returns the next event request to complete and its result. `wanted` is the host's mask of
    /// events.
    pub(super) fn next(&mut self, wanted: u32) -> Option<(u16, u64)> {
        let is_next = |log: &Log| {
            let notice = self.of_logs[*log as usize];
            let is_wanted = *log == Log::Reservations || wanted & log.wanted() != 0;
            is_wanted && notice.is_due && !notice.is_told
        };
        let log = Log::ALL.into_iter().find(is_next).filter(|_| !self.waiting.is_empty())?;
        self.of_logs[log as usize].is_told = true;
        Some((self.waiting.remove(0), log.event()))
    }
}
