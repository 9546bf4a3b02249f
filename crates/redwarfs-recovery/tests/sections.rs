//! Which sections of a program in front of an image count as those that tools for AppImages write into.

use redwarfs_format::elf::{ElfSection, appimage};

#[test]
fn sections_that_do_not_fit_do_not_count() {
    let all = |sections: &[(&str, u64, u64)], image: u64| {
        let file = redwarfs_testkit::program::elf(sections);
        let read = |at: u64, out: &mut [u8]| {
            let rest = usize::try_from(at).ok().and_then(|at| file.get(at..));
            let bytes = rest.and_then(|rest| rest.get(..out.len()));
            out.copy_from_slice(bytes.ok_or(std::io::ErrorKind::UnexpectedEof)?);
            Ok(())
        };
        let found = appimage::sections(&read, image, &appimage::ALL);
        let place = |section: &ElfSection| (section.offset, section.size);
        found.iter().map(place).collect::<Vec<_>>()
    };
    let both = [(".sig_key", 500, 80), (".upd", 0, 9), (".upd_info", 100, 9)];
    assert_eq!(all(&both, 580), [(100, 9), (500, 80)]);
    assert_eq!(all(&both, 579), [(100, 9)]);
    let hostile = [
        (".upd_info", u64::MAX, 2),
        (".sha256_sig", 0, 0),
        (".sig_key", 7, 1 << 40),
    ];
    assert_eq!(all(&hostile, u64::MAX), []);
    let overlap = [(".upd_info", 100, 10), (".sig_key", 109, 10)];
    assert_eq!(all(&overlap, 1000), [(100, 10)]);
}
