//! `memplan completions` and `memplan man`: completion scripts and manual pages, made from the command's flags.

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::Failure;
use crate::output::{write_folder, write_result};

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// Name of the shell
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Folder to write to: one page for the command and one for each verb
    folder: String,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "memplan", &mut script);
    write_result(None, script)
}

pub(crate) fn man(args: &ManArgs, mut command: Command) -> Result<(), Failure> {
    command.build();
    let page = |command: &Command| {
        // Their names in clap include the name of the command.
        let name = command.get_display_name().unwrap_or(command.get_name());
        let mut text = Vec::new();
        Man::new(command.clone()).render(&mut text).map(|()| (format!("{name}.1").into(), text))
    };
    let verbs = command.get_subcommands().filter(|verb| verb.get_name() != "help");
    let pages = std::iter::once(&command).chain(verbs).map(page);
    let pages: Vec<_> =
        pages.collect::<Result<_, std::io::Error>>().map_err(|error| Failure::input(&error))?;
    write_folder(&args.folder, &pages)
}
