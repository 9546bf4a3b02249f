//! What programs see of the contents of files: holes, files that are pushed, reads that stall.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use redwarfs_fuse::MountOptions;
use redwarfs_reader::OpenOptions as ImageOptions;
use rustix::io::Errno;

use crate::small_tree;
use crate::support::{BLOCK, FilePart, Gate, Maker, Mount, can_mount, wait_until};

#[test]
fn seeking_holes_and_data() {
    if !can_mount("seeking_holes_and_data") {
        return;
    }
    let mut maker = small_tree();
    maker.pieces(
        "holes",
        &[
            FilePart::Data(vec![1; 5000]),
            FilePart::Hole(100_000),
            FilePart::Data(vec![2; 10]),
            FilePart::Hole(70),
        ],
    );
    let mount = Mount::new(&maker, &MountOptions::default());
    let file = File::open(mount.path("holes")).expect("readable");
    let seek = |from| rustix::fs::seek(&file, from);
    use rustix::fs::SeekFrom::{Data, Hole};
    assert_eq!(seek(Data(0)), Ok(0));
    assert_eq!(seek(Hole(0)), Ok(5000));
    assert_eq!(seek(Data(5000)), Ok(105_000));
    assert_eq!(seek(Hole(105_001)), Ok(105_010));
    assert_eq!(seek(Data(105_010)), Err(Errno::NXIO));
    assert_eq!(seek(Hole(105_080)), Err(Errno::NXIO));
    let mut data = vec![9; 105_080];
    file.read_exact_at(&mut data, 0).expect("readable");
    assert_eq!(data.iter().map(|&b| u32::from(b)).sum::<u32>(), 5020);
    let plain = Mount::new(&small_tree(), &MountOptions::default());
    let file = File::open(plain.path("plain")).expect("readable");
    assert_eq!(rustix::fs::seek(&file, Hole(3)), Ok(9));
    assert_eq!(rustix::fs::seek(&file, Data(3)), Ok(3));
}

/// Reads all files below a directory in order; returns their contents.
fn read_all(dir: &Path) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("readable")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    names.sort();
    let mut read = Vec::new();
    for name in names {
        fs::metadata(&name).expect("stat");
        read.push(fs::read(name).expect("readable"));
    }
    read
}

fn many_files() -> (Maker, Vec<Vec<u8>>) {
    let mut maker = Maker::new();
    let mut contents = Vec::new();
    maker.dir("d");
    for n in 0..600_usize {
        let data = vec![(n % 251) as u8; n * 7 % 300 + 1];
        maker.file(format!("d/{n:04}"), &data);
        contents.push(data);
    }
    (maker, contents)
}

#[test]
fn files_are_pushed_in_sequence_only() {
    if !can_mount("files_are_pushed_in_sequence_only") {
        return;
    }
    let (maker, contents) = many_files();
    let mut off = MountOptions::default();
    off.push = false;
    let mount = Mount::new(&maker, &off);
    assert_eq!(read_all(&mount.path("d")), contents);
    assert_eq!(mount.count("requests op_read"), 600);
    assert_eq!(mount.count("files pushed"), 0);

    let mount = Mount::new(&maker, &MountOptions::default());
    let names: Vec<_> = fs::read_dir(mount.path("d"))
        .expect("readable")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(names.len(), 600);
    fs::read(mount.path("d/0000")).expect("readable");
    assert_eq!(mount.count("files pushed"), 0, "one file is no sequence");
    fs::read(mount.path("d/0001")).expect("readable");
    wait_until("a window is pushed", || mount.count("files pushed") >= 64);
    let reads = mount.count("requests op_read");
    // The next two are left to the reader.
    for (n, expected) in contents.iter().enumerate().take(68).skip(2) {
        let data = fs::read(mount.path(format!("d/{n:04}"))).expect("readable");
        assert_eq!(data, *expected, "file {n}");
    }
    assert_eq!(
        mount.count("requests op_read"),
        reads + 2,
        "the others were pushed"
    );
    assert_eq!(
        mount.count("files pushed"),
        64,
        "who stops reading stops the pushing"
    );
    // The first file after the window goes on.
    assert_eq!(
        fs::read(mount.path("d/0068")).expect("readable"),
        contents[68]
    );
    wait_until("the next window is pushed", || {
        mount.count("files pushed") >= 128
    });
    assert_eq!(read_all(&mount.path("d")), contents);
    // A file is counted after it was pushed, when a reader may have it already.
    wait_until("each file is read or pushed", || {
        mount.count("requests op_read") + mount.count("files pushed") >= 600
    });

    // Backwards is no sequence.
    let mount = Mount::new(&maker, &MountOptions::default());
    fs::read_dir(mount.path("d")).expect("readable").count();
    for n in (0..600).rev() {
        let data = fs::read(mount.path(format!("d/{n:04}"))).expect("readable");
        assert_eq!(data, contents[n], "file {n}");
    }
    assert_eq!(mount.count("files pushed"), 0);
}

/// What the kernel forgets may be pushed again; nothing is pushed twice before.
#[test]
fn pushing_survives_forgetting_and_unmounting() {
    if !can_mount("pushing_survives_forgetting_and_unmounting") {
        return;
    }
    let (maker, contents) = many_files();
    let mut mount = Mount::new(&maker, &MountOptions::default());
    for _ in 0..3 {
        assert_eq!(read_all(&mount.path("d")), contents);
        let pushed = mount.count("files pushed");
        assert!(pushed <= 600, "{pushed}");
    }
    // An unmount while windows are being pushed.
    let fresh = Mount::new(&maker, &MountOptions::default());
    fs::read_dir(fresh.path("d")).expect("readable").count();
    for n in 0..3 {
        fs::read(fresh.path(format!("d/{n:04}"))).expect("readable");
    }
    drop(fresh);
    mount.unmount();
}

