//! The documents say what is: tests that they name exist, options that they list are those of
//! the programs, limits have the values of the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{DWARFS, DWARFSCK, DWARFSEXTRACT, MKDWARFS, run};
use redwarfs_format::frozen::TypeInfo;
use redwarfs_format::metadata::metadata_type;
use redwarfs_tools::common::man::{Block, Manual};
use regex::Regex;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(name: &str) -> String {
    let path = root().join("docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Rows of all tables of a document, cells without the spaces around them. Heads and rulers are
/// left out. A `|` in a cell is written `\|`.
fn rows(text: &str) -> Vec<Vec<String>> {
    let lines: Vec<&str> = text.lines().collect();
    let is_ruler = |line: &str| {
        line.starts_with('|') && line.chars().all(|c| matches!(c, '|' | '-' | ' ' | ':'))
    };
    let mut out = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let is_head = lines.get(number + 1).is_some_and(|next| is_ruler(next));
        if !line.starts_with('|') || is_ruler(line) || is_head {
            continue;
        }
        let line = line.trim().trim_start_matches('|').trim_end_matches('|');
        let cells = line.replace("\\|", "\u{1}");
        out.push(
            cells
                .split('|')
                .map(|cell| cell.trim().replace('\u{1}', "|"))
                .collect(),
        );
    }
    out
}

/// All source files of the workspace, by file name.
fn sources() -> BTreeMap<String, Vec<PathBuf>> {
    let mut out: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let mut todo = vec![root().join("crates"), root().join("xtask")];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                out.entry(name).or_default().push(path);
            }
        }
    }
    out
}

/// Tests that a cell names: `file.rs::name`. The file may have directories before it.
fn named_tests(cell: &str) -> Vec<(String, String)> {
    let name = Regex::new(r"([A-Za-z0-9_/-]+\.rs)::([A-Za-z0-9_:]+)").unwrap();
    name.captures_iter(cell)
        .map(|found| (found[1].to_owned(), found[2].to_owned()))
        .collect()
}

/// Whether there is a test function `test` (perhaps in a module) in a file whose path ends so.
fn test_exists(sources: &BTreeMap<String, Vec<PathBuf>>, file: &str, test: &str) -> bool {
    let name = test.rsplit("::").next().unwrap();
    // Between the attribute and the name there may be other attributes.
    let pattern = format!(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*fn {name}\(");
    let proptest = format!(r"(?s)proptest! \{{.*fn {name}\(");
    let patterns = [
        Regex::new(&pattern).unwrap(),
        Regex::new(&proptest).unwrap(),
    ];
    let base = file.rsplit('/').next().unwrap();
    sources.get(base).into_iter().flatten().any(|path| {
        let text = fs::read_to_string(path).unwrap();
        path.ends_with(file) && patterns.iter().any(|pattern| pattern.is_match(&text))
    })
}

/// What is wrong with the tests that a row names in its last cell.
fn problems_of_tests(sources: &BTreeMap<String, Vec<PathBuf>>, row: &[String]) -> Vec<String> {
    let tests = named_tests(row.last().unwrap());
    if tests.is_empty() {
        return vec![format!("no test: {}", row[0])];
    }
    tests
        .iter()
        .filter(|(file, test)| !test_exists(sources, file, test))
        .map(|(file, test)| format!("{}: no test {file}::{test}", row[0]))
        .collect()
}

/// The last column of each table of a document names tests.
fn check_tests(name: &str, columns: usize) {
    let sources = sources();
    let rows = rows(&document(name));
    assert!(!rows.is_empty(), "{name} has no table");
    let mut problems = Vec::new();
    for row in &rows {
        if row.len() != columns {
            problems.push(format!("{} cells: {row:?}", row.len()));
            continue;
        }
        problems.extend(problems_of_tests(&sources, row));
    }
    assert!(problems.is_empty(), "{name}:\n{}", problems.join("\n"));
}

/// The part of a document under the heading `## title`.
fn part<'a>(text: &'a str, title: &str) -> &'a str {
    let heading = format!("## {title}\n");
    let (_, rest) = text.split_once(&heading).unwrap_or_default();
    rest.split("\n## ").next().unwrap()
}

