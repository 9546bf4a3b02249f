//! A damaged block: what fails, what does not, and what is said about it. One test in a program of
//! its own, because it listens to everything that is logged.

mod support;

use std::fmt::Write as _;
use std::fs;
use std::sync::{Arc, Mutex};

use redwarfs_fuse::MountOptions;
use redwarfs_reader::OpenOptions;
use rustix::io::Errno;
use support::{BLOCK, Gate, Maker, Mount, can_mount};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the texts of all warnings and errors.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").expect("a string");
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().expect("not poisoned").push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_damaged_block_fails_alone() {
    if !can_mount("a_damaged_block_fails_alone") {
        return;
    }
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).expect("the only one");
    let mut maker = Maker::new();
    for n in 0..4 {
        maker.file(format!("a{n}"), vec![n; BLOCK as usize / 2]);
    }
    maker.file("b", vec![9; BLOCK as usize]);
    let (mut bytes, starts) = maker.image();
    assert_eq!(starts.len(), 3);
    for start in &starts[1..] {
        bytes[*start] ^= 1;
    }
    let mount = Mount::with(
        Gate::new(bytes),
        &OpenOptions::default(),
        &MountOptions::default(),
    );
    for _ in 0..20 {
        for name in ["a0", "a1"] {
            assert!(fs::read(mount.path(name)).is_ok(), "{name}");
        }
        for name in ["a2", "a3", "b"] {
            let error = fs::read(mount.path(name)).expect_err(name);
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
        }
        assert_eq!(fs::read_dir(mount.point()).expect("readable").count(), 5);
    }
    let lines = lines.0.lock().expect("not poisoned").clone();
    let about = |section: &str| lines.iter().filter(|line| line.contains(section)).count();
    assert_eq!(about("section 1 "), 1, "{lines:#?}");
    assert_eq!(about("section 2 "), 1, "{lines:#?}");
    assert_eq!(lines.len(), 2, "{lines:#?}");
}
