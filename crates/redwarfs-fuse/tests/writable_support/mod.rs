//! Random programs that change a tree, and pictures of trees.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use redwarfs_fuse::{Layer, MountOptions};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, Timespec, Timestamps, XattrFlags, renameat_with,
    utimensat,
};

/// Numbers that look random, the same for the same seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Options of a mount with its layer in a directory.
pub fn layered(dir: &Path) -> MountOptions {
    // Others must not reach the copies of a driver with privileges.
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(dir, private).expect("chmod");
    let mut options = MountOptions::default();
    options.layer = Some(Layer::Directory(dir.to_owned()));
    options.flags.nodev = false;
    options
}

/// A step of a program. Handles are numbers of files that it has open.
#[derive(Debug, Clone)]
pub enum Step {
    Create(PathBuf, u32),
    Open(PathBuf, i32),
    Write(usize, u64, usize, u8),
    Append(PathBuf, usize, u8),
    ReadAt(usize, u64, usize),
    Resize(usize, u64),
    Allocate(usize, u64, u64),
    Sync(usize),
    Close(usize),
    Stat(usize),
    Read(PathBuf),
    Truncate(PathBuf, u64),
    MakeDir(PathBuf, u32),
    RemoveDir(PathBuf),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf),
    RenameNew(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    Symlink(PathBuf, PathBuf),
    Fifo(PathBuf),
    Mode(PathBuf, u32),
    Own(PathBuf, u32, u32),
    Times(PathBuf, i64),
    SetXattr(PathBuf, u8, usize),
    RemoveXattr(PathBuf, u8),
    List(PathBuf),
}

fn path(random: &mut Random) -> PathBuf {
    // Most of these exist in the image, in directories of the image.
    let dirs = [
        "", "", "dir", "sub", "dir/sub", "dir/dir", "sub/sub", "new", "sub/new",
    ];
    let names = ["a", "a", "b", "b", "c", "dir", "sub", "new"];
    let mut path = PathBuf::from(dirs[random.below(9) as usize]);
    path.push(names[random.below(8) as usize]);
    path
}

impl Step {
    /// A random step of a program that has `open` files open.
    pub fn random(random: &mut Random, open: usize) -> Self {
        let size = |random: &mut Random| match random.below(4) {
            0 => random.below(200_000) as usize,
            _ => random.below(3000) as usize,
        };
        let handle = |random: &mut Random| random.below(open.max(1) as u64) as usize;
        let byte = |random: &mut Random| random.below(256) as u8;
        let modes = [0o644, 0o600, 0o755, 0o4755, 0o2755, 0o1777, 0o400, 0];
        let mode = |random: &mut Random| modes[random.below(8) as usize];
        match random.below(34) {
            0 | 1 => Self::Create(path(random), mode(random)),
            2..=4 => {
                let flags = [
                    libc::O_RDONLY,
                    libc::O_RDWR,
                    libc::O_WRONLY,
                    libc::O_RDWR | libc::O_TRUNC,
                    libc::O_RDWR | libc::O_CREAT,
                    libc::O_RDWR | libc::O_APPEND,
                ];
                Self::Open(path(random), flags[random.below(6) as usize])
            }
            5 | 6 => {
                let at = random.below(150_000);
                Self::Write(handle(random), at, size(random), byte(random))
            }
            7 => Self::Append(path(random), size(random), byte(random)),
            8 => Self::ReadAt(handle(random), random.below(150_000), size(random)),
            9 => Self::Resize(handle(random), random.below(120_000)),
            10 => Self::Allocate(
                handle(random),
                random.below(90_000),
                1 + random.below(90_000),
            ),
            11 => Self::Sync(handle(random)),
            12 => Self::Close(handle(random)),
            13 => Self::Stat(handle(random)),
            14 => Self::Read(path(random)),
            15 => Self::Truncate(path(random), random.below(120_000)),
            16 | 17 => Self::MakeDir(path(random), mode(random)),
            18 | 19 => Self::RemoveDir(path(random)),
            20 | 21 => Self::Unlink(path(random)),
            22..=24 => Self::Rename(path(random), path(random)),
            25 => Self::RenameNew(path(random), path(random)),
            26 => Self::Link(path(random), path(random)),
            27 => Self::Symlink(path(random), path(random)),
            28 => Self::Fifo(path(random)),
            29 => Self::Mode(path(random), mode(random)),
            30 => Self::Own(path(random), random.below(3) as u32, random.below(3) as u32),
            31 => Self::Times(path(random), random.below(1_000_000) as i64),
            32 => match random.below(3) {
                0 => Self::RemoveXattr(path(random), random.below(3) as u8),
                _ => Self::SetXattr(path(random), random.below(3) as u8, size(random) % 900),
            },
            _ => Self::List(path(random)),
        }
    }
}

