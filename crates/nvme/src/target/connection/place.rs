//! The place of a command's data, as its descriptor tells it.

use crate::wire::command::Command;
use crate::wire::descriptor;
use crate::wire::status::Status;

/// The place of a command's data from the host.
pub(super) enum Place {
    /// In the capsule, behind so many bytes.
    Capsule { before: usize },
    /// It is to be asked for.
    Transport,
}

/// Finds the data of a command that transfers so many bytes. `data` bytes are in the capsule.
pub(super) fn place(
    command: &Command,
    bytes: usize,
    data: usize,
    to_controller: bool,
) -> Result<Place, Status> {
    let described = command.descriptor();
    if described.length as usize != bytes {
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    match described.kind {
        descriptor::TRANSPORT => Ok(Place::Transport),
        descriptor::IN_CAPSULE if to_controller => {
            let before = usize::try_from(described.address).unwrap_or(usize::MAX);
            match before.checked_add(bytes) {
                Some(end) if end <= data => Ok(Place::Capsule { before }),
                _ => Err(Status::SGL_OFFSET_INVALID.final_()),
            }
        }
        _ => Err(Status::SGL_TYPE_INVALID.final_()),
    }
}
