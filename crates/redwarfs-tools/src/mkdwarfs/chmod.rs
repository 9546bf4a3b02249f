//! `--chmod`: changes of permissions in the language of chmod(1).
//!
//! ```text
//! spec   = "norm" | part { "," part }
//! part   = octal | who change { change } | ( D | F ) octal
//! octal  = digits, up to 7777: replaces all bits
//! who    = { u | g | o | a | D | F }         D: directories only, F: all others only
//! change = ( + | - | = ) ( { r | w | x | X | s | t } | u | g | o | octal )
//! ```
//!
//! Without any of `ugoa`, a change applies to all three, except for bits in the umask of the process.
//! After an operator, `octal` cannot be combined with `ugoa`, and ends its part. `X` is `x` for
//! directories, and for files that already have an execute bit.
//!
//! A directory keeps its set-id bits in more cases than a file. They change if `s` names them, or if
//! digits follow an operator. A plain octal number of up to four digits can set them, but only a number
//! with leading zeros that make it five digits or more clears them.
//!
//! Differences from chmod(1): `D`, `F`, `norm` and octal parts in a list exist only here. `+` and `-`
//! without permissions do nothing in chmod(1), and are errors here.

use redwarfs_writer::ModeTransform;

const DIRECTORY: u32 = 0o040_000;
const TYPE: u32 = 0o170_000;
const SET_ID: u32 = 0o6000;

/// The meaning of `norm`: readable by all, writable by none.
const NORM: &str = "ug-st,=Xr";

/// A parsed specification.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chmod(Vec<Clause>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Clause {
    kinds: Kinds,
    what: What,
}

