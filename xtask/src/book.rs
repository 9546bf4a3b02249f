//! The source of the book for mdBook: the chapters that `docs/book/src/SUMMARY.md` lists, from there and from
//! the rest of `docs/`, and the manual pages of the tools.
//!
//! In the repository, links lead from file to file. In the book, all chapters are below one directory:
//! `docs/book/src/x.md` is `x.md` and `docs/x.md` is `x.md`, too. Links follow. A link to a file that is no
//! chapter and no picture becomes plain text.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// Where the pages of the book are.
const SOURCE: &str = "docs/book/src";
/// The table of contents.
const SUMMARY: &str = "docs/book/src/SUMMARY.md";

/// The directory of the workspace.
fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Manual pages by their place in the repository, where only the book has them.
fn manuals() -> BTreeMap<PathBuf, String> {
    crate::manuals()
        .map(|manual| {
            // A program and an overview can have the same name.
            let name = match manual.section {
                1 => format!("{}.md", manual.name),
                section => format!("{}-{section}.md", manual.name),
            };
            (
                Path::new(SOURCE).join("man").join(name),
                manual.to_markdown(),
            )
        })
        .collect()
}

/// `a/b/../c` as `a/c`; `None` if it leaves the workspace.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !out.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(out)
}

/// The place of a file of the repository in the book.
fn place(path: &Path) -> Option<PathBuf> {
    let inside = path
        .strip_prefix(SOURCE)
        .or_else(|_| path.strip_prefix("docs"))
        .ok()?;
    // mdBook makes index.html of README.md, but leaves links to it as they are.
    Some(if inside.ends_with("README.md") {
        inside.with_file_name("index.md")
    } else {
        inside.to_owned()
    })
}

/// The way from the directory of one file to another file.
fn relative(from: &Path, to: &Path) -> String {
    let from: Vec<_> = from
        .parent()
        .into_iter()
        .flat_map(Path::components)
        .collect();
    let to: Vec<_> = to.components().collect();
    let same = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(String::from(".."), from.len() - same);
    let down = to.iter().skip(same);
    let down = down.map(|part| part.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// A link of Markdown: `[text](target)`, perhaps with `!` in front.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    /// All of it.
    all: Range<usize>,
    text: Range<usize>,
    target: Range<usize>,
}

/// The links of a page outside of code.
fn links(page: &str) -> Vec<Link> {
    let mut out = Vec::new();
    let mut in_block = false;
    let mut start = 0;
    for line in page.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            links_of_line(line, start, &mut out);
        }
        start += line.len();
    }
    out
}

fn links_of_line(line: &str, start: usize, out: &mut Vec<Link>) {
    let bytes = line.as_bytes();
    let (mut at, mut opened) = (0, Vec::new());
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            b'`' => {
                let rest = line.get(at + 1..).unwrap_or_default();
                at += rest.find('`').map_or(0, |length| length + 1);
            }
            b'[' => opened.push(at),
            b']' => {
                let rest = line.get(at + 1..).unwrap_or_default();
                let target = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
                if let (Some(open), Some((target, _))) = (opened.pop(), target) {
                    let is_picture = open > 0 && bytes.get(open - 1) == Some(&b'!');
                    let all = start + open - usize::from(is_picture);
                    let begin = start + at + 2;
                    out.push(Link {
                        all: all..begin + target.len() + 1,
                        text: start + open + 1..start + at,
                        target: begin..begin + target.len(),
                    });
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// File and anchor that a link of the file `from` leads to; `None` for addresses of the web.
fn target(from: &Path, link: &str) -> Option<(PathBuf, Option<String>)> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor.to_owned())),
        None => (link, None),
    };
    let path = if file.is_empty() {
        from.to_owned()
    } else {
        normal(&from.parent()?.join(file))?
    };
    Some((path, anchor))
}

/// The book: contents of the chapters by their place in the repository, and pictures and other files that they
/// link to.
struct Book {
    chapters: BTreeMap<PathBuf, String>,
    files: BTreeSet<PathBuf>,
}

