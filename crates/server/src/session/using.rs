//! The volumes that a session uses.

use floe_block::VolumeId;

use super::{Session, Turn};
use crate::status::Snapshot;

impl Session {
    /// Returns the volume the client has chosen; `None` while the handshake lasts.
    pub(crate) fn volume(&self) -> Option<VolumeId> {
        self.protocol.volume()
    }

    /// Counts the client by its protocol, and by the volumes it uses.
    pub(crate) fn count(&self, snapshot: &mut Snapshot) {
        snapshot.connected(self.protocol.name(), self.protocol.volumes_in_use());
    }

    /// Returns whether the client has chosen the volume, or waits with a request to it.
    pub(crate) fn uses(&self, volume: VolumeId) -> bool {
        let turn = self.line.turn.iter().map(|turn| match turn {
            Turn::Waiting(request) | Turn::SetAside(request) | Turn::Come(request) => request,
        });
        let incoming =
            self.payloads.incoming.iter().chain(&self.payloads.filled).map(|write| &write.request);
        let mut waiting = turn.chain(&self.line.behind).chain(incoming);
        self.volume() == Some(volume) || waiting.any(|request| request.volume == volume)
    }
}
