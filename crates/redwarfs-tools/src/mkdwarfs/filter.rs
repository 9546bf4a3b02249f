//! Filter rules: which entries of the input go into the image.
//!
//! ```text
//! +[i] PATTERN     include
//! -[i] PATTERN     exclude
//! . FILE           read rules from FILE, at this place
//! ```
//!
//! The first rule that matches decides; an entry that none matches is included. Entries below an
//! excluded directory are not examined.
//!
//! Before matching, a `/` is appended to the path of a directory. A pattern that begins with `/` must
//! match the whole path below the input directory. Any other pattern must match the end of the absolute
//! path, and its match must begin after a `/`. The directories above the input count: if the input is
//! called `in`, the pattern `in/a` matches what `/a` matches.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use redwarfs_io::path;
use redwarfs_writer::FileType;

use crate::common::error::{io_cause, one_line};
use crate::common::glob::Glob;
use crate::common::{Result, ToolError};

/// Rules in the order in which they are tried.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    include: bool,
    anchored: bool,
    glob: Glob,
}

/// The error of a rule.
#[derive(Debug)]
enum Fault {
    /// Without the place where the rule is.
    Rule(String),
    /// With file and line.
    Located(String),
}

impl Rules {
    /// Adds the rule `text` of a command line, or the rules of the file that it names.
    ///
    /// # Errors
    /// A line about the error of the rule or the file.
    pub(super) fn add(&mut self, text: &OsStr) -> Result<()> {
        self.line(&path::bytes(text), &mut Vec::new())
            .map_err(|fault| {
                let (Fault::Rule(cause) | Fault::Located(cause)) = fault;
                let rule = one_line(&text.to_string_lossy());
                ToolError::new(format!("could not parse filter rule '{rule}': {cause}"))
            })
    }

    /// `open` are the files that are being read.
    fn line(&mut self, line: &[u8], open: &mut Vec<PathBuf>) -> std::result::Result<(), Fault> {
        let bad = |cause: String| Err(Fault::Rule(cause));
        let shown = || one_line(&String::from_utf8_lossy(line));
        let Some((&sign, rest)) = line.split_first() else {
            return bad("empty filter rule".to_owned());
        };
        let include = match sign {
            b'+' => true,
            b'-' => false,
            b'.' => {
                let name = behind_spaces(rest);
                if name.is_empty() {
                    return bad(format!("no file specified in merge rule: {}", shown()));
                }
                return self.file(Path::new(&path::shown(name)), open);
            }
            b' ' => return bad(format!("no prefix in filter rule: {}", shown())),
            _ => return bad("rules must start with + or -".to_owned()),
        };
        let Some(space) = rest.iter().position(|&b| b == b' ') else {
            return bad(format!("invalid filter rule: {}", shown()));
        };
        let (options, pattern) = rest.split_at(space);
        if let Some(&other) = options.iter().find(|&&option| option != b'i') {
            let other = one_line(&String::from_utf8_lossy(&[other]));
            let rule = shown();
            return bad(format!("unknown option '{other}' in filter rule: {rule}"));
        }
        let pattern = behind_spaces(pattern);
        if pattern.is_empty() {
            return bad(format!("no pattern in filter rule: {}", shown()));
        }
        let (anchored, glob) = match pattern.strip_prefix(b"/") {
            Some(below) => (true, below),
            None => (false, pattern),
        };
        self.0.push(Rule {
            include,
            anchored,
            glob: Glob::new(glob, !options.is_empty()).map_err(|e| Fault::Rule(e.to_string()))?,
        });
        Ok(())
    }

