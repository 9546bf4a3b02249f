//! `mkdwarfs --script`: what scripts can do.
#![cfg(feature = "lua")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use crate::builder::{Built, Done, TestDir, mkdwarfs};
use crate::support;
use crate::support::{DWARFSEXTRACT, must, reference};
use redwarfs_testkit::layout::{Placed, placed_files};
use redwarfs_testkit::tree::Random;

/// The last line of standard error.
pub(crate) fn last_line(done: &Done) -> &str {
    done.stderr.lines().last().unwrap_or_default()
}

/// Builds with this script, without any message.
fn built(place: &TestDir, script: &str, args: &[&str]) -> Built {
    let file = place.file("script.lua", script);
    place.image(&[&["--script", &file], args].concat())
}

/// Runs with this script at log level info; returns what it printed.
pub(crate) fn printed(place: &TestDir, script: &str, args: &[&str]) -> Vec<String> {
    let file = place.file("script.lua", script);
    let mut command = mkdwarfs();
    command.args(["-i", &place.text("in"), "-fo", &place.text("out")]);
    let done: Done = command
        .args(["-l1", "--script", &file])
        .args(args)
        .output()
        .unwrap()
        .into();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let lines = done.stderr.lines();
    let own = lines.filter_map(|line| line.split_once(" script: "));
    own.map(|(_, text)| text.to_owned()).collect()
}

/// Runs with a script that fails; returns what is said after its name.
pub(crate) fn failure(place: &TestDir, script: impl AsRef<[u8]>) -> String {
    fs::write(place.path("out"), "old").unwrap();
    let file = place.file("script.lua", script);
    let done = place.run(&["--script", &file]);
    let old = fs::read(place.path("out")).unwrap();
    assert_eq!(
        (done.code, old),
        (Some(1), b"old".to_vec()),
        "{}",
        done.stderr
    );
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    let begin = format!("mkdwarfs: script: {file}:");
    let text = last_line(&done).strip_prefix(&begin);
    text.unwrap_or_else(|| panic!("{}", done.stderr)).to_owned()
}

/// Paths of files with data, by place.
fn sequence(built: &Built) -> Vec<String> {
    let files = placed_files(&built.0).into_iter();
    files.map(|file| file.path).collect()
}

fn category_of(files: &[Placed], path: &str) -> Option<String> {
    let file = files.iter().find(|file| file.path == path);
    file.unwrap().category.clone()
}

/// Lines of the blocks of the document that are in this language.
fn blocks_of_document(language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scripting.md");
    let text = fs::read_to_string(path).unwrap();
    let begin = format!("```{language}\n");
    let parts = text.split("\n```");
    // Every second part is a block.
    let blocks = parts.enumerate().filter(|(i, _)| i % 2 == 1);
    let blocks = blocks.map(|(_, part)| format!("```{part}\n"));
    blocks
        .filter_map(|block| Some(block.strip_prefix(&begin)?.to_owned()))
        .collect()
}

/// Writes the examples of the document, and runs the commands that use `script` in `place`, with
/// the input that they name.
fn example(place: &TestDir, script: &str, input: &str) -> Vec<Done> {
    for text in blocks_of_document("lua") {
        let name = text.strip_prefix("-- ").unwrap().split(':').next().unwrap();
        place.file(name, &text);
    }
    fs::rename(place.path("in"), place.path(input)).unwrap();
    let commands = blocks_of_document("");
    let commands = commands.iter().flat_map(|block| block.lines());
    let own = commands.filter(|line| line.contains(&format!("--script={script}")));
    own.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [program, args @ ..] = &words[..] else {
            panic!("no command");
        };
        assert_eq!(*program, "mkdwarfs");
        let mut command = mkdwarfs();
        command.args(args).current_dir(place.path(""));
        command.output().unwrap().into()
    })
    .collect()
}

#[test]
fn the_first_example_of_the_document() {
    let place = TestDir::new(&[
        "src/main.c",
        "src/main.o",
        "src/main.c~",
        "src/target/debug/x",
        "node_modules/a/b.js",
        "target.txt",
        "empty/",
    ]);
    let large = fs::File::create(place.path("in/dump")).unwrap();
    large.set_len((64 << 20) + 1).unwrap();
    let ran = example(&place, "clean.lua", "project");
    let [build, show] = &ran[..] else {
        panic!("{} commands", ran.len());
    };
    assert_eq!(build.code, Some(0), "{}", build.stderr);
    assert!(build.stderr.contains("left out, too large: dump"));
    fs::rename(place.path("project.dwarfs"), place.path("out")).unwrap();
    let want = ["empty", "src", "src/main.c", "target.txt"];
    assert_eq!(place.built().paths(), want);
    assert_eq!(show.code, Some(0), "{}", show.stderr);
    let root = fs::canonicalize(place.path("project")).unwrap();
    let shown = String::from_utf8(show.stdout.clone()).unwrap();
    let mut shown: Vec<&str> = shown
        .lines()
        .map(|line| line.strip_prefix(root.to_str().unwrap()).unwrap())
        .collect();
    shown.sort_unstable();
    let want = [
        "/dump",
        "/node_modules/",
        "/src/main.c~",
        "/src/main.o",
        "/src/target/",
    ];
    assert_eq!(shown, want);
}

