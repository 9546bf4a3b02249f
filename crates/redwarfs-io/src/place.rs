//! Where an image is: in a file, or on a server.
//!
//! ```
//! use std::path::Path;
//! use redwarfs_io::place::{FileLocation, shown};
//!
//! assert_eq!(FileLocation::of(Path::new("/srv/a.dwarfs"))?, FileLocation::File(Path::new("/srv/a.dwarfs").into()));
//! assert_eq!(FileLocation::of(Path::new("file:///srv/a%20b"))?, FileLocation::File(Path::new("/srv/a b").into()));
//! assert_eq!(FileLocation::of(Path::new("s3://bucket/a"))?, FileLocation::Remote("s3://bucket/a"));
//! assert_eq!(shown("https://me:secret@host/a?signature=1"), "https://host/a?...");
//! # Ok::<(), std::io::Error>(())
//! ```

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use crate::path::os_str;

/// The schemes of images on servers.
const SCHEMES: [&str; 5] = ["http", "https", "s3", "gs", "az"];

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileLocation<'a> {
    /// In a file or block device of this system.
    File(Cow<'a, Path>),
    /// On a server, at this URL. It may hold secrets: messages take [`shown`].
    Remote(&'a str),
}

impl<'a> FileLocation<'a> {
    /// Understands a path, or a URL with the scheme `file`, `http`, `https`, `s3`, `gs` or `az`. Everything else is
    /// a path.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a `file` URL of another host, or with characters that no path can have.
    pub fn of(name: &'a Path) -> io::Result<Self> {
        let Some((scheme, rest)) = name.to_str().and_then(|text| text.split_once("://")) else {
            return Ok(Self::File(name.into()));
        };
        if scheme.eq_ignore_ascii_case("file") {
            return local(rest).map(|path| Self::File(path.into()));
        }
        let remote = SCHEMES
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known));
        Ok(match name.to_str().filter(|_| remote) {
            Some(url) => Self::Remote(url),
            None => Self::File(name.into()),
        })
    }
}

/// Whether a name is a URL of an image on a server.
#[must_use]
pub fn is_remote(name: &Path) -> bool {
    matches!(FileLocation::of(name), Ok(FileLocation::Remote(_)))
}

/// A name for messages: without the user, the password, and the query of a URL, which may be a signature.
#[must_use]
pub fn shown_name(name: &Path) -> Cow<'_, Path> {
    match FileLocation::of(name) {
        Ok(FileLocation::Remote(url)) => PathBuf::from(shown(url)).into(),
        _ => name.into(),
    }
}

/// A URL for messages: without the user, the password, and the query, which may be a signature.
#[must_use]
pub fn shown(url: &str) -> String {
    let (scheme, mut rest) = url.split_once("://").unwrap_or(("", url));
    // What begins like a password is one, with characters that should have been escaped.
    let first = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let port = first.rsplit_once('@').map_or(first, |(_, host)| host);
    let port = port.rsplit_once(']').map_or(port, |(_, port)| port);
    if let Some((_, port)) = port.split_once(':')
        && !scheme.is_empty()
        && (port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()))
    {
        rest = match rest.rsplit_once('@') {
            Some((_, host)) => host,
            None => "...",
        };
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let (path, query) = match path.find(['?', '#']) {
        Some(at) => (&path[..at], "?..."),
        None => (path, ""),
    };
    let separator = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{separator}{host}{path}{query}")
}

/// An argument of a program for messages: what [`shown`] gives for each URL of an image on a server in it, as in
/// `--option=URL`.
#[must_use]
pub fn shown_argument(argument: &str) -> String {
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || ['+', '-', '.'].contains(&c);
    let starts = argument.match_indices("://").map(|(at, _)| {
        let before = argument.get(..at).unwrap_or_default();
        before.trim_end_matches(is_scheme).len()
    });
    let mut parts = Vec::new();
    let mut begun = 0;
    for start in starts.chain([argument.len()]) {
        parts.push(argument.get(begun..start).unwrap_or_default());
        begun = start;
    }
    parts
        .into_iter()
        .map(|part| match is_remote(Path::new(part)) {
            true => shown(part),
            false => part.to_owned(),
        })
        .collect()
}

