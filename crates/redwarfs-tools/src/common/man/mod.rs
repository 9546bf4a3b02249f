//! The manuals: one source for `--man`, for the installed manual pages and for those in the book.
//!
//! The options come from the command line of a tool ([`clap::Command`]). Everything else comes from a text
//! of the tool, written in a subset of Markdown (see [`parse`]).

mod document;
mod markdown;
mod pager;
mod parse;
mod roff;
mod text;

use clap::{Arg, Command};

use super::version::VERSION;

pub use document::{Block, Manual, Section, Span, Style};
pub use pager::{print_long, show};
pub use parse::parse;

/// The end of every manual.
const COMMON: &str = include_str!("../../../manual/common.md");

impl Manual {
    /// The manual of a program: `text`, with the options of `command` and `more_options` after its
    /// chapter `DESCRIPTION`.
    #[must_use]
    pub fn new(command: &Command, text: &str, more_options: &[Section]) -> Self {
        let mut command = command.clone();
        command.build();
        let mut sections = parse(text);
        let at = sections
            .iter()
            .position(|section| section.title == "DESCRIPTION")
            .map_or(0, |at| at + 1);
        let mut options = options(&command);
        options.extend_from_slice(more_options);
        if let Some(notes) = command.get_after_long_help() {
            let lines = notes.to_string().lines().map(str::to_owned).collect();
            options.push(Section {
                title: String::from("TABLES"),
                blocks: vec![Block::Literal(lines)],
            });
        }
        sections.splice(at..at, options);
        // A tool may have its own text in a common chapter.
        for common in parse(COMMON) {
            match sections.iter_mut().find(|own| own.title == common.title) {
                Some(own) => own.blocks.extend(common.blocks),
                None => sections.push(common),
            }
        }
        Self {
            summary: command
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default()
                .trim_end_matches('.')
                .to_owned(),
            name: command.get_name().to_owned(),
            section: 1,
            sections,
        }
    }

    /// A page that is not about a program: the chapters of `text`.
    #[must_use]
    pub fn page(name: &str, section: u8, summary: &str, text: &str) -> Self {
        Self {
            name: name.to_owned(),
            section,
            summary: summary.to_owned(),
            sections: parse(text),
        }
    }

    /// The blocks of the chapter `title`; none if there is no such chapter.
    #[must_use]
    pub fn chapter(&self, title: &str) -> &[Block] {
        self.sections
            .iter()
            .find(|section| section.title == title)
            .map_or(&[], |section| &section.blocks)
    }

    /// The manual page in the language of `man(1)`.
    #[must_use]
    pub fn to_roff(&self) -> String {
        roff::render(self, &format!("RedwarFS {VERSION}"))
    }

    /// The manual as a page of a book, in Markdown.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        markdown::render(self)
    }

    /// The manual as plain text with lines of at most `width` columns (where words allow), with
    /// escape sequences for bold and underlined if `fancy`.
    #[must_use]
    pub fn to_text(&self, width: usize, fancy: bool) -> String {
        text::render(self, width, fancy)
    }
}

/// One chapter per heading of the options.
fn options(command: &Command) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut shown: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .collect();
    // Mandatory arguments first, options of all programs last.
    shown.sort_by_key(|arg| match arg.get_id().as_str() {
        "man" | "help" | "version" => 2,
        _ if arg.is_positional() => 0,
        _ => 1,
    });
    for arg in shown {
        let title = arg
            .get_help_heading()
            .map_or_else(|| String::from("OPTIONS"), str::to_uppercase);
        let block = Block::Definition {
            term: term(arg),
            body: description(arg),
        };
        match sections.iter_mut().find(|section| section.title == title) {
            Some(section) => section.blocks.push(block),
            None => sections.push(Section {
                title,
                blocks: vec![block],
            }),
        }
    }
    // Options without a heading come first.
    sections.sort_by_key(|section| section.title != "OPTIONS");
    sections
}

