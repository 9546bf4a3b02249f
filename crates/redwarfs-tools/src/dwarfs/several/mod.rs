//! Several images in one mount: which images the arguments mean, and how they are opened.

pub(super) mod control;
pub(super) mod ctl;
mod probe;
mod socket;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs_fuse::{ImageSet, NamedImage};
use redwarfs_io::place::{FileLocation, is_remote, shown_name};
use redwarfs_reader::CacheGroup;

use super::Opening;
use super::settings::{Lock, Settings};
use crate::common::Logger;
use crate::common::env;
use crate::common::error::{Result, ToolError, display_path};
use crate::common::glob::Glob;
use crate::common::remote;

/// Characters of a pattern.
const PATTERN: &[u8] = b"*?[{";
/// The extension of images in a directory.
const EXTENSION: &str = "dwarfs";

/// An image that an argument names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    /// Its directory in the mount.
    pub(super) name: OsString,
    pub(super) image: PathBuf,
}

impl Given {
    /// Understands `NAME=IMAGE` or `IMAGE`. The image is named by an absolute path or a URL.
    ///
    /// # Errors
    /// There is no working directory; nothing follows the name.
    pub(super) fn parse(argument: &OsStr) -> Result<Self> {
        let (name, image) = split_name(argument);
        if image.is_empty() {
            return Err(ToolError::new("no image behind the name").path(Path::new(argument)));
        }
        let image = absolute(Path::new(&image))?;
        let name = name.unwrap_or_else(|| name_of(&image));
        Ok(Self { name, image })
    }
}

/// Splits `NAME=IMAGE`. A name has no slash, so `./a=b` and URLs are images, and so is what is there under the whole argument.
fn split_name(argument: &OsStr) -> (Option<OsString>, OsString) {
    let bytes = argument.as_bytes();
    let at = bytes.iter().position(|&byte| byte == b'=');
    match at.map(|at| (bytes.split_at(at), at)) {
        Some(((name, rest), at))
            if at > 0 && !name.contains(&b'/') && fs::metadata(argument).is_err() =>
        {
            let image = rest.get(1..).unwrap_or_default();
            let [name, image] = [name, image].map(|part| OsString::from_vec(part.to_vec()));
            (Some(name), image)
        }
        _ => (None, argument.to_owned()),
    }
}

/// The path stays good after a change of the working directory.
fn absolute(image: &Path) -> Result<PathBuf> {
    if is_remote(image) {
        return Ok(image.to_owned());
    }
    let path = match FileLocation::of(image) {
        Ok(FileLocation::File(path)) => path,
        _ => image.into(),
    };
    let absolute = std::path::absolute(&path);
    absolute.map_err(|error| ToolError::new("cannot open image").path(image).io(&error))
}

/// The name of an image without its extension.
fn name_of(image: &Path) -> OsString {
    let shown = shown_name(image);
    let bytes = shown.as_os_str().as_bytes();
    let bytes = match is_remote(image) {
        true => bytes.split(|byte| matches!(byte, b'?' | b'#')).next(),
        false => None,
    };
    let path = bytes.map_or(&*shown, |bytes| Path::new(OsStr::from_bytes(bytes)));
    let name = path.file_stem().or_else(|| path.file_name());
    name.unwrap_or(OsStr::new("image")).to_owned()
}

/// Whether the image of a mount means several. It is a directory, or its last part has a `*` and is no file. The URL of a
/// directory in an object store ends with a slash.
pub(super) fn is_many(image: &Path) -> bool {
    match FileLocation::of(image) {
        Ok(FileLocation::Remote(url)) => {
            let last = url.rsplit('/').next().unwrap_or_default();
            !url.starts_with("http") && (last.is_empty() || last.contains('*'))
        }
        _ => {
            let name = image.file_name().unwrap_or_default();
            let is_pattern =
                name.as_bytes().contains(&b'*') && fs::symlink_metadata(image).is_err();
            is_pattern || image.is_dir()
        }
    }
}