impl Book {
    fn read() -> Result<Self, Box<dyn Error>> {
        let mut manuals = manuals();
        let read = |path: &Path| {
            fs::read_to_string(root().join(path)).map_err(|e| format!("{}: {e}", path.display()))
        };
        let summary = Path::new(SUMMARY);
        let mut chapters = BTreeMap::from([(summary.to_owned(), read(summary)?)]);
        let contents = read(summary)?;
        for link in links(&contents) {
            let text = contents.get(link.target).unwrap_or_default();
            if text.is_empty() {
                continue; // a heading of chapters, without a page of its own
            }
            let (path, _) = target(summary, text).ok_or_else(|| format!("{SUMMARY}: {text}"))?;
            let page = match manuals.remove(&path) {
                Some(page) => page,
                None => read(&path)?,
            };
            if chapters.insert(path, page).is_some() {
                return Err(format!("{SUMMARY}: {text} is there twice").into());
            }
        }
        let mut files = BTreeSet::new();
        for (path, page) in &chapters {
            for link in links(page) {
                let text = page.get(link.target).unwrap_or_default();
                let Some((file, _)) = target(path, text) else {
                    continue;
                };
                let is_other = file.extension().is_some_and(|extension| extension != "md");
                if is_other && place(&file).is_some() && root().join(&file).is_file() {
                    files.insert(file);
                }
            }
        }
        Ok(Self { chapters, files })
    }

    /// A chapter with links as they are in the book, and without the notes for tests.
    fn chapter(&self, path: &Path, page: &str) -> String {
        let Some(own_place) = place(path) else {
            return page.to_owned();
        };
        let mut out = String::with_capacity(page.len());
        let mut done = 0;
        for link in links(page) {
            // A link around a picture: the picture came first.
            if link.all.start < done {
                continue;
            }
            let part = |range: Range<usize>| page.get(range).unwrap_or_default();
            let Some((file, anchor)) = target(path, part(link.target.clone())) else {
                continue;
            };
            out.push_str(part(done..link.all.start));
            let there = self.chapters.contains_key(&file) || self.files.contains(&file);
            match place(&file).filter(|_| there) {
                Some(place) => {
                    out.push_str(part(link.all.start..link.target.start));
                    if file != path {
                        out.push_str(&relative(&own_place, &place));
                    }
                    if let Some(anchor) = anchor {
                        out.push_str(&format!("#{anchor}"));
                    }
                    out.push(')');
                }
                None => out.push_str(part(link.text)),
            }
            done = link.all.end;
        }
        out.push_str(page.get(done..).unwrap_or_default());
        without_notes(&out)
    }

    fn write(&self, out: &Path) -> Result<(), Box<dyn Error>> {
        fs::copy(root().join("docs/book/book.toml"), out.join("book.toml"))?;
        let out = out.join("src");
        let create = |path: &Path| -> Result<PathBuf, Box<dyn Error>> {
            let path = out.join(place(path).ok_or("not below docs")?);
            fs::create_dir_all(path.parent().ok_or("no directory")?)?;
            Ok(path)
        };
        for (path, page) in &self.chapters {
            fs::write(create(path)?, self.chapter(path, page))?;
        }
        for path in &self.files {
            fs::copy(root().join(path), create(path)?)?;
        }
        Ok(())
    }
}

/// Leaves out the comments `<!-- book: ... -->`, which are for the test of the commands.
fn without_notes(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let mut inside = false;
    for line in page.split_inclusive('\n') {
        let starts = line.starts_with("<!-- book: ");
        inside = inside || starts;
        if !inside {
            out.push_str(line);
        }
        inside = inside && !line.trim_end().ends_with("-->");
    }
    out
}

