//! The admin queue: sets up a controller, from Connect until it is ready, and sends admin commands.
//!
//! The order is that of Linux: Connect, CAP, CC with EN 0 and then 1, CSTS until it is ready, VS,
//! Identify. Source: NVMe Base Specification, "Controller Initialization".

use std::time::Duration;

use super::authentication::{Authentication, authenticate};
use super::command::{
    HostCommand, HostError, Payload, Transport, admin, attribute, broken, feature, io_command,
    log_page,
};
use super::connection::{Connection, succeeded};
use super::identify::{
    ControllerData, DISCOVERY_NQN, DiscoveryEntry, ENTRY_BYTES, NamespaceData, parse_entry,
    parse_header, parse_list,
};
use super::queue::{Completion, QueueOptions};

const CONNECT_BYTES: usize = 1024;

/// Bits of CC for the sizes of queue entries, as powers of two: 64-byte commands and 16-byte
/// completions.
const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
const ENABLE: u32 = 1;

/// Number of reads of CSTS after which the host gives up waiting for a controller.
const READY_QUESTIONS: usize = 10_000;

/// Address, names and options that a queue needs to reach its controller.
#[derive(Debug, Clone)]
pub struct Access {
    /// Address of the controller, in the form HOST:PORT.
    pub address: String,
    /// NVMe qualified name of the subsystem.
    pub subsystem: String,
    /// NVMe qualified name of the host.
    pub host: String,
    /// Identifier of the host.
    pub host_id: [u8; 16],
    /// Keep-alive timeout in milliseconds; 0 for none.
    pub keep_alive_ms: u32,
    /// Time without progress after which a wait fails; `None` waits forever.
    pub timeout: Option<Duration>,
    /// Digests, alignment and flow control of every queue. The other options apply to the admin
    /// queue only.
    pub options: QueueOptions,
    /// Secrets for controllers that ask for authentication.
    pub authentication: Option<Authentication>,
}

impl Access {
    /// Creates access to a subsystem, with defaults for everything else.
    pub fn new(address: &str, subsystem: &str) -> Self {
        Self {
            address: address.to_owned(),
            subsystem: subsystem.to_owned(),
            host: "nqn.2014-08.org.nvmexpress:uuid:0f0e0d0c-0b0a-4908-8706-050403020100".to_owned(),
            host_id: [15, 14, 13, 12, 11, 10, 73, 8, 135, 6, 5, 4, 3, 2, 1, 0],
            keep_alive_ms: 0,
            timeout: None,
            options: QueueOptions::default(),
            authentication: None,
        }
    }

    /// Returns the data of a Connect command for the controller with this identifier.
    pub fn connect_data(&self, controller: u16) -> Vec<u8> {
        let mut data = vec![0; CONNECT_BYTES];
        data[..16].copy_from_slice(&self.host_id);
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..][..self.subsystem.len()].copy_from_slice(self.subsystem.as_bytes());
        data[512..][..self.host.len()].copy_from_slice(self.host.as_bytes());
        data
    }
}

/// A controller that is ready for commands.
#[derive(Debug)]
pub struct Controller<T> {
    connection: Connection<T>,
    access: Access,
    id: u16,
    data: ControllerData,
    /// Asynchronous events that arrived while the host waited for other completions.
    events: Vec<Completion>,
}

impl<T: Transport> Controller<T> {
    /// Connects the admin queue and enables the controller.
    ///
    /// # Errors
    /// When the controller cannot be reached, refuses, or breaks the protocol.
    pub fn connect(access: &Access) -> Result<Self, HostError> {
        let options = QueueOptions { id: 0, ..access.options };
        let mut connection = Connection::<T>::open(&access.address, access.timeout, options)?;
        let connect = HostCommand::connect(
            0,
            options.entries,
            options.flow_control,
            access.keep_alive_ms,
            access.connect_data(0xFFFF),
        );
        let id = connect_queue(&mut connection, connect, access)?;
        enable(&mut connection)?;
        let data = connection.call(HostCommand::identify(1, 0))?.data;
        let data = ControllerData::parse(&data)?;
        if data.controller_id != id {
            return Err(broken(format!("CNTLID {}, and {id} in Connect", data.controller_id)));
        }
        Ok(Self { connection, access: access.clone(), id, data, events: Vec::new() })
    }

