//! The limits of the volumes' connections, and the clients that count against them.
//!
//! An NBD connection uses one volume, the export that it has chosen. An NVMe host uses all volumes,
//! from its Connect command on, or from its authentication on, until its controller is removed. So
//! the smallest limit of all volumes limits the hosts. NBD connections and hosts are counted apart:
//! neither takes a place from the other.
//!
//! Workers share the counts. Only clients that come or go take the lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use floe_nbd::handshake::{Admission, Place};
use floe_nvme::target::subsystem::{HostAdmission, HostPlace};

use crate::status::ByProtocol;

/// Shortest time between two lines of the log on refused clients of a volume.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The clients of all volumes of a server. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct VolumeClients(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Controllers of NVMe hosts, each of which uses every volume.
    hosts: u64,
    /// Volumes by name. Volumes that never had a client or a limit may be missing.
    volumes: BTreeMap<String, Counts>,
}

/// The clients of one volume, beside the NVMe hosts.
#[derive(Debug, Default)]
struct Counts {
    most: Option<u64>,
    connections: u64,
    refused: u64,
    /// Time of the last refusal that was logged.
    logged: Option<Instant>,
}

impl Counts {
    /// Returns whether the volume has no place for one more, where it has so many.
    fn is_full(&self, clients: u64) -> bool {
        self.most.is_some_and(|most| clients >= most)
    }

    /// Counts a refusal. Returns the limit if the log had no refusal lately.
    fn refuse(&mut self) -> Option<u64> {
        self.refused += 1;
        if self.logged.is_some_and(|logged| logged.elapsed() < LOG_INTERVAL) {
            return None;
        }
        self.logged = Some(Instant::now());
        self.most
    }
}

impl VolumeClients {
    /// Limits the connections of a volume, or lifts the limit. Clients that are connected stay.
    pub(crate) fn limit(&self, volume: &str, most: Option<u64>) {
        self.lock().volume(volume).most = most;
    }

    /// Forgets a volume that no client uses any more.
    pub(crate) fn forget(&self, volume: &str) {
        self.lock().volumes.remove(volume);
    }

    /// Returns the number of clients that a volume's limit has refused.
    pub(crate) fn refused(&self, volume: &str) -> u64 {
        self.lock().volumes.get(volume).map_or(0, |counts| counts.refused)
    }

    /// Returns the numbers of clients that the limit of a volume counts.
    pub(crate) fn counted(&self, volume: &str) -> ByProtocol {
        let state = self.lock();
        let nbd = state.volumes.get(volume).map_or(0, |counts| counts.connections);
        ByProtocol { nbd, nvme_tcp: state.hosts }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn volume(&mut self, name: &str) -> &mut Counts {
        if !self.volumes.contains_key(name) {
            self.volumes.insert(name.to_owned(), Counts::default());
        }
        self.volumes.get_mut(name).expect("it was inserted if it was missing")
    }
}

impl Admission for VolumeClients {
    fn admit(&self, export: &str) -> Option<Place> {
        let mut state = self.lock();
        let counts = state.volume(export);
        if !counts.is_full(counts.connections) {
            counts.connections += 1;
            let volume = Some(export.to_owned());
            return Some(Box::new(Taken { clients: self.clone(), volume }));
        }
        let to_log = counts.refuse();
        drop(state);
        if let Some(most) = to_log {
            tracing::warn!(volume = %export, connections = most, "NBD client refused: {FULL}");
        }
        None
    }
}

impl HostAdmission for VolumeClients {
    fn admit(&self, host: &str) -> Option<HostPlace> {
        let mut state = self.lock();
        let State { hosts, volumes } = &mut *state;
        let full = volumes.iter_mut().filter(|(_, counts)| counts.is_full(*hosts));
        let full: Vec<_> = full.map(|(name, counts)| (name.clone(), counts.refuse())).collect();
        if full.is_empty() {
            *hosts += 1;
            return Some(Box::new(Taken { clients: self.clone(), volume: None }));
        }
        drop(state);
        for (volume, to_log) in full {
            if let Some(most) = to_log {
                tracing::warn!(%volume, connections = most, %host, "NVMe host refused: {FULL}");
            }
        }
        None
    }

