//! The `dwarfsck` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(redwarfs_tools::dwarfsck::main(
        std::env::args_os().collect(),
    ))
}
