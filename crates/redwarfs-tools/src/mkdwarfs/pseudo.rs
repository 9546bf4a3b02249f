//! `--pseudo-file`: a file that declares entries. It makes devices, owners and modes without root.
//!
//! One entry per line, in words that spaces separate:
//!
//! ```text
//! PATH m MODE OWNER GROUP                    change what is there
//! PATH d MODE OWNER GROUP                    directory
//! PATH f MODE OWNER GROUP [FILE]             regular file with the content of FILE, or empty
//! PATH s MODE OWNER GROUP TARGET             symlink
//! PATH c|b MODE OWNER GROUP MAJOR MINOR      character or block device
//! PATH i MODE OWNER GROUP [f|s]              FIFO (without or with f) or socket (s)
//! PATH x NAME=VALUE                          extended attribute, beside another line for the entry
//! ```
//!
//! `PATH` is below the input directory, with or without a leading `/`. `/` is that directory. `MODE` is
//! octal. `OWNER` and `GROUP` are names or numbers. A `-` in place of one of them keeps the value, or
//! takes the default of a new entry. A word with spaces stands in double quotes. `\` makes the next
//! character an ordinary one, and `\` with three octal digits is a byte. Blank lines and lines that
//! begin with `#` are skipped.

use std::path::Path;

use redwarfs_io::path;
use redwarfs_writer::{Declaration, Declared, Timestamp};

use super::xattr_args;
use crate::common::users::{parse_group, parse_user};
use crate::common::{Result, ToolError};

/// What a file declares.
pub(super) struct Pseudo {
    pub(super) declarations: Vec<Declaration>,
    /// When the file was changed: new entries have this time, so that they do not depend on when
    /// the image is built.
    pub(super) time: Timestamp,
}

/// Reads a file of declarations.
///
/// # Errors
/// The file, the line and its error.
pub(super) fn read(path: &Path) -> Result<Pseudo> {
    let cannot = |e: std::io::Error| ToolError::new("cannot read pseudo file").path(path).io(&e);
    let text = std::fs::read(path).map_err(cannot)?;
    let meta = std::fs::metadata(path).map_err(cannot)?;
    let mut declarations = Vec::new();
    for (number, line) in text.split(|&b| b == b'\n').enumerate() {
        let declaration = parse(line).map_err(|cause| {
            ToolError::new("bad pseudo file")
                .path(path)
                .cause(format!("line {}: {cause}", number + 1))
        })?;
        declarations.extend(declaration);
    }
    let (sec, nsec) = crate::common::os::modified(&meta);
    Ok(Pseudo {
        declarations,
        time: Timestamp { sec, nsec },
    })
}