/// Writes the source of the book to a directory.
pub(crate) fn book(out: &Path) -> Result<(), Box<dyn Error>> {
    let _ = fs::remove_dir_all(out.join("src"));
    Book::read()?.write(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    /// All Markdown files that readers see.
    fn documents() -> Vec<PathBuf> {
        let mut out = Vec::new();
        let mut todo = vec![PathBuf::from("docs")];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(root().join(&dir)).unwrap() {
                let path = dir.join(entry.unwrap().file_name());
                if root().join(&path).is_dir() {
                    todo.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    out.push(path);
                }
            }
        }
        out.extend(["README.md", "CONTRIBUTING.md", "bench/README.md"].map(PathBuf::from));
        out
    }

    /// The anchors of a page: its headings in lower case, with `-` for spaces and without other signs.
    fn anchors(page: &str) -> BTreeSet<String> {
        let mut in_block = false;
        let mut out = BTreeSet::new();
        for line in page.lines() {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
            }
            let title = line.trim_start_matches('#');
            if in_block || title.len() == line.len() || !title.starts_with(' ') {
                continue;
            }
            let title = title.trim().to_lowercase();
            let kept = title.chars().filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c),
                _ => None,
            });
            out.insert(kept.collect());
        }
        out
    }

    #[test]
    fn links_lead_somewhere() {
        let manuals = manuals();
        let read = |path: &Path| match manuals.get(path) {
            Some(page) => Some(page.clone()),
            None => fs::read_to_string(root().join(path)).ok(),
        };
        let (mut count, mut problems) = (0, Vec::new());
        for document in documents() {
            let page = read(&document).unwrap();
            for link in links(&page) {
                let text = &page[link.target];
                let Some((file, anchor)) = target(&document, text) else {
                    continue;
                };
                count += 1;
                let exists = manuals.contains_key(&file) || root().join(&file).exists();
                let has_anchor = anchor.is_none_or(|anchor| {
                    read(&file).is_some_and(|page| anchors(&page).contains(&anchor))
                });
                if !exists || !has_anchor {
                    problems.push(format!("{}: {text}", document.display()));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        assert!(count > 50, "only {count} links");
    }

    #[test]
    fn every_page_is_a_chapter_and_reaches_only_chapters() {
        let book = Book::read().unwrap();
        let mut problems = Vec::new();
        for document in documents().iter().filter(|path| path.starts_with(SOURCE)) {
            if !book.chapters.contains_key(document) {
                problems.push(format!(
                    "not in the table of contents: {}",
                    document.display()
                ));
            }
        }
        for manual in manuals()
            .keys()
            .filter(|path| !book.chapters.contains_key(*path))
        {
            problems.push(format!(
                "not in the table of contents: {}",
                manual.display()
            ));
        }
        for (path, page) in book
            .chapters
            .iter()
            .filter(|(path, _)| path.starts_with(SOURCE))
        {
            for link in links(page) {
                let text = &page[link.target];
                let known = target(path, text).is_none_or(|(file, _)| {
                    book.chapters.contains_key(&file) || book.files.contains(&file)
                });
                if !known {
                    problems.push(format!("{}: {text} is not in the book", path.display()));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    /// What mdBook is given is closed: each link leads to a file of it.
    #[test]
    fn the_source_of_the_book_is_complete() {
        let dir = std::env::temp_dir().join(format!("redwarfs-book-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        book(&dir).unwrap();
        let src = dir.join("src");
        let (mut todo, mut pages) = (vec![PathBuf::new()], Vec::new());
        while let Some(at) = todo.pop() {
            for entry in fs::read_dir(src.join(&at)).unwrap() {
                let path = at.join(entry.unwrap().file_name());
                if src.join(&path).is_dir() {
                    todo.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    pages.push(path);
                }
            }
        }
        let mut problems = Vec::new();
        for path in &pages {
            let page = fs::read_to_string(src.join(path)).unwrap();
            for link in links(&page) {
                let text = &page[link.target];
                if target(path, text).is_some_and(|(file, _)| !src.join(file).is_file()) {
                    problems.push(format!("{}: {text}", path.display()));
                }
            }
            assert!(!page.contains("<!-- book:"), "{}", path.display());
        }
        fs::remove_dir_all(&dir).unwrap();
        assert!(pages.len() > 30, "{pages:?}");
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn links_are_read_as_meant() {
        let page =
            "a [b](c.md#d) `[no](x)` ![p](q.svg)\n```\n[no](y)\n```\n[![i](j.svg)](k.md) [l] (m)\n";
        let found = links(page);
        let found: Vec<_> = found
            .iter()
            .map(|link| &page[link.target.clone()])
            .collect();
        assert_eq!(found, ["c.md#d", "q.svg", "j.svg", "k.md"]);
        assert_eq!(&page[links(page)[1].all.clone()], "![p](q.svg)");
        let from = Path::new("docs/book/src/a.md");
        let to =
            |link| target(from, link).map(|(path, anchor)| (path.display().to_string(), anchor));
        assert_eq!(
            to("../../limits.md#x"),
            Some(("docs/limits.md".into(), Some("x".into())))
        );
        assert_eq!(
            to("#x"),
            Some(("docs/book/src/a.md".into(), Some("x".into())))
        );
        assert_eq!(to("https://example.org"), None);
        assert_eq!(
            relative(Path::new("man/a.md"), Path::new("b/c.md")),
            "../b/c.md"
        );
        assert_eq!(relative(Path::new("a.md"), Path::new("b.md")), "b.md");
        let place = |path| place(Path::new(path)).map(|place| place.display().to_string());
        assert_eq!(place("docs/book/src/man/x.md"), Some("man/x.md".into()));
        assert_eq!(place("docs/bench/README.md"), Some("bench/index.md".into()));
        assert_eq!(place("README.md"), None);
        let notes = "a\n<!-- book: needs x -->\nb\n<!-- book: run\nc\n-->\nd <!-- e -->\n";
        assert_eq!(without_notes(notes), "a\nb\nd <!-- e -->\n");
    }
}
