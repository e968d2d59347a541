//! Writes dirty data of a cache back to its volumes without a server.
//!
//! The cache is opened by the same code as for serving, and each volume is drained: its dirty data
//! is written, its device flushed, and the data marked clean. Content of other volumes stays
//! unchanged.
//!
//! Among several tiers the lowest is drained first. Every change is announced in the superblocks
//! before it happens, so that an interrupted run can be repeated. All tiers forget the content of
//! the volumes before the first volume is written to. A lower tier's clean data is marked as
//! possibly old before data of a higher tier bypasses it. At the end all tiers record the markers
//! and samples of the volumes anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_block::{
    Answer, Begun, Config, Driver, Fault, KeptCache, Request, RequestKind, SECTOR_BYTES, Sectors,
    Tier, Volume as Known, VolumeId, WriteMode,
};
use floe_nvme::target::io::BlockSize;

use super::content::{ForceFlags, Found, look};
use super::disk::Disk;
use super::error::{Difference, Given, Refusal, StartError};
use super::peer_tiers::{DrainOrder, from_the_lowest};
use super::state_dir::StateDir;
use super::superblock_writer::{SuperblockWriter, random_stack};
use super::validate::{difference, known};
use super::{candidates, noted, old_copy};
use crate::volume::{DeviceSource, Reach, Volume};
use crate::volume_limit::RequestLimit;
use crate::volume_share::VolumeShare;

/// Longest wait between two progress reports. Also the interval of polling simulated media, which
/// do not wake the ring.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// A backing device to which dirty data is written back.
#[derive(Debug, Clone)]
pub struct Target {
    /// Name of the volume; may be omitted if the cache has only one.
    pub volume: Option<String>,
    /// The backing device.
    pub backing: Arc<dyn DeviceSource>,
}

/// The result of writing one volume back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenBack {
    /// Name of the volume.
    pub volume: String,
    /// Bytes written back.
    pub bytes: u64,
    /// Runs of sectors whose dirty data is lost: the volume has older data there, or none.
    pub lost: Vec<Sectors>,
}

/// A drained tier whose clean shutdown is not recorded yet.
struct Done {
    writer: SuperblockWriter,
    backings: Vec<(VolumeId, Arc<dyn DeviceSource>)>,
    /// Bytes of dirty data of other volumes that remain in the tier.
    left_bytes: u64,
}

