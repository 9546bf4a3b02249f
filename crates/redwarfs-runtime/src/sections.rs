//! Room in the program's file for what tools for AppImages put there, in sections of the names and sizes that they
//! expect.
#![allow(unsafe_code)]

// SAFETY: it is plain data, and the section has nothing else in it.
#[used]
#[unsafe(link_section = ".upd_info")]
static UPDATE_ROOM: [u8; 1024] = [0; 1024];
// SAFETY: it is plain data, and the section has nothing else in it.
#[used]
#[unsafe(link_section = ".sha256_sig")]
static SIGNATURE_ROOM: [u8; 1024] = [0; 1024];
// SAFETY: it is plain data, and the section has nothing else in it.
#[used]
#[unsafe(link_section = ".sig_key")]
static KEY_ROOM: [u8; 8192] = [0; 8192];

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use redwarfs_format::elf::{Elf, appimage};

    #[test]
    fn sections_of_this_program() {
        let file = File::open("/proc/self/exe").unwrap();
        let read = |at: u64, out: &mut [u8]| file.read_exact_at(out, at);
        let elf = Elf::read(&read).unwrap();
        let size = file.metadata().unwrap().len();
        let end = elf.end().unwrap();
        assert!(end <= size && end > size / 2, "{end} of {size}");
        for (name, length) in appimage::ALL.into_iter().zip([1024, 1024, 8192]) {
            let found = elf.section(&read, name).unwrap();
            let mut bytes = vec![1; length];
            read(found.offset, &mut bytes).unwrap();
            assert_eq!((found.size, bytes), (length as u64, vec![0; length]));
        }
        assert_eq!(elf.section(&read, ".upd"), None);
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            assert_eq!(elf.machine(), Some(std::env::consts::ARCH));
        }
    }
}
