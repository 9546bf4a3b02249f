//! Reading archives.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use crate::{Time, Utf8Locale, library, text};

const EOF: c_int = 1;
const OK: c_int = 0;
const RETRY: c_int = -10;
const WARN: c_int = -20;
const FATAL: c_int = -30;

/// Size of a read in bytes.
const BUFFER: usize = 64 << 10;
/// How often the library may ask for another attempt.
const MOST_RETRIES: u32 = 100;
/// Longest value of an extended attribute, in bytes. Linux has 64 KiB.
const MOST_ATTRIBUTE: usize = 1 << 20;

type Archive = c_void;
type Entry = c_void;
type ReadFn = unsafe extern "C" fn(*mut Archive, *mut c_void, *mut *const c_void) -> isize;
type SkipFn = unsafe extern "C" fn(*mut Archive, *mut c_void, i64) -> i64;
type SeekFn = unsafe extern "C" fn(*mut Archive, *mut c_void, i64, c_int) -> i64;

crate::functions! {
    /// The functions that read.
    Api {
        archive_read_new: fn() -> *mut Archive;
        archive_read_free: fn(*mut Archive) -> c_int;
        archive_error_string: fn(*mut Archive) -> *const c_char;
        archive_read_set_format_option: fn(*mut Archive, *const c_char, *const c_char, *const c_char) -> c_int;
        archive_read_set_read_callback: fn(*mut Archive, ReadFn) -> c_int;
        archive_read_set_skip_callback: fn(*mut Archive, SkipFn) -> c_int;
        archive_read_set_seek_callback: fn(*mut Archive, SeekFn) -> c_int;
        archive_read_set_callback_data: fn(*mut Archive, *mut c_void) -> c_int;
        archive_read_open1: fn(*mut Archive) -> c_int;
        archive_read_next_header: fn(*mut Archive, *mut *mut Entry) -> c_int;
        archive_read_data_block: fn(*mut Archive, *mut *const c_void, *mut usize, *mut i64) -> c_int;
        archive_entry_pathname: fn(*mut Entry) -> *const c_char;
        archive_entry_pathname_utf8: fn(*mut Entry) -> *const c_char;
        archive_entry_hardlink: fn(*mut Entry) -> *const c_char;
        archive_entry_symlink: fn(*mut Entry) -> *const c_char;
        archive_entry_filetype: fn(*mut Entry) -> c_uint;
        archive_entry_perm: fn(*mut Entry) -> c_uint;
        archive_entry_uid: fn(*mut Entry) -> i64;
        archive_entry_gid: fn(*mut Entry) -> i64;
        archive_entry_size: fn(*mut Entry) -> i64;
        archive_entry_size_is_set: fn(*mut Entry) -> c_int;
        archive_entry_mtime: fn(*mut Entry) -> Time;
        archive_entry_mtime_nsec: fn(*mut Entry) -> c_long;
        archive_entry_atime_is_set: fn(*mut Entry) -> c_int;
        archive_entry_atime: fn(*mut Entry) -> Time;
        archive_entry_atime_nsec: fn(*mut Entry) -> c_long;
        archive_entry_ctime_is_set: fn(*mut Entry) -> c_int;
        archive_entry_ctime: fn(*mut Entry) -> Time;
        archive_entry_ctime_nsec: fn(*mut Entry) -> c_long;
        archive_entry_rdevmajor: fn(*mut Entry) -> libc::dev_t;
        archive_entry_rdevminor: fn(*mut Entry) -> libc::dev_t;
        archive_entry_xattr_reset: fn(*mut Entry) -> c_int;
        archive_entry_xattr_next: fn(*mut Entry, *mut *const c_char, *mut *const c_void, *mut usize) -> c_int;
    }
}

/// Compressions that the library undoes, by the names of its functions.
const FILTERS: [&str; 9] = [
    "bzip2", "compress", "gzip", "lz4", "lzip", "lzma", "rpm", "xz", "zstd",
];

fn api() -> Result<&'static Api, String> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(|| library().and_then(Api::resolve))
        .as_ref()
        .map_err(Clone::clone)
}

