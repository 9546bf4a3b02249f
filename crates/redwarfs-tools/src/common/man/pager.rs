//! Shows long texts: through a pager on a terminal, as plain text otherwise.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};

use super::document::Manual;
use crate::common::console::{height_of, is_capable, width_of};

/// Shows the manual on standard output. On a terminal through `PAGER`, or `less -R` if there is
/// one.
pub fn show(manual: &Manual) {
    let out = io::stdout();
    if !out.is_terminal() {
        return print(&manual.to_text(width_of(&out), false));
    }
    page(&manual.to_text(width_of(&out), is_capable(&out)));
}

/// Prints a text to standard output, through a pager if that is a terminal with fewer rows.
/// `fancy` is the same text with escape sequences.
pub fn print_long(text: &str, fancy: &str) {
    let out = io::stdout();
    if !out.is_terminal() {
        return print(text);
    }
    let text = if is_capable(&out) { fancy } else { text };
    // A row is left for the prompt.
    match text.lines().count() < height_of(&out) {
        true => print(text),
        false => page(text),
    }
}

fn page(text: &str) {
    let paged = match pager(std::env::var("PAGER").ok().as_deref()) {
        Pager::None => false,
        Pager::Program(words) => run(&words, text),
        Pager::Default => run(&["less".to_owned(), "-R".to_owned()], text),
    };
    if !paged {
        print(text);
    }
}

fn print(text: &str) {
    let mut out = io::stdout().lock();
    // A closed pipe (`| head`) is no reason to complain.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[derive(Debug, PartialEq, Eq)]
enum Pager {
    None,
    Default,
    Program(Vec<String>),
}

/// Understands the variable `PAGER`.
fn pager(variable: Option<&str>) -> Pager {
    let Some(value) = variable else {
        return Pager::Default;
    };
    let value = value.trim();
    let value = value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'))
        .unwrap_or(value);
    let mut words: Vec<String> = value.split_whitespace().map(str::to_owned).collect();
    let program = words.first().map(|word| {
        let base = word.rsplit('/').next().unwrap_or(word);
        base.to_owned()
    });
    match (program.as_deref(), words.len()) {
        (None, _) => Pager::Default,
        (Some("cat"), _) => Pager::None,
        (Some("less"), 1) => {
            words.push("-R".to_owned());
            Pager::Program(words)
        }
        _ => Pager::Program(words),
    }
}

/// False if the pager cannot be started.
fn run(words: &[String], text: &str) -> bool {
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    let child = Command::new(OsStr::new(program))
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        return false;
    };
    if let Some(mut input) = child.stdin.take() {
        // Fails when the reader quits early.
        let _ = input.write_all(text.as_bytes());
    }
    child.wait().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pager_rules() {
        let program = |words: &[&str]| Pager::Program(words.iter().map(|&w| w.into()).collect());
        for (variable, want) in [
            (None, Pager::Default),
            (Some(""), Pager::Default),
            (Some("\"\""), Pager::Default),
            (Some("cat"), Pager::None),
            (Some("/bin/cat"), Pager::None),
            (Some("less"), program(&["less", "-R"])),
            (Some("\"less\""), program(&["less", "-R"])),
            (Some("less -X"), program(&["less", "-X"])),
            (Some("most  -w"), program(&["most", "-w"])),
        ] {
            assert_eq!(pager(variable), want, "{variable:?}");
        }
    }

    #[test]
    fn a_missing_pager_is_noticed() {
        assert!(!run(&["/no/such/pager".to_owned()], "x"));
        assert!(run(&["true".to_owned()], "x"));
    }
}
