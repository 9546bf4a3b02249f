//! The `dwarfs` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(redwarfs_tools::dwarfs::main(std::env::args_os().collect()))
}
