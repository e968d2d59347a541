//! Access control: the hosts that may connect, the secrets that prove their names, and the paths to
//! each volume.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::auth::{Random, Secret};

/// The secrets that one host shares with the subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSecrets {
    /// Secret by which the host proves its name.
    pub host: Secret,
    /// Secret by which the controller proves its name, for hosts that ask for that.
    pub controller: Option<Secret>,
}

/// The hosts that may connect. The default admits every host.
#[derive(Debug, Clone, Default)]
pub struct AccessRules {
    hosts: Option<BTreeSet<String>>,
    proofs: Option<Proofs>,
}

#[derive(Debug, Clone)]
struct Proofs {
    secrets: BTreeMap<String, HostSecrets>,
    random: Random,
}

/// The proof that a host must give before it may use a queue.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) secrets: HostSecrets,
    pub(super) random: Random,
}

/// Error: the host may not connect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotAllowed;

impl AccessRules {
    /// Admits only hosts with these names.
    #[must_use]
    pub fn only(self, hosts: impl IntoIterator<Item = String>) -> Self {
        Self { hosts: Some(hosts.into_iter().collect()), ..self }
    }

    /// Admits only hosts that prove knowledge of their secret. `secrets` is keyed by host name.
    #[must_use]
    pub fn with_secrets(self, secrets: BTreeMap<String, HostSecrets>, random: Random) -> Self {
        Self { proofs: Some(Proofs { secrets, random }), ..self }
    }

    /// Returns whether hosts have to prove their names.
    pub(super) fn asks_for_proof(&self) -> bool {
        self.proofs.is_some()
    }

    /// Admits a host. Returns the proof that the host must give first, if any.
    ///
    /// # Errors
    /// When the rules exclude the host.
    pub(super) fn admit(&self, host: &str) -> Result<Option<Proof>, NotAllowed> {
        if self.hosts.as_ref().is_some_and(|hosts| !hosts.contains(host)) {
            return Err(NotAllowed);
        }
        let Some(Proofs { secrets, random }) = &self.proofs else { return Ok(None) };
        let secrets = secrets.get(host).ok_or(NotAllowed)?.clone();
        Ok(Some(Proof { secrets, random: *random }))
    }
}

/// The access that this server gives to a volume (asymmetric namespace access, ANA).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AccessState {
    /// Hosts use the volume through this server.
    #[default]
    Optimized,
    /// Hosts use another path. While none is usable, they wait.
    Inaccessible,
    /// The access is about to change. Hosts wait for the new state, at most
    /// [`CHANGE_MOST_SECONDS`].
    Change,
}

/// Seconds after which hosts give up a path whose state is [`AccessState::Change`].
pub const CHANGE_MOST_SECONDS: u8 = 10;

impl AccessState {
    /// Returns the code of the state in the ANA log page.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Optimized => 0x01,
            Self::Inaccessible => 0x03,
            Self::Change => 0x0f,
        }
    }
}

/// A port of a subsystem: an address that hosts connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Number of the port, unique within the subsystem across all servers.
    pub id: u16,
    /// Address that the port listens on, possibly a wildcard address.
    pub address: SocketAddr,
}

/// The paths to a subsystem: its ports, and the access that this server gives to each volume.
#[derive(Debug, Default)]
pub struct Paths(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    ports: Vec<Port>,
    /// Number of changes of the ports so far.
    port_changes: u64,
    /// Access to volumes by name. A volume that is absent has the default access.
    access: BTreeMap<String, AccessState>,
    /// Number of changes of the access so far.
    access_changes: u64,
}

impl Paths {
    /// Sets the ports that hosts discover. Without ports, a host discovers the address that it
    /// connected to.
    pub fn set_ports(&self, ports: Vec<Port>) {
        let mut state = self.write();
        if state.ports != ports {
            state.ports = ports;
            state.port_changes += 1;
        }
    }

    /// Sets the access to a volume, which need not exist yet.
    pub fn set_access(&self, volume: &str, access: AccessState) {
        let mut state = self.write();
        let before = match access {
            AccessState::Optimized => state.access.remove(volume),
            _ => state.access.insert(volume.to_owned(), access),
        };
        state.access_changes += u64::from(before.unwrap_or_default() != access);
    }

    /// Returns the access that this server gives to a volume.
    pub fn access(&self, volume: &str) -> AccessState {
        self.read().access.get(volume).copied().unwrap_or_default()
    }

    /// Returns the number of changes of the access so far.
    pub fn access_changes(&self) -> u64 {
        self.read().access_changes
    }

    /// Returns the number of changes of the ports so far.
    pub(super) fn port_changes(&self) -> u64 {
        self.read().port_changes
    }

