//! Builds.
#![allow(unsafe_code)]
// The preamble of the header says what pointers must point to.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{self, BufReader, Read, Write};
use std::mem::{MaybeUninit, offset_of};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use redwarfs::writer::{Counters, Phase, Progress};
use redwarfs::{Attributes, BuildOptions, Built, Collection, FileType, Timestamp};

use crate::border::{self, Context, Growing, guarded, run};
use crate::error::{Code, Error, Failure, argument};
use crate::image::known;

/// Time between two calls of a progress function (100 ms).
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes that a stream is asked for at least (64 KiB).
const PIECE: usize = 64 << 10;

/// An image that is to be built.
#[derive(Debug)]
pub struct Builder {
    /// Locked in functions with the builder, so that a callback finds it in use.
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    input: Input,
    options: BuildOptions,
    messages: Vec<CString>,
}

#[derive(Debug)]
enum Input {
    Directory(PathBuf),
    Entries(Collection),
    /// The entries have become an image.
    Used,
}

/// Attributes of a new entry.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct EntryAttributes {
    /// `sizeof(redwarfs_entry_attributes)`.
    pub size: usize,
    /// Permission bits, `07777`.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Nanoseconds of `mtime`, below 1,000,000,000.
    pub mtime_nsec: u32,
    /// Time of modification, seconds since 1970.
    pub mtime: i64,
}

// SAFETY: it begins with the size, and has integers only.
unsafe impl Growing for EntryAttributes {
    const FIRST: usize = offset_of!(Self, mtime) + size_of::<i64>();
}

/// The result of a build.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Summary {
    /// Bytes of the image.
    pub image_size: u64,
    /// Bytes of regular files and targets of symbolic links.
    pub original_size: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Entries that were not stored unchanged, with `REDWARFS_CONTINUE_ON_ERROR`.
    pub errors: u64,
    /// Number of messages that `redwarfs_builder_message` returns, at most 2,000.
    pub messages: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// Replace an existing file.
pub const REDWARFS_OVERWRITE: u32 = 1;
/// Store everything else if an entry of the input cannot be read.
pub const REDWARFS_CONTINUE_ON_ERROR: u32 = 2;

/// Tells the state of a build ten times a second, in the thread that called the build: the name of
/// the phase, bytes of input found, bytes put into blocks, bytes written. A value other than 0 ends the
/// build with `REDWARFS_ERROR_INTERRUPTED`.
pub type ProgressFn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        phase: *const c_char,
        found: u64,
        packed: u64,
        written: u64,
    ) -> c_int,
>;

/// A builder. It builds an image of the directory `directory`, or of entries that the caller adds if
/// that is null. `level` is from 0 (no compression) and 1 (fast) to 9 (small). The builder must be freed
/// with `redwarfs_builder_free`. One thread at a time may use it. A callback cannot use the builder
/// that calls it (`REDWARFS_ERROR_ARGUMENT`), and must not free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_new(
    directory: *const c_char,
    level: u32,
    builder: Option<&mut MaybeUninit<*mut Builder>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let place = builder.ok_or_else(|| argument("builder is null"))?;
        let level = u8::try_from(level)
            .ok()
            .filter(|&level| level <= BuildOptions::MAX_LEVEL);
        let level = level.ok_or_else(|| argument("the level is from 0 to 9"))?;
        let input = match directory.is_null() {
            true => Input::Entries(Collection::new()),
            // SAFETY: promised by the caller.
            false => Input::Directory(unsafe { border::path(directory, "") }?.to_owned()),
        };
        let parts = Mutex::new(Parts {
            input,
            options: BuildOptions::level(level),
            messages: Vec::new(),
        });
        let new = Builder { parts };
        place.write(Box::into_raw(Box::new(new)));
        Ok(())
    })
}

/// Frees a builder. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_builder_free(builder: Option<Box<Builder>>) {
    guarded((), || drop(builder));
}

/// Sets an option by the name that it has in `mkdwarfs`, such as `block-size-bits`. The manual of
/// `mkdwarfs` describes the options and their values; switches take `true` or `false`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_set(
    builder: *mut Builder,
    name: *const c_char,
    value: *const c_char,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        // SAFETY: promised by the caller.
        let name = unsafe { border::text(name, "name is null") }?;
        // SAFETY: promised by the caller.
        let value = unsafe { border::text(value, "value is null") }?;
        let (name, value) = (
            String::from_utf8_lossy(name),
            String::from_utf8_lossy(value),
        );
        Ok(redwarfs::set_option(&mut builder.options, &name, &value)?)
    })
}

