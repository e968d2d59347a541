//! The control file of the driver, through which devices are created, started, stopped and deleted.
//!
//! Commands are 128-byte submissions on a ring of their own. Each call waits for its command.
//! Starting a device reads its partition table, so the threads that serve its queues must be
//! running already.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use io_uring::opcode::UringCmd80;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, squeue};

use crate::abi::{self, ControlCommand, DeviceRecord, ParameterRecord, Parameters, UblkError};

const CONTROL: &str = "/dev/ublk-control";

/// Device number that lets the kernel choose, and queue number that means no queue.
const ANY_DEVICE: u32 = u32::MAX;
const NO_QUEUE: u16 = u16::MAX;

/// The driver features that Floe's devices need, with their names.
const FEATURES: [(u64, &str); 4] = [
    (abi::F_USER_RECOVERY, "recovery"),
    (abi::F_USER_RECOVERY_REISSUE, "recovery with requests issued again"),
    (abi::F_CMD_IOCTL_ENCODE, "numbered commands"),
    (abi::F_USER_COPY, "copies by the server"),
];

/// The driver's control file.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

/// The specification of a device to create.
#[derive(Debug, Clone, Copy)]
pub struct NewDevice {
    /// Number of hardware queues.
    pub queues: u16,
    /// Maximum number of requests in flight per queue.
    pub depth: u16,
    /// Maximum bytes of a read or write.
    pub most_io_bytes: u32,
    /// Number by which the server finds the device again; not 0.
    pub label: u64,
    /// Properties of the device.
    pub parameters: Parameters,
}

/// The state of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The device is not started, or was stopped: there is no block device.
    Dead,
    /// A server serves the device's requests.
    Live,
    /// The device's server has ended, and requests wait for another one.
    Quiesced,
}

/// A device as the kernel reports it.
#[derive(Debug, Clone, Copy)]
pub struct DeviceInfo {
    /// Number of the device.
    pub device: u32,
    /// Number of hardware queues.
    pub queues: u16,
    /// Maximum number of requests in flight per queue.
    pub depth: u16,
    /// Number by which the server finds the device again.
    pub label: u64,
    /// State of the device.
    pub state: State,
    /// Process identifier of the device's current or last server.
    pub server: u32,
}

/// Returns the path of the block device.
pub fn block_path(device: u32) -> PathBuf {
    format!("/dev/ublkb{device}").into()
}

