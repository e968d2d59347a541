//! A simulated drive for tests: it has a volatile cache, and may lose power.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::flash::{Buffers, Flash};

/// Unit in bytes that is written whole or not at all.
const SECTOR: usize = 512;

#[derive(Debug)]
struct State {
    /// The content that reads return.
    now: Vec<u8>,
    /// The durable content. A loss of power may also leave later sectors that the drive wrote
    /// early.
    durable: Vec<u8>,
    /// Ranges written since the last sync.
    volatile: Vec<(usize, usize)>,
    /// Operations until the drive loses power; `None` for never.
    left: Option<u64>,
    random: SmallRng,
    /// Sectors that cannot be read.
    bad: Vec<usize>,
    /// Bytes read so far.
    read_bytes: u64,
}

/// A drive in memory.
#[derive(Debug)]
pub(crate) struct SimulatedFlash {
    state: Mutex<State>,
    buffers: Buffers,
}

impl SimulatedFlash {
    pub(crate) fn new(bytes: usize, seed: u64) -> Self {
        Self::from_image(vec![0; bytes], seed)
    }

    /// Creates a drive with this content.
    pub(crate) fn from_image(image: Vec<u8>, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        let state = State {
            durable: image.clone(),
            now: image,
            volatile: Vec::new(),
            left: None,
            random,
            bad: Vec::new(),
            read_bytes: 0,
        };
        Self { state: Mutex::new(state), buffers: Buffers::new(1 << 20) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the drive lose power after this many writes and syncs.
    pub(crate) fn lose_power_after(&self, operations: u64) {
        self.state().left = Some(operations);
    }

    /// Makes the sectors of a range unreadable.
    pub(crate) fn spoil(&self, offset: usize, len: usize) {
        self.state().bad.extend(offset / SECTOR..(offset + len).div_ceil(SECTOR));
    }

    /// Flips a bit.
    pub(crate) fn flip(&self, bit: usize) {
        let state = &mut *self.state();
        state.now[bit / 8] ^= 1 << (bit % 8);
        state.durable[bit / 8] ^= 1 << (bit % 8);
    }

    /// Returns the bytes read so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.state().read_bytes
    }

    /// Returns the content after the end of the process: all that it had written.
    pub(crate) fn written(&self) -> Vec<u8> {
        self.state().now.clone()
    }

    /// Returns the content after a loss of power: each sector written since the last sync is the
    /// old one or the new one.
    pub(crate) fn after_power_loss(&self) -> Vec<u8> {
        let state = &mut *self.state();
        let mut image = state.durable.clone();
        for &(offset, len) in &state.volatile {
            for at in (offset..offset + len).step_by(SECTOR) {
                if state.random.random_bool(0.5) {
                    image[at..at + SECTOR].copy_from_slice(&state.now[at..at + SECTOR]);
                }
            }
        }
        image
    }
}

impl State {
    /// Decrements the number of operations until the loss of power. Returns an error once power is
    /// lost.
    fn count_down(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("the drive has no power")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Flash for SimulatedFlash {
    fn size_bytes(&self) -> u64 {
        self.state().now.len() as u64
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.state();
        state.read_bytes += into.len() as u64;
        let (from, until) = (offset as usize, offset as usize + into.len());
        if until > state.now.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if state.bad.iter().any(|sector| (from / SECTOR..until.div_ceil(SECTOR)).contains(sector)) {
            return Err(io::Error::other("a sector cannot be read"));
        }
        into.copy_from_slice(&state.now[from..until]);
        Ok(())
    }

    fn write(&self, from: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state();
        assert!(from.len().is_multiple_of(4096) && offset.is_multiple_of(4096));
        let lost = state.count_down();
        // The write during which power is lost is torn, too.
        let len = match lost {
            Err(error) => return Err(error),
            Ok(()) if state.left == Some(0) => {
                let sectors = state.random.random_range(0..=from.len() / SECTOR);
                sectors * SECTOR
            }
            Ok(()) => from.len(),
        };
        let start = offset as usize;
        state.now[start..start + len].copy_from_slice(&from[..len]);
        state.volatile.push((start, len));
        Ok(())
    }

    fn write_cached(&self, from: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state();
        if state.left == Some(0) {
            return Err(io::Error::other("the drive has no power"));
        }
        let start = offset as usize;
        state.now[start..start + from.len()].copy_from_slice(from);
        let sector = start / SECTOR * SECTOR;
        state.volatile.push((sector, (start + from.len()).next_multiple_of(SECTOR) - sector));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        state.count_down()?;
        let state = &mut *state;
        for (offset, len) in state.volatile.drain(..) {
            state.durable[offset..offset + len].copy_from_slice(&state.now[offset..offset + len]);
        }
        Ok(())
    }
}