#[test]
fn the_second_example_of_the_document() {
    let place = TestDir::new(&[
        "bin/app",
        "bin/tool",
        "doc/read.me",
        "doc/picture.JPG",
        "etc/app.conf",
        "etc/other.conf",
        "lib/core.so",
        "media/b.png",
        "media/a.ogg",
    ]);
    for program in ["in/bin/app", "in/bin/tool"] {
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(place.path(program), executable).unwrap();
    }
    let ran = example(&place, "app.lua", "app");
    assert_eq!(ran.len(), 1);
    assert_eq!(ran[0].code, Some(0), "{}", ran[0].stderr);
    assert!(!ran[0].stderr.contains("W "), "{}", ran[0].stderr);
    fs::rename(place.path("app.dwarfs"), place.path("out")).unwrap();
    let files = placed_files(&place.built().0);
    let of = |category: &str| -> Vec<&str> {
        let own = files
            .iter()
            .filter(|file| file.category.as_deref() == Some(category));
        own.map(|file| file.path.as_str()).collect()
    };
    let want = [
        "bin/app",
        "lib/core.so",
        "etc/app.conf",
        "bin/tool",
        "doc/read.me",
        "etc/other.conf",
    ];
    assert_eq!(of("<default>"), want);
    let media = ["doc/picture.JPG", "media/a.ogg", "media/b.png"];
    assert_eq!(of("media"), media);
    // What is not compressed stands in the file as it is.
    let image = fs::read(place.path("out")).unwrap();
    let together = b"doc/picture.JPGmedia/a.oggmedia/b.png";
    assert!(image.windows(together.len()).any(|bytes| bytes == together));
}

