//! The functions of libarchive that are used here, found when the program runs.
//!
//! This is the only module of the crate with `unsafe`: it turns handles of the library into types that
//! follow the library's rules by construction.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_long, c_uint, c_void};
use std::io::{self, Write};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::OnceLock;

pub(crate) use redwarfs_libarchive::version;
use redwarfs_libarchive::{Time, Utf8Locale, library, text};

use super::engine::{Answer, Description, Engine, Fatal};

/// Size of the blocks in which the library hands over its output, in bytes.
const BLOCK: c_int = 64 << 10;

const OK: c_int = 0;
const WARN: c_int = -20;
const FAILED: c_int = -25;

type Archive = c_void;
type Entry = c_void;
type OpenFn = unsafe extern "C" fn(*mut Archive, *mut c_void) -> c_int;
type WriteFn = unsafe extern "C" fn(*mut Archive, *mut c_void, *const c_void, usize) -> isize;

redwarfs_libarchive::functions! {
    /// Pointers to the functions. The library stays loaded as long as the process runs.
    Api {
    archive_write_new: fn() -> *mut Archive;
    archive_write_free: fn(*mut Archive) -> c_int;
    archive_write_fail: fn(*mut Archive) -> c_int;
    archive_write_close: fn(*mut Archive) -> c_int;
    archive_write_set_format_by_name: fn(*mut Archive, *const c_char) -> c_int;
    archive_write_set_format_raw: fn(*mut Archive) -> c_int;
    archive_write_add_filter_by_name: fn(*mut Archive, *const c_char) -> c_int;
    archive_write_set_format_filter_by_ext: fn(*mut Archive, *const c_char) -> c_int;
    archive_write_set_options: fn(*mut Archive, *const c_char) -> c_int;
    archive_write_set_bytes_per_block: fn(*mut Archive, c_int) -> c_int;
    archive_write_set_bytes_in_last_block: fn(*mut Archive, c_int) -> c_int;
    archive_write_open: fn(*mut Archive, *mut c_void, Option<OpenFn>, Option<WriteFn>, Option<OpenFn>) -> c_int;
    archive_write_header: fn(*mut Archive, *mut Entry) -> c_int;
    archive_write_data: fn(*mut Archive, *const c_void, usize) -> isize;
    archive_write_finish_entry: fn(*mut Archive) -> c_int;
    archive_format: fn(*mut Archive) -> c_int;
    archive_error_string: fn(*mut Archive) -> *const c_char;
    archive_entry_new: fn() -> *mut Entry;
    archive_entry_free: fn(*mut Entry);
    archive_entry_clear: fn(*mut Entry) -> *mut Entry;
    archive_entry_set_pathname: fn(*mut Entry, *const c_char);
    archive_entry_set_filetype: fn(*mut Entry, c_uint);
    archive_entry_set_perm: fn(*mut Entry, libc::mode_t);
    archive_entry_set_uid: fn(*mut Entry, i64);
    archive_entry_set_gid: fn(*mut Entry, i64);
    archive_entry_set_size: fn(*mut Entry, i64);
    archive_entry_set_mtime: fn(*mut Entry, Time, c_long);
    archive_entry_set_atime: fn(*mut Entry, Time, c_long);
    archive_entry_set_nlink: fn(*mut Entry, c_uint);
    archive_entry_set_ino64: fn(*mut Entry, i64);
    archive_entry_set_rdev: fn(*mut Entry, libc::dev_t);
    archive_entry_set_symlink: fn(*mut Entry, *const c_char);
    archive_entry_set_hardlink: fn(*mut Entry, *const c_char);
    archive_entry_sparse_add_entry: fn(*mut Entry, i64, i64);
    }
}

fn api() -> Result<&'static Api, String> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(|| library().and_then(Api::resolve))
        .as_ref()
        .map_err(Clone::clone)
}

/// Where the library writes to, and how that went.
struct Client<'a> {
    out: &'a mut dyn Write,
    error: Option<io::Error>,
}

unsafe extern "C" fn write_out(
    _: *mut Archive,
    client: *mut c_void,
    data: *const c_void,
    size: usize,
) -> isize {
    // SAFETY: `client` is the pointer that was given to `archive_write_open`: a `Client` that outlives
    // the archive, and that no other code accesses while the library runs.
    let client = unsafe { &mut *client.cast::<Client<'_>>() };
    if size == 0 || data.is_null() {
        return 0;
    }
    // SAFETY: the library passes `size` readable bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    match client.out.write_all(bytes) {
        // A slice is never longer than `isize::MAX`.
        Ok(()) => size.cast_signed(),
        Err(e) => {
            client.error.get_or_insert(e);
            -1
        }
    }
}

/// A handle of the library for writing, before anything is written.
pub(crate) struct Setup {
    api: &'static Api,
    archive: NonNull<Archive>,
    locale: Option<Utf8Locale>,
}

