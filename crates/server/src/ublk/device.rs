//! A local block device: found again or created, started, stopped, deleted.
//!
//! The kernel stores a number for the server with each device, its *label*: here a checksum of the
//! volume's name and its backing device. A killed server leaves its device quiesced; the next
//! server of the volume finds the device by the label and takes it over.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crc_fast::{CrcAlgorithm, checksum};
use floe_block::{SECTOR_BYTES, VolumeId};
use floe_ublk::{
    Character, Control, DeviceInfo, NewDevice, Parameters, State, UblkError, block_path,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Names;

/// Queue depth of a hardware queue. Together with [`MOST_IO_BYTES`] it allows 64 MiB of data in
/// flight for each queue.
const DEPTH: u16 = 128;

/// Largest read or write, in bytes.
const MOST_IO_BYTES: u32 = 512 << 10;

/// Largest discard or request to write zeroes, in bytes.
const MOST_DISCARD_BYTES: u32 = 1 << 30;

/// Longest wait for the kernel to notice the end of an earlier server.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval between checks for the end of an earlier server.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A volume to be made available as a local block device.
#[derive(Debug, Clone)]
pub(crate) struct LocalVolume {
    pub(crate) id: VolumeId,
    pub(crate) name: String,
    /// Name of the backing device.
    pub(crate) backing: String,
    pub(crate) bytes: u64,
    pub(crate) read_only: bool,
    pub(crate) rotational: bool,
}

/// A local block device that this server serves.
#[derive(Debug)]
pub(crate) struct LocalDevice {
    control: Control,
    number: u32,
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    volume: String,
    names: Names,
    /// The device was taken over from an earlier server.
    is_recovered: bool,
    is_stopped: bool,
}

impl LocalDevice {
    /// Finds the volume's device that an earlier server left, or creates one. Returns `None` if the
    /// server is told to end first.
    ///
    /// # Errors
    /// When the driver refuses, or the existing device does not match the volume.
    pub(crate) fn prepare(
        volume: &LocalVolume,
        queues: u16,
        ending: &Ending,
    ) -> Result<Option<Self>, String> {
        let mut control = Control::open().map_err(|error| error.to_string())?;
        let label = label(&volume.name, &volume.backing);
        let found = match wait_for_the_last_server(&mut control, label, &volume.name, ending)? {
            Waited::ToEnd => return Ok(None),
            Waited::For(found) => found,
        };
        let device = |control, info: &DeviceInfo, is_recovered| Self {
            control,
            number: info.device,
            queues: info.queues,
            depth: info.depth,
            volume: volume.name.clone(),
            names: Names::of_system(),
            is_recovered,
            is_stopped: false,
        };
        if let Some(info) = found {
            let text = |error: UblkError| error.to_string();
            let was = control.parameters(info.device).map_err(text)?;
            if was.bytes != volume.bytes || was.read_only != volume.read_only {
                let path = block_path(info.device);
                return Err(format!(
                    "{} waits for volume {:?}, but has {} bytes where the volume has {}, or other \
                     rights to write: end its use, then run floe detach {0}",
                    path.display(),
                    volume.name,
                    was.bytes,
                    volume.bytes,
                ));
            }
            return Ok(match begin_recovery(&mut control, info.device, ending)? {
                Waited::ToEnd => None,
                Waited::For(()) => Some(device(control, &info, true)),
            });
        }
        let wanted = NewDevice {
            queues,
            depth: DEPTH,
            most_io_bytes: MOST_IO_BYTES,
            label,
            parameters: Parameters {
                bytes: volume.bytes,
                read_only: volume.read_only,
                rotational: volume.rotational,
                physical_bytes: SECTOR_BYTES as u32,
                most_io_bytes: MOST_IO_BYTES,
                most_discard_bytes: MOST_DISCARD_BYTES,
            },
        };
        let number = control.add(&wanted).map_err(|error| error.to_string())?;
        let info = control.info(number).map_err(|error| error.to_string())?;
        Ok(Some(device(control, &info, false)))
    }

    /// Opens the character device through which the queues are served.
    pub(crate) fn open(&self) -> Result<Arc<Character>, UblkError> {
        Character::open(self.number).map(Arc::new)
    }

    /// Starts the device and names it. Workers must already serve all queues, because the kernel
    /// reads the partition table of a new device now.
    pub(crate) fn start(&mut self) -> Result<(), UblkError> {
        let announced = self.names.announce(self.number, &self.volume);
        match self.is_recovered {
            true => self.control.end_recovery(self.number)?,
            false => self.control.start(self.number)?,
        }
        let named = announced.and_then(|()| self.names.link(self.number, &self.volume));
        if let Err(error) = named {
            let path = self.path();
            tracing::warn!(
                volume = self.volume, device = %path.display(), %error, "the device has no name"
            );
        }
        Ok(())
    }

    /// Returns the path of the block device.
    pub(crate) fn path(&self) -> PathBuf {
        block_path(self.number)
    }

    /// Stops the device, while workers still serve it. A device in use is left alone, and its
    /// requests wait for the next server.
    fn stop(&mut self) {
        let (path, volume) = (self.path(), &self.volume);
        // While the device is open so, it cannot be mounted.
        let exclusive = OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::EXCL.bits() as i32)
            .open(&path);
        if exclusive.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::BUSY)) {
            tracing::warn!(
                volume, device = %path.display(),
                "the device is in use and stays: its requests wait until the volume is attached \
                 again"
            );
            return;
        }
        match self.control.stop(self.number) {
            Ok(()) => self.is_stopped = true,
            Err(error) => tracing::warn!(volume, %error, "the device stays"),
        }
    }

    /// Deletes the device if it was stopped. No worker may have it open any more.
    fn delete(&mut self) {
        if !self.is_stopped {
            return;
        }
        match self.control.delete(self.number) {
            Ok(()) => self.names.forget(self.number),
            Err(error) => {
                tracing::warn!(volume = self.volume, %error, "the device could not be deleted");
            }
        }
    }

    /// Undoes [`LocalDevice::prepare`] for a device that cannot be started.
    pub(crate) fn give_up(mut self) {
        if !self.is_recovered {
            let _ = self.control.stop(self.number); // the first problem is what counts
            self.names.forget(self.number);
        }
    }
}