/// Adds a regular file. The bytes are copied. `attributes` may be null: permissions 0644, owner root,
/// time 0. Directories above it are added as needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_add_file(
    builder: *mut Builder,
    path: *const c_char,
    data: *const c_void,
    length: usize,
    attributes: *const EntryAttributes,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let (path, given) = unsafe { described(path, attributes, 0o644) }?;
        // SAFETY: promised by the caller.
        let mut data = unsafe { border::bytes(data, length, "data is null") }?;
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        entries(&mut builder)?.file(path, &mut data, given)?;
        Ok(())
    })
}

/// Adds a regular file with the bytes that a function gives. It stores up to `length` bytes (at least
/// 64 KiB) in `buffer` and returns their number, 0 at the end, or a negative number of `errno.h`. It is
/// called before this function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_add_stream(
    builder: *mut Builder,
    path: *const c_char,
    read: Option<
        unsafe extern "C" fn(context: *mut c_void, buffer: *mut c_void, length: usize) -> i64,
    >,
    context: *mut c_void,
    attributes: *const EntryAttributes,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let (path, given) = unsafe { described(path, attributes, 0o644) }?;
        let read = read.ok_or_else(|| argument("read is null"))?;
        // So that the function never gets a small buffer.
        let mut stream = BufReader::with_capacity(PIECE, Stream { read, context });
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        entries(&mut builder)?.file(path, &mut stream, given)?;
        Ok(())
    })
}

/// Adds a regular file with the content of a file on disk, which is read during the build. If
/// `attributes` is null, it gets the attributes of that file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_add_disk_file(
    builder: *mut Builder,
    path: *const c_char,
    from: *const c_char,
    attributes: *const EntryAttributes,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let (path, given) = unsafe { described(path, attributes, 0o644) }?;
        // SAFETY: promised by the caller.
        let from = unsafe { border::path(from, "from is null") }?;
        let given = (!attributes.is_null()).then_some(given);
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        entries(&mut builder)?.file_on_disk(path, from, given)?;
        Ok(())
    })
}

/// Adds a directory, or changes the attributes of one. The empty path is the root. If `attributes` is
/// null, it gets permissions 0755.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_add_directory(
    builder: *mut Builder,
    path: *const c_char,
    attributes: *const EntryAttributes,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let (path, given) = unsafe { described(path, attributes, 0o755) }?;
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        Ok(entries(&mut builder)?.directory(path, given)?)
    })
}

/// Adds a symbolic link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_add_symlink(
    builder: *mut Builder,
    path: *const c_char,
    target: *const c_char,
    attributes: *const EntryAttributes,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let (path, given) = unsafe { described(path, attributes, 0o777) }?;
        // SAFETY: promised by the caller.
        let target = unsafe { border::path(target, "target is null") }?;
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        Ok(entries(&mut builder)?.symlink(path, target, given)?)
    })
}

/// Adds another name for a regular file that was added before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_add_hard_link(
    builder: *mut Builder,
    path: *const c_char,
    existing: *const c_char,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let path = unsafe { border::path(path, "path is null") }?;
        // SAFETY: promised by the caller.
        let existing = unsafe { border::path(existing, "existing is null") }?;
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        Ok(entries(&mut builder)?.hard_link(path, existing)?)
    })
}

/// Adds a device, FIFO or socket: `type` has the bits of `S_IFMT`, and `rdev` is the number of a
/// device. It is stored only with the options `with-devices` and `with-specials`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_add_special(
    builder: *mut Builder,
    path: *const c_char,
    type_: u32,
    rdev: u64,
    attributes: *const EntryAttributes,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let (path, given) = unsafe { described(path, attributes, 0o644) }?;
        let kind = FileType::from_mode(type_).ok_or_else(|| argument("an unknown type"))?;
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        Ok(entries(&mut builder)?.special(path, kind, rdev, given)?)
    })
}

