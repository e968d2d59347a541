//! The file or note that keeps the reservations of NVMe hosts across restarts of the server.
//!
//! A file is in the state directory. The servers of a pair have a note beside the first image,
//! which the other server reads when it takes over. The name of either has a hash of the
//! subsystem's name. The first line is JSON, the second one the checksum of the first. If it is
//! damaged, the server does not start: without the reservations, hosts that were fenced could
//! write.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use floe_device::RbdSource;
use floe_nvme::target::digest;
use floe_nvme::target::reservation::{
    HostId, Reservation, ReservationStore, ReservationType, Reservations,
};
use floe_nvme::target::subsystem::number_of;
use serde::{Deserialize, Serialize};

use crate::persistent::StateDir;
use crate::volume::Volume;

/// The version of the file's format.
const FORMAT: u32 = 1;

/// The reason why the kept reservations cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReservationsError {
    /// The file or note cannot be read.
    #[error("cannot read the reservations of NVMe hosts in {place}: {source}")]
    Read {
        /// The file, or the note and its image.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file or note has wrong content.
    #[error(
        "the reservations of NVMe hosts in {place} are damaged ({problem}); restore them, or \
         remove them to start without reservations"
    )]
    Damaged {
        /// The file, or the note and its image.
        place: String,
        /// The problem with the content.
        problem: String,
    },
    /// The reservations of a pair are beside another image than the first one.
    #[error(
        "the reservations of NVMe hosts are in {place}, and the first volume's image is {first}: \
         give the volumes in the order of before, or remove that object to start without them"
    )]
    Misplaced {
        /// The note and its image.
        place: String,
        /// Name of the first image.
        first: String,
    },
}

/// Opens the reservations of a subsystem. Without a state directory they end with the server.
///
/// # Errors
/// When the file cannot be read or is damaged.
pub(crate) fn open(
    state: Option<&StateDir>,
    nqn: &str,
) -> Result<Arc<Reservations>, ReservationsError> {
    let Some(state) = state else { return Ok(Arc::default()) };
    let file = file_of(state, nqn);
    let kept = read(&file, nqn)?;
    log_kept(&kept);
    let store = FileStore { state: state.clone(), file, nqn: nqn.to_owned() };
    Ok(Arc::new(Reservations::new(kept, Some(Box::new(store)))))
}

/// Warns of kept reservations if this server enforces none, for the reason `why`.
///
/// # Errors
/// When the file cannot be read or is damaged.
pub(crate) fn warn_of_kept(
    state: Option<&StateDir>,
    nqn: &str,
    why: &str,
) -> Result<(), ReservationsError> {
    let Some(state) = state else { return Ok(()) };
    let file = file_of(state, nqn);
    log_unenforced(&file.display().to_string(), &read(&file, nqn)?, why);
    Ok(())
}

fn log_kept(kept: &BTreeMap<String, Reservation>) {
    if !kept.is_empty() {
        let volumes: Vec<&str> = kept.keys().map(String::as_str).collect();
        tracing::info!(volumes = %volumes.join(","), "reservations of NVMe hosts are kept");
    }
}

fn log_unenforced(place: &str, kept: &BTreeMap<String, Reservation>, why: &str) {
    if kept.values().any(|it| !it.registrants().is_empty()) {
        tracing::warn!(place, "kept reservations of NVMe hosts are not enforced: {why}");
    }
}

fn file_of(state: &StateDir, nqn: &str) -> PathBuf {
    state.path().join(format!("reservations-{:032x}.json", number_of(&[nqn])))
}

/// Keeps the reservations of a pair in a note beside the first image. Clones are handles to one
/// store.
#[derive(Debug, Clone)]
pub(crate) struct PairStore {
    nqn: String,
    /// The first image while this server is the active one. A standby changes nothing.
    image: Arc<Mutex<Option<RbdSource>>>,
}

impl PairStore {
    pub(crate) fn new(nqn: &str) -> Self {
        Self { nqn: nqn.to_owned(), image: Arc::default() }
    }

    fn key(&self) -> String {
        format!("reservations-{:032x}", number_of(&[&self.nqn]))
    }

    /// Returns the object of the note, as users are told.
    fn place(&self, image: &RbdSource) -> String {
        let object = image.note_object(&self.key()).unwrap_or_else(|_| self.key());
        format!("the object {object} beside image {}", image.name())
    }

    fn read(&self, image: &RbdSource) -> Result<BTreeMap<String, Reservation>, ReservationsError> {
        let place = || self.place(image);
        let note = image.note(&self.key());
        let note = note.map_err(|source| ReservationsError::Read { place: place(), source })?;
        let kept = note.map_or(Ok(BTreeMap::new()), |text| decode(text.as_bytes(), &self.nqn));
        kept.map_err(|problem| ReservationsError::Damaged { place: place(), problem })
    }