    /// Returns the properties of the controller.
    pub fn data(&self) -> &ControllerData {
        &self.data
    }

    /// Returns the identifier of the controller.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Returns the connection of the admin queue.
    pub fn connection(&mut self) -> &mut Connection<T> {
        &mut self.connection
    }

    /// Returns the identifiers of the active namespaces.
    ///
    /// # Errors
    /// When the controller fails the command, or the connection failed.
    pub fn namespaces(&mut self) -> Result<Vec<u32>, HostError> {
        parse_list(&self.call(HostCommand::identify(2, 0))?.data)
    }

    /// Returns the properties of a namespace.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn namespace(&mut self, id: u32) -> Result<NamespaceData, HostError> {
        NamespaceData::parse(&self.call(HostCommand::identify(0, id))?.data)
    }

    /// Returns the identifiers of a namespace: their types and bytes.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn identifiers(&mut self, id: u32) -> Result<Vec<(u8, Vec<u8>)>, HostError> {
        let data = self.call(HostCommand::identify(3, id))?.data;
        let (mut found, mut rest) = (Vec::new(), &data[..]);
        while let [kind, length, _, _, more @ ..] = rest
            && *kind != 0
        {
            let wanted = match kind {
                1 => Some(8),
                2 | 3 => Some(16),
                4 => Some(1),
                _ => None,
            };
            let length = usize::from(*length);
            if length == 0 || length > more.len() || wanted.is_some_and(|wanted| wanted != length) {
                return Err(broken(format!("an identifier of type {kind} has NIDL {length}")));
            }
            found.push((*kind, more[..length].to_vec()));
            rest = &more[length..];
        }
        Ok(found)
    }

    /// Asks for `queues` I/O queues. Returns the number granted.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn set_queues(&mut self, queues: u16) -> Result<u16, HostError> {
        let wanted = u32::from(queues - 1) * 0x1_0001;
        let granted =
            self.call(HostCommand::set_features(feature::NUMBER_OF_QUEUES, wanted))?.result;
        let (submission, completion) = (granted as u16, (granted >> 16) as u16);
        Ok(submission.min(completion).min(queues - 1) + 1)
    }

    /// Connects an I/O queue of `entries` entries.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn io_queue(&self, id: u16, entries: u16) -> Result<IoQueue<T>, HostError> {
        let in_capsule_bytes = self.data.in_capsule_bytes;
        let options = QueueOptions { id, entries, in_capsule_bytes, ..self.access.options };
        let (address, timeout) = (&self.access.address, self.access.timeout);
        let mut connection = Connection::open(address, timeout, options)?;
        let data = self.access.connect_data(self.id);
        let connect = HostCommand::connect(id, entries, options.flow_control, 0, data);
        let told = connect_queue(&mut connection, connect, &self.access)?;
        if told != self.id {
            return Err(broken(format!("Connect of queue {id} returned CNTLID {told}")));
        }
        Ok(IoQueue::new(connection))
    }

    /// Sends Keep Alive, which restarts the controller's timer.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn keep_alive(&mut self) -> Result<(), HostError> {
        self.call(HostCommand::new("Keep Alive", admin::KEEP_ALIVE, 0, Payload::None)).map(drop)
    }

    /// Reads a part of a log page.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn log_page(&mut self, page: u8, offset: u64, bytes: u32) -> Result<Vec<u8>, HostError> {
        let namespace = if page == log_page::HEALTH { u32::MAX } else { 0 };
        Ok(self.call(HostCommand::get_log_page(page, namespace, offset, bytes))?.data)
    }

    /// Subscribes to a mask of asynchronous events, such as [`ControllerData::NAMESPACE_NOTICES`],
    /// and requests the first event. Returns immediately.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn watch(&mut self, events: u32) -> Result<(), HostError> {
        self.call(HostCommand::set_features(feature::ASYNC_EVENTS, events))?;
        self.request_event()
    }

    /// Submits one more request for an asynchronous event.
    ///
    /// # Errors
    /// When the connection failed.
    pub fn request_event(&mut self) -> Result<(), HostError> {
        let command =
            HostCommand::new("Asynchronous Event Request", admin::ASYNC_EVENT, 0, Payload::None);
        self.connection.submit(command).map(drop)
    }

    /// Waits for the next asynchronous event. Returns its first 32 bits.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn next_event(&mut self) -> Result<u32, HostError> {
        let event = match self.events.pop() {
            Some(event) => event,
            None => self.connection.next_completion()?,
        };
        Ok(succeeded(event)?.result as u32)
    }

    /// Returns the subsystems that a discovery controller reports.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn discover(&mut self) -> Result<Vec<DiscoveryEntry>, HostError> {
        let read = |this: &mut Self, at: u64| {
            this.log_page(log_page::DISCOVERY, at * ENTRY_BYTES as u64, ENTRY_BYTES as u32)
        };
        loop {
            let (generation, entries) = parse_header(&read(self, 0)?)?;
            let mut found = Vec::new();
            for entry in 1..=entries {
                found.push(parse_entry(&read(self, entry)?)?);
            }
            if parse_header(&read(self, 0)?)?.0 == generation {
                return Ok(found);
            }
        }
    }

    /// Connects to a discovery controller.
    ///
    /// # Errors
    /// See [`Controller::connect`].
    pub fn connect_to_discovery(access: &Access) -> Result<Self, HostError> {
        Self::connect(&Access { subsystem: DISCOVERY_NQN.to_owned(), ..access.clone() })
    }

    /// Runs an admin command. Asynchronous events that arrive meanwhile are kept.
    ///
    /// # Errors
    /// See [`Controller::namespaces`].
    pub fn call(&mut self, command: HostCommand) -> Result<Completion, HostError> {
        let id = self.connection.submit(command)?;
        loop {
            let completion = self.connection.next_completion()?;
            if completion.id == id {
                return succeeded(completion);
            }
            self.events.insert(0, completion);
        }
    }
}

