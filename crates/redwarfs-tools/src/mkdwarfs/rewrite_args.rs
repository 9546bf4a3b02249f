//! The options of a rewrite: `--recompress` and its relatives.

use redwarfs_rewrite::CategoryFilter;

use super::definition::Definition as _;
use super::definition::WhenRewriting::{NeedsRebuild, Used};
use crate::common::cli::whole;

/// Which parts of an image are compressed anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recompress {
    All,
    Block,
    Metadata,
    None,
}

fn recompress(text: &str) -> Result<Recompress, String> {
    match text {
        "all" => Ok(Recompress::All),
        "block" => Ok(Recompress::Block),
        "metadata" => Ok(Recompress::Metadata),
        "none" => Ok(Recompress::None),
        _ => Err(format!(
            "invalid recompress mode: {text} (all, block, metadata, none)"
        )),
    }
}

fn categories(text: &str) -> Result<CategoryFilter, String> {
    let (exclude, list) = match text.strip_prefix('!') {
        Some(list) => (true, list),
        None => (false, text),
    };
    let names: Vec<String> = list.split(',').map(str::to_owned).collect();
    if names.iter().any(String::is_empty) {
        return Err(format!("empty name of a category: '{text}'"));
    }
    Ok(CategoryFilter::new(names, exclude))
}

/// Options that turn the input into an image that is rewritten.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RewriteArgs {
    /// Rewrite the input image with other compression: all, block, metadata, none
    ///
    /// All other sections are copied. Even 'none' converts old images to the current format.
    #[arg(long, value_name = "MODE", num_args = 0..=1, default_missing_value = "all", help_heading = "Rewriting options", value_parser = whole(recompress), when_rewriting = Used)]
    pub recompress: Option<Recompress>,

    /// Recompress only blocks of these categories; with a leading '!', of all others
    #[arg(long, value_name = "[!]CATEGORY,...", help_heading = "Rewriting options", value_parser = whole(categories), when_rewriting = Used)]
    pub recompress_categories: Option<CategoryFilter>,

    /// Rewrite the input image with metadata of the current version, and apply the metadata options
    #[arg(long, help_heading = "Rewriting options", when_rewriting = Used)]
    pub rebuild_metadata: bool,

    /// Rewrite the input image with the block size of --block-size-bits
    #[arg(long, help_heading = "Rewriting options", when_rewriting = Used)]
    pub change_block_size: bool,

    /// Do not record the previous version of the metadata, and drop earlier records
    #[arg(long, help_heading = "Rewriting options", when_rewriting = NeedsRebuild)]
    pub no_metadata_version_history: bool,

    /// Do not verify the whole image before rewriting it
    ///
    /// Every section is still verified when it is read.
    #[arg(long, help_heading = "Rewriting options", when_rewriting = Used)]
    pub no_check: bool,

    /// Drop the data before the input image
    #[arg(long, help_heading = "Rewriting options", conflicts_with = "header", when_rewriting = Used)]
    pub remove_header: bool,
}

impl RewriteArgs {
    /// Whether the input is an image to rewrite.
    pub(crate) fn is_wanted(&self) -> bool {
        self.recompress.is_some() || self.rebuild_metadata || self.change_block_size
    }

    /// Whether it makes the metadata anew.
    pub(crate) fn rebuilds(&self) -> bool {
        self.rebuild_metadata || self.change_block_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_categories() {
        let filter = |names: &[&str], exclude| {
            CategoryFilter::new(names.iter().map(|&n| n.to_owned()).collect(), exclude)
        };
        assert_eq!(categories("a"), Ok(filter(&["a"], false)));
        assert_eq!(categories("a/b,c"), Ok(filter(&["a/b", "c"], false)));
        assert_eq!(categories("!a,c"), Ok(filter(&["a", "c"], true)));
        for bad in ["", "!", "a,", ",a", "!a,,b"] {
            assert!(categories(bad).is_err(), "{bad}");
        }
    }
}