fn rustix<T>(result: rustix::io::Result<T>) -> io::Result<String> {
    Ok(result.map(|_| String::new())?)
}

fn says<T>(result: io::Result<T>) -> io::Result<String> {
    result.map(|_| String::new())
}

/// A number that differs for different data.
pub fn digest(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn xattr_name(number: u8) -> String {
    format!("user.x{number}")
}

fn contents(file: &File, at: u64, size: usize) -> io::Result<String> {
    let mut data = vec![0; size];
    let mut done = 0;
    while done < size {
        match file.read_at(&mut data[done..], at + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(format!("{done} {:x}", digest(&data[..done])))
}

/// Carries out a step below `root`. Returns what the program sees.
pub fn run(root: &Path, open: &mut Vec<File>, step: &Step) -> io::Result<String> {
    let at = |path: &PathBuf| root.join(path);
    let file = |open: &Vec<File>, handle: usize| -> io::Result<File> {
        let file = open.get(handle).ok_or(io::ErrorKind::Other)?;
        file.try_clone()
    };
    match step {
        Step::Create(path, mode) => {
            let made = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(*mode)
                .open(at(path))?;
            open.push(made);
            Ok(String::new())
        }
        Step::Open(path, flags) => {
            let access = flags & libc::O_ACCMODE;
            let opened = OpenOptions::new()
                .read(access != libc::O_WRONLY)
                .write(access != libc::O_RDONLY)
                .truncate(flags & libc::O_TRUNC != 0)
                .create(flags & libc::O_CREAT != 0)
                .custom_flags((flags & libc::O_APPEND) | libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(at(path))?;
            let size = opened.metadata()?;
            open.push(opened);
            Ok(match size.is_file() {
                true => size.len().to_string(),
                false => String::new(),
            })
        }
        Step::Write(handle, offset, size, byte) => {
            says(file(open, *handle)?.write_all_at(&vec![*byte; *size], *offset))
        }
        Step::Append(path, size, byte) => {
            let file = OpenOptions::new()
                .append(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(at(path))?;
            let mut file = file;
            says(io::Write::write_all(&mut file, &vec![*byte; *size]))
        }
        Step::ReadAt(handle, offset, size) => contents(&file(open, *handle)?, *offset, *size),
        Step::Resize(handle, size) => says(file(open, *handle)?.set_len(*size)),
        Step::Allocate(handle, offset, size) => {
            let file = file(open, *handle)?;
            rustix(rustix::fs::fallocate(
                &file,
                FallocateFlags::empty(),
                *offset,
                *size,
            ))
        }
        Step::Sync(handle) => {
            let file = file(open, *handle)?;
            match file.metadata()?.is_file() {
                true => says(file.sync_all()),
                false => Ok(String::new()),
            }
        }
        Step::Close(handle) => {
            if *handle < open.len() {
                open.swap_remove(*handle);
            }
            Ok(String::new())
        }
        Step::Stat(handle) => {
            let meta = file(open, *handle)?.metadata()?;
            Ok(match meta.is_dir() {
                true => format!("{:o}", meta.mode()),
                false => format!("{:o} {} {}", meta.mode(), meta.len(), meta.nlink()),
            })
        }
        Step::Read(path) => {
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(at(path))?;
            match file.metadata()?.is_file() {
                true => contents(&file, 0, 400_000),
                false => Ok(String::new()),
            }
        }
        Step::Truncate(path, size) => {
            let name = std::ffi::CString::new(at(path).as_os_str().as_bytes())?;
            // A fifo cannot be truncated, and a link is followed on both sides alike.
            match fs::symlink_metadata(at(path))?.is_file() {
                true => {
                    let file = OpenOptions::new()
                        .write(true)
                        .open(OsStr::from_bytes(name.as_bytes()))?;
                    says(file.set_len(*size))
                }
                false => Ok(String::new()),
            }
        }
        Step::MakeDir(path, mode) => {
            let made = rustix::fs::mkdir(at(path), rustix::fs::Mode::from_raw_mode(*mode));
            rustix(made)
        }
        Step::RemoveDir(path) => says(fs::remove_dir(at(path))),
        Step::Unlink(path) => says(fs::remove_file(at(path))),
        Step::Rename(from, to) => says(fs::rename(at(from), at(to))),
        Step::RenameNew(from, to) => rustix(renameat_with(
            CWD,
            at(from),
            CWD,
            at(to),
            RenameFlags::NOREPLACE,
        )),
        Step::Link(from, to) => says(fs::hard_link(at(from), at(to))),
        Step::Symlink(target, path) => says(std::os::unix::fs::symlink(target, at(path))),
        Step::Fifo(path) => rustix(rustix::fs::mknodat(
            CWD,
            at(path),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o640),
            0,
        )),
        Step::Mode(path, mode) => match fs::symlink_metadata(at(path))?.is_symlink() {
            true => Ok(String::new()),
            false => says(fs::set_permissions(
                at(path),
                fs::Permissions::from_mode(*mode),
            )),
        },
        Step::Own(path, uid, gid) => {
            says(std::os::unix::fs::lchown(at(path), Some(*uid), Some(*gid)))
        }
        Step::Times(path, time) => {
            let time = Timespec {
                tv_sec: *time,
                tv_nsec: 123,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix(utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW))
        }
        Step::SetXattr(path, number, size) => rustix(rustix::fs::lsetxattr(
            at(path),
            xattr_name(*number),
            &vec![b'v'; *size],
            XattrFlags::empty(),
        )),
        Step::RemoveXattr(path, number) => {
            rustix(rustix::fs::lremovexattr(at(path), xattr_name(*number)))
        }
        Step::List(path) => {
            let mut names = fs::read_dir(at(path))?
                .map(|entry| {
                    let entry = entry?;
                    let file_type = entry.file_type()?;
                    Ok(format!("{:?} {file_type:?}", entry.file_name()))
                })
                .collect::<io::Result<Vec<_>>>()?;
            names.sort();
            Ok(names.join(" "))
        }
    }
}

/// What a tree shows, path by path.
pub type Picture = BTreeMap<PathBuf, String>;

/// All of a tree that programs see, but numbers of inodes, and times of changes in the last years.
pub fn picture(root: &Path) -> Picture {
    let mut all = Picture::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        let here = root.join(&path);
        let meta = fs::symlink_metadata(&here).unwrap_or_else(|e| panic!("{here:?}: {e}"));
        let kind = meta.file_type();
        let mut text = format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid());
        // Writing to a pipe changes no times in a FUSE file system.
        if meta.mtime() < 1_000_000_000 && !kind.is_fifo() {
            text += &format!(" at {}.{}", meta.mtime(), meta.mtime_nsec());
        }
        if kind.is_dir() {
            for entry in fs::read_dir(&here).unwrap_or_else(|e| panic!("{here:?}: {e}")) {
                todo.push(path.join(entry.expect("an entry").file_name()));
            }
        } else {
            text += &format!(" links {}", meta.nlink());
        }
        if kind.is_file() {
            let data = fs::read(&here).unwrap_or_else(|e| panic!("{here:?}: {e}"));
            assert_eq!(data.len() as u64, meta.len(), "{here:?}");
            text += &format!(" {} {:x}", data.len(), digest(&data));
        }
        if kind.is_symlink() {
            text += &format!(" {:?}", fs::read_link(&here).expect("a link"));
        }
        if kind.is_char_device() || kind.is_block_device() {
            text += &format!(" {}", meta.rdev());
        }
        if kind.is_file() || kind.is_dir() {
            text += &xattrs(&here);
        }
        all.insert(path, text);
    }
    all
}

/// The extended attributes of users.
fn xattrs(path: &Path) -> String {
    let mut text = String::new();
    for number in 0..3 {
        let mut value = [0; 1000];
        if let Ok(size) = rustix::fs::lgetxattr(path, xattr_name(number), &mut value) {
            text += &format!(" x{number}={size}");
        }
    }
    text
}

/// Fails with the first difference of two trees.
pub fn assert_same(what: &str, found: &Picture, expected: &Picture) {
    for (path, text) in expected {
        assert_eq!(found.get(path), Some(text), "{what}: {path:?}");
    }
    for path in found.keys() {
        assert!(expected.contains_key(path), "{what}: {path:?} is too much");
    }
}
