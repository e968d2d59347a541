//! Makes local block devices of a server's volumes, before it runs.

use std::path::PathBuf;
use std::sync::mpsc;

use super::Server;
use super::messages::Message;
use super::offer::Offered;
use super::setup::ServeError;
use crate::ublk::{LocalDevice, LocalVolume, QueueOrder};

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
    /// earlier server. They are served from now on.
    ///
    /// # Errors
    /// When the kernel's driver is missing or refuses.
    pub fn attach(&mut self) -> Result<Vec<Attached>, ServeError> {
        let volumes: Vec<LocalVolume> = self.control.offer.all().iter().filter_map(local).collect();
        volumes.into_iter().map(|volume| self.attach_volume(&volume)).collect()
    }

    fn attach_volume(&mut self, volume: &LocalVolume) -> Result<Attached, ServeError> {
        let workers = self.control.workers.len();
        let device = LocalDevice::prepare(volume, workers as u16);
        let mut device = device.map_err(ServeError::Attach)?;
        let started = self.serve_queues(&device, volume).and_then(|()| device.start());
        if let Err(error) = started {
            device.give_up();
            return Err(ServeError::Attach(error.to_string()));
        }
        let attached = Attached { volume: volume.name.clone(), device: device.path() };
        let path = attached.device.display();
        tracing::info!(volume = volume.name, device = %path, "attached");
        self.control.local.push(device);
        Ok(attached)
    }

    /// Has the workers serve the queues of a device, in turn.
    fn serve_queues(
        &self,
        device: &LocalDevice,
        volume: &LocalVolume,
    ) -> Result<(), floe_ublk::UblkError> {
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
