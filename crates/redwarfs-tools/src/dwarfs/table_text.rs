//! Help and manual of the `-o` options.

use std::fmt::Write as _;

use super::entry::Group;
use super::table::OPTIONS;
use crate::common::man::{Block, Section, parse};

/// Columns of the left part of the help text.
const LEFT: usize = 28;

/// The options for the help text: at most 80 columns.
pub(super) fn help() -> String {
    let mut out = String::new();
    for group in Group::ALL {
        if group == Group::Ignored {
            continue;
        }
        let _ = writeln!(out, "{} (-o):", group.title());
        for entry in OPTIONS.iter().filter(|entry| entry.group == group) {
            let default = match entry.default {
                "" => String::new(),
                default => format!(" ({default})"),
            };
            let _ = writeln!(
                out,
                "  {:<width$} {}{default}",
                entry.form,
                entry.help,
                width = LEFT - 3
            );
        }
        out.push('\n');
    }
    out
}

/// The options for the manual.
pub(super) fn manual() -> Vec<Section> {
    let mut sections = Vec::new();
    for group in Group::ALL {
        let mut blocks = Vec::new();
        if group == Group::Ignored {
            let text = "The driver accepts these options without effect, so that lines of `/etc/fstab` and command lines for other FUSE drivers work:";
            let list = OPTIONS
                .iter()
                .filter(|entry| entry.group == group)
                .map(|entry| format!("`{}`", entry.form))
                .collect::<Vec<_>>()
                .join(", ");
            let more = "It also accepts the flags of mount(8) for times and for writing, and options that begin with `x-` or `X-`. `enable_nlink`, `(no_)cache_image` and `rw` give a warning. Every other unknown option is an error.";
            blocks = paragraphs(&format!("{text} {list}. {more}"));
        }
        for entry in OPTIONS
            .iter()
            .filter(|entry| entry.group == group && group != Group::Ignored)
        {
            let mut help = String::new();
            let mut chars = entry.help.chars();
            help.extend(chars.next().map(|first| first.to_ascii_uppercase()));
            help.push_str(chars.as_str());
            let mut text = format!("{help}. {}", entry.more);
            if !entry.acts_on_windows() {
                text.push_str(" Not on Windows.");
            }
            if !entry.default.is_empty() {
                text.push_str(&format!(" Default: {}.", entry.default));
            }
            let term = match entry.form.split_once('=') {
                Some((name, value)) => format!("`{name}=`*{value}*"),
                None => format!("`{}`", entry.form),
            };
            blocks.extend(paragraphs(&format!("{term}\n: {text}")));
        }
        sections.push(Section {
            title: format!("OPTIONS FOR -o: {}", group.title().to_uppercase()),
            blocks,
        });
    }
    sections
}

fn paragraphs(text: &str) -> Vec<Block> {
    parse(&format!("# X\n{text}\n"))
        .into_iter()
        .flat_map(|section| section.blocks)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_eighty_columns() {
        for line in help().lines() {
            assert!(line.chars().count() <= 80, "{line}");
            if line.starts_with("  ") {
                // A space separates the name from the explanation.
                assert!(line.get(2..).is_some_and(|l| l.contains(' ')), "{line}");
            }
        }
        for entry in OPTIONS.iter().filter(|e| e.group != Group::Ignored) {
            assert!(entry.form.len() < LEFT - 2, "{}", entry.form);
            assert!(!entry.help.is_empty(), "{}", entry.form);
        }
    }
}
