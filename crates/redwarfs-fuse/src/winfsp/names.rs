//! Names of the image as names that Windows accepts.
//!
//! Windows refuses names with certain characters, and drops dots and spaces at their end. Each such
//! character is shown as a private one: U+F000 plus its number. Programs for Unix on Windows (Cygwin,
//! WSL, the FUSE layer of WinFsp) do the same. Bytes that are not UTF-8 are shown in this way, too.

use redwarfs_windows::name::{self, MAX_UNITS};

/// What is added to the number of a character that Windows refuses.
const PRIVATE: u16 = 0xf000;

/// Whether no name may have this unit.
fn is_refused(unit: u16) -> bool {
    unit < 0x20 || u8::try_from(unit).is_ok_and(|byte| br#"<>:"/\|?*"#.contains(&byte))
}

/// A name, or a component of a path, in a form that Windows accepts. Its length is not limited.
pub(super) fn shown(name: &[u8]) -> Vec<u16> {
    let mut wide = match name::to_wide(name) {
        Some(wide) => wide,
        None => name
            .utf8_chunks()
            .flat_map(|chunk| {
                let raw = chunk.invalid().iter();
                let raw = raw.map(|&byte| PRIVATE | u16::from(byte));
                chunk.valid().encode_utf16().chain(raw).collect::<Vec<_>>()
            })
            .collect(),
    };
    for unit in &mut wide {
        if is_refused(*unit) {
            *unit |= PRIVATE;
        }
    }
    if let Some(last) = wide.last_mut()
        && [u16::from(b'.'), u16::from(b' ')].contains(last)
    {
        *last |= PRIVATE;
    }
    wide
}

/// The form of a name in a listing; `None` if a directory cannot show it.
pub(super) fn listed(name: &[u8]) -> Option<Vec<u16>> {
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return None;
    }
    Some(shown(name)).filter(|wide| wide.len() <= MAX_UNITS)
}

/// The bytes of a name that has none of the private characters, or is meant literally.
pub(super) fn literal(wide: &[u16]) -> Vec<u8> {
    name::from_wide(wide.iter().copied())
}

/// The bytes of a name with private characters, each of which stands for a byte; `None` if it has none.
pub(super) fn original(wide: &[u16]) -> Option<Vec<u8>> {
    if !wide.iter().copied().any(is_private) {
        return None;
    }
    let mut bytes = Vec::with_capacity(wide.len());
    for part in wide.chunk_by(|&a, &b| is_private(a) == is_private(b)) {
        match part {
            [first, ..] if is_private(*first) => {
                bytes.extend(part.iter().map(|&unit| (unit & 0xff) as u8));
            }
            _ => bytes.extend(literal(part)),
        }
    }
    Some(bytes)
}

fn is_private(unit: u16) -> bool {
    unit & 0xff00 == PRIVATE && unit != PRIVATE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(text: &str) -> Vec<u16> {
        text.encode_utf16().collect()
    }

    #[test]
    fn refused_characters_are_private() {
        for (name, want) in [
            (&b"plain.txt"[..], "plain.txt"),
            ("\u{e4}\u{1f600}".as_bytes(), "\u{e4}\u{1f600}"),
            (b"a:b", "a\u{f03a}b"),
            (b"back\\slash", "back\u{f05c}slash"),
            (b"what?*", "what\u{f03f}\u{f02a}"),
            (b"new\nline", "new\u{f00a}line"),
            (b"dot.", "dot\u{f02e}"),
            (b"...", "..\u{f02e}"),
            (b"space ", "space\u{f020}"),
            (b"a.b c", "a.b c"),
            (b"bad\xff\x80", "bad\u{f0ff}\u{f080}"),
            (b"\xc3\xa4\xff:", "\u{e4}\u{f0ff}\u{f03a}"),
        ] {
            assert_eq!(shown(name), wide(want), "{name:?}");
            if wide(want).iter().any(|&unit| is_private(unit)) {
                assert_eq!(original(&wide(want)).as_deref(), Some(name));
            } else {
                assert_eq!(original(&wide(want)), None);
                assert_eq!(literal(&wide(want)), name);
            }
        }
        // An unpaired surrogate is a name of Windows.
        assert_eq!(shown(b"\xed\xa0\x80"), [0xd800]);
    }

    #[test]
    fn names_that_are_not_listed() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            assert_eq!(listed(name), None, "{name:?}");
        }
        assert_eq!(listed(&[b'x'; 255]).map(|name| name.len()), Some(255));
        assert_eq!(listed(b"..."), Some(wide("..\u{f02e}")));
    }

    #[test]
    fn no_shown_name_is_refused() {
        for byte in 1..=255_u8 {
            for name in [vec![byte], vec![b'a', byte], vec![byte, b'a']] {
                let Some(listed) = listed(&name) else {
                    continue;
                };
                let bytes = literal(&listed);
                assert_eq!(name::check(&bytes), Ok(()), "{name:?}");
            }
        }
    }
}
