//! The library of WinFsp, loaded when the program mounts.

use std::io;
use std::path::{Path, PathBuf};

use libloading::os::windows::{LOAD_WITH_ALTERED_SEARCH_PATH, Library};
use redwarfs_windows::registry;

use crate::error::io_text;
use crate::winfsp::binding::Functions;
use crate::winfsp::error::{Error, Result};

/// Where the installer of WinFsp notes its directory.
const KEY: &str = r"SOFTWARE\WOW6432Node\WinFsp";
const VALUE: &str = "InstallDir";
/// The library in this directory.
const NAME: &str = r"bin\winfsp-x64.dll";

/// The path of the library; `None` if WinFsp is not installed.
fn find() -> io::Result<Option<PathBuf>> {
    match registry::machine_text(KEY, VALUE) {
        Ok(directory) => Ok(Some(Path::new(&directory).join(NAME))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Functions {
    /// Loads the library.
    ///
    /// # Errors
    /// WinFsp is not installed, or the library cannot be loaded, or is too old.
    pub(in crate::winfsp) fn load() -> Result<Self> {
        let wrong = |path: &Path, cause: String| Error::Library {
            path: path.to_owned(),
            cause,
        };
        let path = find().map_err(|error| wrong(Path::new(KEY), io_text(&error)))?;
        let path = path.ok_or(Error::NoWinFsp)?;
        if !path.is_absolute() {
            return Err(wrong(&path, String::from("not an absolute path")));
        }
        if !path.exists() {
            return Err(Error::NoWinFsp);
        }
        // SAFETY: what runs at loading is the library that an administrator has installed, at its
        // absolute path.
        let library = unsafe { Library::load_with_flags(&path, LOAD_WITH_ALTERED_SEARCH_PATH) };
        let library: libloading::Library = library
            .map_err(|error| wrong(&path, error.to_string()))?
            .into();
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the public reference declares the function with this type. `Functions` keeps
                // the library in memory.
                let symbol = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                *symbol.map_err(|error| wrong(&path, format!("{}: {error}", $name)))?
            }};
        }
        Ok(Self {
            create: function!("FspFileSystemCreate"),
            delete: function!("FspFileSystemDelete"),
            set_mount_point: function!("FspFileSystemSetMountPoint"),
            remove_mount_point: function!("FspFileSystemRemoveMountPoint"),
            start_dispatcher: function!("FspFileSystemStartDispatcher"),
            stop_dispatcher: function!("FspFileSystemStopDispatcher"),
            add_dir_info: function!("FspFileSystemAddDirInfo"),
            resolve_reparse_points: function!("FspFileSystemResolveReparsePoints"),
            _library: Some(library),
        })
    }
}
