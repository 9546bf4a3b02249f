//! Generates files from the command lines of the tools, from the book and from the lock file.
//!
//! ```text
//! cargo run -p xtask -- man DIR                manual pages: DIR/mkdwarfs.1, ...
//! cargo run -p xtask -- completions DIR        DIR/mkdwarfs.bash, DIR/_mkdwarfs, DIR/mkdwarfs.fish, ...
//! cargo run -p xtask -- book DIR               the source of the book for mdBook; scripts/book builds it
//! cargo run -p xtask -- licences DIR [TARGET]  DIR/third-party-licences.txt: what the programs contain
//! cargo run -p xtask -- sbom DIR [TARGET]      DIR/redwarfs.cdx.json: the same for programs (CycloneDX)
//! cargo run -p xtask -- share DIR [TARGET]     all of these but the book, for `scripts/install`
//! ```
//!
//! The texts of the manuals are in `crates/redwarfs-tools/manual/`. TARGET is the target triple that
//! the programs are built for, by default that of the compiler. `licences` fails if a licence does not
//! allow distribution under MIT or Apache-2.0.

mod book;
mod components;
mod licences;
mod sbom;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use clap_complete::Shell;
use redwarfs_tools::common::man::Manual;
use redwarfs_tools::common::tool::Tool;
use redwarfs_tools::{pages, runtime_manual, tools};

use components::components;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// All pages of the manual.
fn manuals() -> impl Iterator<Item = Manual> {
    let tools = tools().into_iter().map(|tool| tool.manual());
    tools.chain([runtime_manual()]).chain(pages())
}

fn man(out: &Path) -> Result<()> {
    for manual in manuals() {
        let name = format!("{}.{}", manual.name, manual.section);
        std::fs::write(out.join(name), manual.to_roff())?;
    }
    // The name under which mount(8) calls the driver.
    std::fs::write(out.join("mount.dwarfs.8"), ".so man1/dwarfs.1\n")?;
    Ok(())
}

fn completions(out: &Path) -> Result<()> {
    for mut command in tools().iter().map(Tool::completion) {
        let name = command.get_name().to_owned();
        if name == "redwarfs" {
            // Its first argument can be a tool, whose options follow.
            let others = tools().into_iter().filter(|tool| tool.name() != name);
            command = command
                .subcommands(others.map(|tool| tool.completion()))
                .disable_help_subcommand(true);
        }
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command, &name, out)?;
        }
    }
    Ok(())
}

fn write_licences(out: &Path, target: Option<&str>) -> Result<()> {
    let text = licences::text(&components(target)?)?;
    std::fs::write(out.join("third-party-licences.txt"), text)?;
    Ok(())
}

fn write_sbom(out: &Path, target: Option<&str>) -> Result<()> {
    let bill = sbom::bill(&components(target)?);
    let text = format!("{}\n", serde_json::to_string_pretty(&bill)?);
    std::fs::write(out.join("redwarfs.cdx.json"), text)?;
    Ok(())
}

fn share(out: &Path, target: Option<&str>) -> Result<()> {
    for (name, task) in [
        ("man", man as fn(&Path) -> Result<()>),
        ("completions", completions),
    ] {
        let dir = out.join(name);
        std::fs::create_dir_all(&dir)?;
        task(&dir)?;
    }
    write_licences(out, target)?;
    write_sbom(out, target)
}

fn run(task: &str, out: &Path, target: Option<&str>) -> Result<()> {
    std::fs::create_dir_all(out)?;
    match (task, target) {
        ("man", None) => man(out),
        ("completions", None) => completions(out),
        ("book", None) => book::book(out),
        ("licences", target) => write_licences(out, target),
        ("sbom", target) => write_sbom(out, target),
        ("share", target) => share(out, target),
        _ => Err(
            "usage: cargo run -p xtask -- man|completions|book|licences|sbom|share DIR [TARGET]"
                .into(),
        ),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.as_slice() {
        [task, out] => run(task, Path::new(out), None),
        [task, out, target] => run(task, Path::new(out), Some(target)),
        _ => run("", Path::new("."), None),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
