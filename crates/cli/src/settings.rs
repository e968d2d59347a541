//! The server settings as command-line options, generated from their declarations.
//!
//! The command line has all settings of a file. It describes one volume by `--backing`, `--volume`
//! and `--read-only`, and each tier below the first by one text.

use std::path::{Path, PathBuf};

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches, value_parser};
use floe_server::config::{
    Given, ServerConfig, Setting, SettingKind, TierConfig, VolumeConfig, own_forms, read_given,
};
use floe_server::persistent::StateDir;

use crate::error::{CliError, OrFail};

/// Name of the group of all settings, which conflicts with a file of settings.
const GROUP: &str = "settings";

/// Settings, given as options or in a file.
#[derive(Debug)]
pub(crate) struct Source {
    config: Option<PathBuf>,
    /// Settings of the whole server.
    server: Vec<Given>,
    volume: Vec<Given>,
    tiers: Vec<String>,
}

impl Source {
    /// Returns the settings, with the volume attached as a block device. A settings file must say
    /// that itself.
    pub(crate) fn attached(mut self) -> Self {
        self.volume.push(("attach".to_owned(), vec!["ublk".to_owned()]));
        self
    }

    /// Reads and validates the settings from options and file.
    pub(crate) fn config(self) -> Result<ServerConfig, CliError> {
        let Self { config, server, volume, tiers } = self;
        if let Some(file) = config {
            return ServerConfig::from_file(&file).or_usage();
        }
        let mut config: ServerConfig = read_given(server).or_usage()?;
        let volume: VolumeConfig = read_given(volume).or_usage()?;
        let name = volume.name.or_else(|| Some("floe".into()));
        config.volume = vec![VolumeConfig { name, ..volume }];
        let parse = |(index, text): (usize, &String)| {
            let problem = |problem| CliError::usage(format!("tier {}: {problem}", index + 1));
            TierConfig::parse(text).map_err(problem)
        };
        config.tier = tiers.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        config.validated().or_usage()
    }
}

/// Creates the command-line option of a setting.
fn option(setting: &Setting) -> Arg {
    let option = Arg::new(setting.option()).long(setting.option()).help(setting.help());
    let option = match setting.kind {
        SettingKind::Flag => return option.action(ArgAction::SetTrue),
        SettingKind::Number => option.value_parser(value_parser!(u64)),
        SettingKind::Text => option.value_parser(ValueParser::string()),
    };
    let option = option.value_name(setting.value).action(match setting.is_list {
        true => ArgAction::Append,
        false => ArgAction::Set,
    });
    match setting.bare {
        Some(bare) => option.num_args(0..=1).require_equals(true).default_missing_value(bare),
        None => option,
    }
}

fn volume_options() -> impl Iterator<Item = &'static Setting> {
    VolumeConfig::settings().filter(|setting| setting.is_option)
}

/// Returns the values of the settings that are given as options.
fn given<'a>(settings: impl Iterator<Item = &'a Setting>, matches: &ArgMatches) -> Vec<Given> {
    let values = |setting: &Setting| {
        let id = &setting.option();
        let given = match setting.kind {
            SettingKind::Flag => return matches.get_flag(id).then(Vec::new),
            SettingKind::Number => matches.get_many::<u64>(id)?.map(ToString::to_string).collect(),
            SettingKind::Text => matches.get_many::<String>(id)?.cloned().collect(),
        };
        Some(given)
    };
    settings.filter_map(|setting| Some((setting.name(), values(setting)?))).collect()
}

impl Args for Source {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config").long("config").value_name("FILE").conflicts_with(GROUP);
        let config = config.value_parser(value_parser!(PathBuf));
        let tier = format!(
            "A further tier, below --cache and the tiers before it; may be repeated. A device as \
             for --cache, with size=SIZE, and settings of the tier: {}",
            own_forms().into_iter().map(|form| format!(",{form}")).collect::<Vec<_>>().join(" ")
        );
        let tier = Arg::new("tier").long("tier").value_name("SPEC").help(tier);
        let tier = tier.action(ArgAction::Append).value_parser(ValueParser::string());
        let options: Vec<Arg> = ServerConfig::settings().map(option).collect();
        let of_volume = volume_options().map(option);
        let all: Vec<Arg> = of_volume.chain([tier]).chain(options).collect();
        let group = ArgGroup::new(GROUP).multiple(true).args(all.iter().map(Arg::get_id));
        let config = config.help("A file with the settings, instead of giving them here");
        command.arg(config).args(all).group(group)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Source {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            config: matches.get_one("config").cloned(),
            server: given(ServerConfig::settings(), matches),
            volume: given(volume_options(), matches),
            tiers: matches.get_many("tier").into_iter().flatten().cloned().collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Removes settings that only a server has from a command that uses the cache in another way.
pub(crate) fn without_server(command: Command) -> Command {
    let all = ServerConfig::settings().chain(volume_options());
    all.filter(|setting| !setting.replayed).fold(command, |command, setting| {
        // There is always a trace.
        command.mut_arg(setting.option(), |option| option.hide(true).conflicts_with("trace"))
    })
}

/// Returns an error message if a command line was refused because a replay was given a server-only
/// setting.
pub(crate) fn refused_by_replay(refusal: &clap::Error) -> Option<String> {
    let argument = |kind| match refusal.get(kind)? {
        ContextValue::String(one) => Some(one),
        ContextValue::Strings(some) => some.first(),
        _ => None,
    };
    let pair = [argument(ContextKind::InvalidArg)?, argument(ContextKind::PriorArg)?];
    let setting = match pair.map(|argument| argument == "<TRACE>") {
        [true, false] => pair[1],
        [false, true] => pair[0],
        _ => return None,
    };
    Some(format!("floe replay does not take '{setting}', a setting of floe serve"))
}

#[cfg(test)]
mod tests;

/// Default state directory of root when systemd provides none.
const OF_ROOT: &str = "/var/lib/floe";

/// Returns the given directory, or else that which systemd provides, or else the user's. Only a
/// given directory must be usable.
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
mod state_dir_tests {
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
