//! Generates what is derived from the command lines of the tools: manual pages and completions.
//!
//! ```text
//! cargo run -p xtask -- man DIR           manual pages: DIR/mkdwarfs.1, ...
//! cargo run -p xtask -- completions DIR   DIR/mkdwarfs.bash, DIR/_mkdwarfs, DIR/mkdwarfs.fish, ...
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// Manual pages that are written by hand, because their tool is not parsed by `clap`.
const HAND_WRITTEN: &str = "docs/man";

fn commands() -> Vec<Command> {
    let commands = vec![
        redwarfs_tools::mkdwarfs::command(),
        redwarfs_tools::dwarfs::command(),
        redwarfs_tools::dwarfsck::command(),
        redwarfs_tools::dwarfsextract::command(),
    ];
    // The banner names the libraries of this very build, which have no place in a manual.
    commands
        .into_iter()
        .map(|command| command.before_help(""))
        .collect()
}

fn man(out: &Path) -> Result<(), Box<dyn Error>> {
    for command in commands() {
        let path = out.join(format!("{}.1", command.get_name()));
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        std::fs::write(path, page)?;
    }
    let pages = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(HAND_WRITTEN);
    if pages.is_dir() {
        for page in std::fs::read_dir(pages)? {
            let page = page?;
            std::fs::copy(page.path(), out.join(page.file_name()))?;
        }
    }
    Ok(())
}

fn completions(out: &Path) -> Result<(), Box<dyn Error>> {
    for mut command in commands() {
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
        _ => {
            eprintln!("usage: cargo run -p xtask -- man|completions OUT");
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
