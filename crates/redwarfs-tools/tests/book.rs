//! The commands of the manual (`docs/book/src`), of the README and of `docs/runtime.md` do what the pages say.
//!
//! A page is one shell session in an empty directory, with the tools in `PATH`, and in `SERVER` the URL of a web server that
//! serves this directory:
//!
//! - each block in the language `sh` is run; a command that fails ends the session and the test;
//! - a block in the language `text` is the output of the block before it. `…` in a line stands for any
//!   characters, a line of `…` alone for any lines;
//! - comments in front of a block concern that block:
//!   - `<!-- book: not run: REASON -->`: it cannot be run by a test;
//!   - `<!-- book: not output: REASON -->`: this text is no output of the block before it;
//!   - `<!-- book: needs ITEM, ITEM -->`: it is skipped where an item is missing: `root`, `fuse`, `overlay`,
//!     `libarchive`, or a program;
//!   - `<!-- book: fails -->`: its last command has to fail;
//! - `<!-- book: run`, further lines and `-->` are commands that the reader does not see. `run needs ITEM` is
//!   possible.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::support::MKDWARFS;
use redwarfs_testkit::skip;
use redwarfs_testkit::web::WebServer;

/// Languages of blocks that are not run: contents of files, and programs that other tests run.
const OTHER_LANGUAGES: [&str; 9] = [
    "ini", "fstab", "lua", "json", "rust", "python", "c", "go", "console",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a comment says of the block behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Note {
    NotRun(String),
    NotOutput(String),
    Needs(Vec<String>),
    Fails,
}

#[derive(Debug)]
struct Block {
    /// The line where it begins.
    line: usize,
    language: String,
    text: String,
    notes: Vec<Note>,
}

impl Block {
    fn needs(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().flat_map(|note| match note {
            Note::Needs(items) => items.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        })
    }
}

fn note(text: &str) -> Result<Note, String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(reason) = text.strip_prefix("not run: ") {
        return Ok(Note::NotRun(reason.to_owned()));
    }
    if let Some(reason) = text.strip_prefix("not output: ") {
        return Ok(Note::NotOutput(reason.to_owned()));
    }
    if let Some(items) = text.strip_prefix("needs ") {
        return Ok(Note::Needs(items.split(", ").map(str::to_owned).collect()));
    }
    match text.as_str() {
        "fails" => Ok(Note::Fails),
        other => Err(format!("'{other}' is no note")),
    }
}

/// All blocks of a page, the hidden ones too.
fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut out = Vec::new();
    let mut notes = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let mut rest = |end: &dyn Fn(&str) -> bool| -> Result<Vec<&str>, String> {
            let mut body = Vec::new();
            loop {
                match lines.next() {
                    Some((_, line)) if end(line) => return Ok(body),
                    Some((_, line)) => body.push(line),
                    None => return Err(format!("line {}: no end", at + 1)),
                }
            }
        };
        if let Some(comment) = line.strip_prefix("<!-- book: ") {
            if let Some(one) = comment.strip_suffix(" -->") {
                notes.push(note(one).map_err(|e| format!("line {}: {e}", at + 1))?);
                continue;
            }
            let Some(more) = comment.strip_prefix("run") else {
                return Err(format!("line {}: what is not 'run' takes one line", at + 1));
            };
            if !more.is_empty() {
                notes.push(note(more).map_err(|e| format!("line {}: {e}", at + 1))?);
            }
            out.push(Block {
                line: at + 1,
                language: "sh".into(),
                text: rest(&|line| line == "-->")?.join("\n"),
                notes: std::mem::take(&mut notes),
            });
        } else if let Some(language) = line.trim_start().strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let body = rest(&|line| line.trim_start().starts_with("```"))?;
            let cut = |line: &&str| line.get(indent..).unwrap_or_default().to_owned();
            out.push(Block {
                line: at + 1,
                language: language.to_owned(),
                text: body.iter().map(cut).collect::<Vec<_>>().join("\n"),
                notes: std::mem::take(&mut notes),
            });
        }
    }
    if notes.is_empty() {
        Ok(out)
    } else {
        Err("a note without a block at the end".into())
    }
}