/// `docs/options/tests.md` names tests for each row of `docs/options/NAME`, in the same order.
fn check_tests_of_options(name: &str) {
    let sources = sources();
    let options = rows(&document(&format!("options/{name}")));
    let linked = rows(part(&document("options/tests.md"), name));
    assert!(options.len() > 5, "{name} has no tables");
    let mut problems = Vec::new();
    for (option, link) in options.iter().zip(&linked) {
        if option[0] != link[0] {
            problems.push(format!("{name} has {}, tests.md {}", option[0], link[0]));
            break;
        }
        problems.extend(problems_of_tests(&sources, link));
    }
    if options.len() != linked.len() {
        let (there, here) = (options.len(), linked.len());
        problems.push(format!("{there} rows, {here} of them in tests.md"));
    }
    assert!(problems.is_empty(), "{name}:\n{}", problems.join("\n"));
}

/// Options with a name of several letters that a help text shows.
fn long_options(help: &str) -> BTreeSet<String> {
    let line = Regex::new(r"^\s+(?:-[A-Za-z0-9], )?--([a-z0-9][a-z0-9-]+)").unwrap();
    help.lines()
        .filter_map(|text| line.captures(text).map(|found| format!("--{}", &found[1])))
        .collect()
}

/// Both names if the first part of an option stands in parentheses, as in `(no_)guard`.
fn spellings(option: &str) -> Vec<String> {
    match option
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'))
    {
        Some((prefix, name)) => vec![name.to_owned(), format!("{prefix}{name}")],
        None => vec![option.to_owned()],
    }
}

/// Options of `-o` that the help text of `dwarfs` shows: under the heads that name `-o`, the first
/// words of the lines.
fn mount_options(help: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let mut inside = false;
    for text in help.lines() {
        if !text.starts_with(' ') {
            inside = text.contains("-o");
        } else if inside && !text.starts_with("   ") {
            for word in text.split_whitespace() {
                let name = word.trim_end_matches(',');
                out.extend(spellings(name.split('=').next().unwrap()));
                if name == word {
                    break;
                }
            }
        }
    }
    out
}

fn help(program: &str) -> String {
    // The short help of mkdwarfs leaves most options out.
    let option = if program == MKDWARFS { "-H" } else { "--help" };
    let out = run(program, [option]);
    assert!(out.status.success());
    String::from_utf8(out.stdout).unwrap()
}

/// All words of a cell that stand between back quotes, without values.
fn quoted_words(cell: &str) -> BTreeSet<String> {
    let quoted = Regex::new(r"`([^`]+)`").unwrap();
    let words = quoted.captures_iter(cell).flat_map(|found| {
        let text = found[1].replace(',', " ");
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    words
        .filter_map(|word| Some(word.split(['=', '[', '<']).next()?.to_owned()))
        .filter(|word| !word.is_empty())
        .flat_map(|word| spellings(&word))
        .collect()
}

fn listed_options(name: &str) -> BTreeSet<String> {
    rows(&document(name))
        .iter()
        .flat_map(|row| quoted_words(&row[0]))
        .collect()
}

/// Options that are neither in the help text nor meant to be: obsolete ones and aliases say so
/// in their row.
fn unlisted_on_purpose(name: &str) -> BTreeSet<String> {
    const EXCUSES: [&str; 5] = ["obsolete", "alias", "hidden", "ignored", "generic"];
    rows(&document(name))
        .iter()
        .filter(|row| {
            let text = row.join(" ").to_lowercase();
            EXCUSES.iter().any(|word| text.contains(word))
        })
        .flat_map(|row| quoted_words(&row[0]))
        .collect()
}

fn check_options(name: &str, shown: &BTreeSet<String>) {
    assert!(shown.len() > 5, "{name}: {shown:?}");
    let listed = listed_options(name);
    let missing: Vec<_> = shown.difference(&listed).collect();
    assert!(missing.is_empty(), "not in docs/{name}: {missing:?}");
    let excused = unlisted_on_purpose(name);
    let unknown: Vec<_> = listed
        .iter()
        .filter(|option| option.starts_with("--") && option.len() > 2)
        .filter(|option| !shown.contains(*option) && !excused.contains(*option))
        .collect();
    assert!(
        unknown.is_empty(),
        "in docs/{name} but not in the help text: {unknown:?}"
    );
}

#[test]
fn options_of_dwarfs_have_tests() {
    check_tests_of_options("dwarfs.md");
}

#[test]
fn options_of_dwarfsck_have_tests() {
    check_tests_of_options("dwarfsck.md");
}

#[test]
fn options_of_dwarfsextract_have_tests() {
    check_tests_of_options("dwarfsextract.md");
}

#[test]
fn options_of_mkdwarfs_have_tests() {
    check_tests_of_options("mkdwarfs.md");
}

#[test]
fn options_of_the_runtime_have_tests() {
    check_tests_of_options("dwarfs-runtime.md");
}

#[test]
fn callers_are_documented_with_tests() {
    check_tests("callers.md", 3);
}

#[test]
fn known_faults_have_tests() {
    check_tests("options/faults.md", 4);
}

/// `struct.member` of all structs inside of a type.
fn members(ty: &TypeInfo, out: &mut BTreeSet<String>) {
    match ty {
        TypeInfo::Optional(inner)
        | TypeInfo::List(inner)
        | TypeInfo::Set(inner)
        | TypeInfo::Map(inner) => members(inner, out),
        TypeInfo::Struct(info) => {
            for member in &info.members {
                out.insert(format!("{}.{}", info.name, member.name));
                members(&member.ty, out);
            }
        }
        TypeInfo::Pair(_) | TypeInfo::Unsigned(_) | TypeInfo::Bool | TypeInfo::Bytes => {}
    }
}

#[test]
fn members_of_the_metadata_are_documented_with_tests() {
    check_tests("format/members.md", 4);
    let listed: Vec<String> = rows(&document("format/members.md"))
        .iter()
        .map(|row| row[0].trim_matches('`').to_owned())
        .collect();
    let mut all = BTreeSet::new();
    members(&metadata_type(), &mut all);
    assert_eq!(listed.len(), all.len(), "a member is listed twice");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), all);
}

