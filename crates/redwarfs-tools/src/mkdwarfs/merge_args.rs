//! The options that join images and change their trees: `--merge` and its relatives.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::ArgAction;
use clap::builder::TypedValueParser as _;
use redwarfs_io::path;
use redwarfs_writer::plain_path;

use super::definition::Definition as _;
use super::definition::WhenRewriting::Used;
use crate::common::cli::whole;

/// How several images become one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Each in a directory of its own.
    Side,
    /// Later ones over earlier ones.
    Overlay,
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "side" => Ok(Mode::Side),
        "overlay" => Ok(Mode::Overlay),
        _ => Err(format!("invalid merge mode: {text} (side, overlay)")),
    }
}

/// Two paths with a `=` between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// A path in the image, without a leading slash.
    pub(crate) first: Vec<u8>,
    pub(crate) second: PathBuf,
}

fn pair(text: OsString) -> Result<Pair, String> {
    let bytes = path::bytes(&text);
    let equals = bytes.iter().position(|&b| b == b'=');
    let equals = equals.ok_or_else(|| format!("'{}' has no '='", text.to_string_lossy()))?;
    let (first, second) = bytes.split_at(equals);
    let second = second.get(1..).unwrap_or_default();
    if second.is_empty() {
        let text = text.to_string_lossy();
        return Err(format!("'{text}' has nothing after its '='"));
    }
    let bad = || format!("'{}' is no path", text.to_string_lossy());
    let second = path::os_str(second).ok_or_else(bad)?;
    Ok(Pair {
        first: plain_path(first),
        second: PathBuf::from(AsRef::<OsStr>::as_ref(&second)),
    })
}

fn percent(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => Err(format!("invalid percentage: {text} (1 to 100)")),
    }
}

/// Options that turn the input into images whose trees change.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MergeArgs {
    /// Join the input images: side by side in directories, or with 'overlay' one over the other
    ///
    /// Side by side, the directory of an image is the name of its file without the extension, or NAME for
    /// NAME=IMAGE. With overlay, later images win, and --whiteouts says what removes entries. Blocks are
    /// copied as they are.
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "side", help_heading = "Joining options", value_parser = whole(mode), when_rewriting = Used)]
    pub merge: Option<Mode>,

    /// Image to join, as with --input; only with --merge
    #[arg(value_name = "IMAGE", when_rewriting = Used)]
    pub images: Vec<PathBuf>,

    /// Remove this path of the input image, with everything below it
    #[arg(long, value_name = "PATH", action = ArgAction::Append, help_heading = "Joining options", when_rewriting = Used)]
    pub remove: Vec<OsString>,

    /// Give a path of the input image another name
    ///
    /// Missing directories of the new path are made. Removing comes before renaming.
    #[arg(long, value_name = "OLD=NEW", action = ArgAction::Append, help_heading = "Joining options", value_parser = clap::builder::OsStringValueParser::new().try_map(pair), when_rewriting = Used)]
    pub rename: Vec<Pair>,

    /// Pack a directory or an archive, and put it over the directory DIR of the input image
    ///
    /// The source can also be an image. '/=SOURCE' stands for the root. Adding comes last.
    #[arg(long, value_name = "DIR=SOURCE", action = ArgAction::Append, help_heading = "Joining options", value_parser = clap::builder::OsStringValueParser::new().try_map(pair), when_rewriting = Used)]
    pub add: Vec<Pair>,

    /// Compress the used data of a block anew if it is less than so many per cent of the block
    ///
    /// Without a number, 50. Otherwise a block stays as it is while a file uses any of it.
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, default_missing_value = "50", help_heading = "Joining options", value_parser = whole(percent), when_rewriting = Used)]
    pub repack: Option<u8>,
}

impl MergeArgs {
    /// Whether the tree of images changes.
    pub(crate) fn is_wanted(&self) -> bool {
        self.merge.is_some()
            || !self.remove.is_empty()
            || !self.rename.is_empty()
            || !self.add.is_empty()
            || self.repack.is_some()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_at_the_first_sign() {
        let split = |text: &str| {
            let pair = pair(text.into())?;
            let first = String::from_utf8(pair.first).unwrap();
            Ok::<_, String>((first, pair.second.to_str().unwrap().to_owned()))
        };
        let both = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(split("/a//b/=c=d"), both("a/b", "c=d"));
        assert_eq!(split("/=x"), both("", "x"));
        assert_eq!(split("x"), Err("'x' has no '='".to_owned()));
        assert_eq!(
            split("x="),
            Err("'x=' has nothing after its '='".to_owned())
        );
    }

    #[test]
    fn percentages() {
        assert_eq!(percent("1"), Ok(1));
        assert_eq!(percent("100"), Ok(100));
        for bad in ["0", "101", "-1", "x"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