fn term(arg: &Arg) -> Vec<Span> {
    let mut spans = Vec::new();
    let value: Option<String> = arg.get_action().takes_values().then(|| {
        arg.get_value_names()
            .unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    });
    if arg.is_positional() {
        spans.push(Span::new(Style::Italic, value.unwrap_or_default()));
        return spans;
    }
    let mut names: Vec<String> = arg
        .get_short_and_visible_aliases()
        .unwrap_or_default()
        .iter()
        .map(|short| format!("-{short}"))
        .collect();
    names.extend(
        arg.get_long_and_visible_aliases()
            .unwrap_or_default()
            .iter()
            .map(|long| format!("--{long}")),
    );
    for (at, name) in names.iter().enumerate() {
        if at > 0 {
            spans.push(Span::new(Style::Plain, ", "));
        }
        spans.push(Span::new(Style::Bold, name));
    }
    if let Some(value) = value {
        let optional = arg.get_num_args().is_some_and(|n| n.min_values() == 0);
        let joint = match (arg.get_long().is_some(), arg.is_require_equals_set()) {
            (true, _) | (_, true) => "=",
            (false, false) => " ",
        };
        let (open, close) = if optional { ("[", "]") } else { ("", "") };
        spans.push(Span::new(Style::Plain, format!("{open}{joint}")));
        spans.push(Span::new(Style::Italic, value));
        if optional {
            spans.push(Span::new(Style::Plain, close));
        }
    }
    spans
}

fn description(arg: &Arg) -> Vec<Block> {
    let text = arg
        .get_long_help()
        .or_else(|| arg.get_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut paragraphs: Vec<Vec<Span>> = text
        .split("\n\n")
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|text| !text.is_empty())
        .map(|text| vec![Span::new(Style::Plain, text)])
        .collect();
    // An option without value has a default of the parser, which is not shown.
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .filter(|_| arg.get_action().takes_values() && !arg.is_hide_default_value_set())
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    let values: Vec<_> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !arg.is_hide_possible_values_set() && !value.is_hide_set())
        .map(|value| value.get_name().to_owned())
        .collect();
    let mut remark = String::new();
    if arg.get_action().takes_values() && !values.is_empty() {
        remark.push_str(&format!("One of {}.", values.join(", ")));
    }
    if !defaults.is_empty() {
        if !remark.is_empty() {
            remark.push(' ');
        }
        remark.push_str(&format!("Default: {}.", defaults.join(" ")));
    }
    if !remark.is_empty() {
        match paragraphs.first_mut() {
            Some(first) => {
                let full_stop = first
                    .last()
                    .is_some_and(|span| span.text.ends_with(['.', '!', '?']));
                let joint = if full_stop { " " } else { ". " };
                first.push(Span::new(Style::Plain, format!("{joint}{remark}")));
            }
            None => paragraphs.push(vec![Span::new(Style::Plain, remark)]),
        }
    }
    paragraphs.into_iter().map(Block::Paragraph).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgAction;

    fn command() -> Command {
        Command::new("tool")
            .about("does things.")
            .disable_help_flag(true)
            .arg(Arg::new("file").value_name("FILE").required(true))
            .arg(
                Arg::new("level")
                    .short('l')
                    .long("level")
                    .value_name("N")
                    .default_value("3")
                    .help("How much"),
            )
            .arg(
                Arg::new("all")
                    .long("all")
                    .help("Everything.\n\nReally\neverything.")
                    .help_heading("More")
                    .action(ArgAction::SetTrue),
            )
    }

    #[test]
    fn options_become_sections() {
        let manual = Manual::new(&command(), "", &[]);
        assert_eq!(manual.summary, "does things");
        let titles: Vec<_> = manual.sections.iter().map(|s| s.title.as_str()).collect();
        assert_eq!(titles[..2], ["OPTIONS", "MORE"]);
        let text = manual.to_text(80, false);
        for part in [
            "tool(1) -- does things\n",
            "\n        FILE\n",
            "\n        -l, --level=N\n                How much. Default: 3.\n",
            "\nMORE\n        --all\n                Everything.\n\n                Really everything.\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }
}
