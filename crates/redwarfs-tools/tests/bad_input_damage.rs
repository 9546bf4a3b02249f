//! Damage of images that is not fatal: the tools log it, and go on.

use std::process::Command;

use crate::bad_input::workplace;
use crate::support::{DWARFSCK, DWARFSEXTRACT};

#[test]
fn damage_that_is_not_fatal_is_logged() {
    let dir = workplace();
    for (image, code, lines) in [
        (
            "flip-block",
            1,
            &["E checksum error in section 0 (BLOCK 0) at offset 64"][..],
        ),
        (
            "flip-history",
            1,
            &[
                "W corrupt image: checksum error in section: HISTORY",
                "E checksum error in section ",
            ],
        ),
        (
            "flip-index",
            1,
            &[
                "W corrupt image: checksum error in section: SECTION_INDEX",
                "E checksum error in section ",
                "E the section index is invalid: checksum",
            ],
        ),
    ] {
        for program in [DWARFSCK, DWARFSEXTRACT] {
            let mut command = Command::new(program);
            command.current_dir(dir.path());
            if program == DWARFSCK {
                command.args([image, "-q"]);
            } else {
                if image == "flip-block" {
                    continue;
                }
                command.args(["-i", image, "-f", "pax", "-o", "x.tar"]);
            }
            let done = command.output().unwrap();
            let text = String::from_utf8_lossy(&done.stderr).into_owned();
            let found: Vec<String> = text
                .lines()
                .map(|line| {
                    let mut words = line.splitn(3, ' ');
                    let letter = words.next().unwrap_or_default();
                    let time = words.next().unwrap_or_default();
                    assert!(time.len() == 15 && time.contains('.'), "{line}");
                    format!("{letter} {}", words.next().unwrap_or_default())
                })
                .collect();
            let (code, lines) = if program == DWARFSCK {
                (code, lines)
            } else {
                (0, &lines[..1])
            };
            assert_eq!(done.status.code(), Some(code), "{image}: {text}");
            assert_eq!(found.len(), lines.len(), "{image}: {text}");
            for (found, want) in found.iter().zip(lines) {
                assert!(found.starts_with(want), "{image}: {text}");
            }
        }
    }
}