impl Control {
    /// Opens the control file and checks the driver's features.
    ///
    /// # Errors
    /// When there is no driver, the driver is too old, or this process may not use it.
    pub fn open() -> Result<Self, UblkError> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => UblkError::NoDriver,
            _ if error.raw_os_error() == Some(libc::ENXIO) => UblkError::NoDriver,
            _ => UblkError::Forbidden(error),
        })?;
        let ring = IoUring::builder().build(4).map_err(UblkError::Ring)?;
        let mut control = Self { file, ring };
        let features = control.features()?;
        let missing = FEATURES.iter().find(|(bit, _)| features & bit == 0);
        match missing {
            Some((_, name)) => Err(UblkError::Missing(name)),
            None => Ok(control),
        }
    }

    fn features(&mut self) -> Result<u64, UblkError> {
        let mut features = 0_u64;
        let asked = self.with("look at", abi::GET_FEATURES, ANY_DEVICE, &mut features);
        asked.map_err(|_| UblkError::Missing("a list of its features"))?;
        Ok(features)
    }

    /// Creates a device without starting it. Returns the device's number.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add(&mut self, wanted: &NewDevice) -> Result<u32, UblkError> {
        let mut record = DeviceRecord {
            queues: wanted.queues,
            depth: wanted.depth,
            most_io_bytes: wanted.most_io_bytes,
            device: ANY_DEVICE,
            flags: FEATURES.iter().fold(0, |flags, (bit, _)| flags | bit),
            label: wanted.label,
            ..DeviceRecord::default()
        };
        self.with("make", abi::ADD_DEV, ANY_DEVICE, &mut record)?;
        let device = record.device;
        let mut parameters = wanted.parameters.to_record();
        if let Err(error) = self.with("describe", abi::SET_PARAMS, device, &mut parameters) {
            let _ = self.delete(device); // the first problem is what counts
            return Err(error);
        }
        Ok(device)
    }

    /// Starts a device, which makes its block device appear. This process must already serve the
    /// queues.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn start(&mut self, device: u32) -> Result<(), UblkError> {
        self.with_data("start", abi::START_DEV, device, own_process())
    }

    /// Stops a device. The block device disappears once its requests were served.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn stop(&mut self, device: u32) -> Result<(), UblkError> {
        self.with_data("stop", abi::STOP_DEV, device, 0)
    }

    /// Deletes a device, and waits until its server has closed the character file.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn delete(&mut self, device: u32) -> Result<(), UblkError> {
        self.with_data("delete", abi::DEL_DEV, device, 0)
    }

    /// Starts to take over a quiesced device. Next, the queues must be served.
    ///
    /// # Errors
    /// When the kernel refuses. The error is `EBUSY` until the earlier server has ended completely.
    pub fn begin_recovery(&mut self, device: u32) -> Result<(), UblkError> {
        self.with_data("begin to recover", abi::START_USER_RECOVERY, device, 0)
    }

    /// Completes the takeover of a device whose queues this process serves. Requests arrive again
    /// from then on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn end_recovery(&mut self, device: u32) -> Result<(), UblkError> {
        self.with_data("recover", abi::END_USER_RECOVERY, device, own_process())
    }

    /// Returns the kernel's information about a device.
    ///
    /// # Errors
    /// When the device does not exist.
    pub fn info(&mut self, device: u32) -> Result<DeviceInfo, UblkError> {
        let mut record = DeviceRecord::default();
        self.with("look at", abi::GET_DEV_INFO, device, &mut record)?;
        let state = match record.state {
            0 => State::Dead,
            1 => State::Live,
            _ => State::Quiesced,
        };
        Ok(DeviceInfo {
            device,
            queues: record.queues,
            depth: record.depth,
            label: record.label,
            state,
            server: record.server.try_into().unwrap_or(0),
        })
    }

    /// Returns the properties of a device.
    ///
    /// # Errors
    /// When the device does not exist.
    pub fn parameters(&mut self, device: u32) -> Result<Parameters, UblkError> {
        let bytes = size_of::<ParameterRecord>() as u32;
        let mut record = ParameterRecord { bytes, ..ParameterRecord::default() };
        self.with("look at", abi::GET_PARAMS, device, &mut record)?;
        Ok(Parameters::of(&record))
    }

    /// Returns the devices that have this label.
    ///
    /// # Errors
    /// When the folder of devices cannot be read.
    pub fn labelled(&mut self, label: u64) -> io::Result<Vec<DeviceInfo>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/dev")? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("ublkc")?.parse().ok());
            // A device may go away meanwhile.
            if let Some(info) = number.and_then(|number| self.info(number).ok())
                && info.label == label
            {
                found.push(info);
            }
        }
        Ok(found)
    }

    /// Executes a command with a record that the kernel reads or writes.
    fn with<T: Record>(
        &mut self,
        what: &'static str,
        command: u32,
        device: u32,
        record: &mut T,
    ) -> Result<(), UblkError> {
        let argument = ControlCommand {
            device,
            queue: NO_QUEUE,
            bytes: size_of::<T>() as u16,
            address: std::ptr::from_mut(record) as u64,
            ..ControlCommand::default()
        };
        self.carry_out(command, argument).map_err(|source| UblkError::Command {
            what,
            device,
            source,
        })
    }

    /// Executes a command whose argument is a number.
    fn with_data(
        &mut self,
        what: &'static str,
        command: u32,
        device: u32,
        data: u64,
    ) -> Result<(), UblkError> {
        let argument =
            ControlCommand { device, queue: NO_QUEUE, data, ..ControlCommand::default() };
        self.carry_out(command, argument).map_err(|source| UblkError::Command {
            what,
            device,
            source,
        })
    }

    /// Submits a command and waits for its completion. The argument's address is 0, or that of a
    /// record that lives during the call.
    fn carry_out(&mut self, command: u32, argument: ControlCommand) -> io::Result<()> {
        let file = Fd(self.file.as_raw_fd());
        let entry = UringCmd80::new(file, command).cmd(argument.to_bytes()).build();
        // SAFETY: the file is open, and the record at the argument's address lives, until the
        // command has completed, which the loop below waits for.
        unsafe { self.ring.submission().push(&entry) }.expect("the ring is empty between calls");
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    // The command may be under way, and the caller's record must stay until it
                    // has ended.
                    eprintln!("waiting for the ublk driver failed: {error}");
                    std::process::abort();
                }
                _ => {}
            }
            if let Some(completion) = self.ring.completion().next() {
                return match completion.result() {
                    // The kernel's own waits were interrupted by a signal.
                    result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                    _ => Ok(()),
                };
            }
        }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// A record that the kernel reads or writes. Implementors must be valid for any bytes.
trait Record {}
impl Record for u64 {}
impl Record for DeviceRecord {}
impl Record for ParameterRecord {}

fn own_process() -> u64 {
    u64::from(std::process::id())
}