impl Drop for Setup {
    fn drop(&mut self) {
        // SAFETY: `archive` came from `archive_write_new` and is freed once: `open` forgets the
        // setup. Nothing was opened, so no callback runs.
        unsafe {
            (self.api.archive_write_free)(self.archive.as_ptr());
        }
    }
}

impl Setup {
    /// # Errors
    /// If there is no usable library.
    pub(crate) fn new() -> Result<Self, String> {
        let api = api()?;
        let locale = Utf8Locale::enter();
        // SAFETY: takes nothing.
        let archive = NonNull::new(unsafe { (api.archive_write_new)() });
        Ok(Self {
            api,
            archive: archive.ok_or("out of memory")?,
            locale,
        })
    }

    /// Chooses a format by its name.
    pub(crate) fn format(&mut self, name: &str) -> Result<(), String> {
        let name = c_string(name.as_bytes())?;
        // SAFETY: a valid handle and a terminated string.
        let code = unsafe {
            (self.api.archive_write_set_format_by_name)(self.archive.as_ptr(), name.as_ptr())
        };
        self.expect(code).map(drop)
    }

    /// Chooses the format that is only the bytes of one file.
    pub(crate) fn raw(&mut self) -> Result<(), String> {
        // SAFETY: a valid handle.
        let code = unsafe { (self.api.archive_write_set_format_raw)(self.archive.as_ptr()) };
        self.expect(code).map(drop)
    }

    /// Chooses format and filters by the name of a file.
    pub(crate) fn by_file_name(&mut self, name: &[u8]) -> Result<(), String> {
        let name = c_string(name)?;
        // SAFETY: a valid handle and a terminated string.
        let code = unsafe {
            (self.api.archive_write_set_format_filter_by_ext)(self.archive.as_ptr(), name.as_ptr())
        };
        self.expect(code).map(drop)
    }

    /// Adds a filter by its name; may return a warning.
    pub(crate) fn filter(&mut self, name: &str) -> Result<Option<String>, String> {
        let c_name = c_string(name.as_bytes())?;
        // SAFETY: a valid handle and a terminated string.
        let code = unsafe {
            (self.api.archive_write_add_filter_by_name)(self.archive.as_ptr(), c_name.as_ptr())
        };
        self.expect(code).map_err(|e| {
            if e.is_empty() {
                format!("No such filter '{name}'")
            } else {
                e
            }
        })
    }

    /// Sets options of format and filters.
    pub(crate) fn options(&mut self, options: &str) -> Result<Option<String>, String> {
        let options = c_string(options.as_bytes())?;
        // SAFETY: a valid handle and a terminated string.
        let code = unsafe {
            (self.api.archive_write_set_options)(self.archive.as_ptr(), options.as_ptr())
        };
        self.expect(code)
    }

    /// The number of the format, as in `archive.h`.
    pub(crate) fn format_code(&self) -> c_int {
        // SAFETY: a valid handle.
        unsafe { (self.api.archive_format)(self.archive.as_ptr()) }
    }

    fn expect(&self, code: c_int) -> Result<Option<String>, String> {
        match code {
            OK => Ok(None),
            WARN => Ok(Some(last_error(self.api, self.archive))),
            _ => Err(last_error(self.api, self.archive)),
        }
    }

    /// Starts to write.
    pub(crate) fn open<'a>(self, out: &'a mut dyn Write) -> Result<Writer<'a>, Fatal> {
        // From here on the writer frees the handle.
        let mut setup = std::mem::ManuallyDrop::new(self);
        let locale = setup.locale.take();
        let client = Box::into_raw(Box::new(Client { out, error: None }));
        // SAFETY: takes nothing.
        let entry = unsafe { (setup.api.archive_entry_new)() };
        let mut writer = Writer {
            api: setup.api,
            archive: setup.archive,
            entry,
            client,
            _locale: locale,
            _out: PhantomData,
        };
        if entry.is_null() {
            return Err(Fatal::Library("out of memory".to_owned()));
        }
        let handle = writer.archive.as_ptr();
        // SAFETY: a valid handle in its first state. The client outlives the handle, as the writer
        // frees it last; the callbacks have the types of the declaration.
        let code = unsafe {
            (writer.api.archive_write_set_bytes_per_block)(handle, BLOCK);
            // No padding after the end: compressors would complain about it.
            (writer.api.archive_write_set_bytes_in_last_block)(handle, 1);
            (writer.api.archive_write_open)(handle, client.cast(), None, Some(write_out), None)
        };
        writer.answer(code)?;
        Ok(writer)
    }
}

fn c_string(bytes: &[u8]) -> Result<CString, String> {
    CString::new(bytes).map_err(|_| "a name with a NUL character".to_owned())
}

