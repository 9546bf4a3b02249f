//! Names as bytes and as UTF-16, and the names that Windows cannot hold.
//!
//! The bytes are WTF-8: UTF-8, in which an unpaired surrogate is also encoded, in three bytes. Each name
//! on Windows has one such form, and keeps it in an image on all systems.

use std::fmt;

/// Longest name of an entry, in units of UTF-16.
pub const MAX_UNITS: usize = 255;

/// The reason why Windows cannot hold a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadName {
    /// It has a character that is no part of any name.
    Character(char),
    /// The last character is a dot or a space, which Windows drops.
    End,
    /// It leads to a device such as `NUL`, also with an extension.
    Device,
    /// The bytes are not Unicode.
    Encoding,
    /// It has more than [`MAX_UNITS`] units of UTF-16.
    Long,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Character(c) => write!(
                f,
                "no '{}' is allowed in names on Windows",
                c.escape_debug()
            ),
            Self::End => f.write_str("no name ends with a dot or a space on Windows"),
            Self::Device => f.write_str("it is the name of a device on Windows"),
            Self::Encoding => {
                f.write_str("the name is not UTF-8, and Windows has only Unicode names")
            }
            Self::Long => write!(f, "the name has more than {MAX_UNITS} units of UTF-16"),
        }
    }
}

impl std::error::Error for BadName {}

/// Whether Windows can hold an entry of this name; the reason if it cannot.
///
/// # Errors
/// The reason.
pub fn check(name: &[u8]) -> Result<(), BadName> {
    let bad = |&&b: &&u8| b < b' ' || br#"<>:"/\|?*"#.contains(&b);
    if let Some(&b) = name.iter().find(bad) {
        return Err(BadName::Character(char::from(b)));
    }
    if matches!(name, [.., b'.' | b' ']) {
        return Err(BadName::End);
    }
    if is_device(name) {
        return Err(BadName::Device);
    }
    match to_wide(name) {
        None => Err(BadName::Encoding),
        Some(wide) if wide.len() > MAX_UNITS => Err(BadName::Long),
        Some(_) => Ok(()),
    }
}

/// Whether the part of a name before its first dot is that of a device.
fn is_device(name: &[u8]) -> bool {
    let stem = name.split(|&b| b == b'.').next().unwrap_or_default();
    let stem = stem.trim_ascii_end().to_ascii_uppercase();
    match stem.as_slice() {
        b"CON" | b"PRN" | b"AUX" | b"NUL" | b"CONIN$" | b"CONOUT$" => true,
        [b'C', b'O', b'M', number @ ..] | [b'L', b'P', b'T', number @ ..] => {
            let superscript = ["\u{b9}", "\u{b2}", "\u{b3}"].map(str::as_bytes);
            matches!(number, [b'0'..=b'9']) || superscript.contains(&number)
        }
        _ => false,
    }
}

/// The UTF-16 form of WTF-8; `None` if the bytes are not WTF-8.
#[must_use]
pub fn to_wide(bytes: &[u8]) -> Option<Vec<u16>> {
    let mut wide = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while !rest.is_empty() {
        let valid = match std::str::from_utf8(rest) {
            Ok(text) => text,
            Err(e) => std::str::from_utf8(rest.get(..e.valid_up_to())?).ok()?,
        };
        wide.extend(valid.encode_utf16());
        rest = rest.get(valid.len()..)?;
        if let Some((three, tail)) = rest.split_first_chunk::<3>() {
            let &[0xed, second @ 0xa0..=0xbf, third @ 0x80..=0xbf] = three else {
                return None;
            };
            let unit = 0xd000 | u16::from(second & 0x3f) << 6 | u16::from(third & 0x3f);
            // A pair of surrogates has another form, of four bytes.
            let paired = matches!(unit, 0xdc00..=0xdfff)
                && valid.is_empty()
                && matches!(wide.last(), Some(0xd800..=0xdbff));
            if paired {
                return None;
            }
            wide.push(unit);
            rest = tail;
        } else if !rest.is_empty() {
            return None;
        }
    }
    Some(wide)
}

/// The WTF-8 form of UTF-16.
pub fn from_wide(wide: impl IntoIterator<Item = u16>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for c in char::decode_utf16(wide) {
        match c {
            Ok(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(e) => {
                let [high, low] = e.unpaired_surrogate().to_be_bytes();
                bytes.extend([
                    0xe0 | high >> 4,
                    0x80 | (high & 0xf) << 2 | low >> 6,
                    0x80 | low & 0x3f,
                ]);
            }
        }
    }
    bytes
}

/// The string of the system with these bytes; `None` if they are not WTF-8.
#[cfg(windows)]
#[must_use]
pub fn os_string(bytes: &[u8]) -> Option<std::ffi::OsString> {
    use std::os::windows::ffi::OsStringExt;
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text.into()),
        Err(_) => Some(std::ffi::OsString::from_wide(&to_wide(bytes)?)),
    }
}