/// The local devices of a server, shared between threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalDevices(Arc<Mutex<Vec<LocalDevice>>>);

impl LocalDevices {
    pub(crate) fn push(&self, device: LocalDevice) {
        self.each(|devices| devices.push(device));
    }

    /// Returns whether the server has no local device.
    pub(crate) fn is_empty(&self) -> bool {
        self.each(|devices| devices.is_empty())
    }

    /// Stops all devices that are not in use, while workers still serve them.
    pub(crate) fn stop(&self) {
        self.each(|devices| devices.iter_mut().for_each(LocalDevice::stop));
    }

    /// Deletes the devices that were stopped, after all workers have ended.
    pub(crate) fn delete(&self) {
        // A thread that still stops them has not come to its end.
        let Ok(mut devices) = self.0.try_lock() else { return };
        devices.iter_mut().for_each(LocalDevice::delete);
    }

    fn each<T>(&self, act: impl FnOnce(&mut Vec<LocalDevice>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The result of a wait.
enum Waited<T> {
    For(T),
    /// The server was told to end during the wait.
    ToEnd,
}

/// Returns the volume's device that an earlier server left, once that server has ended. A server
/// that was just killed may take a moment for that. A device that was never started is deleted.
fn wait_for_the_last_server(
    control: &mut Control,
    label: u64,
    volume: &str,
    ending: &Ending,
) -> Result<Waited<Option<DeviceInfo>>, String> {
    let until = Instant::now() + PATIENCE;
    let mut is_told = false;
    loop {
        let found = control.labelled(label).map_err(|error| format!("/dev: {error}"))?;
        let Some(info) = found.first() else { return Ok(Waited::For(None)) };
        match info.state {
            State::Quiesced => return Ok(Waited::For(Some(*info))),
            // Its server still ends. To delete it would wait for that.
            State::Dead if Character::is_open(info.device) => {}
            State::Dead => {
                control.delete(info.device).map_err(|error| error.to_string())?;
                Names::of_system().forget(info.device);
                continue;
            }
            State::Live if Instant::now() < until => {}
            State::Live => {
                return Err(format!(
                    "volume {volume:?} is {} already, served by process {}",
                    block_path(info.device).display(),
                    info.server
                ));
            }
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::info!(volume, "waiting for the volume's last server to end");
        }
        if ending.comes_within(LOOK_AGAIN) {
            return Ok(Waited::ToEnd);
        }
    }
}

/// Begins to take over a device, once the kernel has noticed the end of its earlier server.
fn begin_recovery(
    control: &mut Control,
    device: u32,
    ending: &Ending,
) -> Result<Waited<()>, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        match control.begin_recovery(device) {
            Ok(()) => return Ok(Waited::For(())),
            Err(error)
                if error.number() == Some(Errno::BUSY.raw_os_error()) && Instant::now() < until =>
            {
                if ending.comes_within(LOOK_AGAIN) {
                    return Ok(Waited::ToEnd);
                }
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Returns the label of a volume's device; never 0.
fn label(volume: &str, backing: &str) -> u64 {
    let backing = std::fs::canonicalize(backing).unwrap_or_else(|_| backing.into());
    let text = format!("floe\0{volume}\0{}", backing.display());
    checksum(CrcAlgorithm::Crc64Nvme, text.as_bytes()) | 1
}

/// A descriptor that becomes readable when the server is to end.
#[derive(Debug)]
pub(crate) struct Ending(Rc<OwnedFd>);

impl Ending {
    pub(crate) fn new(signal: &Rc<OwnedFd>) -> Self {
        Self(Rc::clone(signal))
    }

    /// Waits for `time`, or until the server is told to end. Returns whether it was.
    pub(crate) fn comes_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("waits are short");
        let mut signal = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        // A wait that a signal has cut short is followed by another.
        poll(&mut signal, Some(&time)).is_ok_and(|ready| ready > 0)
    }
}

/// The state of a local block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A running server serves the device.
    Served,
    /// The device's server has ended, and its requests wait for another one.
    Waiting,
}

/// Checks that the kernel's ublk driver is present and usable.
///
/// # Errors
/// When there is no suitable driver, or this process may not use it.
pub fn check_driver() -> Result<(), UblkError> {
    Control::open().map(drop)
}

/// Returns the state of the device with this number.
///
/// # Errors
/// When there is no such device, or no driver.
pub fn find(device: u32) -> Result<Found, UblkError> {
    let info = Control::open()?.info(device)?;
    Ok(if info.state == State::Live { Found::Served } else { Found::Waiting })
}

/// Stops and deletes a device that waits for a server. Its waiting requests fail.
///
/// # Errors
/// When the kernel refuses.
pub fn delete(device: u32) -> Result<(), UblkError> {
    let mut control = Control::open()?;
    control.stop(device)?;
    control.delete(device)?;
    Names::of_system().forget(device);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_tells_volumes_apart_and_follows_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("disk"), folder.path().join("link"));
        std::fs::write(&file, []).expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let of = |name: &str, path: &std::path::Path| label(name, &path.display().to_string());
        assert_eq!(of("floe", &file), of("floe", &link));
        assert_ne!(of("floe", &file), of("other", &file));
        assert_ne!(of("floe", &file), of("floe", folder.path()));
        assert_ne!(of("floe", &file), 0);
    }
}

#[cfg(test)]
mod ending_tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_order_is_seen_again_and_again_and_left_to_others() {
        let (mut order, signal) = UnixStream::pair().expect("a pair");
        let ending = Ending::new(&Rc::new(signal.into()));
        assert!(!ending.comes_within(Duration::from_millis(1)));
        order.write_all(&[0]).expect("room for a byte");
        assert!(ending.comes_within(Duration::from_secs(60)));
        assert!(ending.comes_within(Duration::ZERO));
    }
}
