//! The directory that records the state of caches.

use std::path::{Path, PathBuf};

use floe_server::kept::StateDir;

/// The default for the super-user without systemd.
const OF_ROOT: &str = "/var/lib/floe";

/// Returns the given directory, or else that of systemd for a service, or that of the user. Only a
/// given directory has to be usable.
pub(crate) fn state_dir(given: Option<&Path>) -> Option<StateDir> {
    match given {
        Some(dir) => Some(StateDir::new(dir, true)),
        None => usual(|name| std::env::var(name).ok(), rustix::process::geteuid().is_root())
            .map(|dir| StateDir::new(dir, false)),
    }
}

fn usual(variable: impl Fn(&str) -> Option<String>, is_root: bool) -> Option<PathBuf> {
    let absolute = |text: String| Some(PathBuf::from(text)).filter(|path| path.is_absolute());
    let first = |text: String| text.split(':').next().map(str::to_owned);
    if let Some(dir) = variable("STATE_DIRECTORY").and_then(first).and_then(absolute) {
        return Some(dir);
    }
    if is_root {
        return Some(OF_ROOT.into());
    }
    let home = || Some(variable("HOME").and_then(absolute)?.join(".local/state"));
    Some(variable("XDG_STATE_HOME").and_then(absolute).or_else(home)?.join("floe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_where_systemd_says_or_the_system_has_it() {
        let dir = |variables: &[(&str, &str)], is_root| {
            let value = |name: &str| {
                let found = variables.iter().find(|(of, _)| *of == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            usual(value, is_root).map(|dir| dir.display().to_string())
        };
        let (systemd, home) =
            (("STATE_DIRECTORY", "/var/lib/private/floe:/x"), ("HOME", "/home/ann"));
        assert_eq!(dir(&[systemd, home], true).as_deref(), Some("/var/lib/private/floe"));
        assert_eq!(dir(&[home], true).as_deref(), Some("/var/lib/floe"));
        assert_eq!(dir(&[home], false).as_deref(), Some("/home/ann/.local/state/floe"));
        let state = ("XDG_STATE_HOME", "/state");
        assert_eq!(dir(&[state, home], false).as_deref(), Some("/state/floe"));
        assert_eq!(dir(&[("XDG_STATE_HOME", "state")], false), None);
    }
}
