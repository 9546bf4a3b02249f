//! Generates manual pages, completions and the source of the book from the command lines of the tools.
//!
//! ```text
//! cargo run -p xtask -- man DIR           manual pages: DIR/mkdwarfs.1, ...
//! cargo run -p xtask -- completions DIR   DIR/mkdwarfs.bash, DIR/_mkdwarfs, DIR/mkdwarfs.fish, ...
//! cargo run -p xtask -- book DIR          the source of the book for mdBook; scripts/book builds it
//! ```
//!
//! The texts of the manuals are in `crates/redwarfs-tools/manual/`.

mod book;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::Shell;
use redwarfs_tools::tools;

fn man(out: &Path) -> Result<(), Box<dyn Error>> {
    for tool in tools() {
        let manual = tool.manual();
        std::fs::write(out.join(format!("{}.1", manual.name)), manual.to_roff())?;
    }
    // The name under which mount(8) calls the driver.
    std::fs::write(out.join("mount.dwarfs.8"), ".so man1/dwarfs.1\n")?;
    Ok(())
}

fn completions(out: &Path) -> Result<(), Box<dyn Error>> {
    for mut command in tools().map(|tool| tool.command) {
        let name = command.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command, &name, out)?;
        }
    }
    Ok(())
}

/// Writes files into a directory that exists.
type Task = fn(&Path) -> Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (task, out): (Task, PathBuf) = match args.as_slice() {
        [task, out] if task == "man" => (man, out.into()),
        [task, out] if task == "completions" => (completions, out.into()),
        [task, out] if task == "book" => (book::book, out.into()),
        _ => {
            eprintln!("usage: cargo run -p xtask -- man|completions|book OUT");
            return ExitCode::FAILURE;
        }
    };
    let done = std::fs::create_dir_all(&out)
        .map_err(Into::into)
        .and_then(|()| task(&out));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {}: {error}", out.display());
            ExitCode::FAILURE
        }
    }
}
