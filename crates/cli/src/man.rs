//! `floe man` and `floe completions`: manual pages and shell completions for packagers. Both are
//! generated from the definition of the command line, so that they cannot differ from it.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::error::{CliError, OrFail};

const MAN_EXAMPLES: &str = "\
Examples:
  floe man /usr/local/share/man/man1";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  floe completions bash > /etc/bash_completion.d/floe";

#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct Arguments {
    /// Folder for the pages; created if missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArguments {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments, mut program: clap::Command) -> Result<(), CliError> {
    program = program.disable_help_subcommand(true);
    program.build(); // gives each command the name of those above it
    std::fs::create_dir_all(&arguments.folder)
        .and_then(|()| write_pages(&program, &arguments.folder))
        .map_err(|error| CliError::failure(format!("{}: {error}", arguments.folder.display())))
}

pub(crate) fn completions(
    arguments: &CompletionsArguments,
    mut program: clap::Command,
) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "floe", &mut script);
    std::io::stdout().write_all(&script).or_failure()
}

fn write_pages(command: &clap::Command, folder: &Path) -> std::io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_pages(command, folder)?;
    }
    let help = command.get_after_help().map(|text| text.to_string()).unwrap_or_default();
    let man = Man::new(command.clone().after_help(None::<&str>));
    let man = man.source(concat!("floe ", env!("CARGO_PKG_VERSION"))).manual("Floe");
    let mut page = Vec::new();
    man.render(&mut page)?;
    // The generator would set the text below the help as running text; its lines must stay lines.
    for (heading, text) in sections(&help) {
        let mut section = Roff::default();
        section.control("SH", [heading]).control("nf", []).text([roman(text)]).control("fi", []);
        section.to_writer(&mut page)?;
    }
    std::fs::write(folder.join(man.get_filename()), page)
}

/// Splits the text after a command's help into sections: examples under their heading, and notes
/// before and after them.
fn sections(help: &str) -> Vec<(&'static str, String)> {
    let (before, examples) = help.split_once("Examples:\n").unwrap_or((help, ""));
    let (examples, after) = examples.split_once("\n\n").unwrap_or((examples, ""));
    let notes = [before.trim_end(), after].into_iter().filter(|text| !text.is_empty());
    let notes = notes.collect::<Vec<_>>().join("\n\n");
    let sections = [("NOTES", notes), ("EXAMPLES", examples.to_owned())];
    sections.into_iter().filter(|(_, text)| !text.is_empty()).collect()
}