/// Connects a queue, and authenticates if the controller asks for that. Returns the controller's
/// identifier.
fn connect_queue<T: Transport>(
    connection: &mut Connection<T>,
    connect: HostCommand,
    access: &Access,
) -> Result<u16, HostError> {
    let result = connection.call(connect)?.result;
    let (id, required) = (result as u16, result >> 16 & 0b110);
    if required & 0b100 != 0 {
        return Err(broken("Connect asks for a secure channel"));
    }
    if required != 0 {
        let own = access.authentication.as_ref().ok_or(HostError::NoSecret)?;
        authenticate(connection, own, [&access.host, &access.subsystem])?;
    }
    Ok(id)
}

/// Disables the controller, enables it and waits until it is ready.
fn enable<T: Transport>(connection: &mut Connection<T>) -> Result<(), HostError> {
    let capabilities = connection.call(HostCommand::property_get(attribute::CAP, true))?.result;
    if capabilities & 0xFFFF == 0 {
        return Err(broken("CAP has MQES 0"));
    }
    if capabilities >> 37 & 1 == 0 {
        return Err(broken(format!("CAP {capabilities:#x} has no NVM command set")));
    }
    connection.call(HostCommand::property_set(attribute::CC, 0))?;
    connection.call(HostCommand::property_set(attribute::CC, ENTRY_SIZES | ENABLE))?;
    for _ in 0..READY_QUESTIONS {
        let status = connection.call(HostCommand::property_get(attribute::CSTS, false))?.result;
        if status & 2 != 0 {
            return Err(broken(format!("CSTS {status:#x} has CFS")));
        }
        if status & 1 != 0 {
            connection.call(HostCommand::property_get(attribute::VS, false))?;
            return Ok(());
        }
    }
    Err(broken("CSTS never has RDY"))
}

/// Bit of command doubleword 12: force unit access.
const FUA: u32 = 1 << 30;
/// Bit of command doubleword 12 of Write Zeroes: deallocate.
const DEALLOCATE_ZEROES: u32 = 1 << 25;
/// Bit of command doubleword 11 of Dataset Management: deallocate.
const DEALLOCATE: u32 = 1 << 2;

/// A range of logical blocks in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Identifier of the namespace.
    pub namespace: u32,
    /// Address of the first block.
    pub first: u64,
    /// Number of blocks, 1 to 65,536.
    pub blocks: u32,
}