/// The images that arguments mean: each is an image, `NAME=IMAGE`, a pattern for the last part of a path, or a
/// directory, of which all files `*.dwarfs` are meant. The same for URLs of object stores; there, a directory ends
/// with a slash.
///
/// # Errors
/// A pattern matches nothing; a directory cannot be listed.
pub(super) fn expand(arguments: &[OsString]) -> Result<Vec<Given>> {
    let mut all = Vec::new();
    for argument in arguments {
        let given = Given::parse(argument)?;
        let path = &given.image;
        if let Some(found) = on_server(path)? {
            only_one_is_named(argument)?;
            all.extend(found);
            continue;
        }
        if is_pattern_of_url(path) {
            let error = ToolError::new("no image found").path(path);
            let error = error.cause("the server lists no directories, so there are no patterns");
            return Err(error.hint("write %2A and %5B for '*' and '[' in a name"));
        }
        if is_remote(path) || fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
            all.push(given);
            continue;
        }
        let is_directory = fs::metadata(path).is_ok_and(|found| found.is_dir());
        let (directory, pattern) = if is_directory {
            (path.as_path(), format!("*.{EXTENSION}").into_bytes())
        } else {
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name))
                    if name.as_bytes().iter().any(|c| PATTERN.contains(c)) =>
                {
                    (parent, name.as_bytes().to_vec())
                }
                _ => {
                    all.push(given);
                    continue;
                }
            }
        };
        let found = matching(directory, &pattern)?;
        if found.is_empty() && is_directory {
            let error = ToolError::new("cannot open image").path(Path::new(argument));
            return Err(error.cause(format!("is a directory without images (*.{EXTENSION})")));
        }
        if found.is_empty() {
            return Err(ToolError::new("no image found").path(Path::new(argument)));
        }
        only_one_is_named(argument)?;
        all.extend(found);
    }
    Ok(all)
}

/// Whether the last name in a URL has characters of patterns. A `?` begins what is no name.
fn is_pattern_of_url(image: &Path) -> bool {
    let url = image.as_os_str().as_bytes();
    let plain = url.split(|byte| matches!(byte, b'?' | b'#')).next();
    let parts = plain.unwrap_or_default().split(|&byte| byte == b'/');
    // The scheme, nothing, and the server.
    let name = parts.skip(3).last().unwrap_or_default();
    is_remote(image) && name.iter().any(|byte| matches!(byte, b'*' | b'['))
}

/// Refuses a name for what means several images.
fn only_one_is_named(argument: &OsStr) -> Result<()> {
    match split_name(argument).0 {
        Some(_) => Err(ToolError::new("a name is for one image").path(Path::new(argument))),
        None => Ok(()),
    }
}

/// The images that the URL of a directory of an object store means, or a pattern for its last part. None if it is neither.
fn on_server(image: &Path) -> Result<Option<Vec<Given>>> {
    let Ok(FileLocation::Remote(url)) = FileLocation::of(image) else {
        return Ok(None);
    };
    let (Some(slash), false) = (url.rfind('/'), url.starts_with("http")) else {
        return Ok(None);
    };
    let (directory, pattern) = url.split_at(slash + 1);
    let all = format!("*.{EXTENSION}");
    let pattern = match pattern {
        "" => &*all,
        pattern if pattern.bytes().any(|c| PATTERN.contains(&c)) => pattern,
        _ => return Ok(None),
    };
    let failed = || ToolError::new("cannot list images");
    let glob = Glob::new(pattern.as_bytes(), false);
    let glob = glob.map_err(|error| failed().path(image).cause(error))?;
    let listed = remote::list(directory).map_err(|error| failed().io(&error))?;
    let found: Vec<Given> = listed
        .into_iter()
        .filter(|(name, _)| glob.matches(name.as_bytes()))
        .map(|(name, url)| Given {
            name: name_of(Path::new(&name)),
            image: PathBuf::from(url),
        })
        .collect();
    match found.is_empty() {
        true => Err(ToolError::new("no image found").path(image)),
        false => Ok(Some(found)),
    }
}

/// The files of a directory that match a pattern, by name.
fn matching(directory: &Path, pattern: &[u8]) -> Result<Vec<Given>> {
    let failed = || ToolError::new("cannot list images").path(directory);
    let glob = Glob::new(pattern, false).map_err(|error| failed().cause(error))?;
    let entries = fs::read_dir(directory).map_err(|error| failed().io(&error))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| failed().io(&error))?.path();
        let name = path.file_name().unwrap_or_default();
        let is_hidden = name.as_bytes().starts_with(b".") && !pattern.starts_with(b".");
        if glob.matches(name.as_bytes()) && !is_hidden && path.is_file() {
            found.push(Given {
                name: name_of(&path),
                image: path,
            });
        }
    }
    found.sort_by(|a, b| a.image.cmp(&b.image));
    Ok(found)
}

