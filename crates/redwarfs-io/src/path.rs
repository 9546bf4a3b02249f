//! Names as bytes, and as strings of the system.
//!
//! In images, names are bytes. On Unix, any bytes but NUL and `/` are a name. On Windows, names are the
//! bytes of [WTF-8](https://simonsapin.github.io/wtf-8/), and other bytes are no name.

use std::borrow::Cow;
use std::ffi::OsStr;

/// The bytes of a string of the system.
#[must_use]
pub fn bytes(text: &OsStr) -> Cow<'_, [u8]> {
    crate::os::bytes(text)
}

/// The string of the system with these bytes; `None` if there is none.
#[must_use]
pub fn os_str(bytes: &[u8]) -> Option<Cow<'_, OsStr>> {
    crate::os::os_str(bytes)
}

/// The bytes of a path of the system, with a slash between its components.
#[must_use]
pub fn with_slashes(path: &OsStr) -> Cow<'_, [u8]> {
    crate::os::with_slashes(path)
}

/// The string of the system for messages, with replacements if there is no such string.
#[must_use]
pub fn shown(bytes: &[u8]) -> Cow<'_, OsStr> {
    os_str(bytes).unwrap_or_else(|| match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => Cow::Borrowed(OsStr::new(text)),
        Cow::Owned(text) => Cow::Owned(text.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_bytes_of_utf8() {
        for text in ["", "a/b", "\u{e4}\u{1f600}"] {
            assert_eq!(*bytes(OsStr::new(text)), *text.as_bytes());
            assert_eq!(os_str(text.as_bytes()).as_deref(), Some(OsStr::new(text)));
            assert_eq!(*shown(text.as_bytes()), *text);
        }
        // Bytes of UTF-8 that are no text: a name on Unix only.
        assert_eq!(os_str(b"\xff").is_some(), cfg!(unix));
        assert!(!shown(b"a\xff").is_empty());
        // An unpaired surrogate in WTF-8.
        assert_eq!(*bytes(&os_str(b"\xed\xa0\x80").unwrap()), *b"\xed\xa0\x80");
    }
}