#[test]
fn entries_are_described_to_the_script() {
    let place = TestDir::new(&["d/", "d/file"]);
    symlink("d/file", place.path("in/link")).unwrap();
    fs::hard_link(place.path("in/d/file"), place.path("in/again")).unwrap();
    let odd = place.path("in").join(OsStr::from_bytes(b"\xff\xfe"));
    fs::write(odd, "odd").unwrap();
    let mode = fs::Permissions::from_mode(0o4751);
    fs::set_permissions(place.path("in/d/file"), mode).unwrap();
    let made = Command::new("mkfifo").arg(place.path("in/pipe")).status();
    assert!(made.unwrap().success());
    for (name, time) in [("in/d/file", "@77"), ("in/d", "@-5")] {
        let mut touch = Command::new("touch");
        touch.args(["-d", time]).arg(place.path(name));
        assert!(touch.status().unwrap().success());
    }
    let script = r#"
        function filter(e)
          local name = e.path:gsub("[\128-\255]", "?")
          print(name, #e.name, e.type, e.size, e.target, e.nlink, math.type(e.mtime))
          if e.path == "d/file" then
            print(e.mode == tonumber("4751", 8), e.mtime, e.uid, e.gid, e.atime > 0, e.ctime > 77)
          elseif e.path == "d" then
            print(e.mtime)
          end
          return true
        end"#;
    let lines = printed(
        &place,
        script,
        &["--with-specials", "--chmod=700", "--set-time=9"],
    );
    use std::os::unix::fs::MetadataExt as _;
    let owner = fs::metadata(place.path("in/d/file")).unwrap();
    let times = format!("true\t77\t{}\t{}\ttrue\ttrue", owner.uid(), owner.gid());
    let directory = fs::metadata(place.path("in/d")).unwrap().nlink();
    let want = [
        "again\t5\tfile\t6\tnil\t2\tinteger".to_owned(),
        format!("d\t1\tdirectory\t0\tnil\t{directory}\tinteger"),
        "-5".to_owned(),
        "link\t4\tsymlink\t0\td/file\t1\tinteger".to_owned(),
        "pipe\t4\tfifo\t0\tnil\t1\tinteger".to_owned(),
        "??\t2\tfile\t3\tnil\t1\tinteger".to_owned(),
        "d/file\t4\tfile\t6\tnil\t2\tinteger".to_owned(),
        times,
    ];
    assert_eq!(lines, want);
}

#[test]
fn scripts_exclude_together_with_other_options() {
    let paths = ["a/x", "a/y", "b/only-x", "c", "skipped/x"];
    let place = TestDir::new(&paths);
    let script = r#"
        function filter(e)
          print(e.path)
          return not e.name:find("x")
        end"#;
    // Rules come first.
    let asked = printed(&place, script, &["-F", "- skipped/", "--remove-empty-dirs"]);
    assert_eq!(asked, ["a", "b", "c", "a/x", "a/y", "b/only-x"]);
    assert_eq!(place.built().paths(), ["a", "a/y", "c"]);
    let list = place.file("list", "a/x\na/y\nb/only-x\n");
    let asked = printed(&place, script, &["--input-list", &list]);
    assert_eq!(asked, ["a", "b", "a/x", "a/y", "b/only-x"]);
    assert_eq!(place.built().paths(), ["a", "a/y", "b"]);
    let pseudo = place.file("pseudo", "made c 644 0 0 1 3\nmax c 644 0 0 1 5\n");
    let args = ["--pseudo-file", &pseudo, "-F", "- {a,b}/", "- c"];
    let asked = printed(&place, script, &args);
    assert_eq!(asked, ["made", "max", "skipped", "skipped/x"]);
    assert_eq!(place.built().paths(), ["made", "skipped"]);
    // A directory that is left out is not read, whatever is listed below it.
    let script = "function filter(e) return e.path ~= 'a' end";
    let built = built(&place, script, &["--input-list", &list]);
    assert_eq!(built.paths(), ["b", "b/only-x"]);
}

#[test]
fn debug_filter_shows_what_the_script_leaves_out() {
    let place = TestDir::new(&["a/x", "b/y", "c/z", "d"]);
    let script = "function filter(e) return e.path ~= 'b' and e.name ~= 'x' end";
    let file = place.file("script.lua", script);
    let show = |args: &[&str]| {
        let mut command = mkdwarfs();
        command.args(["-i", &place.text("in"), "--script", &file, "-F", "- c/"]);
        let done: Done = command.args(args).output().unwrap().into();
        let root = fs::canonicalize(place.path("in")).unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        let text = text.replace(root.to_str().unwrap(), "");
        (done.code, text, done.stderr)
    };
    let (code, text, errors) = show(&["--debug-filter"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(text, "+ /a/\n- /b/\n- /c/\n+ /d\n- /a/x\n".to_owned());
    place.file("script.lua", "function filter(e) error('no') end");
    let (code, _, errors) = show(&["--debug-filter"]);
    let want = format!("mkdwarfs: script: {file}:1: no (for 'a')\n");
    assert_eq!((code, errors), (Some(1), want));
}

#[test]
fn categories_of_scripts_take_all_options() {
    let place = TestDir::new(&["a.one", "b.two", "c.one", "d", "e.two"]);
    let mut random = Random::new(1);
    for name in ["a.one", "b.two", "c.one", "d", "e.two"] {
        fs::write(place.path("in").join(name), random.text(5000)).unwrap();
    }
    let script = "function category(e) return e.name:match('%.(.*)') end";
    let args = [
        "--categorize",
        "-C",
        "lz4",
        "one::zstd:level=1",
        "two,incompressible::null",
        "--order",
        "one::revpath",
        "two::path",
        "-W",
        "one,two::8",
        "-w",
        "two::1",
        "-B",
        "one::2",
        "--bloom-filter-size",
        "two::3",
    ];
    let image = built(&place, script, &args);
    let files = placed_files(&image.0);
    for (path, want) in [("a.one", "one"), ("b.two", "two"), ("d", "<default>")] {
        assert_eq!(category_of(&files, path).as_deref(), Some(want));
    }
    let sections = |image: &Built| {
        let read = |at, buf: &mut [u8]| image.0.source().read_exact_at(at, buf);
        let container = image.0.container();
        let blocks = 0..container.block_count();
        let all = blocks.map(|n| container.load_header(&read, n).unwrap().compression);
        all.map(|id| id.unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(sections(&image), ["LZ4", "ZSTD", "NONE"]);
    // The same without categorizers, which have nothing to do here.
    let image = built(&place, script, &args[1..]);
    assert_eq!(sections(&image), ["LZ4", "ZSTD", "NONE"]);
    // Rewriting knows the names that the image has, and no others.
    fs::rename(place.path("out"), place.path("source")).unwrap();
    let rewrite = |spec: &str| -> Done {
        let mut command = mkdwarfs();
        command.args(["-i", &place.text("source"), "-fo", &place.text("out")]);
        command.args(["--recompress=block", "-l1", "--log-level=warn", "-C", spec]);
        command.output().unwrap().into()
    };
    let done = rewrite("two::lzma:level=1");
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert_eq!(sections(&place.built()), ["LZ4", "LZ4", "LZMA"]);
    let done = rewrite("three::lzma:level=1");
    assert_eq!(done.code, Some(1));
    assert!(
        done.stderr.contains("unknown category: 'three'"),
        "{}",
        done.stderr
    );
    // Names that nothing has are mistakes, most likely.
    let file = place.text("script.lua");
    let done = place.run(&["--script", &file, "-C", "there::null"]);
    assert_eq!(done.code, Some(0));
    assert!(last_line(&done).ends_with("no file into category 'there'"));
    let done = place.run(&["--script", &file, "-C", "a b::null"]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("bad name of a category: 'a b'"));
    let done = place.run(&["--categorize", "-C", "one::null"]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("unknown category: 'one'"));
}

#[test]
fn built_in_categories_come_before_those_that_are_found() {
    let place = TestDir::new(&[]);
    let mut random = Random::new(5);
    for name in ["noise", "other noise", "text", "program"] {
        let data = match name {
            "text" => random.text(20_000),
            "program" => fs::read(support::MKDWARFS).unwrap()[..20_000].to_vec(),
            _ => random.bytes(20_000),
        };
        fs::write(place.path("in").join(name), data).unwrap();
    }
    let script = r#"
        local of = { noise = "<default>", text = "incompressible" }
        function category(e) return of[e.path] end"#;
    let image = built(&place, script, &["--categorize"]);
    let files = placed_files(&image.0);
    for (path, want) in [
        ("noise", "<default>"),
        ("other noise", "incompressible"),
        ("text", "incompressible"),
        ("program", "binary/elf"),
    ] {
        assert_eq!(category_of(&files, path).as_deref(), Some(want), "{path}");
    }
    for name in ["pcmaudio/waveform", "fits/image"] {
        let script = format!("function category()\n return '{name}' end");
        let want = format!("1: 'category': '{name}' is for data that its categorizer finds");
        assert_eq!(failure(&place, script), format!("{want} (for 'noise')"));
    }
}

#[test]
fn orders_of_scripts() {
    let place = TestDir::new(&["a", "b", "c", "d", "e"]);
    let orders = |script: &str, args: &[&str]| sequence(&built(&place, script, args)).concat();
    let numbers = r#"
        local keys = { a = 2, b = 1.5, c = "x", d = -3 }
        function order(e) return keys[e.path] end"#;
    // No option is needed; what has no key follows.
    assert_eq!(orders(numbers, &[]), "dbace");
    assert_eq!(orders(numbers, &["--order=script"]), "dbace");
    let two = "function order(e) if e.path < 'c' then return e.path == 'a' and 2 or 1 end end";
    assert_eq!(orders(two, &[]), "bacde");
    let both = r#"
        function category(e) return e.path < "d" and "x" or nil end
        function order(e) return -e.path:byte() end"#;
    assert_eq!(orders(both, &[]), "edcba");
    assert_eq!(orders(both, &["--order", "x::path"]), "edabc");
    // A name of a hard link is as good as the other.
    fs::hard_link(place.path("in/e"), place.path("in/z")).unwrap();
    let linked = "function order(e) return e.path == 'z' and 1 or 2 end";
    assert_eq!(orders(linked, &[]), "ezabcd");
    fs::remove_file(place.path("in/z")).unwrap();
    let file = place.file("script.lua", numbers);
    let done = place.run(&["--script", &file, "--order=path"]);
    assert_eq!(done.code, Some(0));
    assert!(
        done.stderr.contains("'--order' names another one"),
        "{}",
        done.stderr
    );
    assert_eq!(sequence(&place.built()).concat(), "abcde");
    // For one category alone.
    let done = place.run(&["--script", &file, "--order", "path", "<default>::script"]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert_eq!(sequence(&place.built()).concat(), "dbace");
    let file = place.file("script.lua", "function filter() return true end");
    for args in [
        &["--order=script"][..],
        &["--order=script", "--script", &file],
    ] {
        let done = place.run(args);
        assert_eq!(done.code, Some(1));
        assert!(
            done.stderr
                .contains("needs a script with a function 'order'")
        );
    }
}

#[test]
fn scripts_do_the_same_in_every_run() {
    let names: Vec<String> = (0..300).map(|i| format!("d{}/f{i}", i % 7)).collect();
    let place = TestDir::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    // A state, random numbers, tables with strings as keys, and a sort with equal elements.
    let script = r#"
        local seen, count = {}, 0
        function filter(e)
          count = count + 1
          seen[e.name] = count
          return e.type ~= "file" or math.random(4) > 1
        end
        function category(e)
          local first
          for name in pairs(seen) do first = name break end
          return "c" .. #first .. count % 3
        end
        function order(e)
          local list = {}
          for name, number in pairs(seen) do list[#list + 1] = name end
          table.sort(list, function(a, b) return #a < #b end)
          local half = list[#list // 2 + 1]
          return half .. math.random(1000) .. next({ z = 1, [e.name] = 2 })
        end"#;
    let file = place.file("script.lua", script);
    let mut images = Vec::new();
    for workers in ["1", "2", "4", "8", "3"] {
        let args = ["--script", &file, "-N", workers, "--no-history"];
        let reproducible = ["--no-create-timestamp", "--categorize"];
        place.image(&[&args[..], &reproducible].concat());
        images.push(fs::read(place.path("out")).unwrap());
    }
    assert!(images.iter().all(|image| *image == images[0]));
    let kept = place.built().paths().len();
    assert!((180..280).contains(&kept), "{kept}");
}

#[test]
fn own_versions_of_library_functions() {
    let place = TestDir::new(&["a"]);
    let script = r#"
        local keys = {}
        for k in pairs{ b = 1, [3] = 1, a = 1, [true] = 1, [1] = 1, [false] = 1, [2.5] = 1 } do
          keys[#keys + 1] = tostring(k)
        end
        print(table.concat(keys, " "))
        local t = { x = 1, y = 2, z = 3 }
        for k in pairs(t) do t[k] = nil t.z = nil keys = k end
        print(keys, next(t), next({}), next({ 7 }))
        local own = setmetatable({}, { __pairs = function() return function(_, k)
          if not k then return "own", 1 end end, nil, nil end })
        for k, v in pairs(own) do print(k, v) end
        local list = {}
        for i = 1, 1000 do list[i] = { key = i * 7919 % 10, at = i } end
        table.sort(list, function(a, b) return a.key < b.key end)
        local stable = true
        for i = 2, #list do
          local a, b = list[i - 1], list[i]
          stable = stable and (a.key < b.key or a.key == b.key and a.at < b.at)
        end
        local small = { 3, 1, 2 }
        table.sort(small)
        print(stable, #list, table.concat(small, ","))
        print(pcall(error, "caught"))
        print(select('#', pcall(function() return nil, 2, nil end)))
        print(xpcall(error, function(m) return "handled " .. m end, "it"))
        print(pcall(math.randomseed))
        math.randomseed(5)
        local a = math.random(1 << 30)
        math.randomseed(5)
        print(a == math.random(1 << 30), pcall(next, {}, 1))
        print(pcall(setmetatable, {}, { __mode = "k" }))
        print(pcall(pairs), (pcall(table.sort, 5)))
        function filter() return true end"#;
    let lines = printed(&place, script, &[]);
    let mut lines = lines.iter().map(String::as_str);
    let mut is = |want: &str| assert_eq!(lines.next(), Some(want));
    is("1 2.5 3 a b false true");
    is("y\tnil\tnil\t1\t7");
    is("own\t1");
    is("true\t1000\t1,2,3");
    is("false\tcaught");
    is("4");
    is("false\thandled it");
    is("false\t'math.randomseed' needs a number here");
    is("true\tfalse\t'next' only gives the first key here, use 'pairs'");
    is("false\ta metatable cannot have '__gc' or '__mode' here");
    is("false\tfalse");
    assert_eq!(lines.next(), None);
}

#[test]
fn the_reference_reads_what_scripts_make() {
    let Some(programs) = reference() else { return };
    let place = TestDir::new(&["a.x", "b.y", "c.x", "d"]);
    let script = r#"
        function category(e) return e.name:match("%.(.*)") end
        function order(e) return -e.name:byte() end"#;
    built(&place, script, &["--categorize"]);
    for extractor in [programs.join("dwarfsextract"), DWARFSEXTRACT.into()] {
        let out = tempfile::tempdir().unwrap();
        let image = place.text("out");
        let to = out.path().to_str().unwrap();
        must(extractor, ["-i", &image, "-o", to]);
        for name in ["a.x", "b.y", "c.x", "d"] {
            assert_eq!(fs::read_to_string(out.path().join(name)).unwrap(), name);
        }
    }
}
