//! Systems that answer one call with less than another, as emulators of a processor do.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support;
use crate::support::MKDWARFS;
use redwarfs_testkit::skip;

/// Makes `fstat` fail for a program that is about to start. Emulators answer it without nanoseconds,
/// or with other device numbers; whoever relies on it sees something else than in a listing.
fn without_fstat(command: &mut Command) -> &mut Command {
    let refuse = || {
        let number = u32::try_from(libc::SYS_fstat).unwrap_or(u32::MAX);
        let statement = |code: u32, k: u32, jt, jf| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let mut program = [
            // The number of the call.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
            statement(
                libc::BPF_RET | libc::BPF_K,
                libc::SECCOMP_RET_ERRNO | libc::EIO.unsigned_abs(),
                0,
                0,
            ),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let filter = libc::sock_fprog {
            len: 4,
            filter: program.as_mut_ptr(),
        };
        // SAFETY: both calls change this process only, and the filter outlives them.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) != 0
        };
        if failed {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(refuse) }
}

#[test]
fn files_that_stay_the_same_have_not_changed() {
    let test = "files_that_stay_the_same_have_not_changed";
    let loads = without_fstat(Command::new(MKDWARFS).arg("--version")).output();
    if !loads.is_ok_and(|output| output.status.success()) {
        return skip(test, "programs cannot be loaded without fstat here");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("sub")).expect("mkdir");
    for name in ["one", "two", "sub/three"] {
        std::fs::write(tree.join(name), name.repeat(1000)).expect("write");
    }
    // The output is below the input, and directories are compared with the device of the root.
    let image = tree.join("out.dwarfs");
    let tree = tree.to_str().expect("a plain path");
    for more in [&[][..], &["--one-file-system"]] {
        let output = without_fstat(
            Command::new(MKDWARFS)
                .args(["-l1", "-i", tree, "-o", "-"])
                .args(more),
        )
        .stdout(File::create(&image).expect("create"))
        .output()
        .expect("the program can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(!text.contains("has changed"), "{text}");
        let listed = support::must(support::DWARFSCK, [OsStr::new("-l"), image.as_os_str()]);
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(
            listed.contains("sub/three") && listed.contains("two"),
            "{listed}"
        );
        assert!(!listed.contains("out.dwarfs"), "{listed}");
    }
}
