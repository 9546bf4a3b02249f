//! Mounting over and over leaves nothing behind. One test in a program of its own, because it counts
//! what the process has.

mod support;

use std::fs;

use redwarfs_fuse::MountOptions;
use support::{Maker, Mount, can_mount, ring_is_offered, wait_until};

/// Threads, open files and mapped ranges of this process.
fn belongings() -> [usize; 3] {
    let entries = |path: &str| fs::read_dir(path).expect(path).count();
    let maps = fs::read_to_string("/proc/self/maps").expect("its memory");
    [
        entries("/proc/self/task"),
        entries("/proc/self/fd"),
        maps.lines()
            .filter(|line| line.contains("io_uring"))
            .count(),
    ]
}

/// Address space of this process in KiB.
fn address_space() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("its state");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("VmSize").parse().expect("a number")
}

#[test]
fn mounting_again_and_again_leaves_nothing() {
    const NAME: &str = "mounting_again_and_again_leaves_nothing";
    if !can_mount(NAME) {
        return;
    }
    let offered = ring_is_offered(NAME);
    let mut maker = Maker::new();
    maker.file("file", vec![7; 60_000]);
    let mut options = MountOptions::default();
    options.uring = true;
    let cycle = || {
        let mut mount = Mount::new(&maker, &options);
        assert_eq!(fs::read(mount.path("file")).expect("readable")[59_999], 7);
        assert_eq!(mount.count("requests over io_uring") > 0, offered);
        if offered {
            assert!(belongings()[2] > 0, "{:?}", belongings());
        }
        mount.unmount();
    };
    // What the first ones leave is for all.
    for _ in 0..5 {
        cycle();
    }
    let before = belongings();
    let space = address_space();
    for _ in 0..50 {
        cycle();
    }
    // A thread that looks after signalled reads ends by itself.
    wait_until("everything is given back", || {
        let now = belongings();
        now.iter().zip(before).all(|(now, before)| *now <= before)
    });
    let grown = address_space().saturating_sub(space);
    // One queue that stays would be 16 MiB, 50 times.
    assert!(grown < 400 << 10, "{grown} KiB more");
}