    fn file(&mut self, path: &Path, open: &mut Vec<PathBuf>) -> std::result::Result<(), Fault> {
        let shown = one_line(&path.to_string_lossy());
        let cannot =
            |e: &std::io::Error| Fault::Rule(format!("cannot read '{shown}': {}", io_cause(e)));
        // A pipe has no name to compare, and is empty the second time.
        let identity = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if open.contains(&identity) {
            return Err(Fault::Rule(format!(
                "recursion detected while opening file: {shown}"
            )));
        }
        let text = std::fs::read(path).map_err(|e| cannot(&e))?;
        open.push(identity);
        for (number, line) in text.split(|&b| b == b'\n').enumerate() {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            self.line(line, open).map_err(|fault| match fault {
                Fault::Rule(cause) => {
                    Fault::Located(format!("{shown}: line {}: {cause}", number + 1))
                }
                // The innermost file is the one to look into.
                located => located,
            })?;
        }
        open.pop();
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The decision for an entry: `root` is the absolute path of the input directory, `path` the
    /// path below it.
    pub(super) fn include(&self, root: &Path, path: &[u8], kind: FileType) -> bool {
        let mut whole = path::with_slashes(root.as_os_str()).into_owned();
        if whole.last() != Some(&b'/') {
            whole.push(b'/');
        }
        let start = whole.len();
        whole.extend_from_slice(path);
        if kind == FileType::Directory {
            whole.push(b'/');
        }
        let below = whole.get(start..).unwrap_or_default();
        let matching = self.0.iter().find(|rule| {
            if rule.anchored {
                return rule.glob.matches(below);
            }
            // The `/` at the end of a directory begins nothing.
            let inner = whole.len() - usize::from(kind == FileType::Directory);
            (0..inner)
                .filter(|&at| whole.get(at) == Some(&b'/'))
                .any(|at| {
                    whole
                        .get(at + 1..)
                        .is_some_and(|end| rule.glob.matches(end))
                })
        });
        matching.is_none_or(|rule| rule.include)
    }
}

/// `text` without spaces at its beginning.
fn behind_spaces(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&b| b != b' ').unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}

/// What `--debug-filter` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DebugMode {
    /// Included entries.
    included: bool,
    /// Excluded entries.
    excluded: bool,
    /// Directories too.
    directories: bool,
}

/// `--debug-filter`.
pub(crate) fn debug_mode(text: &str) -> std::result::Result<DebugMode, String> {
    let (included, excluded, directories) = match text {
        "all" => (true, true, true),
        "files" => (true, true, false),
        "included" => (true, false, true),
        "included-files" => (true, false, false),
        "excluded" => (false, true, true),
        "excluded-files" => (false, true, false),
        other => {
            return Err(format!(
                "invalid filter debug mode '{other}' (all, files, included, included-files, \
                 excluded, excluded-files)"
            ));
        }
    };
    Ok(DebugMode {
        included,
        excluded,
        directories,
    })
}

impl DebugMode {
    /// The line for an entry, if it is to be shown: the absolute path, after a sign unless all lines
    /// have the same sign.
    pub(super) fn line(self, path: &[u8], directory: bool, included: bool) -> Option<Vec<u8>> {
        let wanted = if included {
            self.included
        } else {
            self.excluded
        };
        if !wanted || (directory && !self.directories) {
            return None;
        }
        let mut line = Vec::with_capacity(path.len() + 4);
        if self.included && self.excluded {
            line.extend_from_slice(if included { b"+ " } else { b"- " });
        }
        line.extend_from_slice(path);
        if directory {
            line.push(b'/');
        }
        line.push(b'\n');
        Some(line)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ROOT: &str = "/data/in";

    /// The tree of the examples; directories end in `/`.
    const TREE: [&str; 9] = [
        "docs/",
        "a/",
        "x/",
        "top.txt",
        "docs/b.txt",
        "docs/README.md",
        "docs/sub/",
        "docs/sub/c.txt",
        "a/b.txt",
    ];

    fn rules(texts: &[&str]) -> Rules {
        let mut rules = Rules::default();
        for text in texts {
            rules.add(OsStr::new(text)).unwrap();
        }
        rules
    }

    fn excluded(texts: &[&str]) -> Vec<&'static str> {
        let rules = rules(texts);
        let mut out = TREE.to_vec();
        out.retain(|path| {
            let (path, kind) = match path.strip_suffix('/') {
                Some(path) => (path, FileType::Directory),
                None => (*path, FileType::Regular),
            };
            !rules.include(Path::new(ROOT), path.as_bytes(), kind)
        });
        out
    }

    fn error(text: &str) -> String {
        Rules::default()
            .add(OsStr::new(text))
            .map(|()| String::new())
            .unwrap_or_else(|e| e.to_string())
    }

