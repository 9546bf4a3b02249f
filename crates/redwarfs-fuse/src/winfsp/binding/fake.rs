//! A fake of WinFsp for tests: functions in the place of those of the library, which drive the callbacks
//! as the library does.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use crate::winfsp::binding::Functions;
use crate::winfsp::binding::abi::{
    Boolean, DIR_INFO_HEAD, FileInfo, FileSystem, Interface, NtStatus, VolumeInfo, VolumeParams,
    function,
};
use crate::winfsp::status::Status;

/// The object behind a pointer to a file system.
#[repr(C)]
struct Object {
    head: FileSystem,
    interface: *const Interface,
    device: String,
    params: VolumeParams,
    point: Option<String>,
    serves: bool,
}

thread_local! {
    /// The file system that the test of this thread has made.
    static CURRENT: Cell<*mut Object> = const { Cell::new(ptr::null_mut()) };
    /// Mount points that are in use.
    static TAKEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// The code with which the next call for a new file system, or for its threads, ends.
    static REFUSAL: Cell<[Status; 2]> = const { Cell::new([Status::SUCCESS; 2]) };
}

/// # Safety
/// `text` ends with NUL.
unsafe fn string(text: *const u16) -> String {
    let mut units = Vec::new();
    // SAFETY: the caller promises a NUL.
    unsafe {
        while *text.add(units.len()) != 0 {
            units.push(*text.add(units.len()));
        }
    }
    String::from_utf16(&units).unwrap()
}

unsafe extern "system" fn create(
    device: *mut u16,
    params: *const VolumeParams,
    interface: *const Interface,
    out: *mut *mut FileSystem,
) -> NtStatus {
    let refusal = REFUSAL.get()[0];
    if refusal != Status::SUCCESS {
        return refusal.0;
    }
    // SAFETY: the arguments are as the function is documented.
    unsafe {
        let object = Box::new(Object {
            head: FileSystem {
                version: 0,
                user_context: ptr::null_mut(),
            },
            interface,
            device: string(device),
            params: (*params).clone(),
            point: None,
            serves: false,
        });
        let object = Box::into_raw(object);
        CURRENT.set(object);
        *out = object.cast();
    }
    0
}

unsafe extern "system" fn delete(fs: *mut FileSystem) {
    CURRENT.set(ptr::null_mut());
    // SAFETY: `create` made the object.
    let object = unsafe { Box::from_raw(fs.cast::<Object>()) };
    assert!(object.point.is_none() && !object.serves);
}

unsafe extern "system" fn set_mount_point(fs: *mut FileSystem, point: *mut u16) -> NtStatus {
    // SAFETY: `create` made the object, and the text ends with NUL.
    let (object, point) = unsafe { (&mut *fs.cast::<Object>(), string(point)) };
    if TAKEN.with_borrow(|taken| taken.contains(&point)) {
        return Status::OBJECT_NAME_COLLISION.0;
    }
    object.point = Some(point);
    0
}

unsafe extern "system" fn remove_mount_point(fs: *mut FileSystem) {
    // SAFETY: `create` made the object.
    unsafe { (*fs.cast::<Object>()).point = None };
}

unsafe extern "system" fn start_dispatcher(fs: *mut FileSystem, threads: u32) -> NtStatus {
    let refusal = REFUSAL.get()[1];
    if refusal != Status::SUCCESS {
        return refusal.0;
    }
    assert_eq!(threads, 0);
    // SAFETY: `create` made the object.
    unsafe { (*fs.cast::<Object>()).serves = true };
    0
}

unsafe extern "system" fn stop_dispatcher(fs: *mut FileSystem) {
    // SAFETY: `create` made the object.
    unsafe { (*fs.cast::<Object>()).serves = false };
}

/// Size of the mark at the end of a directory.
const END: usize = 2;

