//! Open images: entries, attributes, contents.
#![allow(unsafe_code)]
// The preamble of the header says what pointers must point to.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs::format::InodeNo;
use redwarfs::io::{FileSource, MemorySource, Source};
use redwarfs::reader::check::DeclaredImage;
use redwarfs::reader::{CheckOptions, ImageOffset, VerifyMode};
use redwarfs::{DirEntry, Stat};

use crate::border::{self, Context, Growing, guarded, put, run};
use crate::error::{Code, Error, Failure, argument};
use crate::source::{self, Io};

/// An open image.
#[derive(Debug)]
pub struct Image(pub(crate) redwarfs::Image);

/// Check the consistency of all metadata at opening.
pub const REDWARFS_CHECK: u32 = 1;
/// Do not compare checksums of blocks. Damage then shows as wrong contents.
pub const REDWARFS_NO_VERIFY: u32 = 2;
/// Do not decompress blocks ahead in other threads.
pub const REDWARFS_NO_READAHEAD: u32 = 4;
/// `offset` says where the image begins. Without this flag the library searches for it.
pub const REDWARFS_OFFSET: u32 = 8;

/// How to open an image. Set `size`, and all other members to zero.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct OpenOptions {
    /// `sizeof(redwarfs_open_options)`.
    pub size: usize,
    /// `REDWARFS_CHECK`, `REDWARFS_NO_VERIFY`, `REDWARFS_NO_READAHEAD`, `REDWARFS_OFFSET`.
    pub flags: u32,
    /// Threads that decompress ahead; 0 is the default, 2.
    pub threads: u32,
    /// Bytes of decompressed blocks that are kept; 0 is the default, 512 MiB.
    pub cache_size: u64,
    /// With `REDWARFS_OFFSET`: the first byte of the image in its file.
    pub offset: u64,
    /// Bytes of the image if it ends before the end of its file; 0 if not.
    pub image_size: u64,
    /// What the image must prove, or null: `signed:KEY` with a public key of minisign or SSH or a file that has
    /// such keys, `digests`, or `checksums`. What differs is refused, also with `REDWARFS_NO_VERIFY`.
    pub verification: *const c_char,
    /// Null.
    pub reserved: *const c_void,
}

// SAFETY: it begins with the size, and has integers and pointers only. On systems with pointers of 32 bits, the two of
// them fill 8 bytes.
unsafe impl Growing for OpenOptions {
    const FIRST: usize = offset_of!(Self, image_size) + size_of::<u64>();
}

/// Attributes of an entry.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Attributes {
    /// Bytes of a regular file or of the target of a symbolic link; number of entries of a directory.
    pub size: u64,
    /// Bytes of a file without its holes.
    pub allocated: u64,
    /// Number of a device, in the encoding of the system that made the image.
    pub rdev: u64,
    /// Seconds since 1970: last access, change of the content, change of the attributes.
    pub atime: i64,
    /// As `atime`.
    pub mtime: i64,
    /// As `atime`.
    pub ctime: i64,
    /// Nanoseconds of the times.
    pub atime_nsec: u32,
    /// As `atime_nsec`.
    pub mtime_nsec: u32,
    /// As `atime_nsec`.
    pub ctime_nsec: u32,
    /// Number of the inode. The root has 0.
    pub inode: u32,
    /// Type and permissions, as `st_mode` on Linux.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Zero.
    pub reserved: [u64; 4],
}

/// Numbers about an image.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Info {
    /// Version of the format.
    pub version_major: u32,
    /// As `version_major`.
    pub version_minor: u32,
    /// Bytes before the image in its file.
    pub offset: u64,
    /// Bytes of the image.
    pub image_size: u64,
    /// Bytes of all regular files and targets of symbolic links.
    pub original_size: u64,
    /// Largest number of bytes of a block, uncompressed.
    pub block_size: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of regular files; names of one file with several hard links count once.
    pub files: u64,
    /// When the digests of the image were made, in seconds since 1970, if they were verified; otherwise 0. If an image is
    /// older than it should be, somebody has put an older one in its place.
    pub digests_time: i64,
    /// Zero.
    pub reserved: [u64; 7],
}

/// The last component of the path is not followed if it is a symbolic link.
pub const REDWARFS_NO_FOLLOW: u32 = 1;

/// Also compare the SHA-512/256 of each section, and decompress all blocks.
pub const REDWARFS_DEEP: u32 = 1;