/// Writes the dirty data of peer tiers back to backing devices, that of the lowest tier first.
///
/// With `accept`, it also writes to a device that differs from its description in the cache, and
/// goes on without a missing lower tier. It then also uses an old copy of a cache, which `state`
/// detects. `progress` receives the bytes of a tier written so far, and their total.
///
/// # Errors
/// When a cache cannot be used, a tier is missing, or a device is not that of its volume: nothing
/// has changed then. Also when a device fails.
pub fn write_back(
    tiers: &[Arc<dyn DeviceSource>],
    targets: &[Target],
    accept: bool,
    state: Option<&StateDir>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<WrittenBack>, StartError> {
    let DrainOrder { order, is_whole, passed } = from_the_lowest(tiers, accept)?;
    let force = ForceFlags { accept_backing: accept, ..ForceFlags::default() };
    let mut known = Vec::new();
    for (place, at) in order.iter().enumerate() {
        let (_, kept) = opened(&tiers[*at])?;
        let (mut kept, before) = match noted(Found::Cache(Box::new(kept)), state, passed[*at]) {
            (Found::Cache(kept), before) => (*kept, before),
            _ => return Err(Refusal::NoCache { device: tiers[*at].name() }.into()), // it was ended
        };
        old_copy(&kept, before.judged, force)?;
        refuse_bypassed(&kept, targets, &before.without, accept)?;
        let lowest = place == 0 && is_whole;
        let (_, ids) = matched(&mut kept, targets, accept, lowest)?;
        known.push((&tiers[*at], kept.superblock().clone(), ids));
    }
    for (tier, superblock, ids) in known {
        SuperblockWriter::new(Arc::clone(tier), superblock, state.cloned()).forget_content(&ids)?;
    }
    let mut written: Vec<WrittenBack> = Vec::new();
    let mut done: Vec<Done> = Vec::new();
    for at in order {
        for WrittenBack { volume, bytes, lost } in
            write_back_one(&tiers[at], targets, accept, is_whole, state, &mut done, progress)?
        {
            match written.iter_mut().find(|other| other.volume == volume) {
                Some(before) => {
                    before.bytes += bytes;
                    before.lost.extend(lost);
                }
                None => written.push(WrittenBack { volume, bytes, lost }),
            }
        }
    }
    for Done { writer, backings, left_bytes } in done {
        writer.close(&backings, None, left_bytes)?;
    }
    Ok(written)
}

/// Opens an existing cache, or fails if the device holds none.
fn opened(source: &Arc<dyn DeviceSource>) -> Result<(Disk, KeptCache), StartError> {
    let mut cache = Disk::open(source)?;
    match cache.with_io(|io| look(io, &mut |_, _| {}))? {
        Found::Cache(kept) => Ok((cache, *kept)),
        Found::Unreadable(error) => Err(Refusal::Unreadable(error).into()),
        Found::Nothing | Found::Foreign | Found::Retired => {
            Err(Refusal::NoCache { device: source.name() }.into())
        }
    }
}

fn write_back_one(
    source: &Arc<dyn DeviceSource>,
    targets: &[Target],
    accept: bool,
    is_whole: bool,
    state: Option<&StateDir>,
    below: &mut Vec<Done>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<WrittenBack>, StartError> {
    let (mut cache, mut kept) = opened(source)?;
    // Its content was compared before anything was written.
    let (volumes, ids) = matched(&mut kept, targets, accept, false)?;
    let dirty: Vec<u64> = ids.iter().map(|id| kept.dirty_bytes(*id)).collect();
    if dirty.iter().any(|bytes| *bytes > 0) {
        below.iter_mut().try_for_each(|lower| lower.writer.set_void(true, false))?;
    }
    let after = after(&kept, &volumes, &ids);
    let config = Config { mode: WriteMode::Back, ..Config::default() };
    let begun: Begun = cache.with_io(|io| kept.begin(io, after, &config, 1))?;
    let Begun { superblock, parts } = begun;
    let Disk { device, ring, pool } = cache;
    let (cache, journal) = parts.into_iter().next().expect("a part was asked for");
    let tier = Tier::new(cache, device, pool.clone()).with_journal(Some(journal));
    let mut driver = Driver::new(tier);
    for (volume, id) in volumes.iter().zip(&ids) {
        let backing = volume.backing.open(&ring, &pool).map_err(super::DiskError::Open)?;
        driver.add_volume_at(*id, &volume.name, backing);
    }
    let all = dirty.iter().sum();
    let mut lost: Vec<(VolumeId, Sectors)> = Vec::new();
    let mut stays = driver.top().stats().dirty_bytes;
    for ((volume, id), bytes) in volumes.iter().zip(&ids).zip(&dirty) {
        driver.submit(Request { volume: *id, kind: RequestKind::Drain, offset: 0, len: 0 }, None);
        let mut answers: Vec<Answer> = Vec::new();
        while answers.is_empty() || !driver.is_idle() {
            driver.advance();
            driver.take_answers(&mut answers);
            if driver.top().cache().condition().has_lost_journal()
                && !driver.top().cache().condition().is_bypassed()
            {
                // The journal cannot note clean data: the drain fails, and may be repeated.
                driver.top_mut().bypass(true);
            }
            if !driver.has_orders() && !driver.is_idle() {
                ring.wait_until(Some(Instant::now() + LONGEST_WAIT)).map_err(StartError::Wait)?;
            }
            progress(all - driver.top().stats().dirty_bytes.min(all), all);
        }
        driver.top_mut().take_newly_lost(&mut lost);
        stays -= bytes - lost_sectors(&lost, *id) * SECTOR_BYTES;
        let left_bytes = driver.top().stats().dirty_bytes;
        let without_journal = driver.top().cache().condition().has_lost_journal();
        let drained = match answers.pop().map_or(Ok(()), |answer| answer.result) {
            Ok(()) if without_journal => Err(Fault::Io), // what was brought down cannot be noted
            drained => drained,
        };
        if let Err(fault) = drained
            && (without_journal || left_bytes != stays)
        {
            return Err(StartError::WriteBack { volume: volume.name.clone(), fault, left_bytes });
        }
    }
    let left_bytes = driver.top().stats().dirty_bytes;
    drop(driver);
    let backings: Vec<_> =
        ids.iter().zip(&volumes).map(|(id, volume)| (*id, Arc::clone(&volume.backing))).collect();
    let mut writer = SuperblockWriter::new(Arc::clone(source), superblock, state.cloned());
    let backing = |volume: &Volume| (volume.name.clone(), volume.backing.name());
    writer.note_begin(volumes.iter().map(backing).collect(), true, false);
    if !is_whole {
        // A bypassed tier must not be served with this one as if nothing had happened.
        writer.link_alone(random_stack()?)?;
    }
    below.push(Done { writer, backings, left_bytes });
    let written = |((volume, id), bytes): ((Volume, VolumeId), u64)| WrittenBack {
        volume: volume.name,
        bytes: bytes - lost_sectors(&lost, id) * SECTOR_BYTES,
        lost: lost.iter().filter(|(of, _)| *of == id).map(|(_, run)| run.clone()).collect(),
    };
    Ok(volumes.into_iter().zip(ids).zip(dirty).map(written).collect())
}

fn lost_sectors(lost: &[(VolumeId, Sectors)], volume: VolumeId) -> u64 {
    lost.iter().filter(|(of, _)| *of == volume).map(|(_, run)| run.end - run.start).sum()
}

/// Fails if a target's volume was served without the cache since, unless the user accepts that.
fn refuse_bypassed(
    kept: &KeptCache,
    targets: &[Target],
    without: &[String],
    accept: bool,
) -> Result<(), Refusal> {
    let volumes = &kept.superblock().volumes;
    let is_target = |name: &String| {
        let is_named = |target: &Target| target.volume.as_ref().is_none_or(|it| it == name);
        targets.iter().find(|target| is_named(target))
    };
    for volume in volumes.iter().filter(|volume| without.contains(&volume.name)) {
        if let (Some(target), false) = (is_target(&volume.name), accept) {
            return Err(Refusal::OtherTarget {
                volume: volume.name.clone(),
                device: Given::of_source(&target.backing),
                difference: Difference::Without,
            });
        }
    }
    Ok(())
}

/// Assigns the given devices to volumes of the cache, and compares them with their descriptions
/// there. Returns the volumes and their ids.
fn matched(
    kept: &mut KeptCache,
    targets: &[Target],
    accept: bool,
    lowest: bool,
) -> Result<(Vec<Volume>, Vec<VolumeId>), StartError> {
    let before = kept.superblock().volumes.clone();
    let names = || before.iter().map(|known| known.name.clone()).collect();
    let mut volumes = Vec::new();
    for Target { volume, backing } in targets {
        let name = match (volume, before.as_slice()) {
            (Some(name), _) => name.clone(),
            (None, [only]) => only.name.clone(),
            (None, []) => return Err(Refusal::NoVolumes.into()),
            (None, _) => return Err(Refusal::WhichVolume { of: names() }.into()),
        };
        let backing = Arc::clone(backing);
        let reach = Reach::Clients;
        let description = String::new();
        let block_size = BlockSize::default(); // no host sees it
        let (limit, share) = (RequestLimit::default(), VolumeShare::default());
        let read_only = false;
        volumes.push(Volume {
            name,
            description,
            backing,
            read_only,
            block_size,
            limit,
            share,
            reach,
        });
    }
    let mut ids = Vec::new();
    for candidate in &mut candidates(&volumes)? {
        let volume = candidate.volume;
        let old = before.iter().find(|known| known.name == volume.name);
        let old =
            old.ok_or_else(|| Refusal::NoVolume { of: names(), wanted: volume.name.clone() })?;
        let dirty_bytes = kept.dirty_bytes(old.id);
        match difference(kept, old, volume, lowest, &mut candidate.disk)? {
            None => {}
            Some(difference) if volume.backing.size_bytes() < old.bytes => {
                return Err(Refusal::Shrunk {
                    volume: volume.name.clone(),
                    difference,
                    dirty_bytes,
                }
                .into());
            }
            Some(_) if accept => kept.forget_clean(old.id),
            Some(difference) => {
                let (device, volume) = (Given::of(volume), volume.name.clone());
                return Err(Refusal::OtherTarget { volume, device, difference }.into());
            }
        }
        ids.push(old.id);
    }
    Ok((volumes, ids))
}

/// Returns the volume entries of the coming session: drained volumes with their present devices,
/// the others as before.
fn after(kept: &KeptCache, volumes: &[Volume], ids: &[VolumeId]) -> Vec<Known> {
    let now = |old: &Known| match ids.iter().position(|id| *id == old.id) {
        Some(at) => known(old.id, &volumes[at]),
        None if kept.superblock().clean => old.clone(),
        None => Known { marker: 0, ..old.clone() },
    };
    kept.superblock().volumes.iter().map(now).collect()
}
