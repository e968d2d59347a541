//! Random numbers that name caches and stacks of tiers.

use std::io::Read;

use super::start_error::StartError;

/// Returns a random id for a cache.
pub(super) fn random_id() -> Result<[u8; 16], StartError> {
    let mut id = [0; 16];
    let urandom = std::fs::File::open("/dev/urandom");
    urandom.and_then(|mut file| file.read_exact(&mut id)).map_err(StartError::Random)?;
    Ok(id)
}

/// Returns a random number for a stack of tiers; never 0.
pub(crate) fn random_stack() -> Result<u32, StartError> {
    let [a, b, c, d, ..] = random_id()?;
    Ok(u32::from_le_bytes([a, b, c, d]).max(1))
}