/// The version of the library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Opens the image in a file or block device. `options` may be null. The image must be closed with
/// `redwarfs_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_open(
    path: *const c_char,
    options: *const OpenOptions,
    image: Option<&mut MaybeUninit<*mut Image>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let path = unsafe { border::path(path, "path is null") }?;
        // SAFETY: promised by the caller.
        let options = unsafe { border::sized(options, "options->size is too small") }?;
        // SAFETY: promised by the caller.
        let options = unsafe { reader_options(options) }?;
        let opened = redwarfs::Image::open_with(path, &options)?;
        give(image, opened)
    })
}

/// Opens the image in an open file. The descriptor is duplicated, and its position is not used. So the
/// caller can close it, but another process must not change the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_open_fd(
    descriptor: c_int,
    options: *const OpenOptions,
    image: Option<&mut MaybeUninit<*mut Image>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let options = unsafe { border::sized(options, "options->size is too small") }?;
        // SAFETY: promised by the caller.
        let options = unsafe { reader_options(options) }?;
        let file = source::duplicate(descriptor)?;
        let name = format!("descriptor {descriptor}");
        let source = FileSource::of(file, Path::new(&name))?;
        give_source(image, Arc::new(source), &options)
    })
}

/// Opens an image in memory. The bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_open_memory(
    data: *const c_void,
    length: usize,
    options: *const OpenOptions,
    image: Option<&mut MaybeUninit<*mut Image>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let options = unsafe { border::sized(options, "options->size is too small") }?;
        // SAFETY: promised by the caller.
        let options = unsafe { reader_options(options) }?;
        // SAFETY: promised by the caller.
        let data = unsafe { border::bytes(data, length, "data is null") }?;
        give_source(image, Arc::new(MemorySource::new(data)), &options)
    })
}

/// Opens an image that functions of the caller read. If this fails with another code than
/// `REDWARFS_ERROR_ARGUMENT`, and when the image is closed and not used any longer, `io->release` is
/// called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_open_io(
    io: *const Io,
    options: *const OpenOptions,
    image: Option<&mut MaybeUninit<*mut Image>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        // SAFETY: promised by the caller.
        let options = unsafe { border::sized(options, "options->size is too small") }?;
        if image.is_none() {
            return Err(argument("image is null"));
        }
        // SAFETY: promised by the caller.
        let io = unsafe { border::sized(io, "io->size is too small") }?;
        let io = io.ok_or_else(|| argument("io is null"))?;
        // SAFETY: promised by the caller.
        let options = match unsafe { reader_options(options) } {
            Err(failure) if failure.is_argument() => return Err(failure),
            other => other,
        };
        // From here on, it is released.
        let source = source::callbacks(&io)?;
        let options = options?;
        give_source(image, source, &options)
    })
}

/// Closes an image. Null is allowed. Listings of the image can still be used. No other thread may be in
/// a function with this image.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_close(image: Option<Box<Image>>) {
    guarded((), || drop(image));
}

/// Numbers about an image.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_info(
    image: Option<&Image>,
    info: Option<&mut MaybeUninit<Info>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let reader = opened(image)?.reader();
        let (view, container) = (reader.metadata(), reader.container());
        let counts = view.counts();
        let found = Info {
            version_major: u32::from(container.version.major),
            version_minor: u32::from(container.version.minor),
            offset: container.offset,
            image_size: container.size,
            original_size: view.totals().size,
            block_size: u64::from(view.block_size()),
            blocks: u64::from(container.block_count()),
            inodes: u64::from(counts.inodes),
            files: u64::from(counts.files),
            digests_time: opened(image)?.verified().map_or(0, |found| found.time),
            reserved: [0; 7],
        };
        put(info, found, "info is null")
    })
}

/// Finds an entry by its path from the root. `/` and the empty path are the root. Symbolic links are
/// followed inside the image, the last one unless `flags` has `REDWARFS_NO_FOLLOW`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_lookup(
    image: Option<&Image>,
    path: *const c_char,
    flags: u32,
    inode: Option<&mut MaybeUninit<u32>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let image = opened(image)?;
        // SAFETY: promised by the caller.
        let path = unsafe { border::path(path, "path is null") }?;
        let entry: DirEntry = match known(flags, REDWARFS_NO_FOLLOW)? {
            REDWARFS_NO_FOLLOW => image.symlink_entry(path)?,
            _ => image.entry(path)?,
        };
        put(inode, entry.inode().0, "inode is null")
    })
}

