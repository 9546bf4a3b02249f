//! The `mkdwarfs` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(redwarfs_tools::mkdwarfs::main(
        std::env::args_os().collect(),
    ))
}