#[test]
fn help_and_table_of_dwarfs_agree() {
    let help = help(DWARFS);
    let mut shown = long_options(&help);
    let mount = mount_options(&help);
    for option in [
        "cachesize",
        "workers",
        "offset",
        "uid",
        "gid",
        "no_cache_files",
    ] {
        assert!(
            mount.contains(option),
            "{option} is not found in the help text: {mount:?}"
        );
    }
    shown.extend(mount);
    check_options("options/dwarfs.md", &shown);
}

#[test]
fn help_and_table_of_dwarfsck_agree() {
    check_options("options/dwarfsck.md", &long_options(&help(DWARFSCK)));
}

#[test]
fn help_and_table_of_dwarfsextract_agree() {
    check_options(
        "options/dwarfsextract.md",
        &long_options(&help(DWARFSEXTRACT)),
    );
}

#[test]
fn help_and_table_of_mkdwarfs_agree() {
    check_options("options/mkdwarfs.md", &long_options(&help(MKDWARFS)));
}

/// Help, manual and table of the runtime name the same options and variables.
#[test]
fn help_and_table_of_the_runtime_agree() {
    let help = fs::read_to_string(root().join("crates/redwarfs-runtime/src/help.txt")).unwrap();
    let mut shown = long_options(&help);
    let variable = Regex::new(r"(?m)^ +([A-Z_]{4,})=").unwrap();
    shown.extend(
        variable
            .captures_iter(&help)
            .map(|found| found[1].to_owned()),
    );
    assert!(shown.contains("DWARFS_WORKERS"), "{shown:?}");
    check_options("options/dwarfs-runtime.md", &shown);
    let manual = redwarfs_tools::runtime_manual().to_text(80, false);
    let missing: Vec<_> = shown
        .iter()
        .filter(|name| !manual.contains(*name))
        .collect();
    assert!(missing.is_empty(), "not in the manual: {missing:?}");
}

