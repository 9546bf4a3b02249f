//! `--order`: its grammar, and the order of a build that it stands for.
//!
//! `OrderSpec::read` gives a [`redwarfs_writer::Order`], which `redwarfs-writer/src/stages/order/` carries
//! out. `gain` becomes [`FamilyOptions::least_saving`]. Two places there compare what a move saves with its
//! `share` of a block: `Collator::collated` in `collate.rs` for versions of directories, and
//! `Spread` in `families.rs` for files. The order `families` uses both, `versions` only the first.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use redwarfs_writer::{FamilyOptions, NilsimsaOptions, Order, plain_path};

use super::input;
use crate::common::error::display_path;
use crate::common::number::{counted, parse_size};
use crate::common::suggest::unknown;
use crate::common::{Logger, Result, ToolError};

/// `--order`, before files that it names are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OrderSpec {
    None,
    Path,
    RevPath,
    Similarity,
    Nilsimsa(NilsimsaOptions),
    Versions(FamilyOptions),
    Families(FamilyOptions),
    Explicit(PathBuf),
    Script,
}

/// The names of all orders.
pub(crate) const ORDERS: [&str; 9] = [
    "none",
    "path",
    "revpath",
    "similarity",
    "nilsimsa",
    "versions",
    "families",
    "explicit",
    "script",
];

/// `--order`.
pub(crate) fn order(text: &str) -> std::result::Result<OrderSpec, String> {
    let (mode, options) = match text.split_once(':') {
        Some((mode, options)) => (mode, Some(options)),
        None => (text, None),
    };
    let order = match mode {
        "none" => OrderSpec::None,
        "path" => OrderSpec::Path,
        "revpath" => OrderSpec::RevPath,
        "similarity" => OrderSpec::Similarity,
        "versions" => return families(mode, options).map(OrderSpec::Versions),
        "families" => return families(mode, options).map(OrderSpec::Families),
        "script" => OrderSpec::Script,
        "nilsimsa" => return nilsimsa(options).map(OrderSpec::Nilsimsa),
        "explicit" => {
            return match options.and_then(|options| options.strip_prefix("file=")) {
                Some(file) if !file.is_empty() => Ok(OrderSpec::Explicit(file.into())),
                _ => Err("inode order mode 'explicit' needs 'file=FILE'".to_owned()),
            };
        }
        other => {
            return Err(unknown(
                format_args!("invalid inode order mode: {other}"),
                ORDERS,
            ));
        }
    };
    match options {
        Some(_) => Err(format!(
            "inode order mode '{mode}' does not support options"
        )),
        None => Ok(order),
    }
}

/// The parameters after `families:` and `versions:`.
fn families(mode: &str, options: Option<&str>) -> std::result::Result<FamilyOptions, String> {
    let Some(option) = options else {
        return Ok(FamilyOptions::default());
    };
    let Some((key, value)) = option.split_once('=') else {
        return Err(format!(
            "missing value for option '{option}' of choice '{mode}'"
        ));
    };
    if key != "gain" {
        return Err(unknown(
            format_args!("invalid option(s) for choice '{mode}': {key}"),
            ["gain"],
        ));
    }
    // `least_saving` counts thousandths of a block; the value is percent with at most one decimal.
    let (whole, tenths) = value.split_once('.').unwrap_or((value, "0"));
    let number = |text: &str| {
        let digits = text.len() <= 3 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| digits)
    };
    number(whole)
        .zip(number(tenths).filter(|_| tenths.len() == 1))
        .map(|(whole, tenths)| whole * 10 + tenths)
        .filter(|&least_saving| least_saving <= 1000)
        .map(FamilyOptions::new)
        .ok_or_else(|| format!("invalid gain value: {value}, it is percent from 0 to 100"))
}

/// The parameters after `nilsimsa:`.
fn nilsimsa(options: Option<&str>) -> std::result::Result<NilsimsaOptions, String> {
    const CHOICE: &str = "choice 'nilsimsa'";
    let mut nilsimsa = NilsimsaOptions::default();
    let mut seen = Vec::new();
    for option in options.into_iter().flat_map(|options| options.split(':')) {
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (option, None),
        };
        let field = match key {
            "max-children" => &mut nilsimsa.max_children,
            "max-cluster-size" => &mut nilsimsa.max_cluster_size,
            other => {
                return Err(unknown(
                    format_args!("invalid option(s) for {CHOICE}: {other}"),
                    ["max-children", "max-cluster-size"],
                ));
            }
        };
        if seen.contains(&key) {
            return Err(format!("duplicate option '{key}' for {CHOICE}"));
        }
        seen.push(key);
        let value = value.ok_or_else(|| format!("missing value for option '{key}' of {CHOICE}"))?;
        *field = parse_size(value)
            .ok()
            .and_then(NonZeroU64::new)
            .ok_or_else(|| format!("invalid {key} value: {value}"))?;
    }
    Ok(nilsimsa)
}

