//! The `dwarfsextract` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(redwarfs_tools::dwarfsextract::main(
        std::env::args_os().collect(),
    ))
}