/// Every constant that `docs/limits.md` names, as `path/file.rs::NAME = value`, has this value.
#[test]
fn limits_are_those_of_the_source() {
    let text = document("limits.md");
    let named = Regex::new(r"`([a-z0-9_/-]+\.rs)::([A-Z][A-Z0-9_]+) = ([^`]+)`").unwrap();
    let mut problems = Vec::new();
    let mut count = 0;
    for found in named.captures_iter(&text) {
        let (file, name, value) = (&found[1], &found[2], &found[3]);
        count += 1;
        let path = root().join("crates").join(file);
        let Ok(source) = fs::read_to_string(&path) else {
            problems.push(format!("{file}: there is no such file"));
            continue;
        };
        let pattern = format!(r"(?s)const {name}: [A-Za-z0-9_]+ =\s*([^;]+);");
        let actual = Regex::new(&pattern)
            .unwrap()
            .captures(&source)
            .map(|c| c[1].to_owned());
        let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        match actual {
            None => problems.push(format!("{file}: there is no constant {name}")),
            Some(actual) if squeeze(&actual) != squeeze(value) => {
                problems.push(format!("{file}: {name} is {actual}, not {value}"));
            }
            Some(_) => {}
        }
    }
    assert!(count >= 10, "only {count} constants are named");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// All pages of the manual.
fn manuals() -> Vec<Manual> {
    let tools = redwarfs_tools::tools();
    let manuals = tools.iter().map(redwarfs_tools::common::tool::Tool::manual);
    let others = [redwarfs_tools::runtime_manual()];
    let pages = redwarfs_tools::pages();
    manuals.chain(others).chain(pages).collect()
}

/// Each page with exit codes has those of signals.
#[test]
fn exit_codes_after_signals_are_documented() {
    let mut seen = Vec::new();
    for manual in manuals() {
        let page = Manual {
            sections: manual
                .sections
                .into_iter()
                .filter(|s| s.title == "EXIT STATUS")
                .collect(),
            ..manual
        };
        if page.sections.is_empty() {
            continue;
        }
        let text = page.to_text(80, false);
        for part in ["130", "143", "SIGINT", "SIGTERM"] {
            assert!(
                text.contains(part),
                "{}({}): {part}: {text}",
                page.name,
                page.section
            );
        }
        seen.push(format!("{}({})", page.name, page.section));
    }
    for name in [
        "mkdwarfs(1)",
        "dwarfs(1)",
        "dwarfsck(1)",
        "dwarfsextract(1)",
        "redwarfs(7)",
        "dwarfs-runtime(1)",
    ] {
        assert!(seen.iter().any(|seen| seen == name), "{name}: {seen:?}");
    }
}

/// The items of all lists: their numbers.
fn items(blocks: &[Block], found: &mut Vec<Option<u32>>) {
    let run_together = Regex::new(r"^(- |[0-9]+\. )").unwrap();
    for block in blocks {
        match block {
            Block::Item { number, body } => {
                found.push(*number);
                items(body, found);
            }
            Block::Definition { body, .. } => items(body, found),
            Block::Paragraph(spans) => {
                let text: String = spans.iter().map(|span| span.text.as_str()).collect();
                assert!(
                    !run_together.is_match(&text),
                    "a list as a paragraph: {text}"
                );
            }
            Block::Literal(_) => {}
        }
    }
}

/// Each item of a list begins a line, in `man` and in the output of `--man`, and groff has nothing to complain about.
#[test]
fn lists_of_the_manuals_are_lists() {
    let mut all = 0;
    for manual in manuals() {
        let name = format!("{}({})", manual.name, manual.section);
        let mut numbers = Vec::new();
        manual
            .sections
            .iter()
            .for_each(|section| items(&section.blocks, &mut numbers));
        all += numbers.len();
        let count = |text: &str, mark: &str| {
            let lines = text.lines().map(str::trim_start);
            lines.filter(|line| line.starts_with(mark)).count()
        };
        let bullets = numbers.iter().filter(|number| number.is_none()).count();
        let text = manual.to_text(80, false);
        // A dash of a sentence may begin a line, too.
        assert!(count(&text, "- ") >= bullets, "{name}");
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("page");
        fs::write(&page, manual.to_roff()).unwrap();
        let groff = Command::new("groff")
            .args(["-man", "-Tutf8", "-K", "utf8", "-ww", "-P-cbou"])
            .arg(&page)
            .output();
        let Ok(shown) = groff else {
            redwarfs_testkit::skip("lists of the manuals", "there is no groff");
            continue;
        };
        let said = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.status.success() && said.is_empty(), "{name}: {said}");
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert_eq!(count(&shown, "• "), bullets, "{name}: {shown}");
        for number in numbers.into_iter().flatten() {
            let mark = format!("{number}. ");
            assert!(
                count(&shown, &mark) > 0 && count(&text, &mark) > 0,
                "{name}: {mark}"
            );
        }
    }
    assert!(all > 40, "{all}");
}