/// Nothing is decoded in order to push it.
#[test]
fn only_decoded_blocks_are_pushed() {
    if !can_mount("only_decoded_blocks_are_pushed") {
        return;
    }
    let mut maker = Maker::new();
    maker.dir("d");
    for n in 0..12 {
        maker.file(format!("d/{n:02}"), vec![n; BLOCK as usize / 4]);
    }
    let mut open = ImageOptions::default();
    open.cache.seq_detector = 0;
    let mount = Mount::with(Gate::new(maker.image().0), &open, &MountOptions::default());
    fs::read_dir(mount.path("d")).expect("readable").count();
    for n in 0..2 {
        fs::read(mount.path(format!("d/{n:02}"))).expect("readable");
    }
    for n in 2..4 {
        fs::read(mount.path(format!("d/{n:02}"))).expect("readable");
    }
    assert!(
        mount.count("files pushed") <= 2,
        "the rest of the first block"
    );
    assert_eq!(mount.count("blocks created"), 1);
}

/// A reader that is killed while the image stalls must not hang.
#[test]
fn a_stalled_read_can_be_killed() {
    if !can_mount("a_stalled_read_can_be_killed") {
        return;
    }
    let mut maker = Maker::new();
    maker
        .file("one", vec![1; BLOCK as usize])
        .file("two", vec![2; BLOCK as usize]);
    let (bytes, starts) = maker.image();
    let gate = Gate::new(bytes);
    let mount = Mount::with(
        Arc::clone(&gate) as Arc<_>,
        &ImageOptions::default(),
        &MountOptions::default(),
    );
    assert_eq!(
        fs::read(mount.path("one")).expect("readable").len(),
        BLOCK as usize
    );
    let second = starts[1] as u64 - 64;
    gate.close(second..second + u64::from(BLOCK));
    for flag in ["iflag=direct", "iflag=nonblock"] {
        let before = mount.count("reads by workers");
        let mut reader = std::process::Command::new("dd")
            .arg(format!("if={}", mount.path("two").display()))
            .args(["of=/dev/null", "bs=4096", "count=1", flag])
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("dd can be started");
        wait_until("the read stalls", || {
            mount.count("reads by workers") > before
        });
        reader.kill().expect("killed");
        wait_until("the reader is gone", || {
            reader.try_wait().expect("a child").is_some()
        });
    }
    // Cached data is still served, and after the stall everything is.
    assert_eq!(fs::read(mount.path("one")).expect("readable")[0], 1);
    gate.open();
    assert_eq!(
        fs::read(mount.path("two")).expect("readable"),
        vec![2; BLOCK as usize]
    );
}

/// A signal that somebody handles ends a read that stalls, but not at once.
#[test]
fn a_stalled_read_can_be_interrupted() {
    if !can_mount("a_stalled_read_can_be_interrupted") {
        return;
    }
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing, so it may run anywhere.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    let mut maker = Maker::new();
    maker.file("one", vec![1; BLOCK as usize]);
    let (bytes, starts) = maker.image();
    let gate = Gate::new(bytes);
    let mount = Mount::with(
        Arc::clone(&gate) as Arc<_>,
        &ImageOptions::default(),
        &MountOptions::default(),
    );
    gate.close(0..starts[0] as u64 + u64::from(BLOCK));
    let path = mount.path("one");
    let (sender, thread_id) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .expect("readable");
        // SAFETY: asks for a number.
        sender.send(unsafe { libc::gettid() }).expect("listened to");
        let mut data = vec![0; 4096];
        file.read_at(&mut data, 0).map_err(|error| error.kind())
    });
    let thread = thread_id.recv().expect("the thread says its number");
    wait_until("the read stalls", || mount.count("reads by workers") > 0);
    // SAFETY: a signal with a handler, to a thread of this process that is not joined yet.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
    wait_until("the read is given up", || reader.is_finished());
    assert_eq!(
        reader.join().expect("no panic"),
        Err(ErrorKind::Interrupted)
    );
    gate.open();
    assert_eq!(fs::read(mount.path("one")).expect("readable")[0], 1);
}

#[test]
fn sparse_files_are_opened_by_request() {
    if !can_mount("sparse_files_are_opened_by_request") {
        return;
    }
    let mut maker = small_tree();
    maker.pieces(
        "holes",
        &[FilePart::Hole(8192), FilePart::Data(vec![1; 10])],
    );
    let opens = |options: &MountOptions| {
        let mount = Mount::new(&maker, options);
        for _ in 0..3 {
            for name in ["plain", "holes"] {
                fs::read(mount.path(name)).expect("readable");
            }
        }
        (
            mount.count("requests op_open"),
            mount.count("requests op_read"),
        )
    };
    let (opened, read) = opens(&MountOptions::default());
    assert_eq!(opened, 6);
    // The plain file stays in the kernel's cache, the sparse one is read each time.
    assert_eq!(read, 1 + 3);
    let mut keep = MountOptions::default();
    keep.cache_sparse = true;
    assert_eq!(opens(&keep), (1, 2));
    let mut drop = MountOptions::default();
    drop.keep_cache = false;
    assert_eq!(opens(&drop), (6, 6));
}