fn parse(line: &[u8]) -> std::result::Result<Option<Declaration>, String> {
    let words = words(line)?;
    let mut words = words.into_iter();
    let Some(path) = words
        .next()
        .filter(|_| !line.trim_ascii_start().starts_with(b"#"))
    else {
        return Ok(None);
    };
    let path = relative(path)?;
    let mut next = |what: &str| words.next().ok_or_else(|| format!("{what} is missing"));
    let kind = text(next("the type")?)?;
    if kind == "x" {
        let set = xattr_args::xattr(&text(next("NAME=VALUE")?)?)?;
        return match next("nothing") {
            Err(_) => Ok(Some(Declaration {
                path,
                what: Declared::Change,
                permissions: None,
                uid: None,
                gid: None,
                xattrs: vec![set],
            })),
            Ok(more) => Err(too_many(&more)),
        };
    }
    let mode = text(next("the mode")?)?;
    let (owner, group) = (text(next("the owner")?)?, text(next("the group")?)?);
    let what = match kind.as_str() {
        "m" => Declared::Change,
        "d" => Declared::Directory,
        "f" => Declared::File(
            words
                .next()
                .map(|file| path::shown(&file).into_owned().into()),
        ),
        "s" => Declared::Symlink(next("the target")?),
        "c" | "b" => {
            let major = number(&text(next("the major number")?)?)?;
            let minor = number(&text(next("the minor number")?)?)?;
            let device = redwarfs_format::device::makedev(major, minor);
            match kind.as_str() {
                "c" => Declared::CharDevice(device),
                _ => Declared::BlockDevice(device),
            }
        }
        "i" => match words.next().as_deref() {
            None | Some(b"f") => Declared::Fifo,
            Some(b"s") => Declared::Socket,
            Some(_) => return Err("expected f (FIFO) or s (socket) after the group".to_owned()),
        },
        other => return Err(format!("unknown type '{other}' (one of m d f s c b i x)")),
    };
    if let Some(more) = words.next() {
        return Err(too_many(&more));
    }
    if path.is_empty() && !matches!(what, Declared::Change | Declared::Directory) {
        return Err("the root is a directory".to_owned());
    }
    let id = |text: &str, parse: fn(&str) -> std::result::Result<u32, String>| {
        if text == "-" {
            return Ok(None);
        }
        parse(text)
            .map(Some)
            .map_err(|cause| format!("{cause}: {text}"))
    };
    let permissions = match mode.as_str() {
        "-" => None,
        octal if octal.bytes().all(|b| (b'0'..=b'7').contains(&b)) => u32::from_str_radix(octal, 8)
            .ok()
            .filter(|&mode| mode <= 0o7777),
        _ => None,
    };
    if permissions.is_none() && mode != "-" {
        return Err(format!("invalid mode '{mode}' (octal, at most 7777, or -)"));
    }
    Ok(Some(Declaration {
        path,
        what,
        permissions,
        uid: id(&owner, parse_user)?,
        gid: id(&group, parse_group)?,
        xattrs: Vec::new(),
    }))
}

fn too_many(word: &[u8]) -> String {
    format!("too many words: '{}'", String::from_utf8_lossy(word))
}

/// A path without empty components and `.`.
fn relative(path: Vec<u8>) -> std::result::Result<Vec<u8>, String> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    for name in path.split(|&b| b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err("a path must not hold '..'".to_owned()),
            _ => {
                if !out.is_empty() {
                    out.push(b'/');
                }
                out.extend_from_slice(name);
            }
        }
    }
    Ok(out)
}

fn text(word: Vec<u8>) -> std::result::Result<String, String> {
    String::from_utf8(word).map_err(|_| "a word is not valid UTF-8".to_owned())
}

fn number(text: &str) -> std::result::Result<u32, String> {
    text.parse()
        .map_err(|_| format!("invalid device number '{text}'"))
}

