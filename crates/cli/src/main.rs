//! The `memplan` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(memplan_cli::main(std::env::args_os()))
}