/// The path of a `file` URL, from what follows the scheme.
fn local(rest: &str) -> io::Result<PathBuf> {
    let invalid = |what: &str| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("file://{rest}: {what}"),
        )
    };
    let slash = rest.find('/').ok_or_else(|| invalid("no absolute path"))?;
    let (host, path) = rest.split_at(slash);
    if !host.is_empty() && !host.eq_ignore_ascii_case("localhost") {
        return Err(invalid("the file of another host"));
    }
    // `file:///C:/a` is `C:/a`.
    let path = match path.as_bytes() {
        [b'/', letter, b':', ..] if cfg!(windows) && letter.is_ascii_alphabetic() => &path[1..],
        _ => path,
    };
    let bytes = decoded(path).filter(|bytes| !bytes.contains(&0));
    let path = bytes.as_deref().and_then(os_str);
    path.map(|path| PathBuf::from(&*path))
        .ok_or_else(|| invalid("no path has these characters"))
}

/// Bytes of a text with `%XX`. None if two digits are missing.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => u8::try_from(digit(bytes.next()?)? * 16 + digit(bytes.next()?)?).ok()?,
            other => other,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_paths_are_told_apart() {
        for url in [
            "http://h/a",
            "HTTPS://h/a",
            "s3://b/k",
            "gs://b/k",
            "az://c/k",
        ] {
            assert!(is_remote(Path::new(url)), "{url}");
        }
        for path in ["a", "/a", "s3:/b/k", "ftp://h/a", "a://b", "http:", ""] {
            let name = Path::new(path);
            assert_eq!(
                FileLocation::of(name).unwrap(),
                FileLocation::File(name.into()),
                "{path}"
            );
        }
    }

    #[test]
    fn file_urls_are_paths() {
        if cfg!(windows) {
            let place = FileLocation::of(Path::new("file:///C:/a")).unwrap();
            assert_eq!(place, FileLocation::File(Path::new("C:/a").into()));
        }
        for (url, path) in [("file:///a", "/a"), ("FILE://localhost/a/%25b", "/a/%b")] {
            let place = FileLocation::of(Path::new(url)).unwrap();
            assert_eq!(place, FileLocation::File(Path::new(path).into()), "{url}");
        }
        for url in [
            "file://host/a",
            "file://",
            "file:///a%0",
            "file:///a%zz",
            "file:///%00",
        ] {
            let e = FileLocation::of(Path::new(url)).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{url}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (url, want) in [
            ("https://u:p@h:8/a/b?sig=s#f", "https://h:8/a/b?..."),
            ("https://u:p@q@h/a@b", "https://h/a@b"),
            ("https://h?sig=a@b", "https://h?..."),
            ("s3://bucket/key", "s3://bucket/key"),
            ("https://h/a#token", "https://h/a?..."),
            ("nothing", "nothing"),
            ("http://user:pa/ss@host/a", "http://host/a"),
            ("http://user:pa?ss@host:80/a?b", "http://host:80/a?..."),
            ("http://user:#ss@host/a", "http://host/a"),
            ("http://u@q:pa/ss@host/a", "http://host/a"),
            ("http://user:pa/ss", "http://..."),
            ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
            ("http://[::1]/a@b", "http://[::1]/a@b"),
        ] {
            assert_eq!(shown(url), want);
        }
        for (argument, want) in [
            ("-i", "-i"),
            ("s3://b/k", "s3://b/k"),
            ("--with=http://u:p@h/a?s", "--with=http://h/a?..."),
            (
                "A=http://u:p@h/a,B=http://v:q@h/b",
                "A=http://h/a,B=http://h/b",
            ),
            ("file:///a?b", "file:///a?b"),
        ] {
            assert_eq!(shown_argument(argument), want);
        }
        assert_eq!(
            *shown_name(Path::new("http://u@h/a")),
            *Path::new("http://h/a")
        );
        assert_eq!(*shown_name(Path::new("a?b")), *Path::new("a?b"));
    }
}
