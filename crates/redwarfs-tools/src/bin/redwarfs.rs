//! The program that is all four tools.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(redwarfs_tools::universal::main(
        std::env::args_os().collect(),
    ))
}
