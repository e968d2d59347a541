//! The NVMe hosts that may connect, from a list of names and a file of secrets.
//!
//! A line of the file is `HOSTNQN SECRET`. A second secret after it is the controller's, for hosts
//! that want the server to prove its name too. Empty lines and those that begin with `#` are
//! ignored.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use floe_nvme::target::access::{AccessRules, HostSecrets};
use floe_nvme::target::subsystem::check_nqn;

use crate::socket_file::read_private;

/// Largest file of secrets that is read, in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// The NVMe hosts that may connect. Clones share one set of rules, also after a reload. The default
/// admits every host.
#[derive(Debug, Clone, Default)]
pub struct NvmeAccess {
    hosts: Vec<String>,
    file: Option<PathBuf>,
    rules: Arc<RwLock<AccessRules>>,
}

/// An error while reading the file of NVMe host secrets.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct NvmeSecretsError {
    file: PathBuf,
    problem: String,
}

impl NvmeAccess {
    /// Admits only the hosts with these names, or all hosts if the list is empty. With a file,
    /// hosts must also prove that they know their secret.
    ///
    /// # Errors
    /// When the file cannot be read, other users can read it, or a line of it is wrong.
    pub fn new(hosts: Vec<String>, file: Option<&Path>) -> Result<Self, NvmeSecretsError> {
        let new = Self { hosts, file: file.map(Path::to_owned), rules: Arc::default() };
        new.reload()?;
        Ok(new)
    }

    /// Reads the file of secrets again, for all clones. Connected hosts stay connected.
    ///
    /// # Errors
    /// As of [`NvmeAccess::new`]; the secrets stay unchanged then.
    pub fn reload(&self) -> Result<(), NvmeSecretsError> {
        let mut rules = AccessRules::default();
        if !self.hosts.is_empty() {
            rules = rules.only(self.hosts.iter().cloned());
        }
        if let Some(file) = &self.file {
            let secrets = read_private(file, MOST_BYTES).and_then(|text| secrets_in(&text));
            let refuse = |problem| NvmeSecretsError { file: file.clone(), problem };
            rules = rules.with_secrets(secrets.map_err(refuse)?, random);
        }
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
        Ok(())
    }

    /// Returns whether hosts must prove their names by a secret.
    pub fn has_secrets(&self) -> bool {
        self.file.is_some()
    }

    pub(crate) fn rules(&self) -> &Arc<RwLock<AccessRules>> {
        &self.rules
    }
}

fn secrets_in(text: &str) -> Result<BTreeMap<String, HostSecrets>, String> {
    if text.len() as u64 > MOST_BYTES {
        return Err("it is too long".to_owned());
    }
    let mut secrets = BTreeMap::new();
    let is_content = |line: &str| !line.trim().is_empty() && !line.starts_with('#');
    for (number, line) in text.lines().enumerate().filter(|(_, line)| is_content(line)) {
        let wrong = |problem: String| format!("line {}: {problem}", number + 1);
        let words: Vec<&str> = line.split_whitespace().collect();
        let [host, secret, controller @ ..] = &words[..] else {
            return Err(wrong("write HOSTNQN DHHC-1:…".to_owned()));
        };
        if controller.len() > 1 {
            return Err(wrong("more than a host and two secrets".to_owned()));
        }
        check_nqn(host).map_err(|error| wrong(error.to_string()))?;
        let parse = |text: &str| text.parse().map_err(|error| wrong(format!("{error}")));
        let controller = controller.first().map(|text| parse(text)).transpose()?;
        let found = HostSecrets { host: parse(secret)?, controller };
        match secrets.entry((*host).to_owned()) {
            Entry::Occupied(_) => return Err(wrong(format!("{host} is listed twice"))),
            Entry::Vacant(place) => place.insert(found),
        };
    }
    if secrets.is_empty() {
        return Err("it names no host: write lines such as HOSTNQN DHHC-1:…, with secrets from \
                    nvme gen-dhchap-key"
            .to_owned());
    }
    Ok(secrets)
}

/// Fills a buffer with random bytes of the operating system. Returns whether that succeeded.
fn random(bytes: &mut [u8]) -> bool {
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use floe_nvme::auth::Secret;

    use super::*;

    fn secret(seed: u8) -> String {
        Secret::new(&[seed; 32], None).unwrap().to_text()
    }

    #[test]
    fn lines_have_a_host_and_its_secrets() {
        let (one, two, three) = (secret(1), secret(2), secret(3));
        let host = |name: &str| format!("nqn.2026-11.io.example:{name}");
        let (a, b) = (host("a"), host("b"));
        let text = format!("# hosts\n\n{a} {one}\n  {b}\t{two}  {three}\n");
        let found = secrets_in(&text).unwrap();
        let secrets = |text: &str| text.parse().unwrap();
        assert_eq!(found[&a], HostSecrets { host: secrets(&one), controller: None });
        let controller = Some(secrets(&three));
        assert_eq!(found[&b], HostSecrets { host: secrets(&two), controller });
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let (host, good) = ("nqn.2026-11.io.example:a", secret(1));
        for (text, problem) in [
            (String::new(), "names no host"),
            ("# nothing\n".to_owned(), "names no host"),
            (format!("\n{host}\n"), "line 2: write HOSTNQN DHHC-1:"),
            (format!("host {good}"), "line 1: \"host\" is no NVMe qualified name"),
            (format!("{host} secret"), "line 1: a secret has the form DHHC-1:"),
            (format!("{host} {good} {good} {good}"), "line 1: more than"),
            (format!("{host} {good}\n{host} {good}"), "line 2: nqn.2026-11.io.example:a is listed"),
        ] {
            let error = secrets_in(&text).unwrap_err();
            assert!(error.starts_with(problem) || error.contains(problem), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_file_is_read_again_and_a_bad_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        write(&format!("nqn.2026-11.io.example:a {}", secret(1)), 0o604);
        let error = NvmeAccess::new(Vec::new(), Some(&path)).unwrap_err().to_string();
        assert!(error.contains("other users can use it (mode 604)"), "{error}");
        write(&format!("nqn.2026-11.io.example:a {}", secret(1)), 0o600);
        let access = NvmeAccess::new(Vec::new(), Some(&path)).unwrap();
        let rules = || format!("{:?}", access.rules());
        let before = rules();
        write("nothing", 0o600);
        assert!(access.reload().is_err());
        assert_eq!(rules(), before);
        write(&format!("nqn.2026-11.io.example:b {}", secret(1)), 0o600);
        access.reload().unwrap();
        assert!(rules() != before && rules().contains("example:b"));
        assert!(!rules().contains("[1, 1"), "secrets are not shown");
    }

    #[test]
    fn random_bytes_differ() {
        let (mut one, mut two) = ([0; 32], [0; 32]);
        assert!(random(&mut one) && random(&mut two) && one != two);
    }
}