/// One entry of an archive. Numbers are as the library has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Name; `None` if the library cannot convert it to UTF-8.
    pub path: Option<Vec<u8>>,
    /// `S_IFMT` bits and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: i64,
    /// Group.
    pub gid: i64,
    /// Size in bytes, if it is known in advance.
    pub size: Option<u64>,
    /// Modification time: seconds, nanoseconds.
    pub mtime: (i64, u32),
    /// Access time.
    pub atime: Option<(i64, u32)>,
    /// Change time.
    pub ctime: Option<(i64, u32)>,
    /// Major and minor number of a device.
    pub device: (u64, u64),
    /// Target of a symlink.
    pub symlink: Option<Vec<u8>>,
    /// The entry of which this is another name.
    pub hard_link: Option<Vec<u8>>,
    /// Extended attributes: name and value; `None` for a value that is too long.
    pub xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// What the library says about an entry that it has read.
    pub warning: Option<String>,
}

/// The file that the library reads.
struct Client {
    file: File,
    buffer: Vec<u8>,
}

unsafe extern "C" fn read_in(
    _: *mut Archive,
    client: *mut c_void,
    out: *mut *const c_void,
) -> isize {
    // SAFETY: `client` is the pointer that was given to `archive_read_set_callback_data`: a `Client` that
    // outlives the archive, and that no other code accesses while the library runs.
    let client = unsafe { &mut *client.cast::<Client>() };
    loop {
        match client.file.read(&mut client.buffer) {
            Ok(n) => {
                // SAFETY: the library passes a place for a pointer. The buffer stays until the next call.
                unsafe { *out = client.buffer.as_ptr().cast() };
                return n.cast_signed();
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return FATAL as isize,
        }
    }
}

unsafe extern "C" fn skip_in(_: *mut Archive, client: *mut c_void, bytes: i64) -> i64 {
    // SAFETY: as in `read_in`.
    let client = unsafe { &mut *client.cast::<Client>() };
    let end = client.file.metadata().map(|metadata| metadata.len());
    let (Ok(at), Ok(end)) = (client.file.stream_position(), end) else {
        return 0;
    };
    // Not beyond the end, so that a file that ends early is noticed.
    let step = bytes.clamp(0, end.saturating_sub(at).try_into().unwrap_or(i64::MAX));
    match client.file.seek(SeekFrom::Current(step)) {
        Ok(_) => step,
        Err(_) => 0,
    }
}

unsafe extern "C" fn seek_in(
    _: *mut Archive,
    client: *mut c_void,
    offset: i64,
    whence: c_int,
) -> i64 {
    // SAFETY: as in `read_in`.
    let client = unsafe { &mut *client.cast::<Client>() };
    let to = match whence {
        libc::SEEK_SET => SeekFrom::Start(u64::try_from(offset).unwrap_or(0)),
        libc::SEEK_CUR => SeekFrom::Current(offset),
        _ => SeekFrom::End(offset),
    };
    match client.file.seek(to) {
        Ok(at) => at.try_into().unwrap_or(i64::from(FATAL)),
        Err(_) => FATAL.into(),
    }
}

/// A handle of the library that reads.
pub struct Reader {
    api: &'static Api,
    archive: NonNull<Archive>,
    client: *mut Client,
    _locale: Option<Utf8Locale>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: each pointer came from the matching constructor, and is freed once. The client is freed
        // when no callback can come.
        unsafe {
            (self.api.archive_read_free)(self.archive.as_ptr());
            drop(Box::from_raw(self.client));
        }
    }
}

