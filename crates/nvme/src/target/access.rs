//! The hosts that may connect, and the secrets by which they prove their names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::auth::{Random, Secret};

/// The secrets that a host and the subsystem share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSecrets {
    /// The secret of the host.
    pub host: Secret,
    /// The secret of the controller, for hosts that want it to prove its name too.
    pub controller: Option<Secret>,
}

/// The hosts that may connect. The default lets anyone in.
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

/// The proof that a host owes.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) secrets: HostSecrets,
    pub(super) random: Random,
}

/// The host may not connect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotAllowed;

impl AccessRules {
    /// Lets in only hosts with these names.
    #[must_use]
    pub fn only(self, hosts: impl IntoIterator<Item = String>) -> Self {
        Self { hosts: Some(hosts.into_iter().collect()), ..self }
    }

    /// Lets in only hosts that prove to have their secret.
    #[must_use]
    pub fn with_secrets(self, secrets: BTreeMap<String, HostSecrets>, random: Random) -> Self {
        Self { proofs: Some(Proofs { secrets, random }), ..self }
    }

    /// Returns whether hosts have to prove their names.
    pub(super) fn asks_for_proof(&self) -> bool {
        self.proofs.is_some()
    }

    /// Lets a host connect, if it gives the proof that is returned.
    pub(super) fn admit(&self, host: &str) -> Result<Option<Proof>, NotAllowed> {
        if self.hosts.as_ref().is_some_and(|hosts| !hosts.contains(host)) {
            return Err(NotAllowed);
        }
        let Some(Proofs { secrets, random }) = &self.proofs else { return Ok(None) };
        let secrets = secrets.get(host).ok_or(NotAllowed)?.clone();
        Ok(Some(Proof { secrets, random: *random }))
    }
}

/// The access that a server gives to a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AccessState {
    /// Hosts use the volume here.
    #[default]
    Optimized,
    /// Hosts use another path, and wait while there is none.
    Inaccessible,
    /// The state is about to change. Hosts wait for that, at most
    /// [`CHANGE_MOST_SECONDS`].
    Change,
}

/// The time after which hosts give a path up whose state is [`AccessState::Change`].
pub const CHANGE_MOST_SECONDS: u8 = 10;

impl AccessState {
    /// The number of the state in the log of access.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Optimized => 0x01,
            Self::Inaccessible => 0x03,
            Self::Change => 0x0f,
        }
    }
}

/// A port of a subsystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Its number, which no other port of the subsystem has, on any server.
    pub id: u16,
    /// Its address, perhaps that of any interface.
    pub address: SocketAddr,
}

/// The ways to a subsystem.
#[derive(Debug, Default)]
pub struct Paths(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    ports: Vec<Port>,
    /// Changes of the ports.
    port_changes: u64,
    /// The access to volumes, by name, where it is not the usual one.
    access: BTreeMap<String, AccessState>,
    /// Changes of the access.
    access_changes: u64,
}

impl Paths {
    /// Names the ports that hosts discover. Without any they discover the address that they call.
    pub fn set_ports(&self, ports: Vec<Port>) {
        let mut state = self.write();
        if state.ports != ports {
            state.ports = ports;
            state.port_changes += 1;
        }
    }

    /// Sets the access to a volume. It need not be there yet.
    pub fn set_access(&self, volume: &str, access: AccessState) {
        let mut state = self.write();
        let before = match access {
            AccessState::Optimized => state.access.remove(volume),
            _ => state.access.insert(volume.to_owned(), access),
        };
        state.access_changes += u64::from(before.unwrap_or_default() != access);
    }

    /// Returns the access to a volume.
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

    /// The ports that a host reaches who has called this address, which is among them.
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

    /// Locks, also after a thread has panicked: each change is complete by itself.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address by which a host reaches a listener who has reached `called`, if it does.
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
