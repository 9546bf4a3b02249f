//! Listings.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use redwarfs::FormatError;
use redwarfs::format::InodeNo;

use crate::border::{guarded, put, run};
use crate::error::{Code, Error, argument};
use crate::image::{Image, opened};

/// A directory that is being listed.
#[derive(Debug)]
pub struct Directory {
    image: redwarfs::Image,
    inode: InodeNo,
    position: u32,
    /// The name of the last entry.
    name: CString,
}

/// An entry of a directory.
///
/// cbindgen:field-names=[name, name_length, inode, type]
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct DirEntry {
    /// The name, with NUL at its end, valid until the next call with the same listing. Null after the
    /// last entry.
    pub name: *const c_char,
    /// Bytes of the name, without NUL.
    pub name_length: usize,
    /// Number of the inode.
    pub inode: u32,
    /// Type, as the bits of `S_IFMT` in `st_mode`.
    pub type_: u32,
}

/// Begins to list a directory, in the order of the names, without `.` and `..`. The listing must be
/// closed with `redwarfs_closedir`. It can outlive the image. One thread at a time may use it.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_opendir(
    image: Option<&Image>,
    inode: u32,
    directory: Option<&mut MaybeUninit<*mut Directory>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let image = opened(image)?;
        let inode = InodeNo(inode);
        image.reader().read_dir(inode)?;
        let listing = Directory {
            image: image.clone(),
            inode,
            position: 0,
            name: CString::default(),
        };
        let place = directory.ok_or_else(|| argument("directory is null"))?;
        place.write(Box::into_raw(Box::new(listing)));
        Ok(())
    })
}

/// The next entry of a listing. After the last one, `entry->name` is null. After an error, the next call
/// returns the entry behind the damaged one.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_readdir(
    directory: Option<&mut Directory>,
    entry: Option<&mut MaybeUninit<DirEntry>>,
    error: Option<&mut *mut Error>,
) -> Code {
    run(error, || {
        let listing = directory.ok_or_else(|| argument("directory is null"))?;
        let reader = listing.image.reader();
        let mut entries = reader.read_dir(listing.inode)?;
        entries.seek(listing.position);
        let next = entries.next();
        listing.position = entries.position();
        let Some(next) = next.transpose()? else {
            let end = DirEntry {
                name: ptr::null(),
                name_length: 0,
                inode: 0,
                type_: 0,
            };
            return put(entry, end, "entry is null");
        };
        let kind = reader.metadata().file_type(next.inode)?;
        if next.name.contains(&b'/') {
            return Err(FormatError::corrupt("a name with a slash").into());
        }
        listing.name = CString::new(next.name.as_ref())
            .map_err(|_| FormatError::corrupt("a name with a NUL"))?;
        let found = DirEntry {
            name: listing.name.as_ptr(),
            name_length: listing.name.as_bytes().len(),
            inode: next.inode.0,
            type_: kind.mode_bits(),
        };
        put(entry, found, "entry is null")
    })
}

/// Ends a listing. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn redwarfs_closedir(directory: Option<Box<Directory>>) {
    guarded((), || drop(directory));
}