/// Finds a name in a directory. Links are not followed, and `.` and `..` are no names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_lookup_at(
    image: Option<&Image>,
    directory: u32,
    name: *const c_char,
    inode: Option<&mut MaybeUninit<u32>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let image = opened(image)?;
        // SAFETY: promised by the caller.
        let name = unsafe { border::path(name, "name is null") }?;
        let bytes = name.as_os_str().as_encoded_bytes();
        let found = image.reader().lookup(InodeNo(directory), bytes)?;
        let found = found.ok_or_else(|| redwarfs::Error::NotFound(name.to_owned()))?;
        put(inode, found.0, "inode is null")
    })
}

/// Attributes of an inode.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_stat(
    image: Option<&Image>,
    inode: u32,
    attributes: Option<&mut MaybeUninit<Attributes>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let stat = opened(image)?.reader().stat(InodeNo(inode))?;
        put(attributes, stat.into(), "attributes is null")
    })
}

/// Reads from a regular file. `done` gets the number of bytes, which is less than `length` only at the
/// end of the file. After a failure, the contents of `buffer` are unspecified.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_read(
    image: Option<&Image>,
    inode: u32,
    offset: u64,
    buffer: *mut c_void,
    length: usize,
    done: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let image = opened(image)?;
        // SAFETY: promised by the caller.
        let buffer = unsafe { border::buffer(buffer, length, "buffer is null") }?;
        let count = image.reader().read_at(InodeNo(inode), offset, buffer)?;
        put(done, count, "done is null")
    })
}

/// The target of a symbolic link, as a text with NUL. `length` gets the number of bytes of the target,
/// without NUL, also if the buffer is too small (`REDWARFS_ERROR_RANGE`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_readlink(
    image: Option<&Image>,
    inode: u32,
    buffer: *mut c_char,
    size: usize,
    length: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let target = opened(image)?.reader().read_link(InodeNo(inode))?;
        put(length, target.len(), "length is null")?;
        // SAFETY: promised by the caller.
        let buffer = unsafe { border::buffer(buffer.cast(), size, "buffer is null") }?;
        match buffer.split_at_mut_checked(target.len()) {
            Some((start, [end, ..])) => {
                start.copy_from_slice(&target);
                *end = 0;
                Ok(())
            }
            _ => Err(Failure::range(target.len() + 1)),
        }
    })
}

/// The names of the extended attributes of an inode, each with NUL at its end, one after the other.
/// `length` gets the number of bytes of all names, also if the buffer is too small
/// (`REDWARFS_ERROR_RANGE`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_listxattr(
    image: Option<&Image>,
    inode: u32,
    buffer: *mut c_char,
    size: usize,
    length: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let mut names = Vec::new();
        for xattr in opened(image)?.reader().xattrs(InodeNo(inode))? {
            names.extend_from_slice(&xattr.name()?);
            names.push(0);
        }
        put(length, names.len(), "length is null")?;
        // SAFETY: promised by the caller.
        let buffer = unsafe { border::buffer(buffer.cast(), size, "buffer is null") }?;
        fill(buffer, &names)
    })
}

/// The value of an extended attribute of an inode. `length` gets its number of bytes, also if the buffer
/// is too small (`REDWARFS_ERROR_RANGE`). An attribute that is not there gives
/// `REDWARFS_ERROR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_getxattr(
    image: Option<&Image>,
    inode: u32,
    name: *const c_char,
    buffer: *mut c_void,
    size: usize,
    length: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let image = opened(image)?;
        // SAFETY: promised by the caller.
        let name = unsafe { border::path(name, "name is null") }?;
        let found = image
            .reader()
            .xattr(InodeNo(inode), name.as_os_str().as_encoded_bytes())?;
        let value = found.ok_or_else(|| redwarfs::Error::NotFound(name.to_owned()))?;
        put(length, value.len(), "length is null")?;
        // SAFETY: promised by the caller.
        let buffer = unsafe { border::buffer(buffer, size, "buffer is null") }?;
        fill(buffer, &value)
    })
}

