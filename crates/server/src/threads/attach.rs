//! Makes local block devices of a server's volumes, before it runs.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use floe_ublk::UblkError;

use super::Server;
use super::messages::Message;
use super::offer::Offered;
use super::setup::ServeError;
use crate::ublk::{Ending, LocalDevice, LocalVolume, QueueOrder};

/// Between looks at the order to end while a device is started.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A volume that is a local block device now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The volume's name.
    pub volume: String,
    /// The block device.
    pub device: PathBuf,
}

impl Server {
    /// Makes block devices of the volumes that are to be attached, or takes over those of an
    /// earlier server. They are served from now on. When the server is to end meanwhile, the rest
    /// is left, and [`Server::run`] ends in good order at once.
    ///
    /// # Errors
    /// When the kernel's driver is missing or refuses.
    pub fn attach(&mut self) -> Result<Vec<Attached>, ServeError> {
        let volumes: Vec<LocalVolume> = self.control.offer.all().iter().filter_map(local).collect();
        let ending = Ending::new(&self.acceptor.io.signal);
        let attached = volumes.iter().map_while(|it| self.attach_volume(it, &ending).transpose());
        attached.collect()
    }

    /// Attaches a volume. Returns `None` when the server is to end first.
    fn attach_volume(
        &mut self,
        volume: &LocalVolume,
        ending: &Ending,
    ) -> Result<Option<Attached>, ServeError> {
        let workers = self.control.workers.len();
        let device = LocalDevice::prepare(volume, workers as u16, ending);
        let Some(mut device) = device.map_err(ServeError::Attach)? else { return Ok(None) };
        let served = self.serve_queues(&device, volume);
        let started = served.and_then(|()| self.start(&mut device, volume, ending));
        let is_started = match started {
            Ok(is_started) => is_started,
            Err(error) => {
                device.give_up();
                return Err(ServeError::Attach(error.to_string()));
            }
        };
        let attached = Attached { volume: volume.name.clone(), device: device.path() };
        let path = attached.device.display().to_string();
        self.control.local.push(device);
        if !is_started {
            return Ok(None);
        }
        tracing::info!(volume = volume.name, device = path, "attached");
        Ok(Some(attached))
    }

    /// Starts a device on an extra thread, for the kernel reads its partition table meanwhile, and
    /// a backing device may hang. When the server is to end, requests to the device fail, so that
    /// the kernel comes to an end with it. Returns whether the device is there.
    fn start(
        &self,
        device: &mut LocalDevice,
        volume: &LocalVolume,
        ending: &Ending,
    ) -> Result<bool, UblkError> {
        let (done, ended) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || done.send(device.start()));
            let mut is_failing = false;
            loop {
                match ended.recv_timeout(LOOK_AGAIN) {
                    Ok(started) => return started.map(|()| !is_failing),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => unreachable!("it sends a result first"),
                }
                if !is_failing && ending.comes_within(Duration::ZERO) {
                    is_failing = true;
                    self.control.workers.tell_all(|| Message::FailQueues(volume.id));
                }
            }
        })
    }

    /// Has the workers serve the queues of a device, in turn.
    fn serve_queues(&self, device: &LocalDevice, volume: &LocalVolume) -> Result<(), UblkError> {
        let character = device.open()?;
        let (begun, told) = mpsc::channel();
        let workers = &self.control.workers;
        for number in 0..device.queues {
            let order = QueueOrder {
                character: character.clone(),
                number,
                depth: device.depth,
                volume: volume.id,
                read_only: volume.read_only,
                begun: begun.clone(),
            };
            workers.post(usize::from(number) % workers.len(), Message::ServeQueue(order));
        }
        drop(begun);
        told.into_iter().collect()
    }
}

fn local(offered: &Offered) -> Option<LocalVolume> {
    let volume = &offered.volume;
    volume.reach.is_local().then(|| LocalVolume {
        id: offered.id,
        name: volume.name.clone(),
        backing: volume.backing.name(),
        bytes: offered.bytes,
        read_only: volume.read_only,
        rotational: volume.backing.rotates(),
    })
}