/// Splits a line at spaces, with quotes and escapes.
fn words(line: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quoted = false;
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\r' if !quoted => words.extend(word.take()),
            b'"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            b'\\' => {
                let Some(first) = bytes.next() else {
                    return Err("trailing backslash".to_owned());
                };
                let byte = match first {
                    b'0'..=b'7' => {
                        let mut value = u32::from(first - b'0');
                        for _ in 0..2 {
                            match bytes.next() {
                                Some(digit @ b'0'..=b'7') => {
                                    value = value * 8 + u32::from(digit - b'0');
                                }
                                _ => return Err("expected three octal digits after \\".to_owned()),
                            }
                        }
                        u8::try_from(value).map_err(|_| "a byte is at most \\377".to_owned())?
                    }
                    other => other,
                };
                if byte == 0 {
                    return Err("a word must not hold NUL".to_owned());
                }
                word.get_or_insert_default().push(byte);
            }
            0 => return Err("a word must not hold NUL".to_owned()),
            other => word.get_or_insert_default().push(other),
        }
    }
    if quoted {
        return Err("a quotation mark is missing".to_owned());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Declaration {
        parse(line.as_bytes()).unwrap().unwrap()
    }

    fn what(line: &str) -> Declared {
        parsed(line).what
    }

    #[test]
    fn all_types() {
        let line = parsed("/dev/null c 666 root 4000000000 1 3");
        assert_eq!(line.path, b"dev/null");
        assert_eq!(
            line.what,
            Declared::CharDevice(redwarfs_format::device::makedev(1, 3))
        );
        assert_eq!(
            (line.permissions, line.uid, line.gid),
            (Some(0o666), Some(0), Some(4_000_000_000))
        );
        let disk = Declared::BlockDevice(redwarfs_format::device::makedev(259, 1_000_000));
        assert_eq!(what("b b 0 0 0 259 1000000"), disk);
        assert_eq!(what("p i 644 0 0"), Declared::Fifo);
        assert_eq!(what("p i 644 0 0 f"), Declared::Fifo);
        assert_eq!(what("p i 644 0 0 s"), Declared::Socket);
        assert_eq!(what("d/e d 7777 0 0"), Declared::Directory);
        assert_eq!(what("a f - - -"), Declared::File(None));
        assert_eq!(what("a f - - - /x/y"), Declared::File(Some("/x/y".into())));
        assert_eq!(
            what("a s 777 0 0 ../b"),
            Declared::Symlink(b"../b".to_vec())
        );
        let set = parsed(r#"a x "user.b=c d""#);
        assert_eq!((&set.what, set.permissions), (&Declared::Change, None));
        assert_eq!(set.xattrs[0].name, b"user.b");
        assert_eq!(set.xattrs[0].value, b"c d");
        let root = parsed("/ m 755 - -");
        assert_eq!((root.path, root.what), (Vec::new(), Declared::Change));
        assert_eq!((root.uid, root.gid), (None, None));
    }

    #[test]
    fn words_may_hold_anything() {
        assert_eq!(parsed(r#"./"a b"/\"c\040\\ d - - -"#).path, b"a b/\"c \\");
        assert_eq!(parsed(r"\#x\377 d - - -").path, b"#x\xff");
        assert_eq!(parsed("\ta\t d  - - -\r").path, b"a");
        for skipped in ["", "   ", "# a d 755 0 0", "  #"] {
            assert_eq!(parse(skipped.as_bytes()), Ok(None), "{skipped}");
        }
    }

    #[test]
    fn mistakes() {
        for (line, want) in [
            ("a", "the type is missing"),
            ("a d 755 0", "the group is missing"),
            ("a q 755 0 0", "unknown type 'q' (one of m d f s c b i x)"),
            ("a x", "NAME=VALUE is missing"),
            ("a x user.a", "'user.a' has no '='"),
            ("a x user.a=1 2", "too many words: '2'"),
            (
                "a d 888 0 0",
                "invalid mode '888' (octal, at most 7777, or -)",
            ),
            (
                "a d 17777 0 0",
                "invalid mode '17777' (octal, at most 7777, or -)",
            ),
            (
                "a d +x 0 0",
                "invalid mode '+x' (octal, at most 7777, or -)",
            ),
            ("a d 755 no-such-user 0", "unknown user: no-such-user"),
            ("a d 755 0 no-such-group", "unknown group: no-such-group"),
            ("a d 755 0 0 more", "too many words: 'more'"),
            ("a c 755 0 0 1", "the minor number is missing"),
            ("a c 755 0 0 1 x", "invalid device number 'x'"),
            ("a s 755 0 0", "the target is missing"),
            (
                "a i 755 0 0 x",
                "expected f (FIFO) or s (socket) after the group",
            ),
            ("/ f 755 0 0", "the root is a directory"),
            ("../a d 755 0 0", "a path must not hold '..'"),
            ("a\\", "trailing backslash"),
            ("\"a d 755 0 0", "a quotation mark is missing"),
            ("a\\0 d", "expected three octal digits after \\"),
            ("a\\400 d", "a byte is at most \\377"),
            ("a\\000 d", "a word must not hold NUL"),
        ] {
            assert_eq!(parse(line.as_bytes()), Err(want.to_owned()), "{line}");
        }
    }
}
