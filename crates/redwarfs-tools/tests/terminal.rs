//! The programs on a terminal: a shell on a pseudo-terminal, as seen on an emulated screen.

use std::fs;
use std::io::{Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::support::{DWARFS, DWARFSEXTRACT, MKDWARFS, build};
use redwarfs_testkit::skip;
use redwarfs_testkit::tree::Random;
use regex::Regex;

/// Nothing takes as long.
const PATIENCE: Duration = Duration::from_secs(120);
const PROMPT: &str = "READY> ";

/// A shell with job control, its terminal, and what is on it.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    output: Receiver<Vec<u8>>,
    parser: vt100::Parser,
    device: String,
}

impl Terminal {
    /// None where the shell cannot be run in this way.
    fn new(test: &str, dir: &Path, rows: u16, columns: u16) -> Option<Self> {
        let found = |program: &str| {
            let done = Command::new(program).arg("--version").output();
            done.is_ok_and(|done| done.status.success())
        };
        for program in ["script", "bash", "stty"] {
            if !found(program) {
                skip(test, &format!("no program '{program}'"));
                return None;
            }
        }
        let mut child = Command::new("script")
            .args([
                "-qec",
                &format!("exec env PS1='{PROMPT}' bash --norc --noprofile --noediting -i"),
                "/dev/null",
            ])
            .current_dir(dir)
            .env("TERM", "xterm")
            .env("LC_ALL", "C")
            .env_remove("HISTFILE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let (send, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = stdout.read(&mut buffer) {
                if send.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        let size = |n| NonZero::new(n).unwrap();
        let mut terminal = Self {
            child,
            keys,
            output,
            parser: vt100::Parser::new(size(rows), size(columns), 0),
            device: String::new(),
        };
        terminal.until("the prompt", |screen| screen.ends_with(PROMPT.trim_end()));
        let device = dir.join("terminal");
        terminal.type_line(&format!(
            "stty rows {rows} cols {columns}; tty > {}; clear",
            device.display()
        ));
        terminal.until("the device", |screen| {
            screen == PROMPT.trim_end()
                && fs::read_to_string(&device).is_ok_and(|t| t.ends_with('\n'))
        });
        terminal.device = fs::read_to_string(&device).unwrap().trim().to_owned();
        Some(terminal)
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
        self.keys.flush().unwrap();
    }

    fn type_line(&mut self, line: &str) {
        self.press(format!("{line}\n").as_bytes());
    }

    /// The text on the screen, rows without trailing blanks.
    fn screen(&self) -> String {
        let contents = self.parser.screen().contents();
        let rows: Vec<&str> = contents.lines().map(str::trim_end).collect();
        rows.join("\n").trim_end().to_owned()
    }

    /// Follows the output until the screen is as wanted, and returns it.
    fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(start.elapsed() < PATIENCE, "no {what}:\n{screen}");
            match self.output.recv_timeout(Duration::from_millis(100)) {
                Ok(bytes) => self.parser.process(&bytes),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the shell ended:\n{screen}"),
            }
        }
    }

    /// Changes the width of the terminal, as a window does.
    fn resize(&mut self, columns: u16) {
        let done = Command::new("stty")
            .args(["-F", &self.device, "cols", &columns.to_string()])
            .status();
        assert!(done.unwrap().success());
        let rows = self.parser.screen().size().0;
        let size = |n| NonZero::new(n).unwrap();
        self.parser.screen_mut().set_size(rows, size(columns));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Files that take more room than a pipe, all different.
fn tree(dir: &Path) {
    let mut random = Random::new(26);
    fs::create_dir(dir).unwrap();
    for number in 0..16 {
        fs::write(dir.join(format!("file{number}")), random.bytes(1 << 20)).unwrap();
    }
}

/// What a program says while somebody looks at it, stops it, lets it go on, and makes the window
/// narrower. `command` writes more than a pipe takes to its standard output.
fn look_at(terminal: &mut Terminal, dir: &Path, command: &str, activity: &str) -> String {
    let gate = dir.join("gate");
    assert!(
        Command::new("mkfifo")
            .arg(&gate)
            .status()
            .unwrap()
            .success()
    );
    terminal.type_line(&format!(
        "{command} | {{ read go < {}; cat > /dev/null; }}",
        gate.display()
    ));
    let mark = format!("\n {activity} ");
    let frames = |screen: &str| screen.matches(&mark).count();
    let prompts = |screen: &str| screen.matches(PROMPT.trim_end()).count();
    let bar = Regex::new(r"\[[#-]+\] +\d+%").unwrap();
    let bars = |screen: &str| bar.find_iter(screen).count();
    let running = terminal.until("progress", |screen| {
        frames(screen) == 1 && bars(screen) == 1
    });
    assert!(running.contains(" MiB, "), "{running}");

    // Ctrl-Z: the frame goes before the shell comes back.
    terminal.press(b"\x1a");
    let stopped = terminal.until("the shell", |screen| prompts(screen) == 2);
    assert!(stopped.contains("Stopped"), "{stopped}");
    assert_eq!(frames(&stopped), 0, "{stopped}");
    assert_eq!(bars(&stopped), 0, "{stopped}");

    // In the background it leaves the terminal to the shell.
    terminal.type_line("bg; sleep 1; echo quiet");
    let background = terminal.until("an answer", |screen| screen.contains("\nquiet\n"));
    assert_eq!(frames(&background), 0, "{background}");

    terminal.type_line("fg");
    let again = terminal.until("progress", |screen| {
        frames(screen) == 1 && bars(screen) == 1
    });
    // What was on the screen is still there.
    assert!(again.contains("\nquiet\n"), "{again}");

    terminal.resize(50);
    let narrow = |screen: &str| {
        let rows = screen
            .lines()
            .skip_while(|row| !row.starts_with(&mark[1..]));
        let frame: Vec<&str> = rows.collect();
        frames(screen) == 1
            && frame.len() == 2
            && frame.iter().all(|row| row.len() < 50)
            && frame[0].len() > 40
    };
    let narrowed = terminal.until("a narrow frame", narrow);
    assert_eq!(bars(&narrowed), 1, "{narrowed}");

    fs::write(&gate, "go\n").unwrap();
    let end = terminal.until("the end", |screen| {
        prompts(screen) == 4 && screen.ends_with(PROMPT.trim_end())
    });
    assert_eq!(frames(&end), 0, "{end}");
    assert_eq!(bars(&end), 0, "{end}");
    fs::remove_file(&gate).unwrap();
    end
}

#[test]
fn a_build_leaves_no_debris() {
    let dir = tempfile::tempdir().unwrap();
    let test = "a_build_leaves_no_debris";
    let Some(mut terminal) = Terminal::new(test, dir.path(), 24, 80) else {
        return;
    };
    tree(&dir.path().join("in"));
    let command = format!("{MKDWARFS} -i in -o - -l0 -S20");
    let end = look_at(&mut terminal, dir.path(), &command, "compressing");
    for line in [
        "image:    standard output, created without errors",
        "left out: nothing",
    ] {
        assert!(end.contains(line), "{end}");
    }
}

#[test]
fn an_extraction_leaves_no_debris() {
    let dir = tempfile::tempdir().unwrap();
    let test = "an_extraction_leaves_no_debris";
    let Some(mut terminal) = Terminal::new(test, dir.path(), 24, 80) else {
        return;
    };
    tree(&dir.path().join("in"));
    build(&dir.path().join("in"), &dir.path().join("image"), &["-l0"]);
    let command = format!("{DWARFSEXTRACT} -i image -f pax -o -");
    let end = look_at(&mut terminal, dir.path(), &command, "extracting");
    assert!(end.contains(" extracted 16 files, 16 MiB in "), "{end}");
}

#[test]
fn help_fits_the_screen_or_is_paged() {
    let dir = tempfile::tempdir().unwrap();
    let test = "help_fits_the_screen_or_is_paged";
    let Some(mut terminal) = Terminal::new(test, dir.path(), 24, 80) else {
        return;
    };
    terminal.type_line(DWARFS);
    let prompt =
        |screen: &str| screen.ends_with(PROMPT.trim_end()) && screen.matches('>').count() > 1;
    let usage = terminal.until("usage", |screen| prompt(screen) && screen.contains("--man"));
    // All of it is there.
    assert!(usage.contains("Usage: dwarfs IMAGE MOUNTPOINT"), "{usage}");
    assert!(usage.contains("Examples:"), "{usage}");

    terminal.type_line("export PAGER='sed s/^/paged:/'; clear");
    terminal.until("an empty screen", |screen| screen == PROMPT.trim_end());
    terminal.type_line(&format!("{MKDWARFS} -H"));
    terminal.until("the pager", |screen| {
        screen.ends_with(PROMPT.trim_end()) && screen.matches("\npaged:").count() > 15
    });
    terminal.type_line("clear");
    terminal.until("an empty screen", |screen| screen == PROMPT.trim_end());
    terminal.type_line(&format!("{MKDWARFS} --version"));
    let version = terminal.until("the version", |screen| screen.contains("RedwarFS"));
    assert!(!version.contains("paged:"), "{version}");
}