/// Checks the checksums of an image. `findings` gets the number of damages; 0 means that none was
/// found. `found` is called for each damage with a message, and may be null. Flags: `REDWARFS_DEEP`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn redwarfs_verify(
    image: Option<&Image>,
    flags: u32,
    found: Option<unsafe extern "C" fn(context: *mut c_void, message: *const c_char)>,
    context: *mut c_void,
    findings: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let reader = opened(image)?.reader();
        let mut options = CheckOptions::default();
        if known(flags, REDWARFS_DEEP)? == REDWARFS_DEEP {
            options.mode = VerifyMode::Integrity;
            options.decode = true;
        }
        let list = reader.list_sections()?;
        let report = reader.check(list, DeclaredImage::default(), &options, &|_| {})?;
        let context = Context(context);
        for finding in &report.findings {
            if let Some(found) = found {
                let message = CString::new(finding.to_string()).unwrap_or_default();
                // SAFETY: the caller gave the function for this context.
                unsafe { found(context.pointer(), message.as_ptr()) };
            }
        }
        put(findings, report.findings.len() as u64, "findings is null")
    })
}

/// Puts bytes at the start of a buffer.
fn fill(buffer: &mut [u8], bytes: &[u8]) -> Result<(), Failure> {
    let start = buffer.get_mut(..bytes.len());
    start
        .ok_or_else(|| Failure::range(bytes.len()))?
        .copy_from_slice(bytes);
    Ok(())
}

/// The image of a handle.
pub(crate) fn opened(image: Option<&Image>) -> Result<&redwarfs::Image, Failure> {
    image
        .map(|image| &image.0)
        .ok_or_else(|| argument("image is null"))
}

/// Flags that have a meaning.
pub(crate) fn known(flags: u32, known: u32) -> Result<u32, Failure> {
    match flags & !known {
        0 => Ok(flags),
        _ => Err(argument("unknown flags")),
    }
}

/// The options of a caller.
///
/// # Safety
/// The text in them is null or ends with NUL.
unsafe fn reader_options(options: Option<OpenOptions>) -> Result<redwarfs::OpenOptions, Failure> {
    let mut chosen = redwarfs::OpenOptions::default();
    let Some(options) = options else {
        return Ok(chosen);
    };
    let all = REDWARFS_CHECK | REDWARFS_NO_VERIFY | REDWARFS_NO_READAHEAD | REDWARFS_OFFSET;
    let flags = known(options.flags, all)?;
    chosen.check = flags & REDWARFS_CHECK != 0;
    chosen.trust_blocks = flags & REDWARFS_NO_VERIFY != 0;
    if flags & REDWARFS_NO_READAHEAD != 0 {
        chosen.cache.seq_detector = 0;
        // A value above 1 never finishes a block in the background.
        chosen.cache.partial_ratio = 2.0;
    }
    if flags & REDWARFS_OFFSET != 0 {
        chosen.offset = ImageOffset::At(options.offset);
    }
    if options.threads != 0 {
        chosen.cache.workers = options.threads.min(1024) as usize;
    }
    if options.cache_size != 0 {
        chosen.cache.size = options.cache_size;
    }
    chosen.image_size = Some(options.image_size).filter(|&size| size != 0);
    if !options.reserved.is_null() {
        return Err(argument("options->reserved is not null"));
    }
    if !options.verification.is_null() {
        // SAFETY: promised by the caller.
        let text = unsafe { border::text(options.verification, "options->verification") }?;
        let text =
            str::from_utf8(text).map_err(|_| argument("options->verification is not UTF-8"))?;
        chosen.verification = redwarfs::verification(text)?;
    }
    Ok(chosen)
}

fn give(
    place: Option<&mut MaybeUninit<*mut Image>>,
    image: redwarfs::Image,
) -> Result<(), Failure> {
    let place = place.ok_or_else(|| argument("image is null"))?;
    place.write(Box::into_raw(Box::new(Image(image))));
    Ok(())
}

fn give_source(
    place: Option<&mut MaybeUninit<*mut Image>>,
    source: Arc<dyn Source>,
    options: &redwarfs::OpenOptions,
) -> Result<(), Failure> {
    let image = redwarfs::reader::Image::from_source(source, options);
    let image = image.map_err(|source| redwarfs::Error::Open {
        path: PathBuf::new(),
        source,
    })?;
    give(place, image.into())
}

impl From<Stat> for Attributes {
    fn from(stat: Stat) -> Self {
        Self {
            size: stat.size,
            allocated: stat.allocated,
            rdev: stat.rdev,
            atime: stat.atime.sec,
            mtime: stat.mtime.sec,
            ctime: stat.ctime.sec,
            atime_nsec: stat.atime.nsec,
            mtime_nsec: stat.mtime.nsec,
            ctime_nsec: stat.ctime.nsec,
            inode: stat.ino.0,
            mode: stat.mode,
            links: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            reserved: [0; 4],
        }
    }
}