/// Refuses options that are about one image.
///
/// # Errors
/// One of them is given.
pub(super) fn check(settings: &Settings) -> Result<()> {
    let is_union = settings.mount.union.is_some();
    let no_union = [
        (settings.mount.case_insensitive, "case_insensitive"),
        (settings.open.ignore_xattrs, "noxattr"),
    ];
    if let Some((_, option)) = no_union.iter().find(|(given, _)| is_union && *given) {
        return Err(ToolError::new(format!(
            "{option} cannot be used with union"
        )));
    }
    let of_one = [
        (settings.mount.snapshots.is_some(), "snapshots"),
        (settings.mount.follow_newest, "follow_newest"),
        (settings.mount.analysis_file.is_some(), "analysis_file"),
        (settings.open.image_size.is_some(), "imagesize"),
        (settings.sidecar.is_some(), "sidecar"),
        (settings.lock != Lock::No, "mlock"),
        (!settings.preload.is_empty(), "preload"),
        (!settings.prefetch.is_empty(), "prefetch"),
        (settings.hints_file.is_some(), "hints_file"),
        (settings.layer.is_some(), "rw"),
    ];
    match of_one.iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(ToolError::new(format!(
            "{option} cannot be used with several images"
        ))),
        None => Ok(()),
    }
}

/// Opens the images of a mount, each when it is needed.
#[derive(Debug, Clone)]
pub(super) struct Opener {
    opening: Arc<Opening>,
    /// How it is found out whether an image can be opened.
    trying: Arc<Opening>,
    cache: CacheGroup,
    /// A layer that is not there is an error, and no warning.
    is_union: bool,
    logger: Logger,
}

impl Opener {
    pub(super) fn new(mut opening: Opening, is_union: bool, logger: &Logger) -> Self {
        let mut trying = opening.clone();
        trying.options.lazy_metadata = true;
        // The thread that reads requests must not wait for a medium. An image is opened by another one.
        opening.options.lazy_metadata = false;
        let cache = &mut opening.options.cache;
        cache.affinity = cache.affinity.or_else(|| env::affinity("blkcache"));
        let group = CacheGroup::new(cache);
        opening.options.cache_group = Some(group.clone());
        Self {
            opening: Arc::new(opening),
            trying: Arc::new(trying),
            cache: group,
            is_union,
            logger: logger.clone(),
        }
    }

    /// An image for the mount.
    pub(super) fn named(&self, given: Given) -> NamedImage {
        let Given { name, image } = given;
        let (opening, logger) = (Arc::clone(&self.opening), self.logger.clone());
        NamedImage {
            name,
            source: display_path(&image),
            open: Arc::new(move || {
                let opened = opening.image(&image, &logger);
                if let Ok(image) = &opened {
                    opening.load_hints(image, &logger);
                }
                opened.map_err(|error| Box::new(error) as redwarfs_fuse::OpenError)
            }),
        }
    }