impl Reader {
    /// Opens an archive in a file that can be read at any offset. The library tries the formats with these
    /// names, as in its functions (`archive_read_support_format_zip`), and all compressions that it knows.
    ///
    /// # Errors
    /// The text of the library, or why there is none.
    pub fn open(file: File, formats: &[&str]) -> Result<Self, String> {
        let api = api()?;
        let locale = Utf8Locale::enter();
        let client = Box::into_raw(Box::new(Client {
            file,
            buffer: vec![0; BUFFER],
        }));
        // SAFETY: takes nothing.
        let archive = NonNull::new(unsafe { (api.archive_read_new)() });
        let Some(archive) = archive else {
            // SAFETY: from `into_raw` above, and not used by anything.
            drop(unsafe { Box::from_raw(client) });
            return Err("out of memory".to_owned());
        };
        let reader = Self {
            api,
            archive,
            client,
            _locale: locale,
        };
        let formats = formats.iter().map(|name| ("format", *name));
        let filters = FILTERS.iter().map(|name| ("filter", *name));
        for (what, name) in formats.chain(filters) {
            reader.support(what, name)?;
        }
        let handle = archive.as_ptr();
        // SAFETY: a valid handle, and terminated strings. Without a list that is read, this does nothing.
        unsafe {
            let (module, option, value) = (c"mtree", c"checkfs", c"1");
            (api.archive_read_set_format_option)(
                handle,
                module.as_ptr(),
                option.as_ptr(),
                value.as_ptr(),
            );
        }
        // SAFETY: a valid handle in its first state. The client outlives the handle, as `drop` frees it
        // last; the callbacks have the types of the declarations.
        let code = unsafe {
            (api.archive_read_set_read_callback)(handle, read_in);
            (api.archive_read_set_skip_callback)(handle, skip_in);
            (api.archive_read_set_seek_callback)(handle, seek_in);
            (api.archive_read_set_callback_data)(handle, client.cast());
            (api.archive_read_open1)(handle)
        };
        match code {
            OK | WARN => Ok(reader),
            _ => Err(reader.error()),
        }
    }

    /// Has the library try a format or a filter. One that this version does not know is left out.
    fn support(&self, what: &str, name: &str) -> Result<(), String> {
        let symbol = CString::new(format!("archive_read_support_{what}_{name}"))
            .map_err(|e| e.to_string())?;
        // SAFETY: all functions of this name take a handle and return a code.
        let function = unsafe {
            library()?
                .get::<unsafe extern "C" fn(*mut Archive) -> c_int>(symbol.as_bytes_with_nul())
        };
        if let Ok(function) = function {
            // SAFETY: a valid handle in its first state. A warning means that another program would help.
            unsafe { function(self.archive.as_ptr()) };
        }
        Ok(())
    }

    fn error(&self) -> String {
        // SAFETY: a valid handle; the result is a string that lives until the next call.
        let text = unsafe { text((self.api.archive_error_string)(self.archive.as_ptr())) };
        match text.is_empty() {
            true => "it is not known why".to_owned(),
            false => text,
        }
    }

    /// The next entry. Data of the previous one that was not taken is skipped.
    ///
    /// # Errors
    /// The text of the library. Nothing more can be read then.
    pub fn next_entry(&mut self) -> Result<Option<Found>, String> {
        let mut entry: *mut Entry = ptr::null_mut();
        let mut tries = 0;
        let code = loop {
            // SAFETY: a valid handle, and a place for a pointer. The entry belongs to the handle.
            let code = unsafe {
                (self.api.archive_read_next_header)(self.archive.as_ptr(), &raw mut entry)
            };
            tries += 1;
            if code != RETRY || tries == MOST_RETRIES {
                break code;
            }
        };
        match code {
            EOF => Ok(None),
            OK | WARN if !entry.is_null() => {
                let warning = (code == WARN).then(|| self.error());
                // SAFETY: the entry is valid until the next call for the handle.
                let mut found = unsafe { self.found(entry) };
                found.warning = warning;
                Ok(Some(found))
            }
            _ => Err(self.error()),
        }
    }

