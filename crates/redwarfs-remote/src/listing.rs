//! The objects of a directory of an object store.

use std::io;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use redwarfs_io::place;
use tokio::time::timeout;

use crate::Limits;
use crate::client::Use;
use crate::failure::Failure;
use crate::location::Object;
use crate::observer::Record;
use crate::runtime::Threads;

/// Largest number of objects of a directory.
const MOST: usize = 1 << 20;

/// Characters of a key that are written as they are in a URL.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// An object that [`list`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The last part of its key.
    pub name: String,
    /// Its URL.
    pub url: String,
}

/// The objects of an object store whose keys begin with that of `directory`, which ends with a slash, and have no further
/// slash. In the order of their names.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] without the slash, [`io::ErrorKind::Unsupported`] for web servers, and the errors of the
/// network. The text begins with the URL, without secrets.
pub fn list(directory: &str, limits: Limits) -> io::Result<Vec<Listed>> {
    let shown = place::shown(directory);
    let named = |kind, what: &str| io::Error::new(kind, format!("{shown}: {what}"));
    if !directory.ends_with('/') {
        return Err(named(io::ErrorKind::InvalidInput, "no slash at the end"));
    }
    // Any object of it.
    let object = Object::of(&format!("{directory}x"), Use::Write)?;
    if !object.writable {
        let what = "images can be listed in s3, gs and az only";
        return Err(named(io::ErrorKind::Unsupported, what));
    }
    let mut parts: Vec<_> = object.path.parts().collect();
    parts.pop();
    let prefix = object_store::path::Path::from_iter(parts);
    let record = Record::default();
    let asked = record.of(object.store.list_with_delimiter(Some(&prefix)));
    let threads = Threads::get()?;
    let found = threads.block_on(async { timeout(limits.open, asked).await });
    let found = match found {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            let failure = Failure::of(&error, &record);
            return Err(named(failure.kind, &failure.what));
        }
        Err(_) => return Err(named(io::ErrorKind::TimedOut, "the server takes too long")),
    };
    if found.objects.len() > MOST {
        return Err(named(io::ErrorKind::Other, "too many objects"));
    }
    let mut listed: Vec<_> = found
        .objects
        .iter()
        .filter_map(|object| {
            let name = object.location.filename()?.to_owned();
            let url = format!("{directory}{}", utf8_percent_encode(&name, PLAIN));
            Some(Listed { name, url })
        })
        .collect();
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_listed() {
        for (url, text) in [
            ("s3://bucket/a", "s3://bucket/a: no slash at the end"),
            (
                "https://me:secret@host/a/",
                "https://host/a/: images can be listed in s3, gs and az only",
            ),
        ] {
            let error = list(url, Limits::default()).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }
}