    /// Returns the ports that a host can reach if it has connected to `called`. That address is
    /// always among them.
    pub(super) fn ports_for(&self, called: SocketAddr) -> Vec<Port> {
        let called = SocketAddr::new(called.ip().to_canonical(), called.port());
        let mut found: Vec<Port> = Vec::new();
        for port in &self.read().ports {
            let Some(ip) = reached(port.address.ip().to_canonical(), called.ip()) else { continue };
            let port = Port { address: SocketAddr::new(ip, port.address.port()), ..*port };
            if found.iter().all(|other| other.address != port.address) {
                found.push(port);
            }
        }
        if found.iter().all(|port| port.address != called) {
            found.insert(0, Port { id: 0, address: called });
        }
        found
    }

    /// Locks the state even after a thread has panicked: each change is complete by itself.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the address by which a host reaches a listener, given that the host has reached
/// `called`. `None` when the listener is unreachable for that host.
fn reached(listens: IpAddr, called: IpAddr) -> Option<IpAddr> {
    match listens {
        // A socket for any address of version 6 takes those of version 4 too.
        _ if listens.is_unspecified() => (listens.is_ipv6() || called.is_ipv4()).then_some(called),
        _ if listens.is_loopback() => called.is_loopback().then_some(listens),
        _ => Some(listens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_on_every_list_that_there_is() {
        let secret = Secret::new(&[1; 32], None).unwrap();
        let secrets = HostSecrets { host: secret, controller: None };
        let known = BTreeMap::from([("a".to_owned(), secrets)]);
        let open = AccessRules::default();
        assert!(matches!(open.admit("b"), Ok(None)));
        let listed = open.clone().only(["a".to_owned(), "b".to_owned()]);
        assert!(matches!(listed.admit("b"), Ok(None)));
        assert!(listed.admit("c").is_err());
        let proving = open.with_secrets(known.clone(), |_| true);
        assert!(matches!(proving.admit("a"), Ok(Some(_))));
        assert!(proving.admit("b").is_err(), "it has no secret");
        let both = listed.with_secrets(known, |_| true);
        assert!(matches!(both.admit("a"), Ok(Some(_))));
        assert!(both.admit("b").is_err() && both.admit("c").is_err());
    }
}

#[cfg(test)]
mod paths_tests {
    use super::*;

    fn ports(called: &str, listens: &[&str]) -> Vec<(u16, String)> {
        let paths = Paths::default();
        let port = |(id, text): (u16, &&str)| Port { id, address: text.parse().unwrap() };
        paths.set_ports((1..).zip(listens).map(port).collect());
        let ports = paths.ports_for(called.parse().unwrap());
        ports.into_iter().map(|port| (port.id, port.address.to_string())).collect()
    }

    #[test]
    fn hosts_discover_the_addresses_that_they_reach() {
        let told = |list: &[(u16, &str)]| -> Vec<(u16, String)> {
            list.iter().map(|(id, text)| (*id, (*text).to_owned())).collect()
        };
        let own = ["192.0.2.1:4420", "127.0.0.1:4420", "0.0.0.0:8009", "[::]:8010"];
        let far = [(1, "192.0.2.1:4420"), (3, "192.0.2.1:8009"), (4, "192.0.2.1:8010")];
        assert_eq!(ports("192.0.2.1:4420", &own), told(&far));
        assert_eq!(ports("[::ffff:192.0.2.1]:4420", &own), told(&far));
        let near = [
            (1, "192.0.2.1:4420"),
            (2, "127.0.0.1:4420"),
            (3, "127.0.0.1:8009"),
            (4, "127.0.0.1:8010"),
        ];
        assert_eq!(ports("127.0.0.1:4420", &own), told(&near));
        let sixth = [(1, "192.0.2.1:4420"), (4, "[2001:db8::1]:8010")];
        assert_eq!(ports("[2001:db8::1]:8010", &own), told(&sixth));
        assert_eq!(ports("192.0.2.9:1", &[]), told(&[(0, "192.0.2.9:1")]));
        assert_eq!(ports("192.0.2.9:1", &["192.0.2.9:1", "0.0.0.0:1"]).len(), 1, "named once");
    }

    #[test]
    fn changes_are_counted_and_nothing_else() {
        let paths = Paths::default();
        assert_eq!(paths.access("a"), AccessState::Optimized);
        for (access, changes) in [
            (AccessState::Optimized, 0),
            (AccessState::Inaccessible, 1),
            (AccessState::Inaccessible, 1),
            (AccessState::Change, 2),
            (AccessState::Optimized, 3),
        ] {
            paths.set_access("a", access);
            assert_eq!((paths.access("a"), paths.access_changes()), (access, changes));
        }
        let port = Port { id: 1, address: "192.0.2.1:1".parse().unwrap() };
        for changes in [1, 1] {
            paths.set_ports(vec![port]);
            assert_eq!(paths.port_changes(), changes);
        }
    }
}
