//! Further parts of the definition of an option: its meaning for a rewrite, and whether several values
//! may follow it.
//!
//! An option says this where it is defined, as `#[arg(when_rewriting = Refused, list = true)]`. All
//! other code reads these two properties from the command, so that no other place lists options by name.

use clap::parser::ValueSource;
use clap::{Arg, ArgGroup, ArgMatches, Command};

use crate::common::{Logger, Result, ToolError};

/// The meaning of a build option for a rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenRewriting {
    /// The rewrite uses it.
    Used,
    /// It changes metadata. A rewrite that does not rebuild metadata refuses it.
    NeedsRebuild,
    /// It tunes a build and says nothing about the content of the image. A rewrite warns unless it packs
    /// new entries, also with `--change-block-size`: it does not search data again.
    NoEffect,
    /// As `NoEffect`, unless the rewrite changes the block size.
    NeedsBlockSize,
    /// It selects or changes entries. A rewrite that does not change the tree refuses it.
    NeedsTree,
    /// It is about reading directories and archives. A rewrite refuses it unless it adds some.
    NeedsSource,
    /// A rewrite cannot have its effect.
    Refused,
}

use WhenRewriting::{
    NeedsBlockSize, NeedsRebuild, NeedsSource, NeedsTree, NoEffect, Refused, Used,
};

impl WhenRewriting {
    const ALL: [Self; 7] = [
        Used,
        NeedsRebuild,
        NoEffect,
        NeedsBlockSize,
        NeedsTree,
        NeedsSource,
        Refused,
    ];

    /// The group of the command line that has these options.
    fn group(self) -> &'static str {
        match self {
            Used => "rewriting: used",
            NeedsRebuild => "rewriting: needs a rebuild",
            NoEffect => "rewriting: no effect",
            NeedsBlockSize => "rewriting: needs a new block size",
            NeedsTree => "rewriting: needs a change of the tree",
            NeedsSource => "rewriting: needs a source",
            Refused => "rewriting: refused",
        }
    }
}

/// The group of the options that several values may follow.
const LISTS: &str = "lists";

/// What a definition says with `#[arg(...)]` besides the methods of [`Arg`].
pub(super) trait Definition {
    /// The meaning of the option for a rewrite.
    fn when_rewriting(self, meaning: WhenRewriting) -> Self;
    /// Whether the values may also follow one after the other, up to the next option.
    fn list(self, list: bool) -> Self;
}

impl Definition for Arg {
    fn when_rewriting(self, meaning: WhenRewriting) -> Self {
        self.group(meaning.group())
    }

    fn list(self, list: bool) -> Self {
        match list {
            true => self.group(LISTS),
            false => self,
        }
    }
}

/// Gives a command the groups that definitions put options into.
pub(super) fn with_groups(command: Command) -> Command {
    let names = WhenRewriting::ALL.map(WhenRewriting::group);
    let names = names.into_iter().chain([LISTS]);
    command.groups(names.map(|name| ArgGroup::new(name).multiple(true)))
}

/// The options of a command in a group, in the order of their definition.
fn members<'a>(built: &'a Command, group: &str) -> impl Iterator<Item = &'a Arg> {
    let group = built.get_groups().find(|known| known.get_id() == group);
    built.get_arguments().filter(move |arg| {
        group.is_some_and(|group| group.get_args().any(|member| member == arg.get_id()))
    })
}

/// An option that several values may follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    pub(super) short: Option<char>,
    /// With its dashes.
    pub(super) long: String,
}

/// The options that several values may follow.
pub(super) fn lists(mut command: Command) -> Vec<List> {
    command.build();
    let list = |arg: &Arg| {
        Some(List {
            short: arg.get_short(),
            long: format!("--{}", arg.get_long()?),
        })
    };
    members(&command, LISTS).filter_map(list).collect()
}

/// The meaning of an option for a rewrite, if it is defined.
pub(super) fn meaning(built: &Command, option: &Arg) -> Option<WhenRewriting> {
    WhenRewriting::ALL.into_iter().find(|meaning| {
        members(built, meaning.group()).any(|member| member.get_id() == option.get_id())
    })
}

/// The name of each option that is given on the command line, with its meaning for a rewrite.
fn given(mut command: Command, matches: &ArgMatches) -> Vec<(String, WhenRewriting)> {
    command.build();
    let is_given =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let options = command.get_arguments().filter(is_given);
    options
        .filter_map(|arg| Some((arg.get_long()?.to_owned(), meaning(&command, arg)?)))
        .collect()
}

/// What a rewrite does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Changes {
    /// It rebuilds metadata.
    pub(super) rebuilds: bool,
    /// It changes the size of blocks.
    pub(super) block_size: bool,
    /// It changes the tree.
    pub(super) tree: bool,
    /// It packs new entries.
    pub(super) adds: bool,
}

/// Refuses options that a rewrite cannot obey, and warns of those without effect.
pub(super) fn check_rewrite(
    command: Command,
    matches: &ArgMatches,
    changes: Changes,
    logger: &Logger,
) -> Result<()> {
    for (name, meaning) in given(command, matches) {
        let unless = match meaning {
            Used => continue,
            NeedsRebuild if changes.rebuilds => continue,
            NeedsRebuild => return Err(needs_error(&name, meaning)),
            NeedsBlockSize if changes.block_size || changes.adds => continue,
            NeedsBlockSize => " without '--change-block-size'",
            NoEffect if changes.adds => continue,
            NoEffect => "",
            NeedsTree if changes.tree => continue,
            NeedsSource if changes.adds => continue,
            NeedsTree | NeedsSource | Refused => {
                return Err(ToolError::new(format!(
                    "option '--{name}' cannot be used when an image is rewritten"
                )));
            }
        };
        logger.warn(format_args!(
            "option '--{name}' has no effect when an image is rewritten{unless}"
        ));
    }
    Ok(())
}

/// Refuses options that only a rewrite has, `only`, in a build.
pub(super) fn check_build(command: Command, matches: &ArgMatches, only: &Command) -> Result<()> {
    let is_only = |name: &str| only.get_arguments().any(|arg| arg.get_long() == Some(name));
    let mut given = given(command, matches).into_iter();
    match given.find(|(name, _)| is_only(name)) {
        Some((name, meaning)) => Err(needs_error(&name, meaning)),
        None => Ok(()),
    }
}

fn needs_error(option: &str, meaning: WhenRewriting) -> ToolError {
    let needs = match meaning {
        NeedsRebuild => "--rebuild-metadata",
        _ => "--recompress",
    };
    ToolError::new(format!("option '--{option}' needs '{needs}'"))
}