    /// Takes over the reservations that are kept beside the first of these volumes, all images
    /// whose locks this server holds. Keeps changes there from now on.
    ///
    /// # Errors
    /// When a note cannot be read or is damaged, or reservations are beside another image.
    pub(crate) fn take_over(
        &self,
        volumes: &[Volume],
        reservations: &Reservations,
    ) -> Result<(), ReservationsError> {
        let mut images = images(volumes);
        let first = images.next().expect("the volumes of a pair are images");
        let kept = self.read(first)?;
        for other in images {
            if self.read(other)?.values().any(|it| !it.registrants().is_empty()) {
                let (place, first) = (self.place(other), first.name().to_string());
                return Err(ReservationsError::Misplaced { place, first });
            }
        }
        log_kept(&kept);
        for name in kept.keys().filter(|name| volumes.iter().all(|it| it.name != **name)) {
            tracing::warn!(volume = %name, "reservations are kept of a volume that is not here");
        }
        reservations.restore(kept);
        *self.image.lock().unwrap_or_else(PoisonError::into_inner) = Some(first.clone());
        Ok(())
    }

    /// Lets go of the image at the end of the server.
    pub(crate) fn close(&self) {
        *self.image.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Warns of kept reservations if this server enforces none, for the reason `why`.
    ///
    /// # Errors
    /// When a note cannot be read or is damaged.
    pub(crate) fn warn_of_kept(
        &self,
        volumes: &[Volume],
        why: &str,
    ) -> Result<(), ReservationsError> {
        images(volumes).try_for_each(|image| {
            log_unenforced(&self.place(image), &self.read(image)?, why);
            Ok(())
        })
    }
}

/// Returns the images of these volumes.
fn images(volumes: &[Volume]) -> impl Iterator<Item = &RbdSource> {
    volumes.iter().filter_map(|volume| volume.backing.image())
}

impl ReservationStore for PairStore {
    fn save(&self, reservations: &BTreeMap<String, Reservation>) -> io::Result<()> {
        // A copy: writing may take as long as the cluster.
        let image = self.image.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let image = image.ok_or_else(|| io::Error::other("this server is a standby"))?;
        let text = encode(&self.nqn, reservations);
        let text = String::from_utf8(text).expect("it is JSON");
        let saved = image.set_note(&self.key(), &text).map_err(|error| match error.kind() {
            ErrorKind::ArgumentListTooLong => io::Error::other("there are too many registrants"),
            _ => error,
        });
        if let Err(error) = &saved {
            let place = self.place(&image);
            tracing::warn!(place, %error, "a reservation of an NVMe host is refused: not saved");
        }
        saved
    }
}

/// Keeps reservations in a file.
#[derive(Debug)]
struct FileStore {
    state: StateDir,
    file: PathBuf,
    nqn: String,
}

impl ReservationStore for FileStore {
    fn save(&self, reservations: &BTreeMap<String, Reservation>) -> io::Result<()> {
        let saved = self.state.put(&self.file, encode(&self.nqn, reservations));
        if let Err(error) = &saved {
            let file = self.file.display();
            tracing::warn!(%file, %error, "a reservation of an NVMe host is refused: not saved");
        }
        saved
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptFile {
    format: u32,
    nqn: String,
    volumes: Vec<KeptVolume>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptVolume {
    name: String,
    generation: u32,
    registrants: Vec<KeptRegistrant>,
    /// Code of the type of the reservation that is held; 0 for none.
    kind: u8,
    /// Holder, in hexadecimal digits. `None` if no host holds the reservation, or all registrants
    /// do.
    holder: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptRegistrant {
    /// Identifier of the host, in hexadecimal digits.
    host: String,
    key: u64,
}

fn encode(nqn: &str, reservations: &BTreeMap<String, Reservation>) -> Vec<u8> {
    let digits = |host: &HostId| format!("{:032x}", u128::from_be_bytes(*host));
    let volume = |(name, reservation): (&String, &Reservation)| {
        let held = reservation.held();
        let registrants = reservation.registrants().iter();
        KeptVolume {
            name: name.clone(),
            generation: reservation.generation(),
            registrants: registrants
                .map(|(host, key)| KeptRegistrant { host: digits(host), key: *key })
                .collect(),
            kind: held.map_or(0, |(kind, _)| kind.code()),
            holder: held.and_then(|(_, holder)| holder).as_ref().map(digits),
        }
    };
    let volumes = reservations.iter().map(volume).collect();
    let kept = KeptFile { format: FORMAT, nqn: nqn.to_owned(), volumes };
    let mut text = serde_json::to_vec(&kept).expect("it is plain data");
    let sum = digest(&text);
    text.extend(format!("\ncrc32c {sum:08x}\n").bytes());
    text
}

fn read(file: &Path, nqn: &str) -> Result<BTreeMap<String, Reservation>, ReservationsError> {
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(source) => {
            return Err(ReservationsError::Read { place: file.display().to_string(), source });
        }
    };
    let damaged =
        |problem| ReservationsError::Damaged { place: file.display().to_string(), problem };
    decode(&text, nqn).map_err(damaged)
}

fn decode(text: &[u8], nqn: &str) -> Result<BTreeMap<String, Reservation>, String> {
    let end = text.iter().position(|&byte| byte == b'\n').ok_or("it has no checksum")?;
    let (line, rest) = text.split_at(end);
    let sum = format!("crc32c {:08x}", digest(line));
    if rest.trim_ascii() != sum.as_bytes() {
        return Err("its checksum does not match".to_owned());
    }
    let kept: KeptFile = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if kept.format != FORMAT {
        return Err(format!("it has format {}, of another version of Floe", kept.format));
    }
    if kept.nqn != nqn {
        return Err(format!("it is of subsystem {}", kept.nqn));
    }
    let mut all = BTreeMap::new();
    for volume in kept.volumes {
        let name = volume.name.clone();
        let wrong = || format!("what it says of volume {name:?} makes no sense");
        let reservation = restore(volume).ok_or_else(wrong)?;
        if all.insert(name.clone(), reservation).is_some() {
            return Err(wrong());
        }
    }
    Ok(all)
}

fn restore(volume: KeptVolume) -> Option<Reservation> {
    let host = |digits: &str| -> Option<HostId> {
        let number = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)?;
        Some(number.to_be_bytes())
    };
    let holder = match &volume.holder {
        Some(digits) => Some(host(digits)?),
        None => None,
    };
    let held = match volume.kind {
        0 if holder.is_none() => None,
        code => Some((ReservationType::of(code)?, holder)),
    };
    let count = volume.registrants.len();
    let registrants = volume.registrants.iter().map(|it| Some((host(&it.host)?, it.key)));
    let registrants: BTreeMap<HostId, u64> = registrants.collect::<Option<_>>()?;
    Reservation::restore(registrants, held, volume.generation).filter(|it| {
        it.registrants().len() == count // no host is there twice
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2026-11.io.example:a";

    fn kept() -> BTreeMap<String, Reservation> {
        let hosts = |keys: &[(u8, u64)]| keys.iter().map(|(it, key)| ([*it; 16], *key)).collect();
        let one = Reservation::restore(
            hosts(&[(1, 5), (2, u64::MAX)]),
            Some((ReservationType::ExclusiveAccessRegistrants, Some([1; 16]))),
            7,
        );
        let all = Some((ReservationType::WriteExclusiveAll, None));
        let all = Reservation::restore(hosts(&[(0xff, 1)]), all, u32::MAX);
        let none = Reservation::restore(hosts(&[]), None, 3);
        let named = [("a \"b\"\n", one), ("disk", all), ("free", none)];
        named.into_iter().map(|(name, it)| (name.to_owned(), it.expect("it is sound"))).collect()
    }

    #[test]
    fn what_is_saved_is_read_again_and_any_damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::new(folder.path().join("state"), true);
        let all = open(Some(&state), NQN).unwrap();
        let file = file_of(&state, NQN);
        assert!(!file.exists(), "nothing is kept yet");
        let store = FileStore { state: state.clone(), file: file.clone(), nqn: NQN.to_owned() };
        for reservations in [kept(), BTreeMap::new(), kept()] {
            store.save(&reservations).unwrap();
            assert_eq!(read(&file, NQN).unwrap(), reservations);
        }
        drop(all);
        let whole = std::fs::read(&file).unwrap();
        let content = whole.trim_ascii_end().len();
        let problem = || match open(Some(&state), NQN) {
            Err(ReservationsError::Damaged { problem, .. }) => problem,
            other => panic!("{other:?}"),
        };
        for at in 0..content {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&file, &damaged).unwrap();
            problem();
            std::fs::write(&file, &whole[..at]).unwrap();
            problem();
        }
        let other = encode("nqn.2026-11.io.example:b", &kept());
        std::fs::write(&file, other).unwrap();
        assert!(problem().contains("example:b"), "{}", problem());
        let line = serde_json::to_string(&serde_json::json!({
            "format": 1, "nqn": NQN, "volumes": [
                {"name": "disk", "generation": 1, "registrants": [], "kind": 5, "holder": null}
            ],
        }));
        let line = line.unwrap();
        let text = format!("{line}\ncrc32c {:08x}\n", digest(line.as_bytes()));
        std::fs::write(&file, text).unwrap();
        assert!(problem().contains("\"disk\" makes no sense"), "{}", problem());
    }
}