/// Builds the image into a file, which gets its name when the image is complete. Flags:
/// `REDWARFS_OVERWRITE`, `REDWARFS_CONTINUE_ON_ERROR`. `progress` and `summary` may be null. Entries
/// that were added can be built once, a directory any number of times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_write(
    builder: *mut Builder,
    path: *const c_char,
    flags: u32,
    progress: ProgressFn,
    context: *mut c_void,
    summary: Option<&mut MaybeUninit<Summary>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        // SAFETY: promised by the caller.
        let path = unsafe { border::path(path, "path is null") }?.to_owned();
        let to = Target::Path(path);
        build(
            &mut builder,
            to,
            flags,
            Listener { progress, context },
            summary,
        )
    })
}

/// Builds the image into a function of the caller. It takes `length` bytes and returns 0 or a number of
/// `errno.h`. It is called in another thread, front to back, and not after this function has returned.
/// Flags: `REDWARFS_CONTINUE_ON_ERROR`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_write_stream(
    builder: *mut Builder,
    write: Option<
        unsafe extern "C" fn(context: *mut c_void, data: *const c_void, length: usize) -> c_int,
    >,
    write_context: *mut c_void,
    flags: u32,
    progress: ProgressFn,
    context: *mut c_void,
    summary: Option<&mut MaybeUninit<Summary>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let mut builder = unsafe { parts(builder) }?;
        let write = write.ok_or_else(|| argument("write is null"))?;
        let flags = known(flags, REDWARFS_CONTINUE_ON_ERROR)?;
        let to = Target::Stream(Sink {
            write,
            context: Context(write_context),
        });
        build(
            &mut builder,
            to,
            flags,
            Listener { progress, context },
            summary,
        )
    })
}

/// A message of the last build, counted from 0: about what images cannot hold, and about entries that
/// were not stored unchanged. Null if there is none, or in a callback. It is valid until the builder is
/// used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_builder_message(
    builder: *const Builder,
    number: usize,
) -> *const c_char {
    // SAFETY: promised by the caller.
    let Ok(builder) = (unsafe { parts(builder) }) else {
        return ptr::null();
    };
    let message = builder.messages.get(number);
    message.map_or(ptr::null(), |message| message.as_ptr())
}

/// The path and the attributes of a new entry.
///
/// # Safety
/// As [`border::path`] and [`border::sized`].
unsafe fn described<'a>(
    path: *const c_char,
    attributes: *const EntryAttributes,
    permissions: u32,
) -> Result<(&'a Path, Attributes), Failure> {
    // SAFETY: promised by the caller.
    let path = unsafe { border::path(path, "path is null") }?;
    // SAFETY: promised by the caller.
    let given = unsafe { border::sized(attributes, "attributes->size is too small") }?;
    let mut result = Attributes::new(permissions);
    if let Some(given) = given {
        result = Attributes::new(given.permissions);
        (result.uid, result.gid) = (given.uid, given.gid);
        if given.mtime_nsec >= 1_000_000_000 {
            return Err(argument("attributes->mtime_nsec is too large"));
        }
        let time = Timestamp {
            sec: given.mtime,
            nsec: given.mtime_nsec,
        };
        (result.mtime, result.atime, result.ctime) = (time, time, time);
    }
    Ok((path, result))
}

/// The parts of a builder of the caller, unless a function with the builder runs.
///
/// # Safety
/// `builder` is null, or nobody frees the builder while the result lives.
unsafe fn parts<'a>(builder: *const Builder) -> Result<MutexGuard<'a, Parts>, Failure> {
    // SAFETY: promised by the caller. There are only shared references to a builder.
    let builder = unsafe { builder.as_ref() }.ok_or_else(|| argument("builder is null"))?;
    match builder.parts.try_lock() {
        Ok(parts) => Ok(parts),
        Err(TryLockError::WouldBlock) => Err(argument("the builder is in use")),
        Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
    }
}

fn entries(builder: &mut Parts) -> Result<&mut Collection, Failure> {
    match &mut builder.input {
        Input::Entries(collection) => Ok(collection),
        Input::Directory(_) => Err(argument("the builder has a directory")),
        Input::Used => Err(argument("the builder was used")),
    }
}

struct Stream {
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> i64,
    context: *mut c_void,
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the caller gave the function for this context. The buffer has as many bytes as it is
        // told.
        let count = unsafe { (self.read)(self.context, buf.as_mut_ptr().cast(), buf.len()) };
        match usize::try_from(count) {
            Ok(count) if count <= buf.len() => Ok(count),
            Ok(_) => Err(io::Error::other("the function returns more than fits")),
            Err(_) => {
                let number = i32::try_from(count.unsigned_abs()).unwrap_or(5);
                Err(io::Error::from_raw_os_error(number))
            }
        }
    }
}

