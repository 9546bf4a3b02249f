//! Mounting an image on Windows, and the handles of a live mount.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redwarfs_reader::Image;

use crate::error::io_text;
use crate::idle::{IdleWatch, Uses};
use crate::options::MountOptions;
use crate::statistics::of_cache;
use crate::winfsp::binding::{Functions, Host};
use crate::winfsp::error::{Error, Result};
use crate::winfsp::security::Sid;
use crate::winfsp::status::Status;
use crate::winfsp::volume::Volume;

/// Mounts `image` and starts to answer requests. `point` is a drive (`X:`), a directory that does not
/// exist, or `*` for the last free drive.
///
/// These options have no effect: `auto_unmount`, `flags`, `max_read`, `block_size`, `cache_sparse`,
/// `list_xattrs`, `push`, `follow`, `guard`, `workers`, `readers` and `uring`.
///
/// # Errors
/// [`Error`] names the step that failed. Nothing stays mounted.
#[cfg(windows)]
pub fn mount(image: Image, point: &Path, options: &MountOptions) -> Result<Mounted> {
    let functions = Arc::new(Functions::load()?);
    let account = redwarfs_windows::account::of_this_process();
    let account = account.ok().and_then(|bytes| Sid::from_bytes(&bytes));
    let account = account.ok_or(Error::NoAccount)?;
    mount_with(functions, image, point, options, account)
}

/// As [`mount`], with these functions and for this account.
pub(super) fn mount_with(
    functions: Arc<Functions>,
    image: Image,
    point: &Path,
    options: &MountOptions,
    account: Sid,
) -> Result<Mounted> {
    let wanted = Point::parse(point)?;
    let volume = Arc::new(Volume::new(image, options, account)?);
    let refused = |what| move |status| Error::Refused { what, status };
    let mut host =
        Host::new(functions, Arc::clone(&volume)).map_err(refused("make a file system"))?;
    let point = match wanted {
        Point::Path(path) => {
            let units: Vec<u16> = path.encode_utf16().collect();
            host.mount_on(&units).map_err(|status| Error::Mount {
                point: path.clone(),
                status,
            })?;
            path
        }
        Point::AnyDrive => any_drive(&mut host)?,
    };
    host.start()
        .map_err(refused("start the threads of WinFsp"))?;
    Ok(Mounted {
        host,
        point,
        idle: options.idle,
        volume,
    })
}

/// Where to mount.
#[derive(Debug, PartialEq, Eq)]
enum Point {
    /// A drive, or an absolute path.
    Path(String),
    AnyDrive,
}

impl Point {
    fn parse(point: &Path) -> Result<Self> {
        let wrong = |cause: &str| Error::WrongPoint {
            point: point.to_owned(),
            cause: cause.to_owned(),
        };
        let text = point.to_str().ok_or_else(|| wrong("it is not Unicode"))?;
        if text == "*" {
            return Ok(Self::AnyDrive);
        }
        if let [letter, b':'] | [letter, b':', b'\\' | b'/'] = text.as_bytes()
            && letter.is_ascii_alphabetic()
        {
            let letter = char::from(letter.to_ascii_uppercase());
            return Ok(Self::Path(format!("{letter}:")));
        }
        let path = std::path::absolute(point).map_err(|error| wrong(&io_text(&error)))?;
        if path.symlink_metadata().is_ok() {
            return Err(wrong("it exists, and WinFsp makes the directory itself"));
        }
        if path.parent().is_none_or(|parent| !parent.is_dir()) {
            return Err(wrong("the directory above it does not exist"));
        }
        let text = path.to_str().ok_or_else(|| wrong("it is not Unicode"))?;
        Ok(Self::Path(text.to_owned()))
    }
}

/// Mounts on the last free drive.
fn any_drive(host: &mut Host) -> Result<String> {
    let mut last = Status::OBJECT_NAME_COLLISION;
    for letter in (b'D'..=b'Z').rev().map(char::from) {
        let drive = format!("{letter}:");
        match host.mount_on(&drive.encode_utf16().collect::<Vec<_>>()) {
            Ok(()) => return Ok(drive),
            Err(status) => last = status,
        }
        if last != Status::OBJECT_NAME_COLLISION {
            break;
        }
    }
    Err(Error::Mount {
        point: String::from("*"),
        status: last,
    })
}

/// A live mount. It ends when this goes.
#[derive(Debug)]
pub struct Mounted {
    host: Host,
    point: String,
    idle: Option<Duration>,
    volume: Arc<Volume>,
}

impl Mounted {
    /// The drive (`X:`), or the absolute path of the directory.
    #[must_use]
    pub fn point(&self) -> &str {
        &self.point
    }

    /// Whether Windows has ended the mount by itself, for example because WinFsp is removed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.host.has_ended()
    }

    /// Whether a program has opened a file or directory of the mount.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.volume.open_files() > 0
    }

    /// Detects that the mount was idle for the time of [`MountOptions::idle`]; none without this option.
    #[must_use]
    pub fn idle_watch(&self) -> Option<IdleWatch> {
        let volume = Arc::clone(&self.volume) as Arc<dyn Uses>;
        self.idle.map(|limit| IdleWatch::new(volume, limit))
    }

    /// A handle that shows statistics of the mount, also after its end.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.volume))
    }
}

/// Shows statistics of a mount, also after its end.
#[derive(Debug, Clone)]
pub struct Observer(Arc<Volume>);

impl Observer {
    /// Statistics of block cache and requests: lines of text without a final newline.
    #[must_use]
    pub fn statistics(&self) -> String {
        let cache = of_cache(&self.0.image().cache_stats()).join("\n");
        format!("{cache}\n{}", self.0.statistics())
    }

    /// Times of the monitored components; none if nothing is monitored.
    #[must_use]
    pub fn perfmon_summary(&self) -> Option<String> {
        self.0.image().perfmon().summary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_and_directories() {
        let parse = |text: &str| Point::parse(Path::new(text));
        assert_eq!(parse("*").unwrap(), Point::AnyDrive);
        for drive in ["x:", "X:", "x:\\", "X:/"] {
            assert_eq!(parse(drive).unwrap(), Point::Path("X:".into()), "{drive}");
        }
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("mnt");
        let path = there.to_str().unwrap().to_owned();
        assert_eq!(parse(&path).unwrap(), Point::Path(path.clone()));
        std::fs::create_dir(&there).unwrap();
        let shown = parse(&path).unwrap_err().to_string();
        assert!(shown.contains("it exists"), "{shown}");
        let below = dir.path().join("none").join("mnt");
        let shown = Point::parse(&below).unwrap_err().to_string();
        assert!(shown.contains("above it"), "{shown}");
    }
}