    fn has_room(&self) -> bool {
        let state = self.lock();
        !state.volumes.values().any(|counts| counts.is_full(state.hosts))
    }
}

/// The reason of a refusal, for the log.
const FULL: &str = "the volume has as many connections as its limit allows";

/// The place of an NBD connection at a volume, or that of an NVMe host at all volumes.
struct Taken {
    clients: VolumeClients,
    volume: Option<String>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.clients.lock();
        match &self.volume {
            None => state.hosts -= 1,
            // A volume that was removed by force has nothing to count any more.
            Some(volume) => state.volumes.get_mut(volume).into_iter().for_each(|counts| {
                counts.connections = counts.connections.saturating_sub(1);
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use floe_testkit::Random;

    use super::*;

    fn nbd(clients: &VolumeClients, volume: &str) -> Option<Place> {
        Admission::admit(clients, volume)
    }

    fn host(clients: &VolumeClients) -> Option<HostPlace> {
        HostAdmission::admit(clients, "nqn.2026-11.io.example:a")
    }

    #[test]
    fn a_host_is_refused_for_the_smallest_limit_and_takes_no_place_from_nbd_clients() {
        let clients = VolumeClients::default();
        clients.limit("a", Some(2));
        clients.limit("b", Some(1));
        let (one, two) = (nbd(&clients, "a").unwrap(), host(&clients).unwrap());
        assert!(!HostAdmission::has_room(&clients));
        assert_eq!(clients.counted("a"), ByProtocol { nbd: 1, nvme_tcp: 1 });
        let three = nbd(&clients, "a").unwrap();
        assert!(nbd(&clients, "a").is_none() && nbd(&clients, "b").is_some());
        assert!(nbd(&clients, "c").is_some(), "it has no limit");
        assert!(host(&clients).is_none(), "b has one already");
        assert_eq!((clients.refused("a"), clients.refused("b")), (1, 1));
        clients.limit("b", None);
        assert!(HostAdmission::has_room(&clients));
        let four = host(&clients).unwrap();
        assert!(host(&clients).is_none(), "a has two");
        assert_eq!((clients.refused("a"), clients.refused("b")), (2, 1));
        drop((one, two, three, four));
        assert_eq!(clients.counted("a"), ByProtocol::default());
        assert!(nbd(&clients, "a").is_some() && host(&clients).is_some());
        clients.forget("a");
        assert_eq!((clients.refused("a"), clients.refused("b")), (0, 1));
    }

    #[test]
    fn no_more_are_admitted_than_the_limit_allows_whatever_happens() {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        for seed in 0..100 {
            let (mut random, clients) = (Random(seed), VolumeClients::default());
            let mut most: [Option<u64>; 3] = [None; 3];
            let mut places: [Vec<Place>; 3] = Default::default();
            let (mut hosts, mut refused): (Vec<HostPlace>, [u64; 3]) = (Vec::new(), [0; 3]);
            for _ in 0..500 {
                let at = random.below(3);
                let full =
                    |at: usize, clients: usize| most[at].is_some_and(|most| clients as u64 >= most);
                match random.below(8) {
                    0 => {
                        most[at] = [None, Some(1), Some(4)][random.below(3)];
                        clients.limit(NAMES[at], most[at]);
                    }
                    1 => drop(hosts.pop()),
                    2 | 3 => drop(places[at].pop()),
                    4 => {
                        let full = [0, 1, 2].map(|at| full(at, hosts.len()));
                        assert_eq!(HostAdmission::has_room(&clients), full == [false; 3]);
                        let admitted = host(&clients);
                        assert_eq!(admitted.is_some(), full == [false; 3], "seed {seed}");
                        hosts.extend(admitted);
                        (0..3).for_each(|at| refused[at] += u64::from(full[at]));
                    }
                    _ => {
                        let is_full = full(at, places[at].len());
                        let admitted = nbd(&clients, NAMES[at]);
                        assert_eq!(admitted.is_none(), is_full, "seed {seed}");
                        places[at].extend(admitted);
                        refused[at] += u64::from(is_full);
                    }
                }
                assert_eq!(NAMES.map(|name| clients.refused(name)), refused, "seed {seed}");
            }
        }
    }
}
