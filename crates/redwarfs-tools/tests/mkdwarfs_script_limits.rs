//! `mkdwarfs --script`: what scripts cannot do, and what happens when they fail.
#![cfg(feature = "lua")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use crate::builder::{Done, TestDir, mkdwarfs};
use crate::mkdwarfs_script::{failure, last_line, printed};

#[test]
fn errors_say_file_and_line() {
    let place = TestDir::new(&["a", "b"]);
    for (script, want) in [
        ("\nlocal x = = 1", "2: unexpected symbol near '='"),
        ("function filter(e)", "1: 'end' expected near <eof>"),
        ("\n\nerror('at once')", "3: at once"),
        ("error({})", "1: "),
        (
            "local x = nil\nx.y = 1",
            "2: attempt to index a nil value (local 'x')",
        ),
        ("x = 1", " defines none of 'filter', 'category', 'order'"),
        ("filter = 7", " 'filter' is a integer, not a function"),
        (
            "string.rep()",
            "1: bad argument #1 to 'rep' (string expected, got no value)",
        ),
        ("\x1bLua", " attempt to load a binary chunk (mode is 't')"),
    ] {
        let found = failure(&place, script);
        assert!(found.starts_with(want), "{script}: {found}");
        assert!(!found.contains("(for"), "{script}: {found}");
    }
    for (script, want) in [
        (
            "function filter(e)\n return e.size < e.none end",
            "2: attempt to compare number with nil",
        ),
        ("function filter(e)\n\n error('no') end", "3: no"),
        ("function filter(e)\n\n error('no', 0) end", "3: no"),
        (
            "function filter(e) error(setmetatable({}, {__tostring = function() return 'so' end})) end",
            "1: so",
        ),
        (
            "local function f()\n error('deep', 2) end\nfunction filter(e)\n f() end",
            "4: deep",
        ),
        (
            "function filter(e)\n setmetatable({}, {__gc = print}) end",
            "2: a metatable cannot have",
        ),
        (
            "function filter(e)\n for k in pairs{[{}] = 1} do end end",
            "2: a table with a table as a key has no",
        ),
        (
            "function filter(e)\n table.sort({1, 'x'}) end",
            "2: attempt to compare",
        ),
        (
            "function filter(e)\n local ok = pcall() end",
            "2: bad argument #1 to 'pcall'",
        ),
        (
            "\nfunction filter(e)\n return pcall() end",
            "2: 'filter': bad argument #1 to 'pcall'",
        ),
        (
            "\nfunction filter(e) end",
            "2: 'filter': returned a value of type nil instead of true or false",
        ),
        (
            "function filter(e) return 1 end",
            "1: 'filter': returned a value of type integer",
        ),
        (
            "\n\nfunction category(e) return {} end",
            "3: 'category': returned a value of type table",
        ),
        (
            "function category(e) return 'a b' end",
            "1: 'category': bad name of a category: 'a b'",
        ),
        (
            "function category(e) return '' end",
            "1: 'category': bad name of a category: ''",
        ),
        (
            "function order(e) return true end",
            "1: 'order': returned a value of type boolean",
        ),
        (
            "function order(e) return 0/0 end",
            "1: 'order': returned what is not a number",
        ),
        (
            "function filter(e) return e.x() end",
            "1: attempt to call a nil value (field 'x')",
        ),
        (
            "function order(e)\n local t = 'x'\n while true do t = t .. t end end",
            "1: 'order': the script needs more than 64 MiB of memory",
        ),
    ] {
        let found = failure(&place, script);
        assert!(found.starts_with(want), "{script}: {found}");
        assert!(found.ends_with(" (for 'a')"), "{script}: {found}");
    }
    // At any entry, and with names that are too long for the interpreter.
    let script = "function filter(e) return e.path == 'a' or error('not ' .. e.path) end";
    assert_eq!(failure(&place, script), "1: not b (for 'b')");
    let long = place.file(&format!("{}.lua", "x".repeat(100)), "\nerror('no')");
    let done = place.run(&["--script", &long]);
    let want = format!("mkdwarfs: script: {long}:2: no\n");
    assert_eq!((done.code, done.stderr), (Some(1), want));
    let done = place.run(&["--script", &place.text("nothing")]);
    assert_eq!(done.code, Some(1));
    assert!(
        done.stderr.starts_with("mkdwarfs: cannot read script: "),
        "{}",
        done.stderr
    );
    // Comments for the system do not change the lines.
    let script = "\u{feff}#!/usr/bin/lua\nerror('second')";
    assert_eq!(failure(&place, script), "2: second");
}