unsafe extern "system" fn add_dir_info(
    entry: *const c_void,
    buffer: *mut c_void,
    length: u32,
    done: *mut u32,
) -> Boolean {
    // SAFETY: the entry has the size that is in it, the buffer has `length` bytes, of which `done` are used.
    unsafe {
        let size = match entry.is_null() {
            true => END,
            false => usize::from(entry.cast::<u16>().read()),
        };
        let start = (*done as usize).next_multiple_of(8);
        if start + size > length as usize {
            return 0;
        }
        let place = buffer.cast::<u8>().add(start);
        match entry.is_null() {
            true => place.write_bytes(0, size),
            false => place.copy_from_nonoverlapping(entry.cast(), size),
        }
        *done = (start + size) as u32;
    }
    1
}

/// The result of a request of which a part is answered by the name of another file.
#[repr(C)]
struct IoStatus {
    status: usize,
    information: usize,
}

unsafe extern "system" fn resolve_reparse_points(
    fs: *mut FileSystem,
    by_name: function::GetReparsePointByName,
    context: *mut c_void,
    path: *mut u16,
    index: u32,
    last: Boolean,
    status: *mut c_void,
    buffer: *mut c_void,
    size: *mut usize,
) -> NtStatus {
    // SAFETY: the arguments are as the function is documented.
    unsafe {
        assert_eq!(index, 0);
        let path = string(path);
        let mut ends: Vec<usize> = path.match_indices('\\').skip(1).map(|(at, _)| at).collect();
        if last != 0 {
            ends.push(path.len());
        }
        for end in ends {
            let mut prefix: Vec<u16> = path[..end].encode_utf16().chain([0]).collect();
            let at = prefix.as_mut_ptr();
            if by_name(fs, context, at, 0, ptr::null_mut(), ptr::null_mut()) != 0 {
                continue;
            }
            let mut data = vec![0_u8; 16 << 10];
            let mut length = data.len();
            let done = by_name(
                fs,
                context,
                at,
                0,
                data.as_mut_ptr().cast(),
                &raw mut length,
            );
            assert_eq!(done, 0);
            let (target, _, flags) = crate::winfsp::reparse::tests::parse_symlink(&data[..length]);
            assert_eq!(flags, 1);
            let parent = &path[..path[..end].rfind('\\').unwrap() + 1];
            let whole = match target.starts_with('\\') {
                true => format!("{target}{}", &path[end..]),
                false => format!("{parent}{target}{}", &path[end..]),
            };
            let units: Vec<u8> = whole.encode_utf16().flat_map(u16::to_le_bytes).collect();
            assert!(units.len() <= *size);
            buffer
                .cast::<u8>()
                .copy_from_nonoverlapping(units.as_ptr(), units.len());
            *size = units.len();
            status.cast::<IoStatus>().write(IoStatus {
                status: Status::REPARSE.0 as usize,
                information: 0,
            });
            return Status::REPARSE.0;
        }
    }
    Status::OBJECT_NAME_NOT_FOUND.0
}

/// The functions of the fake.
pub(in crate::winfsp) fn functions() -> Arc<Functions> {
    Arc::new(Functions {
        create,
        delete,
        set_mount_point,
        remove_mount_point,
        start_dispatcher,
        stop_dispatcher,
        add_dir_info,
        resolve_reparse_points,
        #[cfg(windows)]
        _library: None,
    })
}

/// Lets these mount points be in use.
pub(in crate::winfsp) fn take(points: &[&str]) {
    TAKEN.set(points.iter().map(|&point| point.to_owned()).collect());
}

/// Lets the next file system, or its threads, be refused.
pub(in crate::winfsp) fn refuse(create: Status, start: Status) {
    REFUSAL.set([create, start]);
}

/// Whether there is a file system.
pub(in crate::winfsp) fn is_there() -> bool {
    !CURRENT.get().is_null()
}

/// Sends requests to the file system that the test of this thread has made.
pub(in crate::winfsp) struct Requests(*mut Object);

/// An open file or directory; closed at the end.
pub(in crate::winfsp) struct Handle<'a> {
    requests: &'a Requests,
    context: *mut c_void,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        let close = self.requests.interface().close.unwrap();
        // SAFETY: the context comes from `open`.
        unsafe { close(self.requests.0.cast(), self.context) };
    }
}

