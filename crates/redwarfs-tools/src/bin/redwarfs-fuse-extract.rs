//! The program that is `dwarfs` and `dwarfsextract`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(redwarfs_tools::universal::fuse_extract_main(
        std::env::args_os().collect(),
    ))
}
