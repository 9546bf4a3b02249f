//! Loading the library.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;

pub use libloading::Library;

/// Names under which systems keep the library, the ABI number included.
const NAMES: &[&str] = if cfg!(target_os = "macos") {
    &["libarchive.13.dylib", "libarchive.dylib"]
} else if cfg!(target_os = "freebsd") {
    &["libarchive.so.7", "libarchive.so"]
} else {
    &["libarchive.so.13", "libarchive.so"]
};

/// Oldest version that has everything.
const OLDEST: c_int = 3_002_000;

/// `time_t` of the library, in seconds. That of musl has 64 bits everywhere, but not in the declarations of `libc`.
#[cfg(target_env = "musl")]
pub type Time = i64;
/// `time_t` of the library, in seconds.
#[cfg(not(target_env = "musl"))]
pub type Time = libc::time_t;

/// Declares a structure of pointers to functions of the library, which are found by their names. A
/// declaration that differs from the function's is undefined behaviour when it is called.
#[macro_export]
macro_rules! functions {
    ($(#[$doc:meta])* $api:ident { $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)* }) => {
        $(#[$doc])*
        struct $api { $($name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)* }

        impl $api {
            fn resolve(library: &$crate::Library) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is the declared type of the function, see above.
                        let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *symbol.map_err(|e| e.to_string())?
                    },)*
                })
            }
        }

        impl std::fmt::Debug for $api {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($api))
            }
        }
    };
}

functions! {
    /// What tells versions apart.
    Version {
        archive_version_number: fn() -> c_int;
        archive_version_string: fn() -> *const c_char;
    }
}

/// Environment variable with the path of the library, for systems that keep it elsewhere.
const PATH_VARIABLE: &str = "REDWARFS_LIBARCHIVE";

fn load() -> Result<(Library, Version), String> {
    let given = std::env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty());
    let names: Vec<std::ffi::OsString> = match given {
        Some(path) => vec![path],
        None => NAMES.iter().map(Into::into).collect(),
    };
    let mut first = None;
    for name in &names {
        // SAFETY: loading runs the initialisers of the library. Those of libarchive have no preconditions.
        // If the user names another library, the user is responsible for it.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                let version = Version::resolve(&library)?;
                // SAFETY: takes nothing and returns a constant.
                if unsafe { (version.archive_version_number)() } < OLDEST {
                    return Err(format!("{}: too old", version.text()));
                }
                return Ok((library, version));
            }
            Err(e) => {
                first.get_or_insert(e.to_string());
            }
        }
    }
    Err(first.unwrap_or_default())
}

fn loaded() -> Result<&'static (Library, Version), String> {
    // The functions must stay where they are, so the library is never closed.
    static LIBRARY: OnceLock<Result<(Library, Version), String>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// The library, which stays loaded as long as the process runs.
///
/// # Errors
/// Why it cannot be loaded.
pub fn library() -> Result<&'static Library, String> {
    loaded().map(|(library, _)| library)
}

/// Name and version of the library.
///
/// # Errors
/// What is wrong with it: the second half of a sentence about libarchive.
pub fn version() -> Result<String, String> {
    loaded()
        .map(|(_, version)| version.text())
        .map_err(|cause| {
            if cfg!(target_feature = "crt-static") {
                return "which a static program cannot load".to_owned();
            }
            format!("which cannot be loaded ({cause}; {PATH_VARIABLE} may name it)")
        })
}

impl Version {
    fn text(&self) -> String {
        // SAFETY: the function takes nothing and returns a constant string.
        unsafe { text((self.archive_version_string)()) }
    }
}

/// Copies a string of the library.
///
/// # Safety
/// `from` is null, or a string that ends with NUL and that nothing changes meanwhile.
pub unsafe fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(from) }
        .to_string_lossy()
        .trim_end()
        .to_owned()
}

/// While this exists, the thread uses a UTF-8 locale, so that the library takes names as UTF-8. It
/// converts them for formats with another encoding.
#[derive(Debug)]
pub struct Utf8Locale {
    previous: libc::locale_t,
    own: libc::locale_t,
    /// A locale belongs to its thread.
    _here: PhantomData<*const ()>,
}

impl Utf8Locale {
    /// Enters such a locale; `None` if the system has none.
    #[must_use]
    pub fn enter() -> Option<Self> {
        [c"C.UTF-8", c"en_US.UTF-8", c"UTF-8"]
            .into_iter()
            .find_map(|name| {
                // SAFETY: the name is a terminated string, and there is no base to take over.
                let own =
                    unsafe { libc::newlocale(libc::LC_CTYPE_MASK, name.as_ptr(), ptr::null_mut()) };
                if own.is_null() {
                    return None;
                }
                // SAFETY: a valid locale object; it is freed only when it is no longer in use.
                let previous = unsafe { libc::uselocale(own) };
                Some(Self {
                    previous,
                    own,
                    _here: PhantomData,
                })
            })
    }
}

impl Drop for Utf8Locale {
    fn drop(&mut self) {
        // SAFETY: `previous` came from `uselocale` on this thread (the type cannot leave it), and
        // `own` from `newlocale`; after the first call nothing uses `own`.
        unsafe {
            libc::uselocale(self.previous);
            libc::freelocale(self.own);
        }
    }
}