    /// # Safety
    /// `entry` is a valid entry.
    #[allow(
        clippy::useless_conversion,
        clippy::unnecessary_cast,
        reason = "some types differ between systems"
    )]
    unsafe fn found(&self, entry: *mut Entry) -> Found {
        let api = self.api;
        let bytes = |from: *const c_char| {
            // SAFETY: the library returns null or a terminated string that lives as long as the entry
            // is not changed.
            (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_bytes().to_vec())
        };
        // SAFETY: a valid entry, which these functions only read.
        unsafe {
            let time = |sec: Time, nsec: c_long| {
                let nsec = u32::try_from(nsec)
                    .ok()
                    .filter(|nsec| *nsec < 1_000_000_000);
                (i64::from(sec), nsec.unwrap_or(0))
            };
            let path = bytes((api.archive_entry_pathname)(entry));
            Found {
                path: path.or_else(|| bytes((api.archive_entry_pathname_utf8)(entry))),
                // The types of the results have 16 bits on some systems.
                mode: ((api.archive_entry_filetype)(entry) & 0o170_000)
                    | ((api.archive_entry_perm)(entry) & 0o7777),
                uid: (api.archive_entry_uid)(entry),
                gid: (api.archive_entry_gid)(entry),
                size: ((api.archive_entry_size_is_set)(entry) != 0)
                    .then(|| u64::try_from((api.archive_entry_size)(entry)).unwrap_or(0)),
                mtime: time(
                    (api.archive_entry_mtime)(entry),
                    (api.archive_entry_mtime_nsec)(entry),
                ),
                atime: ((api.archive_entry_atime_is_set)(entry) != 0).then(|| {
                    time(
                        (api.archive_entry_atime)(entry),
                        (api.archive_entry_atime_nsec)(entry),
                    )
                }),
                ctime: ((api.archive_entry_ctime_is_set)(entry) != 0).then(|| {
                    time(
                        (api.archive_entry_ctime)(entry),
                        (api.archive_entry_ctime_nsec)(entry),
                    )
                }),
                device: (
                    (api.archive_entry_rdevmajor)(entry) as u64,
                    (api.archive_entry_rdevminor)(entry) as u64,
                ),
                symlink: bytes((api.archive_entry_symlink)(entry)),
                hard_link: bytes((api.archive_entry_hardlink)(entry)),
                xattrs: self.attributes(entry),
                warning: None,
            }
        }
    }

    /// # Safety
    /// `entry` is a valid entry.
    unsafe fn attributes(&self, entry: *mut Entry) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let mut out = Vec::new();
        // SAFETY: a valid entry.
        unsafe { (self.api.archive_entry_xattr_reset)(entry) };
        loop {
            let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
            // SAFETY: a valid entry, and places for the results.
            let code = unsafe {
                (self.api.archive_entry_xattr_next)(
                    entry,
                    &raw mut name,
                    &raw mut value,
                    &raw mut size,
                )
            };
            if code != OK || name.is_null() {
                return out;
            }
            let value = match size {
                0 => Some(Vec::new()),
                1..=MOST_ATTRIBUTE if !value.is_null() => {
                    // SAFETY: that many readable bytes, part of the entry.
                    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size) };
                    Some(value.to_vec())
                }
                _ => None,
            };
            // SAFETY: a terminated string, part of the entry.
            let name = unsafe { CStr::from_ptr(name) };
            out.push((name.to_bytes().to_vec(), value));
        }
    }

    /// The next bytes of the entry, with their offset in the file. Bytes between two pieces are a hole.
    ///
    /// # Errors
    /// The text of the library, also where it only warns: about a checksum or a size that is wrong.
    pub fn data(&mut self) -> Result<Option<(u64, &[u8])>, String> {
        let (mut bytes, mut size, mut offset) = (ptr::null(), 0usize, 0i64);
        let mut tries = 0;
        loop {
            // SAFETY: a valid handle, and places for the results.
            let code = unsafe {
                (self.api.archive_read_data_block)(
                    self.archive.as_ptr(),
                    &raw mut bytes,
                    &raw mut size,
                    &raw mut offset,
                )
            };
            tries += 1;
            match code {
                OK => break,
                EOF => return Ok(None),
                // Wrong checksums and sizes are warnings, too.
                RETRY if tries < MOST_RETRIES => {}
                _ => return Err(self.error()),
            }
        }
        let offset = u64::try_from(offset).map_err(|_| "a negative offset".to_owned())?;
        if size == 0 || bytes.is_null() {
            return Ok(Some((offset, &[])));
        }
        // SAFETY: that many readable bytes, which stay until the next call; the borrow of `self` prevents
        // one.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) };
        Ok(Some((offset, bytes)))
    }
}
