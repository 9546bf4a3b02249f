//! What is looked at before recovery data is made: it would keep damage of any snapshot.

use std::fs;

use crate::snapshots_check::Nights;
use crate::support::{MKDWARFS, run};

impl Nights {
    /// The exit code of a check, and what it says on both outputs.
    fn said(&self, more: &[&str]) -> (i32, String) {
        let out = self.check(more);
        let text = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
        (out.status.code().unwrap(), text)
    }

    fn good(&self, more: &[&str]) {
        let (code, text) = self.said(more);
        assert_eq!(code, 0, "{more:?}: {text}");
    }

    /// The exit code of one more append, and what it says.
    fn append(&self, more: &[&str]) -> (i32, String) {
        let (tree, image) = (self.text("tree"), self.text("image"));
        let fixed = ["-i", &tree, "--append", &image, "-l3", "--log-level=warn"];
        let out = run(MKDWARFS, [&fixed[..], more].concat());
        let text = String::from_utf8(out.stderr).unwrap();
        (out.status.code().unwrap(), text)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path("image")).unwrap()
    }

    /// The image is refused, and stays as it is.
    fn refuses(&self, result: impl Fn() -> (i32, String), expected: &str) {
        let before = self.bytes();
        let (code, text) = result();
        assert!(code == 1 && text.contains(expected), "{code}: {text}");
        assert!(self.bytes() == before, "{text}");
    }

    fn all_refuse(&self, appends: &[&str], expected: &str) {
        for option in ["--add-recovery=5%", "--add-recovery=5%,merge"] {
            self.refuses(|| self.said(&[option]), expected);
        }
        for option in appends {
            self.refuses(|| self.append(&[option]), expected);
        }
    }
}

const APPENDS: [&str; 2] = ["--recovery=5%", "--recovery=5%,merge"];

#[test]
fn damage_of_any_snapshot_is_not_protected() {
    let nights = Nights::new();
    for (place, affected) in [
        (nights.sections("s1", "METADATA_V2")[0], "1 's1'"),
        (nights.sections("s3", "HISTORY")[0], "3 's3'"),
        // It has the file that all have.
        (
            nights.sections("s1", "BLOCK")[0],
            "1 's1', 2 's2', 3 's3' and 1 more",
        ),
    ] {
        nights.damage(&[place]);
        nights.all_refuse(&APPENDS, &format!("this affects snapshot {affected}"));
        nights.good(&["--add-recovery=5%", "--no-check"]);
    }
    nights.damage(&[]);
    nights.good(&["--add-recovery=5%"]);
}

/// New recovery data in place of the old would make the damage final.
#[test]
fn what_old_recovery_data_can_repair_is_repaired_first() {
    let nights = Nights::new();
    let place = nights.sections("s2", "METADATA_V2")[0] as usize;
    nights.good(&["--add-recovery=20%"]);
    fs::write(nights.path("tree/later"), [7; 5000]).unwrap();
    assert_eq!(nights.append(&[]).0, 0);
    let whole = nights.bytes();
    let mut bytes = whole.clone();
    bytes[place] ^= 1;
    fs::write(nights.path("image"), &bytes).unwrap();
    nights.all_refuse(&APPENDS[1..], "dwarfsck --repair restores");
    // That protects only what follows, and leaves the old.
    let (code, text) = nights.append(&APPENDS[..1]);
    assert_eq!(code, 0, "{text}");
    nights.good(&["--repair"]);
    assert!(nights.bytes().starts_with(&whole));
    nights.good(&["--pin-snapshot=s1"]);
    nights.good(&["--add-recovery=5%,merge"]);
    nights.good(&["--check-recovery"]);
    // In a file of its own.
    fs::write(nights.path("image"), &nights.good).unwrap();
    nights.good(&["--add-recovery=20%", "--sidecar"]);
    nights.damage(&[place as u64]);
    nights.all_refuse(&APPENDS[1..], "dwarfsck --repair restores");
    nights.refuses(
        || nights.append(&APPENDS[..1]),
        "this affects snapshot 2 's2'",
    );
}

#[test]
fn damage_that_cannot_be_repaired_is_named() {
    let nights = Nights::new();
    let places = nights.sections("s2", "BLOCK");
    nights.good(&["--add-recovery=1%"]);
    fs::write(nights.path("tree/later"), [7; 5000]).unwrap();
    assert_eq!(nights.append(&["--snapshot-name=s5"]).0, 0);
    let whole = nights.bytes();
    let mut bytes = whole.clone();
    for place in bytes
        .iter_mut()
        .skip(places[1] as usize)
        .step_by(999)
        .take(12)
    {
        *place ^= 1;
    }
    fs::write(nights.path("image"), &bytes).unwrap();
    let unrepairable =
        "more is damaged than its recovery data can repair; this affects snapshot 2 's2'";
    nights.all_refuse(&APPENDS[1..], unrepairable);
    // Behind the old recovery data.
    fs::write(nights.path("image"), &whole).unwrap();
    let place = *nights.sections("s5", "METADATA_V2").last().unwrap();
    let history = *nights.sections("s5", "HISTORY").last().unwrap();
    assert!(history > place || history > nights.good.len() as u64);
    bytes = whole;
    bytes[history as usize] ^= 1;
    fs::write(nights.path("image"), &bytes).unwrap();
    nights.all_refuse(&APPENDS, "this affects snapshot 5 's5'");
}