impl Range {
    /// Creates a command on the range.
    fn command(self, name: &'static str, opcode: u8, flags: u32, payload: Payload) -> HostCommand {
        HostCommand::new(name, opcode, self.namespace, payload)
            .dwords(10, self.first)
            .dword(12, (self.blocks - 1) & 0xFFFF | flags)
    }

    /// Creates a Read of the range, whose length in bytes is `bytes`.
    pub fn read(self, bytes: u32) -> HostCommand {
        self.command("Read", io_command::READ, 0, Payload::FromController(bytes))
    }

    /// Creates a Write of the range. With `fua` the data is durable when the command completes.
    pub fn write(self, data: Vec<u8>, fua: bool) -> HostCommand {
        let flags = if fua { FUA } else { 0 };
        self.command("Write", io_command::WRITE, flags, Payload::ToController(data))
    }

    /// Creates a Compare of the range with `data`.
    pub fn compare(self, data: Vec<u8>) -> HostCommand {
        self.command("Compare", io_command::COMPARE, 0, Payload::ToController(data))
    }

    /// Creates a Write Zeroes on the range. With `may_deallocate` the controller may free its
    /// space.
    pub fn write_zeroes(self, may_deallocate: bool) -> HostCommand {
        let flags = if may_deallocate { DEALLOCATE_ZEROES } else { 0 };
        self.command("Write Zeroes", io_command::WRITE_ZEROES, flags, Payload::None)
    }

    /// Creates a Flush of the range's namespace.
    pub fn flush(self) -> HostCommand {
        HostCommand::new("Flush", io_command::FLUSH, self.namespace, Payload::None)
    }
}

/// A connected I/O queue.
#[derive(Debug)]
pub struct IoQueue<T> {
    connection: Connection<T>,
}

impl<T: Transport> IoQueue<T> {
    /// Creates an I/O queue from a connection whose Connect succeeded.
    pub fn new(connection: Connection<T>) -> Self {
        Self { connection }
    }

    /// Returns the connection of the queue, by which many commands can be in flight.
    pub fn connection(&mut self) -> &mut Connection<T> {
        &mut self.connection
    }

    /// Reads the range, whose length in bytes is `bytes`.
    ///
    /// # Errors
    /// When the controller fails the command, or the connection failed.
    pub fn read(&mut self, range: Range, bytes: u32) -> Result<Vec<u8>, HostError> {
        Ok(self.connection.call(range.read(bytes))?.data)
    }

    /// Writes the range.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn write(&mut self, range: Range, data: Vec<u8>, fua: bool) -> Result<(), HostError> {
        self.connection.call(range.write(data, fua)).map(drop)
    }

    /// Compares the range with `data`. The status "compare failure" means that they differ.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn compare(&mut self, range: Range, data: Vec<u8>) -> Result<(), HostError> {
        self.connection.call(range.compare(data)).map(drop)
    }

    /// Makes every completed write to the range's namespace durable.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn flush(&mut self, range: Range) -> Result<(), HostError> {
        self.connection.call(range.flush()).map(drop)
    }

    /// Makes a range read as zeros. With `deallocate` the controller may free its space.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn write_zeroes(&mut self, range: Range, deallocate: bool) -> Result<(), HostError> {
        self.connection.call(range.write_zeroes(deallocate)).map(drop)
    }

    /// Tells the controller that 1 to 256 ranges of one namespace are no longer needed.
    ///
    /// # Errors
    /// See [`IoQueue::read`].
    pub fn deallocate(&mut self, ranges: &[Range]) -> Result<Completion, HostError> {
        let mut data = Vec::with_capacity(16 * ranges.len());
        for range in ranges {
            data.extend_from_slice(&[0; 4]);
            data.extend_from_slice(&range.blocks.to_le_bytes());
            data.extend_from_slice(&range.first.to_le_bytes());
        }
        let (opcode, namespace) = (io_command::DATASET_MANAGEMENT, ranges[0].namespace);
        let payload = Payload::ToController(data);
        let command = HostCommand::new("Dataset Management", opcode, namespace, payload)
            .dword(10, ranges.len() as u32 - 1)
            .dword(11, DEALLOCATE);
        self.connection.call(command)
    }
}