/// The bytes of a string of the system.
#[cfg(windows)]
#[must_use]
pub fn bytes(text: &std::ffi::OsStr) -> std::borrow::Cow<'_, [u8]> {
    use std::os::windows::ffi::OsStrExt;
    match text.to_str() {
        Some(text) => text.as_bytes().into(),
        None => from_wide(text.encode_wide()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_units_are_one_to_one() {
        let surrogate = |unit: u16| from_wide([unit]);
        for (bytes, wide) in [
            (b"".to_vec(), vec![]),
            (b"a.txt".to_vec(), "a.txt".encode_utf16().collect()),
            (
                "\u{e9}\u{20ac}\u{1f600}".into(),
                "\u{e9}\u{20ac}\u{1f600}".encode_utf16().collect(),
            ),
            (surrogate(0xd800), vec![0xd800]),
            (surrogate(0xdfff), vec![0xdfff]),
            (
                [surrogate(0xdc01), b"x".to_vec()].concat(),
                vec![0xdc01, 0x78],
            ),
            (
                [surrogate(0xdc01), surrogate(0xd801)].concat(),
                vec![0xdc01, 0xd801],
            ),
            (
                [surrogate(0xd801), surrogate(0xd801)].concat(),
                vec![0xd801, 0xd801],
            ),
            (
                [surrogate(0xd801), b"-".to_vec(), surrogate(0xdc01)].concat(),
                vec![0xd801, 0x2d, 0xdc01],
            ),
        ] {
            assert_eq!(to_wide(&bytes), Some(wide.clone()), "{bytes:x?}");
            assert_eq!(from_wide(wide), bytes);
        }
        assert_eq!(surrogate(0xd800), [0xed, 0xa0, 0x80]);
        assert_eq!(surrogate(0xdfff), [0xed, 0xbf, 0xbf]);
        for bad in [
            &b"\xff"[..],
            b"a\x80",
            b"\xc3",
            b"\xed\xa0",
            b"\xed\xa0\x80\xed\xb0\x80",
            b"\xf5\x80\x80\x80",
            b"\xc0\x80",
        ] {
            assert_eq!(to_wide(bad), None, "{bad:x?}");
        }
    }

    #[test]
    fn every_unit_survives() {
        for unit in 0..=u16::MAX {
            assert_eq!(to_wide(&from_wide([unit])), Some(vec![unit]), "{unit:x}");
        }
    }

    #[test]
    fn names_that_windows_cannot_hold() {
        for good in [
            "a",
            "a b",
            ".a",
            "a.b.c",
            "...a",
            "con1",
            "COM",
            "COM10",
            "lpt",
            "nul_",
            "CONSOLE.txt",
            "aux-1",
            "\u{e4}\u{1f600}",
            "COM\u{2074}",
            "~",
            "a;b,c=d+[e]",
        ] {
            assert_eq!(check(good.as_bytes()), Ok(()), "{good}");
        }
        for device in [
            "con",
            "NUL",
            "nul.txt",
            "Aux.tar.gz",
            "PRN .x",
            "com1",
            "LPT9.log",
            "COM0",
            "COM\u{b9}",
            "lpt\u{b3}.a",
            "CONIN$",
            "conout$",
        ] {
            assert_eq!(check(device.as_bytes()), Err(BadName::Device), "{device}");
        }
        for c in "<>:\"/\\|?*\n\0\u{1f}".chars() {
            assert_eq!(
                check(format!("a{c}b").as_bytes()),
                Err(BadName::Character(c))
            );
        }
        for end in ["a.", "a ", "..", "...", " "] {
            assert_eq!(check(end.as_bytes()), Err(BadName::End), "{end}");
        }
        assert_eq!(check(b"\xff"), Err(BadName::Encoding));
        assert_eq!(check(&[b'x'; 255]), Ok(()));
        assert_eq!(check(&[b'x'; 256]), Err(BadName::Long));
        assert_eq!(check("\u{e4}".repeat(255).as_bytes()), Ok(()));
        assert_eq!(
            check("\u{1f600}".repeat(128).as_bytes()),
            Err(BadName::Long)
        );
    }

    #[test]
    fn reasons_are_one_line() {
        let shown = BadName::Character('\n').to_string();
        assert_eq!(shown, "no '\\n' is allowed in names on Windows");
    }
}