    /// Opens an image, and closes it again.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn try_image(&self, image: &Path) -> Result<()> {
        self.trying.open(image, &self.logger).map(drop)
    }

    /// The images for the mount. Files that are not there are named in the log: they may come.
    pub(super) fn set(&self, given: Vec<Given>) -> ImageSet {
        for one in given.iter().filter(|_| !self.is_union) {
            if !is_remote(&one.image)
                && let Err(error) = fs::metadata(&one.image)
            {
                let error = ToolError::new("cannot open image")
                    .path(&one.image)
                    .io(&error);
                self.logger.warn(error);
            }
        }
        ImageSet {
            images: given.into_iter().map(|one| self.named(one)).collect(),
            cache: self.cache.clone(),
            perfmon: self.opening.options.perfmon.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::common::{Console, LogLevel};
    use crate::dwarfs::Measurements;

    use super::*;

    #[test]
    fn directories_and_patterns_are_many() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("odd*.dwarfs");
        assert!(is_many(&odd) && is_many(dir.path()));
        fs::write(&odd, "").unwrap();
        assert!(!is_many(&odd));
        for many in [
            "s3://bucket/",
            "s3://bucket/a/",
            "gs://bucket/a/b*.dwarfs",
            "az://a/b/*",
        ] {
            assert!(is_many(Path::new(many)), "{many}");
        }
        for one in [
            "s3://bucket/a",
            "s3://bucket/a*/b",
            "https://host/a/",
            "https://host/*",
            "a",
        ] {
            assert!(!is_many(Path::new(one)), "{one}");
        }
    }

    fn given(argument: &str) -> (String, String) {
        let found = Given::parse(OsStr::new(argument)).unwrap();
        let text = |text: &OsStr| text.to_str().unwrap().to_owned();
        (text(&found.name), text(found.image.as_os_str()))
    }

    #[test]
    fn names_of_images() {
        for (argument, name, image) in [
            ("/srv/a.dwarfs", "a", "/srv/a.dwarfs"),
            ("b=/srv/a.dwarfs", "b", "/srv/a.dwarfs"),
            ("b=/srv/a=c.dwarfs", "b", "/srv/a=c.dwarfs"),
            ("/srv/a=c.dwarfs", "a=c", "/srv/a=c.dwarfs"),
            ("/srv/plain", "plain", "/srv/plain"),
            ("/srv/.x", ".x", "/srv/.x"),
            ("/srv/v1.2.dwarfs", "v1.2", "/srv/v1.2.dwarfs"),
            ("file:///srv/a%20b.dwarfs", "a b", "/srv/a b.dwarfs"),
            ("s3://bucket/dir/x.dwarfs", "x", "s3://bucket/dir/x.dwarfs"),
            (
                "https://host/y.dwarfs?key=secret/z",
                "y",
                "https://host/y.dwarfs?key=secret/z",
            ),
            ("n=https://host/y?k=v", "n", "https://host/y?k=v"),
        ] {
            assert_eq!(given(argument), (name.to_owned(), image.to_owned()));
        }
        assert!(Given::parse(OsStr::new("a=")).is_err());
        let relative = given("x.dwarfs");
        assert!(relative.1.starts_with('/') && relative.1.ends_with("/x.dwarfs"));
        assert_eq!(given("./a=b").0, "a=b");
    }

    #[test]
    fn images_are_read_where_they_are_opened() {
        let settings = Settings::default();
        let measurements = Measurements::new(&settings).unwrap();
        let opening = Opening::new(&settings, None, &measurements);
        assert!(opening.options.lazy_metadata);
        let logger = Logger::new(
            Console::new(Box::new(std::io::sink()), false),
            LogLevel::Error,
            false,
        );
        let opener = Opener::new(opening, false, &logger);
        assert!(!opener.opening.options.lazy_metadata);
    }

    #[test]
    fn directories_and_patterns() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.dwarfs", "a.dwarfs", "c.img", ".h.dwarfs", "x[1].dwarfs"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("d.dwarfs")).unwrap();
        let names = |argument: &str| {
            let argument = dir.path().join(argument).into_os_string();
            let found = expand(&[argument])?;
            let names = found.into_iter().map(|one| one.name.into_string().unwrap());
            Ok::<Vec<String>, ToolError>(names.collect())
        };
        assert_eq!(names("").unwrap(), ["a", "b", "x[1]"]);
        assert_eq!(names("[ab].dwarfs").unwrap(), ["a", "b"]);
        assert_eq!(names("*.img").unwrap(), ["c"]);
        let mut named = OsString::from("n=");
        named.push(dir.path());
        let error = expand(&[named]).unwrap_err().line("dwarfs");
        assert!(error.contains("a name is for one image"), "{error}");
        // A file that is there is meant, whatever characters its name has.
        assert_eq!(names("x[1].dwarfs").unwrap(), ["x[1]"]);
        assert_eq!(names("absent.dwarfs").unwrap(), ["absent"]);
        let several = dir.path().to_str().unwrap();
        for argument in [format!("n={several}"), format!("n={several}/*.dwarfs")] {
            let error = expand(&[argument.into()]).unwrap_err().line("dwarfs");
            assert!(error.contains("a name is for one image"), "{error}");
        }
        let one = expand(&[format!("n={several}/a.dwarfs").into()]).unwrap();
        assert_eq!(one[0].name, "n");
        for (url, is_pattern) in [
            ("https://host/d/x*.dwarfs", true),
            ("https://host/[ab].dwarfs", true),
            ("https://[::1]/x", false),
            ("https://host/d*/x?k=*", false),
            ("https://host/%2A", false),
        ] {
            let error = expand(&[url.into()])
                .err()
                .map(|error| error.line("dwarfs"));
            let refused = error.is_some_and(|error| error.contains("no patterns"));
            assert_eq!(refused, is_pattern, "{url}");
        }
        let nothing = names("*.none").unwrap_err().line("dwarfs");
        assert!(nothing.contains("no image found"), "{nothing}");
    }
}