/// Whether a line is what a page says, where `…` stands for any characters.
fn line_fits(want: &str, got: &str) -> bool {
    let mut parts = want.split('…');
    let first = parts.next().unwrap();
    let Some(mut rest) = got.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

/// The same for lines, where a line of `…` alone stands for any lines.
fn output_fits(want: &[&str], got: &[&str]) -> bool {
    match want.split_first() {
        None => got.is_empty(),
        Some((&"…", rest)) => (0..=got.len()).any(|skipped| output_fits(rest, &got[skipped..])),
        Some((first, rest)) => got
            .split_first()
            .is_some_and(|(line, after)| line_fits(first, line) && output_fits(rest, after)),
    }
}

fn trimmed_lines(text: &str) -> Vec<&str> {
    text.trim_end().lines().map(str::trim_end).collect()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A session in namespaces of its own: what it mounts and starts ends with it.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
    ]);
    command
}

/// Where a session looks for programs: the tools first.
fn search_path() -> String {
    let tools = Path::new(MKDWARFS).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{tools}:{path}:/usr/sbin:/sbin")
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What this machine has.
struct Machine {
    /// Root, and a session can have namespaces of its own.
    is_isolated: bool,
    missing: Mutex<BTreeSet<String>>,
}

impl Machine {
    fn new() -> Self {
        Self {
            is_isolated: is_root() && succeeds(unshare().arg("true")),
            missing: Mutex::default(),
        }
    }

    fn has(&self, item: &str) -> bool {
        let shell = |script: &str| succeeds(Command::new("sh").args(["-c", script]));
        match item {
            "root" => self.is_isolated,
            "fuse" => shell("[ -c /dev/fuse ] && : <>/dev/fuse && command -v fusermount3"),
            "overlay" => {
                let script = "d=$(mktemp -d) && mount -t tmpfs none $d && mkdir $d/l $d/u $d/w $d/m \
                    && mount -t overlay none -o lowerdir=$d/l,upperdir=$d/u,workdir=$d/w $d/m";
                self.is_isolated && succeeds(unshare().args(["sh", "-c", script]))
            }
            "libarchive" => redwarfs_extractor::libarchive_version().is_some(),
            program => succeeds(
                Command::new("sh")
                    .args(["-c", &format!("command -v {program}")])
                    .env("PATH", search_path()),
            ),
        }
    }

    /// The first thing that a block needs and that is not here.
    fn lacks(&self, block: &Block) -> Option<String> {
        let mut missing = self.missing.lock().unwrap();
        for item in block.needs() {
            if missing.contains(item) || !self.has(item) {
                missing.insert(item.to_owned());
                return Some(item.to_owned());
            }
        }
        None
    }
}

/// What came of a page.
#[derive(Default)]
struct Outcome {
    ran: usize,
    not_run: Vec<String>,
    skipped: BTreeSet<String>,
    problems: Vec<String>,
}

/// Unmounts what a session without a namespace of its own has left behind.
fn clean_up(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for line in mounts.lines().rev() {
        let at = line.split(' ').nth(1).unwrap_or_default();
        if Path::new(at).starts_with(dir) {
            let quick = succeeds(Command::new("fusermount3").args(["-uz", at]));
            let _ = quick || succeeds(Command::new("umount").args(["-l", at]));
        }
    }
}

/// Runs a page and compares what it prints.
fn session(name: &str, page: &str, machine: &Machine) -> Outcome {
    let mut outcome = Outcome::default();
    let blocks = match blocks(page) {
        Ok(blocks) => blocks,
        Err(problem) => {
            outcome.problems.push(format!("{name}: {problem}"));
            return outcome;
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let (home, out) = (dir.path().join("home"), dir.path().join("out"));
    fs::create_dir(&home).unwrap();
    fs::create_dir(&out).unwrap();

    // Each output goes to a file with the number of its block, and that number to the file `at`.
    let mut script = String::from("set -eu\ncd \"$1\"\nexport HOME=$1\n");
    let mut is_run = vec![false; blocks.len()];
    for (number, block) in blocks.iter().enumerate() {
        let at = format!("{name}:{}", block.line);
        if block.language != "sh" {
            let known =
                block.language == "text" || OTHER_LANGUAGES.contains(&block.language.as_str());
            if !known {
                let language = &block.language;
                outcome
                    .problems
                    .push(format!("{at}: a block in the language '{language}'"));
            }
            continue;
        }
        let reason = block.notes.iter().find_map(|note| match note {
            Note::NotRun(reason) => Some(reason),
            _ => None,
        });
        if let Some(reason) = reason {
            outcome.not_run.push(format!("{at}: {reason}"));
            continue;
        }
        if let Some(item) = machine.lacks(block) {
            outcome.skipped.insert(item);
            continue;
        }
        is_run[number] = true;
        outcome.ran += 1;
        writeln!(script, "echo {number} >\"$2/at\"").unwrap();
        if block.notes.contains(&Note::Fails) {
            writeln!(
                script,
                "( set +e\n{}\n) >\"$2/{number}\" 2>&1 && exit 99",
                block.text
            )
            .unwrap();
        } else {
            writeln!(script, "{{\n{}\n}} >\"$2/{number}\" 2>&1", block.text).unwrap();
        }
    }
    let file = dir.path().join("script");
    fs::write(&file, script).unwrap();

    let server = WebServer::start().unwrap();
    server.serve_directory(&home);
    let mut command = if machine.is_isolated {
        let mut command = unshare();
        command.arg("bash");
        command
    } else {
        Command::new("bash")
    };
    let status = command
        .arg(&file)
        .args([&home, &out])
        .env("PATH", search_path())
        .env("LC_ALL", "C.UTF-8")
        .env("SERVER", server.url(""))
        .env("TMPDIR", dir.path())
        .env_remove("SOURCE_DATE_EPOCH")
        .stdin(Stdio::null())
        .status()
        .unwrap();
    if !machine.is_isolated {
        clean_up(dir.path());
    }

    let output = |number: usize| {
        let bytes = fs::read(out.join(number.to_string())).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    if !status.success() {
        let last = fs::read_to_string(out.join("at")).unwrap_or_default();
        let number = last.trim().parse().unwrap_or(0);
        let block = &blocks[number];
        let end = if status.code() == Some(99) {
            "did not fail".to_owned()
        } else {
            status.to_string()
        };
        let (line, text, shown) = (block.line, &block.text, output(number));
        let problem = format!("{name}:{line}: {end}\n{text}\n-- printed:\n{shown}");
        outcome.problems.push(problem);
        return outcome;
    }
    let mut before: Option<usize> = None;
    for (number, block) in blocks.iter().enumerate() {
        if block.language == "sh" {
            before = Some(number);
        }
        let is_output = !block
            .notes
            .iter()
            .any(|note| matches!(note, Note::NotOutput(_)));
        if block.language != "text" || !is_output {
            continue;
        }
        let line = block.line;
        let Some(producer) = before else {
            outcome
                .problems
                .push(format!("{name}:{line}: output of nothing"));
            continue;
        };
        if !is_run[producer] {
            let was_skipped = blocks[producer].needs().next().is_some();
            if !was_skipped {
                outcome
                    .problems
                    .push(format!("{name}:{line}: output of a block that is not run"));
            }
            continue;
        }
        let got = output(producer);
        if !output_fits(&trimmed_lines(&block.text), &trimmed_lines(&got)) {
            let want = &block.text;
            let problem = format!("{name}:{line}: wanted\n{want}\n-- printed:\n{got}");
            outcome.problems.push(problem);
        }
    }
    outcome
}

/// The pages of the manual, and the README.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = fs::read_dir(root().join("docs/book/src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.push(root().join("README.md"));
    pages.push(root().join("docs/runtime.md"));
    pages.sort();
    pages
}

#[test]
fn every_command_of_the_manual_runs() {
    if !succeeds(Command::new("bash").args(["-c", "true"])) {
        return skip("the commands of the manual", "no bash");
    }
    let machine = Machine::new();
    let pages = Mutex::new(pages());
    let outcomes: Mutex<Vec<(String, Outcome)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(path) = pages.lock().unwrap().pop() else {
                        break;
                    };
                    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                    let page = fs::read_to_string(&path).unwrap();
                    let outcome = session(&name, &page, &machine);
                    outcomes.lock().unwrap().push((name, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    outcomes.sort_by(|(a, _), (b, _)| a.cmp(b));
    let (mut ran, mut not_run, mut problems) = (0, Vec::new(), Vec::new());
    for (name, outcome) in outcomes {
        ran += outcome.ran;
        not_run.extend(outcome.not_run);
        problems.extend(outcome.problems);
        for item in outcome.skipped {
            skip(&format!("commands of {name}"), &format!("no {item}"));
        }
    }
    for line in &not_run {
        println!("not run: {line}");
    }
    println!("{ran} blocks were run, {} cannot be", not_run.len());
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
    assert!(ran > 50, "only {ran} blocks were run");
}

#[test]
fn pages_are_read_as_meant() {
    let page = "# A\n<!-- book: run needs root\necho 1\n-->\ntext\n<!-- book: needs fuse, tar -->\n\
        <!-- book: fails -->\n```sh\nfalse\n```\n\n```text\n…\n```\n";
    let found = blocks(page).unwrap();
    let kinds: Vec<_> = found
        .iter()
        .map(|b| (b.line, b.language.as_str(), b.text.as_str()))
        .collect();
    assert_eq!(
        kinds,
        [(2, "sh", "echo 1"), (8, "sh", "false"), (12, "text", "…")]
    );
    assert_eq!(found[0].needs().collect::<Vec<_>>(), ["root"]);
    assert_eq!(found[1].needs().collect::<Vec<_>>(), ["fuse", "tar"]);
    assert!(found[1].notes.contains(&Note::Fails));
    for wrong in [
        "<!-- book: nonsense -->\n```sh\n```\n",
        "```sh\nx\n",
        "<!-- book: fails -->\n",
    ] {
        assert!(blocks(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn outputs_are_compared_as_meant() {
    for (want, got, fits) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a…", "ab", true),
        ("…b", "ab", true),
        ("a…c…e", "abcde", true),
        ("a…c…e", "abde", false),
        ("a…", "", false),
        ("…", "", true),
        ("x\n…\ny", "x\ny", true),
        ("x\n…\ny", "x\n1\n2\ny", true),
        ("x\n…\ny", "x\n1\n2", false),
        ("x", "x\ny", false),
    ] {
        let is_fit = output_fits(&trimmed_lines(want), &trimmed_lines(got));
        assert_eq!(is_fit, fits, "{want:?} {got:?}");
    }
}

#[test]
fn a_page_that_is_wrong_is_noticed() {
    if !succeeds(Command::new("bash").args(["-c", "true"])) {
        return skip("the commands of the manual", "no bash");
    }
    let machine = Machine::new();
    for (page, problem) in [
        ("```sh\nfalse\necho no\n```\n", "exit status: 1"),
        ("<!-- book: fails -->\n```sh\ntrue\n```\n", "did not fail"),
        ("```sh\necho 1\n```\n\n```text\n2\n```\n", "wanted"),
        ("```text\n2\n```\n", "output of nothing"),
        ("```\necho\n```\n", "in the language"),
    ] {
        let outcome = session("x.md", page, &machine);
        assert!(outcome.problems.join("").contains(problem), "{page}");
    }
    let good = "```sh\ncd /tmp\nx=1\n```\n\n```sh\npwd; echo $x\n```\n\n```text\n/tmp\n1\n```\n";
    let outcome = session("x.md", good, &machine);
    assert_eq!((outcome.ran, outcome.problems), (2, Vec::new()));
    let absent = "<!-- book: needs no-such-program -->\n```sh\nfalse\n```\n\n```text\nx\n```\n";
    let outcome = session("x.md", absent, &machine);
    assert_eq!((outcome.ran, outcome.problems), (0, Vec::new()));
    assert!(outcome.skipped.contains("no-such-program"));
}
