//! `--owner-map`: a file that says which users and groups become which.
//!
//! ```text
//! # words
//! user  FROM TO
//! group FROM TO
//! ```
//!
//! `FROM` is a name, a number, a range `FIRST-LAST` of numbers, or `*` for all; `TO` is a name or a
//! number. A range is shifted so that it begins at `TO`; `*` becomes `TO` itself. The first line that
//! matches an id counts. Ids without a line stay unchanged.

use std::path::Path;

use redwarfs_writer::IdTransform;

use crate::common::users::{parse_group, parse_user};
use crate::common::{Result, ToolError};

/// The changes that a map asks for; `None` if there is no line of this kind.
#[derive(Debug, Default)]
pub(super) struct OwnerMap {
    pub(super) users: Option<IdTransform>,
    pub(super) groups: Option<IdTransform>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    first: u32,
    last: u32,
    to: u32,
    /// All become `to`.
    same: bool,
}

/// Reads a map.
///
/// # Errors
/// The file, the line and its error.
pub(super) fn read(path: &Path) -> Result<OwnerMap> {
    let text = std::fs::read(path)
        .map_err(|e| ToolError::new("cannot read owner map").path(path).io(&e))?;
    parse(&String::from_utf8_lossy(&text)).map_err(|(number, cause)| {
        ToolError::new("bad owner map")
            .path(path)
            .cause(format!("line {number}: {cause}"))
    })
}

fn parse(text: &str) -> std::result::Result<OwnerMap, (usize, String)> {
    let (mut users, mut groups) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bad = |cause: String| (number + 1, cause);
        match words[..] {
            [] => {}
            [comment, ..] if comment.starts_with('#') => {}
            ["user", from, to] => users.push(Line::parse(from, to, parse_user).map_err(bad)?),
            ["group", from, to] => groups.push(Line::parse(from, to, parse_group).map_err(bad)?),
            _ => return Err(bad("expected 'user FROM TO' or 'group FROM TO'".to_owned())),
        }
    }
    Ok(OwnerMap {
        users: transform(users),
        groups: transform(groups),
    })
}

fn transform(lines: Vec<Line>) -> Option<IdTransform> {
    let fits = |line: &Line, id| (line.first..=line.last).contains(&id);
    (!lines.is_empty()).then(|| {
        IdTransform::new(move |id| {
            let line = lines.iter().find(|line| fits(line, id));
            line.map_or(id, |line| {
                // `Line::parse` has made sure that this stays below 2^32.
                let shift = if line.same { 0 } else { id - line.first };
                line.to.saturating_add(shift)
            })
        })
    })
}

impl Line {
    fn parse(
        from: &str,
        to: &str,
        id: fn(&str) -> std::result::Result<u32, String>,
    ) -> std::result::Result<Self, String> {
        let named = |text: &str| id(text).map_err(|cause| format!("{cause}: {text}"));
        let to = named(to)?;
        let range = from.split_once('-').and_then(|(first, last)| {
            let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty();
            (number(first) && number(last)).then_some((first, last))
        });
        let (first, last, same) = match range {
            _ if from == "*" => (0, u32::MAX, true),
            Some((first, last)) => (named(first)?, named(last)?, false),
            None => {
                let one = named(from)?;
                (one, one, true)
            }
        };
        if last < first {
            return Err(format!("the range is empty: {from}"));
        }
        if !same && to.checked_add(last - first).is_none() {
            return Err(format!("the range ends above 4294967295: {from}"));
        }
        Ok(Self {
            first,
            last,
            to,
            same,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits() {
        let map = parse(
            "# shift\n\n user 100000-165535\t0\nuser root 4000000000\nuser * 7\n  # more\n\
             group 5 root\ngroup 4294967290-4294967295 10\n",
        )
        .unwrap();
        let (users, groups) = (map.users.unwrap(), map.groups.unwrap());
        for (from, to) in [
            (100_000, 0),
            (100_001, 1),
            (165_535, 65_535),
            (165_536, 7),
            (0, 4_000_000_000),
            (u32::MAX, 7),
        ] {
            assert_eq!(users.apply(from), to, "{from}");
        }
        for (from, to) in [(5, 0), (6, 6), (u32::MAX, 15), (0, 0)] {
            assert_eq!(groups.apply(from), to, "{from}");
        }
        let nothing = parse("").unwrap();
        assert!(nothing.users.is_none() && nothing.groups.is_none());
    }

    #[test]
    fn mistakes_have_a_line() {
        for (text, line, want) in [
            ("user 1", 1, "expected 'user FROM TO' or 'group FROM TO'"),
            (
                "\nother 1 2",
                2,
                "expected 'user FROM TO' or 'group FROM TO'",
            ),
            (
                "user 1 2 3",
                1,
                "expected 'user FROM TO' or 'group FROM TO'",
            ),
            ("user nobody-here 1", 1, "unknown user: nobody-here"),
            ("group 1 nobody-here", 1, "unknown group: nobody-here"),
            (
                "user 4294967296 1",
                1,
                "user id out of range [0..4294967295]: 4294967296",
            ),
            ("#\n#\nuser 5-4 1", 3, "the range is empty: 5-4"),
            (
                "user 0-4294967295 1",
                1,
                "the range ends above 4294967295: 0-4294967295",
            ),
        ] {
            assert_eq!(
                parse(text).map(|_| ()),
                Err((line, want.to_owned())),
                "{text}"
            );
        }
    }
}