/// Which entries a part is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    All,
    Directories,
    Others,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    /// Bits to have, and the set-id bits of a directory that may change.
    Replace { bits: u32, named: u32 },
    /// Bits that may change (`07777` without `ugoa`), and the changes.
    Change {
        who: Option<u32>,
        changes: Vec<Change>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    operator: char,
    permissions: Permissions,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Permissions {
    /// Letters: bits for everybody, and whether there is an `X`.
    Letters { bits: u32, maybe_execute: bool },
    /// Exactly these bits.
    Octal(u32),
    /// Those of the user, the group or the others: how far to shift right.
    Copy(u32),
}

/// Parses a specification; `umask` as the system has it.
///
/// # Errors
/// A line about the error, with the part of the mode.
pub(crate) fn parse(text: &str, umask: u32) -> Result<ModeTransform, String> {
    let chmod = Chmod::parse(text)?;
    Ok(ModeTransform::new(move |mode| chmod.apply(mode, umask)))
}

impl Chmod {
    fn parse(text: &str) -> Result<Self, String> {
        let text = if text == "norm" { NORM } else { text };
        text.split(',')
            .map(Clause::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn apply(&self, mode: u32, umask: u32) -> u32 {
        let mut mode = mode;
        for part in &self.0 {
            let directory = mode & TYPE == DIRECTORY;
            let concerned = match part.kinds {
                Kinds::All => true,
                Kinds::Directories => directory,
                Kinds::Others => !directory,
            };
            if concerned {
                mode = part.apply(mode, directory, umask);
            }
        }
        mode
    }
}

impl Clause {
    fn parse(text: &str) -> Result<Self, String> {
        let bad = |what: &str| Err(format!("{what} in chmod mode: {text}"));
        if text.is_empty() {
            return Err("empty chmod mode".to_owned());
        }
        let end = text
            .find(|c: char| matches!(c, '+' | '-' | '=') || c.is_ascii_digit())
            .unwrap_or(text.len());
        let (letters, mut rest) = text.split_at(end);
        let (mut who, mut kinds) = (0, Kinds::All);
        for letter in letters.chars() {
            match letter {
                'u' => who |= 0o4700,
                'g' => who |= 0o2070,
                'o' => who |= 0o1007,
                'a' => who |= 0o7777,
                'D' | 'F' => {
                    let kind = match letter {
                        'D' => Kinds::Directories,
                        _ => Kinds::Others,
                    };
                    if kinds != Kinds::All && kinds != kind {
                        return bad("D and F exclude each other");
                    }
                    kinds = kind;
                }
                other => return bad(&format!("unknown letter '{other}'")),
            }
        }
        if rest.is_empty() {
            return bad("missing operator (one of + - =)");
        }
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            if who != 0 {
                return bad("cannot combine whom with octal digits");
            }
            return match octal(rest) {
                Some(bits) => {
                    let named = if rest.len() > 4 {
                        SET_ID
                    } else {
                        bits & SET_ID
                    };
                    Ok(Self {
                        kinds,
                        what: What::Replace { bits, named },
                    })
                }
                None => Err(format!("invalid octal chmod mode: {text}")),
            };
        }
        let who = (who != 0).then_some(who);
        let mut changes = Vec::new();
        while let Some(operator) = rest.chars().next() {
            if !matches!(operator, '+' | '-' | '=') {
                return bad("trailing characters");
            }
            rest = rest.get(1..).unwrap_or_default();
            let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
            let (permissions, tail) = rest.split_at(end);
            rest = tail;
            let permissions = Permissions::parse(permissions, text)?;
            match permissions {
                Permissions::Octal(_) if who.is_some() => {
                    return bad("cannot combine whom with octal digits");
                }
                Permissions::Octal(_) if !rest.is_empty() => {
                    return bad("trailing characters after octal digits");
                }
                // `go=` is for "none at all"; adding or removing nothing is a mistake.
                Permissions::Letters {
                    bits: 0,
                    maybe_execute: false,
                } if operator != '=' => return bad("missing permissions"),
                _ => {}
            }
            changes.push(Change {
                operator,
                permissions,
            });
        }
        Ok(Self {
            kinds,
            what: What::Change { who, changes },
        })
    }

    fn apply(&self, mode: u32, directory: bool, umask: u32) -> u32 {
        let (who, changes) = match &self.what {
            What::Replace { bits, named } => {
                let kept = if directory { SET_ID & !named } else { 0 };
                return (mode & (TYPE | kept)) | bits;
            }
            What::Change { who, changes } => (*who, changes),
        };
        let mut mode = mode;
        for change in changes {
            let mut may = who.unwrap_or(0o7777 & !(umask & 0o777));
            let mut named = 0;
            let bits = match change.permissions {
                Permissions::Octal(bits) => {
                    may = 0o7777;
                    named = SET_ID;
                    bits
                }
                Permissions::Copy(shift) => ((mode >> shift) & 7) * 0o111,
                Permissions::Letters {
                    bits,
                    maybe_execute,
                } => {
                    named = bits & SET_ID;
                    let execute = maybe_execute && (directory || mode & 0o111 != 0);
                    bits | if execute { 0o111 } else { 0 }
                }
            };
            let bits = bits & may;
            mode = match change.operator {
                '+' => mode | bits,
                '-' => mode & !bits,
                _ => {
                    // Without `ugoa`, all bits are set, and the bits of the umask are 0.
                    let mut cleared = who.unwrap_or(0o7777);
                    if directory {
                        cleared &= !SET_ID | named;
                    }
                    (mode & !cleared) | bits
                }
            };
        }
        mode
    }
}

impl Permissions {
    fn parse(text: &str, part: &str) -> Result<Self, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return octal(text)
                .map(Self::Octal)
                .ok_or_else(|| format!("invalid octal chmod mode: {part}"));
        }
        match text {
            "u" => return Ok(Self::Copy(6)),
            "g" => return Ok(Self::Copy(3)),
            "o" => return Ok(Self::Copy(0)),
            _ => {}
        }
        let (mut bits, mut maybe_execute) = (0, false);
        for letter in text.chars() {
            match letter {
                'r' => bits |= 0o444,
                'w' => bits |= 0o222,
                'x' => bits |= 0o111,
                's' => bits |= SET_ID,
                't' => bits |= 0o1000,
                'X' => maybe_execute = true,
                other => {
                    return Err(format!(
                        "trailing characters in chmod mode: {part} ('{other}' is no permission)"
                    ));
                }
            }
        }
        Ok(Self::Letters {
            bits,
            maybe_execute,
        })
    }
}