#[test]
fn scripts_reach_nothing_but_the_entries() {
    let place = TestDir::new(&["a"]);
    let script = r#"
        local gone = { "io", "os", "require", "package", "debug", "dofile", "loadfile", "load",
          "collectgarbage", "warn", "coroutine" }
        for _, name in ipairs(gone) do
          if _G[name] ~= nil then print("there is " .. name) end
        end
        if string.dump then print("there is string.dump") end
        local names = {}
        for name in pairs(_G) do names[#names + 1] = name end
        print(table.concat(names, " "))
        function filter() return true end"#;
    let want = "_G _VERSION assert error getmetatable ipairs math next pairs pcall print \
                rawequal rawget rawlen rawset select setmetatable string table tonumber tostring \
                type utf8 xpcall";
    assert_eq!(printed(&place, script, &[]), [want]);
}

/// Waits until the script has printed, sends SIGINT, and returns how the program ends.
fn interrupted(place: &TestDir, script: &str) -> Done {
    fs::write(place.path("out"), "old").unwrap();
    let file = place.file("script.lua", script);
    let mut command = mkdwarfs();
    command.args(["-i", &place.text("in"), "-fo", &place.text("out")]);
    command.args(["--script", &file]).stderr(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("running") {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "ended too soon");
    }
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let mut stderr = String::new();
    errors.read_to_string(&mut stderr).unwrap();
    let code = child.wait().unwrap().code();
    assert_eq!(fs::read(place.path("out")).unwrap(), b"old");
    Done {
        code,
        stdout: Vec::new(),
        stderr,
    }
}

#[test]
fn endless_scripts_can_be_interrupted() {
    let place = TestDir::new(&["a"]);
    for script in [
        "print('running') while true do end",
        "function filter() print('running') while true do end end",
        "function filter() print('running')
           while true do pcall(function() while true do end end) end end",
        "function order() print('running')
           while true do xpcall(function() while true do end end, function() while true do end end) end end",
        "function category() print('running')
           local t <close> = setmetatable({}, { __close = function() while true do end end }) end",
        // One call that takes for ever: the build does not wait for it.
        "function filter() print('running')
           return (('a'):rep(400):find(('.-'):rep(12) .. 'b')) == nil end",
    ] {
        let done = interrupted(&place, script);
        assert_eq!(done.code, Some(130), "{script}: {}", done.stderr);
        let want = "mkdwarfs: interrupted, no image was written";
        assert_eq!(last_line(&done), want, "{script}");
    }
}

#[test]
fn memory_of_scripts_counts() {
    let place = TestDir::new(&["a"]);
    let holding = |bytes: &str| {
        let script = format!("local s = ('x'):rep({bytes}) function filter() return #s > 0 end");
        let file = place.file("script.lua", script);
        place.run(&["--script", &file, "-L", "64m"])
    };
    let done = holding("1000");
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let done = holding("25 << 20");
    let refused = done.stderr.contains("memory limit of 64 MiB is too low");
    assert!(done.code == Some(1) && refused, "{}", done.stderr);
}

#[test]
fn a_rewrite_has_no_entries() {
    let place = TestDir::new(&["a"]);
    place.image::<&str>(&[]);
    let mut command = mkdwarfs();
    command.args([
        "-i",
        &place.text("out"),
        "-fo",
        &place.text("new"),
        "--recompress",
    ]);
    let file = place.file("script.lua", "function filter() return true end");
    let done: Done = command.args(["--script", &file]).output().unwrap().into();
    assert_eq!(done.code, Some(1));
    assert!(
        done.stderr.contains("'--script' cannot be used"),
        "{}",
        done.stderr
    );
}