fn units(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

impl Requests {
    pub(in crate::winfsp) fn new() -> Self {
        assert!(is_there());
        let requests = Self(CURRENT.get());
        assert!(requests.object().serves);
        requests
    }

    fn object(&self) -> &Object {
        // SAFETY: tests drop the requests before the mount.
        unsafe { &*self.0 }
    }

    fn interface(&self) -> &Interface {
        // SAFETY: the callbacks are static.
        unsafe { &*self.object().interface }
    }

    pub(in crate::winfsp) fn device(&self) -> &str {
        &self.object().device
    }

    pub(in crate::winfsp) fn params(&self) -> &VolumeParams {
        &self.object().params
    }

    pub(in crate::winfsp) fn point(&self) -> Option<&str> {
        self.object().point.as_deref()
    }

    pub(in crate::winfsp) fn volume_info(&self) -> VolumeInfo {
        let mut info = VolumeInfo::default();
        let get = self.interface().get_volume_info.unwrap();
        // SAFETY: the callback fills the structure.
        assert_eq!(unsafe { get(self.0.cast(), &raw mut info) }, 0);
        info
    }

    /// Attributes and security descriptor of a path. Asks for the size first, as the library may.
    pub(in crate::winfsp) fn security(&self, path: &str) -> Result<(u32, Vec<u8>), Status> {
        let get = self.interface().get_security_by_name.unwrap();
        let mut path = units(path);
        let (mut attributes, mut size) = (77, 0);
        let mut small = 0_u8;
        // SAFETY: each place is valid or null, and the size that of the buffer.
        let status = unsafe {
            let small = (&raw mut small).cast();
            get(
                self.0.cast(),
                path.as_mut_ptr(),
                &raw mut attributes,
                small,
                &raw mut size,
            )
        };
        if Status(status) == Status::REPARSE {
            assert_eq!(attributes, 0);
            return Err(Status::REPARSE);
        }
        if status != Status::BUFFER_OVERFLOW.0 {
            return Err(Status(status));
        }
        let mut descriptor = vec![0_u8; size];
        // SAFETY: as above.
        let status = unsafe {
            let buffer = descriptor.as_mut_ptr().cast();
            get(
                self.0.cast(),
                path.as_mut_ptr(),
                ptr::null_mut(),
                buffer,
                &raw mut size,
            )
        };
        assert_eq!((status, size), (0, descriptor.len()));
        // SAFETY: as above. With null, only the existence is asked for.
        let status = unsafe {
            let none = ptr::null_mut();
            get(
                self.0.cast(),
                path.as_mut_ptr(),
                ptr::null_mut(),
                none,
                ptr::null_mut(),
            )
        };
        assert_eq!(status, 0);
        Ok((attributes, descriptor))
    }

    pub(in crate::winfsp) fn open(
        &self,
        path: &str,
        rights: u32,
    ) -> Result<(Handle<'_>, FileInfo), Status> {
        let open = self.interface().open.unwrap();
        let mut context = ptr::null_mut();
        let mut info = FileInfo::default();
        let mut path = units(path);
        // SAFETY: the text ends with NUL, and the places are valid.
        let status = unsafe {
            open(
                self.0.cast(),
                path.as_mut_ptr(),
                0,
                rights,
                &raw mut context,
                &raw mut info,
            )
        };
        Status(status).check()?;
        assert!(!context.is_null());
        let handle = Handle {
            requests: self,
            context,
        };
        assert_eq!(handle.info(), Ok(info));
        Ok((handle, info))
    }

    /// The path that the file system gives for one with links.
    pub(in crate::winfsp) fn resolve(&self, path: &str, last: bool) -> Result<String, Status> {
        let resolve = self.interface().resolve_reparse_points.unwrap();
        let mut status = IoStatus {
            status: 0,
            information: 1,
        };
        let mut buffer = vec![0_u8; 4096];
        let mut size = buffer.len();
        let mut path = units(path);
        // SAFETY: the text ends with NUL, and the places are valid.
        let done = unsafe {
            let path = path.as_mut_ptr();
            let (status, data) = ((&raw mut status).cast(), buffer.as_mut_ptr().cast());
            resolve(
                self.0.cast(),
                path,
                0,
                last.into(),
                status,
                data,
                &raw mut size,
            )
        };
        Status(done).check()?;
        assert_eq!(
            (status.status, status.information),
            (Status::REPARSE.0 as usize, 0)
        );
        let pairs = buffer[..size].chunks_exact(2);
        let units: Vec<u16> = pairs
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .collect();
        Ok(String::from_utf16(&units).unwrap())
    }

    /// The answers to all requests to change something.
    pub(in crate::winfsp) fn changes(&self, handle: &Handle<'_>) -> Vec<NtStatus> {
        let callbacks = self.interface();
        let (fs, context) = (self.0.cast(), handle.context);
        let none = ptr::null_mut();
        let mut name = units("\\x");
        let name = name.as_mut_ptr();
        let (mut made, mut done) = (ptr::null_mut(), 0);
        let (mut info, mut volume) = (FileInfo::default(), VolumeInfo::default());
        let out = &raw mut info;
        // SAFETY: the callbacks refuse without a look at their arguments.
        unsafe {
            vec![
                callbacks.set_volume_label.unwrap()(fs, name, &raw mut volume),
                callbacks.create.unwrap()(fs, name, 0, 0, 0, none, 0, &raw mut made, out),
                callbacks.overwrite.unwrap()(fs, context, 0, 0, 0, out),
                callbacks.write.unwrap()(fs, context, none, 0, 0, 0, 0, &raw mut done, out),
                callbacks.set_basic_info.unwrap()(fs, context, 0, 0, 0, 0, 0, out),
                callbacks.set_file_size.unwrap()(fs, context, 0, 0, out),
                callbacks.can_delete.unwrap()(fs, context, name),
                callbacks.rename.unwrap()(fs, context, name, name, 0),
                callbacks.set_security.unwrap()(fs, context, 0, none),
                callbacks.set_reparse_point.unwrap()(fs, context, name, none, 0),
                callbacks.delete_reparse_point.unwrap()(fs, context, name, none, 0),
            ]
        }
    }

    /// The answer to a request with a context that nothing has.
    pub(in crate::winfsp) fn info_of_nothing(&self, context: usize) -> Status {
        let get = self.interface().get_file_info.unwrap();
        let mut info = FileInfo::default();
        // SAFETY: a context is only a number, and the place is valid.
        Status(unsafe { get(self.0.cast(), context as *mut c_void, &raw mut info) })
    }

    /// Ends the file system as the driver does.
    pub(in crate::winfsp) fn stop(&self, normally: bool) {
        let stopped = self.interface().dispatcher_stopped.unwrap();
        // SAFETY: the callback takes only values.
        unsafe { stopped(self.0.cast(), normally.into()) };
    }
}

impl Handle<'_> {
    pub(in crate::winfsp) fn info(&self) -> Result<FileInfo, Status> {
        let interface = self.requests.interface();
        let (mut info, mut flushed) = (FileInfo::default(), FileInfo::default());
        // SAFETY: the context comes from `open`, and the places are valid.
        let (status, other) = unsafe {
            let fs = self.requests.0.cast();
            (
                interface.get_file_info.unwrap()(fs, self.context, &raw mut info),
                interface.flush.unwrap()(fs, self.context, &raw mut flushed),
            )
        };
        assert_eq!((status, info), (other, flushed));
        Status(status).check().map(|()| info)
    }

    pub(in crate::winfsp) fn security(&self) -> Result<Vec<u8>, Status> {
        let get = self.requests.interface().get_security.unwrap();
        let mut buffer = vec![0_u8; 1024];
        let mut size = buffer.len();
        // SAFETY: the context comes from `open`, and the buffer has the given size.
        let status = unsafe {
            let fs = self.requests.0.cast();
            get(fs, self.context, buffer.as_mut_ptr().cast(), &raw mut size)
        };
        Status(status).check()?;
        buffer.truncate(size);
        Ok(buffer)
    }

    pub(in crate::winfsp) fn read(&self, offset: u64, length: u32) -> Result<Vec<u8>, Status> {
        let read = self.requests.interface().read.unwrap();
        let mut buffer = vec![0xcc_u8; length as usize];
        let mut done = u32::MAX;
        // SAFETY: the context comes from `open`, and the buffer has the given length.
        let status = unsafe {
            let fs = self.requests.0.cast();
            let data = buffer.as_mut_ptr().cast();
            read(fs, self.context, data, offset, length, &raw mut done)
        };
        Status(status).check()?;
        buffer.truncate(done as usize);
        Ok(buffer)
    }

    /// The reparse point, and what a buffer that is one byte too small gets.
    pub(in crate::winfsp) fn reparse_point(&self) -> Result<(Vec<u8>, Status), Status> {
        let get = self.requests.interface().get_reparse_point.unwrap();
        let mut buffer = vec![0_u8; 16 << 10];
        let mut size = buffer.len();
        let fs = self.requests.0.cast();
        // SAFETY: the context comes from `open`, and the buffer has the given size.
        let status = unsafe {
            let data = buffer.as_mut_ptr().cast();
            get(fs, self.context, ptr::null_mut(), data, &raw mut size)
        };
        Status(status).check()?;
        let mut short = size - 1;
        let mut other = vec![0_u8; short];
        // SAFETY: as above.
        let second = unsafe {
            let data = other.as_mut_ptr().cast();
            get(fs, self.context, ptr::null_mut(), data, &raw mut short)
        };
        buffer.truncate(size);
        Ok((buffer, Status(second)))
    }

    /// One part of a listing, and whether it is the last one.
    fn part(
        &self,
        marker: Option<&str>,
        room: u32,
    ) -> Result<(Vec<(String, FileInfo)>, bool), Status> {
        let list = self.requests.interface().read_directory.unwrap();
        let mut marker = marker.map(units);
        // Of numbers, so that entries are aligned.
        let mut buffer = vec![0_u64; room as usize / 8];
        let mut done = u32::MAX;
        // SAFETY: the context comes from `open`, the text ends with NUL, and the buffer has the length.
        let status = unsafe {
            let marker = marker.as_mut().map_or(ptr::null_mut(), Vec::as_mut_ptr);
            let data = buffer.as_mut_ptr().cast();
            let fs = self.requests.0.cast();
            list(
                fs,
                self.context,
                ptr::null_mut(),
                marker,
                data,
                room,
                &raw mut done,
            )
        };
        Status(status).check()?;
        let mut entries = Vec::new();
        let mut at = 0;
        while at < done as usize {
            // SAFETY: entries begin at multiples of 8, and have the size that is in them.
            unsafe {
                let place = buffer.as_ptr().cast::<u8>().add(at);
                let size = usize::from(place.cast::<u16>().read());
                if size == 0 {
                    return Ok((entries, true));
                }
                let info = place.add(8).cast::<FileInfo>().read();
                let name = place.add(DIR_INFO_HEAD).cast::<u16>();
                let name = std::slice::from_raw_parts(name, (size - DIR_INFO_HEAD) / 2);
                entries.push((String::from_utf16_lossy(name), info));
                at = (at + size).next_multiple_of(8);
            }
        }
        Ok((entries, false))
    }

    /// The listing, by requests with buffers of `room` bytes. A second one without entries would be endless.
    pub(in crate::winfsp) fn list(&self, room: u32) -> Result<Vec<(String, FileInfo)>, Status> {
        let mut all: Vec<(String, FileInfo)> = Vec::new();
        loop {
            let marker = all.last().map(|(name, _)| name.clone());
            let (part, complete) = self.part(marker.as_deref(), room)?;
            assert!(complete || !part.is_empty(), "no progress after {marker:?}");
            all.extend(part);
            if complete {
                return Ok(all);
            }
        }
    }

    /// The names of the listing after a name.
    pub(in crate::winfsp) fn names_after(&self, marker: &str) -> Result<Vec<String>, Status> {
        let (part, _) = self.part(Some(marker), 1 << 16)?;
        Ok(part.into_iter().map(|(name, _)| name).collect())
    }
}