    #[test]
    fn anchored_and_floating() {
        let all_below_docs = [
            "docs/b.txt",
            "docs/README.md",
            "docs/sub/",
            "docs/sub/c.txt",
        ];
        let cases: &[(&str, &[&str])] = &[
            ("- a/b.txt", &["a/b.txt"]),
            ("- /a/b.txt", &["a/b.txt"]),
            ("- /b.txt", &[]),
            ("- b.txt", &["docs/b.txt", "a/b.txt"]),
            ("- in/a/b.txt", &["a/b.txt"]),
            ("- data/in/top.txt", &["top.txt"]),
            ("- n/a/b.txt", &[]),
            ("- in/*.txt", &["top.txt"]),
            ("- /*.txt", &["top.txt"]),
            ("- dat*/in/a/b.txt", &["a/b.txt"]),
            ("- /in/a/b.txt", &[]),
            ("- a", &[]),
            ("- a/", &["a/"]),
            ("- **/a/", &["a/"]),
            ("- in/", &[]),
            ("-   a/", &["a/"]),
            ("-i A/B.TXT", &["a/b.txt"]),
            ("-ii /A/B.TXT", &["a/b.txt"]),
            ("- A/B.TXT", &[]),
            ("- u**", &[]),
            ("- s**", &["docs/sub/", "docs/sub/c.txt"]),
        ];
        for (rule, want) in cases {
            assert_eq!(excluded(&[rule]), *want, "{rule}");
        }
        assert_eq!(excluded(&["- **"]), TREE);
        let docs = excluded(&["- docs/**"]);
        assert_eq!(docs[0], "docs/");
        assert_eq!(docs[1..], all_below_docs);
    }

    #[test]
    fn the_first_match_decides() {
        assert_eq!(
            excluded(&["+ docs/README.md", "- /docs/*", "+ a/**", "- *.txt"]),
            ["top.txt", "docs/b.txt", "docs/sub/c.txt"]
        );
        assert!(rules(&[]).is_empty());
        assert_eq!(excluded(&[]), [""; 0]);
    }

    #[test]
    fn the_root_of_the_host_has_one_slash() {
        let rules = rules(&["- a", "- /b"]);
        for path in ["a", "b", "c/a"] {
            assert!(!rules.include(Path::new("/"), path.as_bytes(), FileType::Regular));
        }
        assert!(rules.include(Path::new("/"), b"c/b", FileType::Regular));
    }

    #[test]
    fn rules_that_make_no_sense() {
        for (rule, want) in [
            ("", "empty filter rule"),
            ("x foo", "rules must start with + or -"),
            ("-foo", "invalid filter rule: -foo"),
            ("-z foo", "unknown option 'z' in filter rule: -z foo"),
            ("+ ", "no pattern in filter rule: + "),
            (" + a", "no prefix in filter rule:  + a"),
            (". ", "no file specified in merge rule: . "),
            ("- [", "unmatched '[' in pattern: ["),
            (
                ". /no/such",
                "cannot read '/no/such': no such file or directory",
            ),
        ] {
            assert_eq!(
                error(rule),
                format!("could not parse filter rule '{rule}': {want}")
            );
        }
    }

    #[test]
    fn files_of_rules() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(at("inner"), "# words\n\n- b.txt\n").unwrap();
        std::fs::write(at("outer"), format!("+ a/b.txt\n.{}\n- c.txt", at("inner"))).unwrap();
        assert_eq!(
            excluded(&[&format!(". {}", at("outer"))]),
            ["docs/b.txt", "docs/sub/c.txt"]
        );
        // The same file twice, one after the other, is no recursion.
        let again = format!(". {}", at("inner"));
        assert_eq!(excluded(&[&again, &again]), ["docs/b.txt", "a/b.txt"]);
        std::fs::write(at("loop"), format!("- a\n. {}\n", at("loop"))).unwrap();
        assert_eq!(
            error(&format!(". {}", at("loop"))),
            format!(
                "could not parse filter rule '. {0}': {0}: line 2: recursion detected while \
                 opening file: {0}",
                at("loop")
            )
        );
        std::fs::write(at("bad"), "- a\n- [\n").unwrap();
        std::fs::write(at("uses-bad"), format!(". {}\n", at("bad"))).unwrap();
        assert!(error(&format!(". {}", at("uses-bad"))).ends_with(&format!(
            "': {}: line 2: unmatched '[' in pattern: [",
            at("bad")
        )));
    }

    #[test]
    fn modes() {
        let shown = |mode: &str| -> Vec<String> {
            let mode = debug_mode(mode).unwrap();
            [(true, true), (true, false), (false, true), (false, false)]
                .iter()
                .filter_map(|&(dir, included)| mode.line(b"/p", dir, included))
                .map(|line| String::from_utf8(line).unwrap())
                .collect()
        };
        assert_eq!(shown("all"), ["+ /p/\n", "- /p/\n", "+ /p\n", "- /p\n"]);
        assert_eq!(shown("files"), ["+ /p\n", "- /p\n"]);
        assert_eq!(shown("included"), ["/p/\n", "/p\n"]);
        assert_eq!(shown("included-files"), ["/p\n"]);
        assert_eq!(shown("excluded"), ["/p/\n", "/p\n"]);
        assert_eq!(shown("excluded-files"), ["/p\n"]);
        assert!(debug_mode("x").is_err());
    }
}
