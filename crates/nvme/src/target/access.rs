//! The hosts that may connect, and the secrets by which they prove their names.

use std::collections::{BTreeMap, BTreeSet};

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
