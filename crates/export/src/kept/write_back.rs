//! Bringing dirty data to its volumes without a server.
//!
//! The cache is brought to life as for serving, by the same code, and each volume is drained: its dirty data is written, its
//! device flushed, and the data noted as clean. What the cache has of other volumes stays as it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_block::{
    Answer, Begun, Driver, Evict, Gate, KeptCache, Kind, Memory, Request, Serving, Volume as Known, VolumeId,
    WriteMode,
};

use super::disk::Disk;
use super::keeper::Keeper;
use super::refusal::{Refusal, StartError};
use super::start::{Found, candidates, look, random_stack};
use super::suit::{difference, known};
use crate::server::{DeviceSource, Volume};

/// How often progress is told, and devices that imitate a medium are asked.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// A backing device.
#[derive(Debug, Clone)]
pub struct Target {
    /// Of which volume; may be left out when the cache has only one.
    pub volume: Option<String>,
    /// The device.
    pub backing: Arc<dyn DeviceSource>,
}

/// A volume that has everything now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenBack {
    /// Its name.
    pub volume: String,
    /// What only the cache had.
    pub bytes: u64,
}

/// Writes dirty data back to these devices. With `accept`, also to one that is not as the cache knows it. `progress` is told
/// the bytes written so far, and of how many.
///
/// # Errors
/// When the cache cannot be used or a device is not its volume's, in which case nothing has changed, or a device fails.
pub fn write_back(
    source: &Arc<dyn DeviceSource>,
    targets: &[Target],
    accept: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<WrittenBack>, StartError> {
    let mut cache = Disk::open(source)?;
    let mut kept = match cache.with_io(|io| look(io, &mut |_, _| {}))? {
        Found::Cache(kept) => kept,
        Found::Unreadable(error) => return Err(Refusal::Unreadable(error).into()),
        Found::Nothing | Found::Foreign => return Err(Refusal::NoCache.into()),
    };
    let (volumes, ids) = matched(&mut kept, targets, accept)?;
    let dirty: Vec<u64> = ids.iter().map(|id| kept.dirty_bytes(*id)).collect();
    let after = after(&kept, &volumes, &ids);
    let serving = Serving {
        mode: WriteMode::Back,
        gate: Gate::default(),
        evict: Evict::default(),
        memory: Memory::None,
        parts: 1,
    };
    let begun: Begun = cache.with_io(|io| kept.begin(io, after, &serving))?;
    let Begun { superblock, parts } = begun;
    let Disk { device, ring, pool } = cache;
    let (cache, journal) = parts.into_iter().next().expect("a part was asked for");
    let mut driver = Driver::new(cache, device, pool.clone()).with_journal(Some(journal));
    for (volume, id) in volumes.iter().zip(&ids) {
        let backing = volume.backing.open(&ring, &pool).map_err(super::DiskError::Open)?;
        driver.add_volume_at(*id, &volume.name, backing);
    }
    let all = dirty.iter().sum();
    for (volume, id) in volumes.iter().zip(&ids) {
        driver.submit(Request { volume: *id, kind: Kind::Drain, offset: 0, len: 0 }, None);
        let mut answers: Vec<Answer> = Vec::new();
        while answers.is_empty() || !driver.is_idle() {
            driver.advance();
            driver.take_answers(&mut answers);
            if !driver.has_orders() && !driver.is_idle() {
                ring.wait_until(Some(Instant::now() + LONGEST_WAIT)).map_err(StartError::Wait)?;
            }
            progress(all - driver.stats().dirty_bytes.min(all), all);
        }
        if let Some(Err(fault)) = answers.pop().map(|answer| answer.result) {
            let left_bytes = driver.stats().dirty_bytes;
            return Err(StartError::WriteBack { volume: volume.name.clone(), fault, left_bytes });
        }
    }
    drop(driver);
    let backings: Vec<_> =
        ids.iter().zip(&volumes).map(|(id, volume)| (*id, Arc::clone(&volume.backing))).collect();
    let mut keeper = Keeper::new(Arc::clone(source), superblock);
    // Other tiers, through which this has not gone, are not to be served with it as if it had.
    keeper.link_alone(random_stack()?)?;
    keeper.end(&backings, None)?;
    let written = |(volume, bytes): (Volume, u64)| WrittenBack { volume: volume.name, bytes };
    Ok(volumes.into_iter().zip(dirty).map(written).collect())
}

/// Which of the cache's volumes the devices are.
fn matched(
    kept: &mut KeptCache,
    targets: &[Target],
    accept: bool,
) -> Result<(Vec<Volume>, Vec<VolumeId>), StartError> {
    let before = kept.superblock().volumes.clone();
    let names = || before.iter().map(|known| known.name.clone()).collect();
    let mut volumes = Vec::new();
    for Target { volume, backing } in targets {
        let name = match (volume, before.as_slice()) {
            (Some(name), _) => name.clone(),
            (None, [only]) => only.name.clone(),
            (None, _) => return Err(Refusal::WhichVolume { of: names() }.into()),
        };
        let backing = Arc::clone(backing);
        volumes.push(Volume { name, description: String::new(), backing, read_only: false });
    }
    let mut ids = Vec::new();
    for candidate in &mut candidates(&volumes)? {
        let volume = candidate.volume;
        let old = before.iter().find(|known| known.name == volume.name);
        let old = old.ok_or_else(|| Refusal::NoVolume { of: names(), wanted: volume.name.clone() })?;
        let dirty_bytes = kept.dirty_bytes(old.id);
        match difference(kept, old, volume, &mut candidate.disk)? {
            None => {}
            Some(difference) if volume.backing.size_bytes() < old.bytes => {
                return Err(Refusal::Shrunk { volume: volume.name.clone(), difference, dirty_bytes }.into());
            }
            Some(_) if accept => kept.forget_clean(old.id),
            Some(difference) => {
                return Err(Refusal::OtherTarget { volume: volume.name.clone(), difference }.into());
            }
        }
        ids.push(old.id);
    }
    Ok((volumes, ids))
}

/// The volumes that the cache has from now on: those of before, as they are now.
fn after(kept: &KeptCache, volumes: &[Volume], ids: &[VolumeId]) -> Vec<Known> {
    let now = |old: &Known| match ids.iter().position(|id| *id == old.id) {
        Some(at) => known(old.id, &volumes[at]),
        None if kept.superblock().clean => old.clone(),
        None => Known { marker: 0, ..old.clone() },
    };
    kept.superblock().volumes.iter().map(now).collect()
}