/// A line at the margin ends a definition or an item of a list, so it must not stand in the middle of a sentence.
#[test]
fn definitions_of_the_manuals_are_whole() {
    let directory = root().join("crates/redwarfs-tools/manual");
    let item = Regex::new(r"^(: |- |[0-9]{1,3}\. )").unwrap();
    let mut seen = 0;
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let mut is_inner = false;
        for (number, line) in lines.iter().enumerate() {
            let begins = item.is_match(line);
            let next = lines.get(number + 1).unwrap_or(&"");
            let goes_on = !line.is_empty() && !line.starts_with(' ') && !begins;
            assert!(
                !is_inner || !goes_on || next.starts_with(": "),
                "{}:{}: is not indented: {line}",
                path.display(),
                number + 1
            );
            is_inner = begins || (is_inner && line.starts_with(' '));
            seen += usize::from(begins);
        }
    }
    assert!(seen > 100, "{seen}");
}

/// What a help text says behind the options has lines of its own. Those that are too long would be broken again.
#[test]
fn lines_of_help_texts_fit_80_columns() {
    let mut seen = 0;
    for program in [MKDWARFS, DWARFS, DWARFSCK, DWARFSEXTRACT] {
        for option in ["-h", "--help"] {
            let of = |columns: &str| {
                let mut command = Command::new(program);
                let output = command.arg(option).env("COLUMNS", columns).output();
                let text = String::from_utf8(output.unwrap().stdout).unwrap();
                text.split_once("Examples:\n")
                    .map(|(_, end)| end.to_owned())
            };
            let (narrow, wide) = (of("80"), of("200"));
            assert_eq!(narrow, wide, "{program} {option}");
            seen += narrow.map_or(0, |text| text.lines().count());
        }
    }
    assert!(seen > 0);
}

/// Every page of the format and of the measurements is a page of the book.
#[test]
fn the_book_has_every_page() {
    let summary = fs::read_to_string(root().join("docs/book/src/SUMMARY.md")).unwrap();
    // Tables for those who change the program.
    let left_out = ["options/tests.md"];
    let mut missing = Vec::new();
    for directory in ["", "format", "bench", "options", "book/src"] {
        let entries = fs::read_dir(root().join("docs").join(directory)).unwrap();
        for name in entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
            if !name.ends_with(".md") || name == "SUMMARY.md" {
                continue;
            }
            let page = match directory {
                "" => format!("../../{name}"),
                "book/src" => name,
                _ => format!("../../{directory}/{name}"),
            };
            if !summary.contains(&format!("]({page})"))
                && !left_out.iter().any(|end| page.ends_with(end))
            {
                missing.push(page);
            }
        }
    }
    assert!(missing.is_empty(), "SUMMARY.md lacks {missing:?}");
}

/// Tests and the command line are where documents say.
#[test]
fn tables_are_read_as_meant() {
    let text = "| option | b |\n|---|---|\n| `--one`, `-x` | `a\\|b` tests/x.rs::y |\n";
    assert_eq!(rows(text), [["`--one`, `-x`", "`a|b` tests/x.rs::y"]]);
    assert_eq!(
        named_tests(&rows(text)[0][1]),
        [("tests/x.rs".to_owned(), "y".to_owned())]
    );
    let help = "Usage\n  -i, --input <FILE>  x\n      --list  y --not this\nOptions for -o:\n  cachesize=SIZE         memory\n  (no_)cache_files       keep\n  uid=N, gid=N           owner\n  offset=N|auto          where\n";
    assert_eq!(
        long_options(help),
        ["--input", "--list"].map(String::from).into()
    );
    let mount = [
        "cache_files",
        "cachesize",
        "gid",
        "no_cache_files",
        "offset",
        "uid",
    ];
    assert_eq!(mount_options(help), mount.map(String::from).into());
    let text = "# a\n\n## one\n1\n\n## two\n2\n";
    assert_eq!([part(text, "one"), part(text, "two")], ["1\n", "2\n"]);
    assert_eq!(part(text, "three"), "");
    let sources = sources();
    assert!(test_exists(
        &sources,
        "documentation.rs",
        "tables_are_read_as_meant"
    ));
    assert!(test_exists(
        &sources,
        "tests/documentation.rs",
        "tables_are_read_as_meant"
    ));
    assert!(!test_exists(&sources, "documentation.rs", "rows"));
    assert!(!test_exists(
        &sources,
        "hostile.rs",
        "tables_are_read_as_meant"
    ));
}
