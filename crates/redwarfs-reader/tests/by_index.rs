//! Images that are opened by their index, without a look at their start, are those that are opened from there.

use std::cell::RefCell;
use std::io;

use redwarfs_format::section::{Container, SectionType};

fn reader(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<()> + '_ {
    move |at, out| {
        let at = usize::try_from(at).unwrap();
        let found = bytes.get(at..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[test]
fn golden_images_are_the_same_by_their_index() {
    let mut found = 0;
    let images = redwarfs_testkit::golden_images().into_iter();
    for golden in images.chain(redwarfs_testkit::compat_images()) {
        let bytes = std::fs::read(&golden.image).unwrap();
        let (size, read) = (bytes.len() as u64, reader(&bytes));
        let Ok(whole) = Container::open(&read, size, 0, None) else {
            continue;
        };
        let touched = RefCell::new(u64::MAX);
        let noting = |at: u64, out: &mut [u8]| {
            touched.replace_with(|least| at.min(*least));
            read(at, out)
        };
        let announced = RefCell::new(Vec::new());
        let announce = |range| announced.borrow_mut().push(range);
        let by_index = Container::open_by_index(&noting, &announce, size, 0, None).unwrap();
        let Some(by_index) = by_index else {
            let has_index = whole.section_of_type(SectionType::SECTION_INDEX).next();
            assert!(
                has_index.is_none() || whole.unused_tail > 0,
                "{}",
                golden.name
            );
            continue;
        };
        found += 1;
        assert_eq!(by_index.sections, whole.sections, "{}", golden.name);
        assert_eq!(by_index.trailers, whole.trailers, "{}", golden.name);
        assert_eq!(
            (
                by_index.version,
                by_index.offset,
                by_index.size,
                by_index.unused_tail
            ),
            (whole.version, whole.offset, whole.size, whole.unused_tail)
        );
        // Everything that was read was announced, or is at the end.
        let first = whole
            .sections
            .iter()
            .find(|section| section.ty != SectionType::BLOCK);
        assert_eq!(
            touched.into_inner(),
            first.unwrap().header_offset,
            "{}",
            golden.name
        );
        assert!(
            announced
                .borrow()
                .iter()
                .any(|range| range.start == first.unwrap().header_offset)
        );
    }
    assert!(found > 20, "{found}");
}

#[test]
fn damaged_ends_are_no_index() {
    let golden = redwarfs_testkit::golden::golden("basic-default");
    let bytes = std::fs::read(&golden.image).unwrap();
    let size = bytes.len() as u64;
    let good = Container::open(&reader(&bytes), size, 0, None).unwrap();
    for at in bytes.len() - 40..bytes.len() {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            let opened = Container::open_by_index(&reader(&bytes), &|_| {}, size, 0, None);
            if let Ok(Some(opened)) = opened {
                assert_eq!(opened.sections, good.sections, "bit {bit} of byte {at}");
            }
        }
    }
    for short in 0..40 {
        let bytes = &bytes[bytes.len() - short..];
        let opened = Container::open_by_index(&reader(bytes), &|_| {}, short as u64, 0, None);
        assert!(!matches!(opened, Ok(Some(_))), "{short}");
    }
    // Another start of the image: its index is elsewhere.
    let opened = Container::open_by_index(&reader(&bytes), &|_| {}, size, 8, None);
    assert!(!matches!(opened, Ok(Some(_))));
}
