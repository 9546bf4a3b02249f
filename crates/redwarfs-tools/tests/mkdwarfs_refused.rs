//! Command lines, inputs and outputs that `mkdwarfs` refuses.

use crate::mkdwarfs::{TestDir, mkdwarfs, seen_in_image, seen_on_disk, stderr};
use std::fs;

#[test]
fn wrong_command_lines_get_one_line() {
    let place = TestDir::new();
    let cases: &[(&[&str], &str)] = &[
        (
            &["-l10"],
            "invalid compression level: 10 (must be between 0 and 9)",
        ),
        (&["-S", "9"], "block size must be between 10 and 30: 9"),
        (&["-S", "31"], "block size must be between 10 and 30: 31"),
        (
            &["-W25"],
            "failed to parse value '25' for option '--window-size': value 25 out of range [0..24]",
        ),
        (
            &["-w", "-1"],
            "failed to parse value '-1' for option '--window-step': value -1 out of range [0..8]",
        ),
        (
            &["-B", "x"],
            "failed to parse value 'x' for option '--max-lookback-blocks': not an integer",
        ),
        (
            &["-N0"],
            "failed to parse value '0' for option '--num-workers': value 0 out of range [1..1024]",
        ),
        (
            &["-L", "5q"],
            "failed to parse value '5q' for option '--memory-limit': unsupported size suffix: q",
        ),
        (
            &["--max-similarity-size=x"],
            "failed to parse value 'x' for option '--max-similarity-size': cannot parse size value: x",
        ),
        (
            &["-C", "foo"],
            "failed to parse value 'foo' for option '--compression': unknown compression: foo",
        ),
        (
            &["--metadata-compression=foo"],
            "failed to parse value 'foo' for option '--metadata-compression': unknown compression: foo",
        ),
        (
            &["--schema-compression=foo"],
            "failed to parse value 'foo' for option '--schema-compression': unknown compression: foo",
        ),
        (
            &["--history-compression=foo"],
            "failed to parse value 'foo' for option '--history-compression': unknown compression: foo",
        ),
        (&["--order=x"], "invalid inode order mode: x"),
        (
            &["--order=a::path"],
            "cannot configure category-specific options without any categories",
        ),
        (&["--file-hash=x"], "unknown file hash function 'x'"),
        (
            &["--progress=x"],
            "invalid progress mode 'x' (none, simple, ascii, unicode)",
        ),
        (&["--log-level=x"], "invalid logger level: x"),
        (
            &["--set-owner=no-such-user"],
            "failed to parse value 'no-such-user' for option '--set-owner': unknown user",
        ),
        (
            &["--set-owner=-1"],
            "failed to parse value '-1' for option '--set-owner': unknown user",
        ),
        (
            &["--set-group=4294967296"],
            "failed to parse value '4294967296' for option '--set-group': group id out of range [0..4294967295]",
        ),
        (
            &["--set-time=-5"],
            "cannot parse time point: -5 (now, unix seconds, or YYYY-MM-DD[ HH:MM[:SS][Z|+HH:MM]])",
        ),
        (
            &["--time-resolution=0"],
            "the argument to '--time-resolution' must be nonzero",
        ),
        (
            &["--time-resolution=3ms"],
            "cannot handle resolution (3ms) that is not a whole divisor of one second",
        ),
        (
            &["--time-resolution=1500ms"],
            "cannot handle resolution (1.5s) that is larger than one second but not a whole number of seconds",
        ),
        (
            &["-P", "x"],
            "the argument ('x') to '--pack-metadata' is invalid",
        ),
        (
            &["--header=/no/such/file"],
            "cannot open header file: /no/such/file: no such file or directory",
        ),
        (
            &["--order=explicit:file=/no/such/file"],
            "failed to open explicit order file: /no/such/file: no such file or directory",
        ),
        (
            &["--input-list=/no/such/file"],
            "cannot read input list: /no/such/file: no such file or directory",
        ),
        (
            &["--hollow", "--no-sparse-files"],
            "cannot combine --hollow and --no-sparse-files",
        ),
        (
            &["--no-progress", "--no-progress"],
            "option '--no-progress' cannot be specified more than once",
        ),
        (
            &["-l1"],
            "option '--compress-level' cannot be specified more than once",
        ),
        (
            &["--categorize=fits,x"],
            "could not create categorizer: unknown categorizer: x",
        ),
        (
            &["--extract-wrapped-binary=x"],
            "option '--extract-wrapped-binary' is not supported in this version",
        ),
        (
            &["-F", "x foo"],
            "could not parse filter rule 'x foo': rules must start with + or -",
        ),
        (
            &["-F", "- a", "- ["],
            "could not parse filter rule '- [': unmatched '[' in pattern: [",
        ),
        (&["--debug-filter=x"], "invalid filter debug mode 'x'"),
        (
            &["--chmod", "z+x"],
            "invalid argument for option '--chmod': unknown letter 'z' in chmod mode: z+x",
        ),
        (
            &["--chmod", "-"],
            "invalid argument for option '--chmod': missing permissions in chmod mode: -",
        ),
        (
            &["--owner-map=/no/such/file"],
            "cannot read owner map: /no/such/file: no such file or directory",
        ),
        (
            &["--pseudo-file=/no/such/file"],
            "cannot read pseudo file: /no/such/file: no such file or directory",
        ),
        (&["--symlinks=x"], "invalid symlink policy 'x'"),
        (&["--hard-links=x"], "invalid hard link policy 'x'"),
        (&["--verify-dedup=x"], "invalid verification mode 'x'"),
        (
            &["--file-timeout=0"],
            "failed to parse value '0' for option '--file-timeout': the time-out must be nonzero",
        ),
        (
            &["--exclude-if-present=a/b"],
            "failed to parse value 'a/b' for option '--exclude-if-present': not the name of an entry",
        ),
        (
            &["--input-list=-", "-F", "- a"],
            "cannot combine --input-list and --filter",
        ),
        (
            &["--num-scanner-workers=0"],
            "failed to parse value '0' for option '--num-scanner-workers': value 0 out of range [1..1024]",
        ),
        (
            &["--num-segmenter-workers=1025"],
            "failed to parse value '1025' for option '--num-segmenter-workers': value 1025 out of range [1..1024]",
        ),
        (
            &["--compress-niceness=20"],
            "failed to parse value '20' for option '--compress-niceness': value 20 out of range [0..19]",
        ),
        (&["--foo"], "unrecognised option '--foo'"),
        (&["foo"], "unrecognized argument 'foo'"),
        (
            &["-C", "zstd:19"],
            "failed to parse value 'zstd:19' for option '--compression': invalid option(s) for \
             choice 'zstd': 19 (write zstd:level=19)",
        ),
        (
            &["--order=foo"],
            "invalid inode order mode: foo (one of none, path, revpath, similarity, nilsimsa, \
             versions, families, explicit, script)",
        ),
        (
            &["--file-hash=foo"],
            "unknown file hash function 'foo' (none, or one of ",
        ),
        (
            &["--no-hist"],
            "option '--no-hist' is ambiguous and matches '--no-history', '--no-history-timestamps', '--no-history-command-line'",
        ),
        (&["--order"], "the argument for option '--order' is missing"),
    ];
    for (args, want) in cases {
        let level: &[&str] = if args[0].starts_with("-l") && args[0] != "-l1" {
            &[]
        } else {
            &["-l1"]
        };
        let done = mkdwarfs()
            .arg("-i")
            .arg(place.path("in"))
            .arg("-o")
            .arg(place.path("out"))
            .args(level)
            .args(*args)
            .output()
            .unwrap();
        let text = stderr(&done);
        let advice = text
            .strip_prefix(&format!("mkdwarfs: {want}"))
            .unwrap_or_else(|| panic!("{args:?}: {text}"));
        assert!(
            advice == "\n"
                || (advice.starts_with(" (") || want.contains(" (")) && advice.ends_with(")\n"),
            "{args:?}: {text}"
        );
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        assert_eq!(done.status.code(), Some(1), "{args:?}");
        assert!(done.stdout.is_empty(), "{args:?}");
    }
    assert!(place.leftovers().is_empty());
}

