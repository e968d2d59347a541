//! Devices that another process serves, or none.

use floe_ublk::{Control, State, UblkError};

use super::names::Names;

/// The state of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A server has it.
    Served,
    /// Its server has ended, and its requests wait for another one.
    Waiting,
}

/// Checks that the kernel has a driver that serves Floe.
///
/// # Errors
/// When it has none, or this process may not use it.
pub fn check_driver() -> Result<(), UblkError> {
    Control::open().map(drop)
}

/// Looks for a device.
///
/// # Errors
/// When there is none, or no driver.
pub fn find(device: u32) -> Result<Found, UblkError> {
    let info = Control::open()?.info(device)?;
    Ok(if info.state == State::Live { Found::Served } else { Found::Waiting })
}

/// Stops and deletes a device that waits for a server. Requests that wait fail.
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