/// Octal digits up to 7777, with any number of leading zeros.
fn octal(text: &str) -> Option<u32> {
    let good = text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let bits = good.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    bits.filter(|&bits| bits <= 0o7777)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;
    use std::process::Command;

    /// Results for a file and a directory that have the permissions `before`.
    fn both(spec: &str, before: u32, umask: u32) -> (u32, u32) {
        let chmod = Chmod::parse(spec).unwrap();
        (
            chmod.apply(0o100_000 | before, umask) & 0o7777,
            chmod.apply(DIRECTORY | before, umask) & 0o7777,
        )
    }

    /// What GNU chmod makes of files and directories, with a umask of 022.
    #[test]
    fn as_the_program_does_it() {
        let cases: &[(&str, [(u32, u32); 3])] = &[
            ("+x", [(0o755, 0o755), (0o6755, 0o6755), (0o755, 0o755)]),
            ("-w", [(0o444, 0o444), (0o6555, 0o6555), (0o555, 0o555)]),
            ("=r", [(0o444, 0o444), (0o444, 0o6444), (0o444, 0o444)]),
            ("=u", [(0o644, 0o644), (0o755, 0o6755), (0o755, 0o755)]),
            ("+t", [(0o1644, 0o1644), (0o7755, 0o7755), (0o1755, 0o1755)]),
            ("=t", [(0o1000, 0o1000), (0o1000, 0o7000), (0o1000, 0o1000)]),
            ("+s", [(0o6644, 0o6644), (0o6755, 0o6755), (0o6755, 0o6755)]),
            (
                "u=rwX,go=rX",
                [(0o644, 0o755), (0o755, 0o6755), (0o755, 0o755)],
            ),
            (
                "7777",
                [(0o7777, 0o7777), (0o7777, 0o7777), (0o7777, 0o7777)],
            ),
            ("=755", [(0o755, 0o755), (0o755, 0o755), (0o755, 0o755)]),
            ("+111", [(0o755, 0o755), (0o6755, 0o6755), (0o755, 0o755)]),
            ("u+w-x", [(0o644, 0o644), (0o6655, 0o6655), (0o655, 0o655)]),
            ("u=g", [(0o444, 0o444), (0o2555, 0o6555), (0o555, 0o555)]),
            (
                "g=u,o=g",
                [(0o666, 0o666), (0o4777, 0o6777), (0o777, 0o777)],
            ),
            (
                "ug-st,=Xr",
                [(0o444, 0o555), (0o555, 0o555), (0o555, 0o555)],
            ),
            (
                "ug=s",
                [(0o6004, 0o6004), (0o6005, 0o6005), (0o6005, 0o6005)],
            ),
            ("u-s", [(0o644, 0o644), (0o2755, 0o2755), (0o755, 0o755)]),
            ("a=rx", [(0o555, 0o555), (0o555, 0o6555), (0o555, 0o555)]),
            ("=", [(0, 0), (0, 0o6000), (0, 0)]),
            ("u=", [(0o44, 0o44), (0o2055, 0o6055), (0o55, 0o55)]),
            ("o=s", [(0o640, 0o640), (0o6750, 0o6750), (0o750, 0o750)]),
            ("-7", [(0o640, 0o640), (0o6750, 0o6750), (0o750, 0o750)]),
            ("norm", [(0o444, 0o555), (0o555, 0o555), (0o555, 0o555)]),
        ];
        for (spec, want) in cases {
            for (before, want) in [0o644, 0o6755, 0o755].into_iter().zip(want) {
                assert_eq!(both(spec, before, 0o022), *want, "{spec} on {before:o}");
            }
        }
    }

    #[test]
    fn plain_numbers_keep_set_id_bits_of_directories() {
        assert_eq!(both("755", 0o6644, 0), (0o755, 0o6755));
        assert_eq!(both("0750", 0o7777, 0), (0o750, 0o6750));
        assert_eq!(both("2750", 0o4755, 0), (0o2750, 0o6750));
        assert_eq!(both("00750", 0o7777, 0), (0o750, 0o750));
        assert_eq!(both("0000002750", 0o7777, 0), (0o2750, 0o2750));
        assert_eq!(both("D0750,F640", 0o6777, 0), (0o640, 0o6750));
    }

    /// What stands for an operator with its permissions.
    fn change() -> impl Strategy<Value = String> {
        ("[-+=]", "[rwxXst]{1,4}|[ugo]").prop_map(|(operator, what)| operator + &what)
    }

    fn part() -> impl Strategy<Value = String> {
        let plain = proptest::collection::vec(change(), 1..4);
        prop_oneof![
            6 => ("[ugoa]{0,3}", plain).prop_map(|(who, changes)| who + &changes.concat()),
            1 => "[ugoa]{1,2}=|=",
            2 => "[-+=]0{0,2}[0-7]{1,4}",
        ]
    }

    /// All that both understand.
    fn specification() -> impl Strategy<Value = String> {
        let parts = proptest::collection::vec(part(), 1..4).prop_map(|parts| parts.join(","));
        prop_oneof![3 => parts, 1 => "0{0,5}[0-7]{1,4}"]
    }

    /// Whether `chmod` is the program that the tests compare with.
    fn has_gnu_chmod() -> bool {
        let version = Command::new("chmod").arg("--version").output();
        version.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("GNU coreutils"))
    }

    /// Runs the program `chmod` on a file and a directory.
    fn chmod_program(at: &Path, spec: &str, before: u32, umask: u32) -> (u32, u32) {
        let names = ["file", "dir"].map(|name| at.join(name));
        for name in &names {
            fs::set_permissions(name, fs::Permissions::from_mode(before)).unwrap();
        }
        let done = Command::new("sh")
            .args([
                "-c",
                "umask $0; exec chmod -- \"$@\"",
                &format!("{umask:o}"),
            ])
            .arg(spec)
            .args(&names)
            .output()
            .unwrap();
        // It complains about what the umask keeps a bare `-w` from doing, and does the rest.
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert!(!complaint.contains("invalid mode"), "{complaint}");
        let [file, dir] = names.map(|name| fs::metadata(name).unwrap().mode() & 0o7777);
        (file, dir)
    }

    #[test]
    fn every_specification_does_what_the_program_does() {
        if !has_gnu_chmod() {
            redwarfs_testkit::skip("--chmod beside chmod(1)", "no chmod of GNU coreutils");
            return;
        }
        let at = tempfile::tempdir().unwrap();
        fs::write(at.path().join("file"), "").unwrap();
        fs::create_dir(at.path().join("dir")).unwrap();
        // Someone who is not root cannot set every bit.
        let settable = |before| chmod_program(at.path(), "u=u", before, 0) == (before, before);
        let mut runner = TestRunner::new(Config::with_cases(600));
        let umasks = prop_oneof![Just(0o022), Just(0o077), Just(0), 0_u32..0o1000];
        let cases = (specification(), 0_u32..0o10000, umasks);
        let done = runner.run(&cases, |(spec, before, umask)| {
            prop_assume!(settable(before));
            let want = chmod_program(at.path(), &spec, before, umask);
            let got = both(&spec, before, umask);
            let shown = |(file, dir): (u32, u32)| format!("{file:o} {dir:o}");
            prop_assert!(
                got == want,
                "{} with umask {:o} on {:o}: {}, not {}",
                spec,
                umask,
                before,
                shown(got),
                shown(want)
            );
            Ok(())
        });
        done.unwrap();
    }

    #[test]
    fn directories_and_others() {
        assert_eq!(both("D=755", 0o600, 0o022), (0o600, 0o755));
        assert_eq!(both("D755,F644", 0o600, 0o022), (0o644, 0o755));
        assert_eq!(both("Du+x,F-x", 0o744, 0o022), (0o644, 0o744));
        assert_eq!(both("Fgo=", 0o755, 0), (0o700, 0o755));
    }

    #[test]
    fn the_umask_counts_for_nobody() {
        assert_eq!(both("+x", 0o644, 0o077), (0o744, 0o744));
        assert_eq!(both("a+x", 0o644, 0o077), (0o755, 0o755));
        assert_eq!(both("+77", 0o600, 0o077), (0o677, 0o677));
        assert_eq!(both("norm", 0o640, 0o077), (0o400, 0o500));
        assert_eq!(both("=rwx,g-w", 0o644, 0o027), (0o750, 0o750));
        assert_eq!(both("-w", 0o666, 0o022), (0o466, 0o466));
    }

    #[test]
    fn mistakes_are_named() {
        for (spec, want) in [
            ("", "empty chmod mode"),
            ("u+x,", "empty chmod mode"),
            ("z+x", "unknown letter 'z' in chmod mode: z+x"),
            ("u+r,zu+x", "unknown letter 'z' in chmod mode: zu+x"),
            ("DF+x", "D and F exclude each other in chmod mode: DF+x"),
            ("+", "missing permissions in chmod mode: +"),
            ("u-", "missing permissions in chmod mode: u-"),
            ("ug", "missing operator (one of + - =) in chmod mode: ug"),
            ("755x", "invalid octal chmod mode: 755x"),
            ("888", "invalid octal chmod mode: 888"),
            ("77777", "invalid octal chmod mode: 77777"),
            ("+9", "invalid octal chmod mode: +9"),
            ("40000000000755", "invalid octal chmod mode: 40000000000755"),
            (
                "=644+x",
                "trailing characters after octal digits in chmod mode: =644+x",
            ),
            (
                "u755",
                "cannot combine whom with octal digits in chmod mode: u755",
            ),
            (
                "u=755",
                "cannot combine whom with octal digits in chmod mode: u=755",
            ),
            (
                "u+q",
                "trailing characters in chmod mode: u+q ('q' is no permission)",
            ),
            (
                "u+ug",
                "trailing characters in chmod mode: u+ug ('u' is no permission)",
            ),
        ] {
            assert_eq!(Chmod::parse(spec), Err(want.to_owned()), "{spec}");
        }
    }
}
