//! `dwarfsck --scrub`: a verification in several runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support::{DWARFSCK, MKDWARFS, build, run};

fn image(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    let noise = (0..300_000_u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8);
    fs::write(tree.join("noise"), noise.collect::<Vec<_>>()).unwrap();
    let image = dir.join("image");
    build(&tree, &image, &["-l0", "-S16"]);
    image
}

fn scrub(image: &Path, state: &Path, options: &[&str]) -> (i32, String) {
    let state = format!("--scrub={}", state.display());
    let mut args = vec![image.to_str().unwrap(), &state];
    args.extend(options);
    let out = run(DWARFSCK, args);
    let text = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
    (out.status.code().unwrap(), text)
}

#[test]
fn a_pass_takes_several_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (image, state) = (image(dir.path()), dir.path().join("state"));
    let (code, text) = scrub(&image, &state, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.starts_with("OK; ") && text.lines().count() == 1,
        "{text}"
    );
    // A new pass, in which each run has time for a part.
    let mut runs = 0;
    loop {
        runs += 1;
        let began = Instant::now();
        let (code, text) = scrub(&image, &state, &["--scrub-rate=200k", "--scrub-time=300ms"]);
        assert_eq!(code, 0, "{text}");
        if text.starts_with("OK; ") {
            break;
        }
        assert!(text.starts_with("OK so far; "), "{text}");
        assert!(began.elapsed().as_millis() >= 300);
        assert!(runs < 50);
    }
    assert!(runs > 2, "{runs}");
    // Damage is named in the run that finds it, and remembered in the pass.
    let mut bytes = fs::read(&image).unwrap();
    bytes[100] ^= 1;
    fs::write(&image, &bytes).unwrap();
    let limited = ["--scrub-rate=100k", "--scrub-time=100ms"];
    let (code, text) = scrub(&image, &state, &limited);
    assert!(
        code == 1 && text.contains("section 0 at offset 64 (BLOCK): checksum error"),
        "{text}"
    );
    let (code, text) = scrub(&image, &state, &limited);
    assert!(
        code == 1 && text.starts_with("damaged: 1 section, 1 of 1 snapshot affected so far"),
        "{text}"
    );
    let (code, text) = scrub(&image, &state, &[]);
    assert!(
        code == 1 && text.starts_with("damaged: 1 section, 1 of 1 snapshot affected; "),
        "{text}"
    );
    bytes[100] ^= 1;
    fs::write(&image, &bytes).unwrap();
    assert_eq!(scrub(&image, &state, &["-q"]), (0, String::new()));
    // Another image begins anew, and something else is no state.
    scrub(&image, &state, &limited);
    let args = [image.to_str().unwrap(), "--add-digests", "-q"];
    assert!(run(DWARFSCK, args).status.success());
    let (code, text) = scrub(&image, &state, &[]);
    assert!(code == 0 && text.starts_with("OK; "), "{text}");
    fs::write(&state, "{}").unwrap();
    let (code, text) = scrub(&image, &state, &[]);
    assert!(
        code == 1 && text.contains("it is no state of a scrub"),
        "{text}"
    );
}

/// What an append adds belongs to the pass, and what was verified before is not read again in it.
#[test]
fn a_pass_goes_on_over_an_append() {
    let dir = tempfile::tempdir().unwrap();
    let (image, state) = (image(dir.path()), dir.path().join("state"));
    let limited = ["--scrub-rate=100k", "--scrub-time=100ms"];
    let (code, text) = scrub(&image, &state, &limited);
    assert!(code == 0 && text.starts_with("OK so far; "), "{text}");
    let append = |name: &str| {
        let tree = dir.path().join("tree");
        fs::write(tree.join(name), name.repeat(100_000)).unwrap();
        let (tree, image) = (tree.to_str().unwrap(), image.to_str().unwrap());
        let args = ["--append", image, "-i", tree, "-l0", "--log-level=error"];
        assert!(run(MKDWARFS, args).status.success());
    };
    append("second");
    let (code, text) = scrub(&image, &state, &limited);
    assert!(code == 0 && text.starts_with("OK so far; "), "{text}");
    assert!(!text.contains("new pass"), "{text}");
    // The first section was verified in this pass. The next pass finds its damage.
    let mut bytes = fs::read(&image).unwrap();
    bytes[100] ^= 1;
    fs::write(&image, &bytes).unwrap();
    let (code, text) = scrub(&image, &state, &[]);
    assert!(code == 0 && text.starts_with("OK; "), "{text}");
    assert!(!text.contains("new pass"), "{text}");
    // A complete pass does not go on.
    append("third");
    let (code, text) = scrub(&image, &state, &[]);
    assert!(
        code == 1 && text.contains("section 0 at offset 64 (BLOCK): checksum error"),
        "{text}"
    );
    assert!(!text.contains("the file is not the one"), "{text}");
}