fn last_error(api: &Api, archive: NonNull<Archive>) -> String {
    // SAFETY: a valid handle; the result is a string that lives until the next call.
    unsafe { text((api.archive_error_string)(archive.as_ptr())) }
}

/// A handle of the library that writes.
pub(crate) struct Writer<'a> {
    api: &'static Api,
    archive: NonNull<Archive>,
    entry: *mut Entry,
    client: *mut Client<'a>,
    _locale: Option<Utf8Locale>,
    _out: PhantomData<&'a mut dyn Write>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // SAFETY: each pointer came from the matching constructor, and is freed once. Freeing would try
        // to complete the archive; failing it first prevents that. The client is freed when no callback
        // can come.
        unsafe {
            (self.api.archive_write_fail)(self.archive.as_ptr());
            (self.api.archive_write_free)(self.archive.as_ptr());
            if !self.entry.is_null() {
                (self.api.archive_entry_free)(self.entry);
            }
            drop(Box::from_raw(self.client));
        }
    }
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer<'_> {
    fn answer(&mut self, code: c_int) -> Result<Answer, Fatal> {
        let words = || last_error(self.api, self.archive);
        // SAFETY: the client lives as long as `self`, and no callback is running.
        if let Some(e) = unsafe { &mut *self.client }.error.take() {
            return Err(Fatal::Output(e));
        }
        match code {
            OK.. => Ok(Answer::Done),
            WARN => Ok(Answer::Warning(words())),
            FAILED => Ok(Answer::Refused(words())),
            _ => Err(Fatal::Library(words())),
        }
    }
}

impl Engine for Writer<'_> {
    fn header(&mut self, d: &Description<'_>) -> Result<Answer, Fatal> {
        let c = |bytes| c_string(bytes).map_err(Fatal::Library);
        let path = c(d.path)?;
        let symlink = d.symlink.map(c).transpose()?;
        let hard_link = d.hard_link.map(c).transpose()?;
        let (api, entry) = (self.api, self.entry);
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        // SAFETY: `entry` is a valid entry that only this handle uses, strings are terminated and
        // copied by the library, everything else is passed by value.
        let code = unsafe {
            (api.archive_entry_clear)(entry);
            (api.archive_entry_set_pathname)(entry, path.as_ptr());
            (api.archive_entry_set_filetype)(entry, d.mode & 0o170_000);
            (api.archive_entry_set_perm)(entry, (d.mode & 0o7777) as libc::mode_t);
            (api.archive_entry_set_uid)(entry, d.uid.into());
            (api.archive_entry_set_gid)(entry, d.gid.into());
            (api.archive_entry_set_size)(entry, signed(d.size));
            (api.archive_entry_set_mtime)(entry, d.mtime.0 as Time, d.mtime.1 as c_long);
            if let Some((sec, nsec)) = d.atime {
                (api.archive_entry_set_atime)(entry, sec as Time, nsec as c_long);
            }
            (api.archive_entry_set_nlink)(entry, d.nlink);
            (api.archive_entry_set_ino64)(entry, signed(d.ino));
            if d.rdev != 0 {
                (api.archive_entry_set_rdev)(entry, d.rdev as libc::dev_t);
            }
            if let Some(to) = &symlink {
                (api.archive_entry_set_symlink)(entry, to.as_ptr());
            }
            if let Some(to) = &hard_link {
                (api.archive_entry_set_hardlink)(entry, to.as_ptr());
            }
            for &(offset, size) in d.ranges.unwrap_or_default() {
                (api.archive_entry_sparse_add_entry)(entry, signed(offset), signed(size));
            }
            (api.archive_write_header)(self.archive.as_ptr(), entry)
        };
        self.answer(code)
    }

    fn data(&mut self, mut bytes: &[u8]) -> Result<(), Fatal> {
        while !bytes.is_empty() {
            // SAFETY: a valid handle, and that many readable bytes.
            let n = unsafe {
                (self.api.archive_write_data)(
                    self.archive.as_ptr(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                )
            };
            match usize::try_from(n) {
                // The format keeps no contents of such an entry.
                Ok(0) => return Ok(()),
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(_) => {
                    let code = c_int::try_from(n).unwrap_or(c_int::MIN);
                    if let Answer::Refused(e) = self.answer(code)? {
                        return Err(Fatal::Library(e));
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn finish_entry(&mut self) -> Result<Answer, Fatal> {
        // SAFETY: a valid handle.
        let code = unsafe { (self.api.archive_write_finish_entry)(self.archive.as_ptr()) };
        self.answer(code)
    }

    fn close(&mut self) -> Result<Answer, Fatal> {
        // SAFETY: a valid handle; closing twice does nothing.
        let code = unsafe { (self.api.archive_write_close)(self.archive.as_ptr()) };
        self.answer(code)
    }
}