impl OrderSpec {
    /// The order of a build, with the paths of the file that an explicit order names. `rest` is the order
    /// of files without a key from the script. `null`: see `--null`. Of a path that the file has more than once, the first
    /// place counts.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn read(&self, rest: Order, null: bool, logger: &Logger) -> Result<Order> {
        Ok(match self {
            OrderSpec::None => Order::None,
            OrderSpec::Path => Order::Path,
            OrderSpec::RevPath => Order::RevPath,
            OrderSpec::Similarity => Order::Similarity,
            OrderSpec::Versions(options) => Order::Versions(*options),
            OrderSpec::Families(options) => Order::Families(*options),
            OrderSpec::Nilsimsa(options) => Order::Nilsimsa(*options),
            OrderSpec::Explicit(file) => Order::Explicit(explicit_order(file, null, logger)?),
            OrderSpec::Script => Order::Script(Box::new(rest)),
        })
    }
}

fn explicit_order(file: &Path, null: bool, logger: &Logger) -> Result<Vec<Vec<u8>>> {
    let entries = input::read_list(file, null).map_err(|e| {
        ToolError::new("failed to open explicit order file")
            .path(file)
            .io(&e)
    })?;
    let mut seen = HashSet::new();
    let mut paths = Vec::new();
    let mut repeated = 0_u64;
    for path in entries.iter().map(|entry| plain_path(entry)) {
        if path.is_empty() {
            continue;
        }
        match seen.insert(path.clone()) {
            true => paths.push(path),
            false => repeated += 1,
        }
    }
    if repeated > 0 {
        logger.info(format_args!(
            "{}: ignoring {} with a path that stands further up",
            display_path(file),
            counted(repeated, "line", "lines")
        ));
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders() {
        let ok = [
            ("none", OrderSpec::None),
            ("path", OrderSpec::Path),
            ("revpath", OrderSpec::RevPath),
            ("similarity", OrderSpec::Similarity),
            ("script", OrderSpec::Script),
            ("nilsimsa", OrderSpec::Nilsimsa(NilsimsaOptions::default())),
            (
                "nilsimsa:max-children=16k:max-cluster-size=5",
                OrderSpec::Nilsimsa({
                    let mut options = NilsimsaOptions::default();
                    options.max_cluster_size = NonZeroU64::new(5).expect("not zero");
                    options
                }),
            ),
            ("families", OrderSpec::Families(FamilyOptions::new(10))),
            ("versions", OrderSpec::Versions(FamilyOptions::new(10))),
            (
                "versions:gain=2",
                OrderSpec::Versions(FamilyOptions::new(20)),
            ),
            (
                "families:gain=0",
                OrderSpec::Families(FamilyOptions::new(0)),
            ),
            (
                "families:gain=1.5",
                OrderSpec::Families(FamilyOptions::new(15)),
            ),
            (
                "families:gain=100",
                OrderSpec::Families(FamilyOptions::new(1000)),
            ),
            ("explicit:file=a b", OrderSpec::Explicit("a b".into())),
        ];
        for (text, want) in ok {
            assert_eq!(order(text), Ok(want), "{text}");
        }
        let bad = [
            ("x", "invalid inode order mode: x"),
            ("", "invalid inode order mode: "),
            (
                "path:a=1",
                "inode order mode 'path' does not support options",
            ),
            (
                "script:x",
                "inode order mode 'script' does not support options",
            ),
            ("nilsimsa:max-children=0", "invalid max-children value: 0"),
            (
                "nilsimsa:max-cluster-size=5q",
                "invalid max-cluster-size value: 5q",
            ),
            (
                "nilsimsa:max-children",
                "missing value for option 'max-children' of choice 'nilsimsa'",
            ),
            (
                "nilsimsa:max-children=1:max-children=1",
                "duplicate option 'max-children' for choice 'nilsimsa'",
            ),
            ("nilsimsa:", "invalid option(s) for choice 'nilsimsa': "),
            (
                "nilsimsa:foo=1",
                "invalid option(s) for choice 'nilsimsa': foo",
            ),
            (
                "families:gain=100.1",
                "invalid gain value: 100.1, it is percent from 0 to 100",
            ),
            (
                "families:gain=1.55",
                "invalid gain value: 1.55, it is percent from 0 to 100",
            ),
            (
                "families:gain=-1",
                "invalid gain value: -1, it is percent from 0 to 100",
            ),
            (
                "families:gain=+1",
                "invalid gain value: +1, it is percent from 0 to 100",
            ),
            (
                "families:gain",
                "missing value for option 'gain' of choice 'families'",
            ),
            (
                "families:loss=1",
                "invalid option(s) for choice 'families': loss",
            ),
            (
                "versions:loss=1",
                "invalid option(s) for choice 'versions': loss",
            ),
            ("explicit", "inode order mode 'explicit' needs 'file=FILE'"),
            ("fits/image::path", "invalid inode order mode: fits/image"),
        ];
        for (text, want) in bad {
            let found = order(text).unwrap_err();
            let advice = found
                .strip_prefix(want)
                .unwrap_or_else(|| panic!("{found}"));
            assert!(
                advice.is_empty() || advice.starts_with(" (one of "),
                "{found}"
            );
        }
        assert!(order("x").unwrap_err().contains(" (one of none, path, "));
    }
}