enum Target {
    Path(PathBuf),
    Stream(Sink),
}

struct Sink {
    write: unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int,
    context: Context,
}

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        // SAFETY: the caller gave the function for this context. The data has as many bytes as it is
        // told.
        let code = unsafe { (self.write)(self.context.pointer(), buf.as_ptr().cast(), buf.len()) };
        match code {
            0 => Ok(buf.len()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A progress function and its context. They stay in the thread of the caller.
struct Listener {
    progress: ProgressFn,
    context: *mut c_void,
}

/// What a build has reported so far.
#[derive(Debug, Default)]
struct Events {
    counters: Counters,
    phase: Mutex<Option<Phase>>,
}

impl Progress for Events {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn phase(&self, phase: Phase) {
        if let Ok(mut current) = self.phase.lock() {
            *current = Some(phase);
        }
    }
}

impl Listener {
    /// Whether the build may go on.
    fn tell(&self, events: &Events) -> bool {
        let phase = events.phase.lock().ok().and_then(|phase| *phase);
        let (Some(progress), Some(phase)) = (self.progress, phase) else {
            return true;
        };
        let name = CString::new(format!("{phase:?}").to_lowercase()).unwrap_or_default();
        let number = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &events.counters;
        // SAFETY: the caller gave the function for this context.
        let end = unsafe {
            progress(
                self.context,
                name.as_ptr(),
                number(&counters.original_size),
                number(&counters.block_bytes),
                number(&counters.bytes_written),
            )
        };
        end == 0
    }
}

fn build(
    from: &mut Parts,
    to: Target,
    flags: u32,
    listener: Listener,
    summary: Option<&mut MaybeUninit<Summary>>,
) -> Result<(), Failure> {
    let flags = known(flags, REDWARFS_OVERWRITE | REDWARFS_CONTINUE_ON_ERROR)?;
    from.messages.clear();
    let mut builder = match std::mem::replace(&mut from.input, Input::Used) {
        Input::Directory(path) => {
            from.input = Input::Directory(path.clone());
            redwarfs::Builder::new(path)
        }
        Input::Entries(collection) => redwarfs::Builder::from_source(Arc::new(collection)),
        Input::Used => return Err(argument("the builder was used")),
    };
    builder = builder
        .options(from.options.clone())
        .overwrite(flags & REDWARFS_OVERWRITE != 0)
        .continue_on_error(flags & REDWARFS_CONTINUE_ON_ERROR != 0);
    let events = Arc::new(Events::default());
    let stop = Arc::new(AtomicBool::new(false));
    builder = builder
        .progress(Arc::clone(&events) as _)
        .stop_flag(Arc::clone(&stop));
    let (done, result) = mpsc::sync_channel(1);
    let built = thread::scope(|scope| {
        let thread = thread::Builder::new().name("redwarfs-build".to_owned());
        thread.spawn_scoped(scope, move || {
            let built = match to {
                Target::Path(path) => builder.write_to(path),
                Target::Stream(mut sink) => builder.write(&mut sink),
            };
            // The other end waits for it.
            let _ = done.send(built);
        })?;
        loop {
            match result.recv_timeout(PAUSE) {
                Ok(built) => break Ok(built?),
                Err(RecvTimeoutError::Disconnected) => break Err(Failure::internal("the build")),
                Err(RecvTimeoutError::Timeout) => {
                    if !listener.tell(&events) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
    })?;
    // It is complete, so the answer does not matter.
    listener.tell(&events);
    report(from, &built);
    if let Some(place) = summary {
        place.write(Summary {
            image_size: built.summary.image_size,
            original_size: built.summary.original_size,
            blocks: built.summary.blocks,
            inodes: built.summary.inodes,
            errors: built.summary.errors,
            messages: from.messages.len() as u64,
            reserved: [0; 4],
        });
    }
    Ok(())
}

fn report(builder: &mut Parts, built: &Built) {
    let messages = built.problems.iter().chain(&built.warnings);
    builder.messages = messages
        .map(|message| CString::new(message.as_str()).unwrap_or_default())
        .collect();
}