#[test]
fn missing_options_are_an_error() {
    for (args, want) in [
        (
            &[][..],
            "mkdwarfs: missing option '--input' or '--input-list' (",
        ),
        (&["-i", "."], "mkdwarfs: missing option '--output' ("),
    ] {
        let done = mkdwarfs().args(args).output().unwrap();
        assert_eq!(done.status.code(), Some(1));
        assert!(stderr(&done).starts_with(want), "{}", stderr(&done));
        assert!(done.stdout.is_empty());
    }
}

#[test]
fn unusable_inputs_and_outputs() {
    let place = TestDir::new();
    let at = |name: &str| place.path(name).to_str().unwrap().to_owned();
    fs::write(place.path("old"), b"precious").unwrap();
    fs::create_dir(place.path("dir")).unwrap();
    let before = place.leftovers();
    let cases = [
        (
            at("none"),
            at("out"),
            format!(
                "cannot read input: {}: no such file or directory",
                at("none")
            ),
        ),
        (
            at("in/hello"),
            at("out"),
            format!(
                "cannot read input: {}: not a directory, and not an archive in a format that is \
                 known",
                at("in/hello")
            ),
        ),
        (
            at("none"),
            at("old"),
            format!(
                "cannot read input: {}: no such file or directory",
                at("none")
            ),
        ),
        (
            at("in"),
            at("old"),
            format!(
                "cannot write image: {}: file exists, use --force to overwrite",
                at("old")
            ),
        ),
        (
            at("in"),
            at("no/out"),
            format!(
                "cannot write image: {}: no such file or directory",
                at("no/out")
            ),
        ),
        (
            at("in"),
            at("old/out"),
            format!("cannot write image: {}: not a directory", at("old/out")),
        ),
    ];
    for (input, output, want) in cases {
        let done = mkdwarfs()
            .args(["-i", &input, "-o", &output, "-l1", "--log-level=error"])
            .output()
            .unwrap();
        // In a static program, more follows the name of what is wrong.
        let said = stderr(&done);
        assert!(said.starts_with(&format!("mkdwarfs: {want}")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(done.status.code(), Some(1));
    }
    let done = mkdwarfs()
        .args([
            "-i",
            &at("in"),
            "-fo",
            &at("dir"),
            "-l1",
            "--log-level=error",
        ])
        .output()
        .unwrap();
    assert_eq!(
        stderr(&done),
        format!(
            "mkdwarfs: cannot write image: {}: is a directory\n",
            at("dir")
        )
    );
    assert_eq!(place.leftovers(), before);
    assert_eq!(fs::read(place.path("old")).unwrap(), b"precious");
    place.build("old", &["-f"]);
    assert_eq!(
        seen_in_image(&place.path("old")),
        seen_on_disk(&place.path("in"))
    );
    let done = mkdwarfs()
        .args(["-i", &at("old"), "-o", &at("new"), "--log-level=error"])
        .output()
        .unwrap();
    let advice = "not a directory, but an image; --recompress, --rebuild-metadata and \
                  --change-block-size rewrite it, --filter, --remove, --rename and --add change its \
                  tree";
    assert_eq!(
        stderr(&done),
        format!("mkdwarfs: cannot read input: {}: {advice}\n", at("old"))
    );
}
