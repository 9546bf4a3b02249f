//! The golden images show exactly what their manifests say.

use std::sync::Arc;

use redwarfs_format::Error;
use redwarfs_format::section::SectionType;
use redwarfs_io::MemorySource;
use redwarfs_reader::check::SectionOutcome;
use redwarfs_reader::{CheckOptions, Image, ImageOffset, OpenOptions, VerifyMode};
use redwarfs_testkit::mutate::with_separator;
use redwarfs_testkit::{Fields, Golden, Manifest, compat_images, golden_images};

fn open(golden: &Golden) -> Image {
    let mut options = OpenOptions::default();
    options.check = true;
    Image::open(&golden.image, &options).unwrap_or_else(|e| panic!("{}: {e}", golden.name))
}

fn check(golden: &Golden) {
    let image = open(golden);
    let actual =
        Manifest::from_image(&image, true).unwrap_or_else(|e| panic!("{}: {e}", golden.name));
    golden
        .manifest()
        .assert_same(&actual, Fields::ALL, &golden.name);
}

#[test]
fn images_show_what_their_manifests_say() {
    for golden in golden_images() {
        check(&golden);
    }
}

#[test]
fn images_of_old_releases_show_what_their_manifests_say() {
    for golden in compat_images() {
        check(&golden);
    }
}

/// Images whose symlinks were stored with another separator show the targets of the host.
#[test]
fn targets_from_systems_with_another_separator_are_those_of_the_manifest() {
    let mut converted = 0;
    for golden in golden_images() {
        let want = golden.manifest();
        let mut targets = want.0.values().filter_map(|entry| entry.target.as_ref());
        if !targets.clone().any(|target| target.contains(&b'/'))
            || targets.any(|target| target.contains(&b'\\'))
        {
            continue;
        }
        let image = with_separator(&std::fs::read(&golden.image).unwrap(), b'\\');
        let mut options = OpenOptions::default();
        options.check = true;
        let image = Image::from_source(Arc::new(MemorySource::new(image)), &options).unwrap();
        assert_eq!(image.metadata().preferred_path_separator(), b'\\');
        let shown = Manifest::from_image(&image, false).unwrap();
        let fields = Fields {
            content: false,
            ..Fields::ALL
        };
        want.assert_same(&shown, fields, &golden.name);
        converted += 1;
    }
    assert!(converted > 10, "{converted} images");
}

#[test]
fn paths_and_names_lead_to_the_same_inodes() {
    for golden in golden_images().into_iter().chain(compat_images()) {
        let image = open(&golden);
        let mut listed = 0;
        for item in image.walk() {
            let item = item.unwrap();
            let found = image.find_path(&item.path).unwrap();
            assert_eq!(found, Some(item.inode), "{}: {:?}", golden.name, item.path);
            let mut longer = item.path.clone();
            longer.extend(b"/no such name");
            assert_eq!(image.find_path(&longer).unwrap(), None);
            if let Ok(mut dir) = image.read_dir(item.inode) {
                let count = dir.entry_count();
                let names: Vec<_> = dir.by_ref().map(|e| e.unwrap().name).collect();
                assert!(names.is_sorted(), "{}", golden.name);
                assert_eq!(names.len(), count as usize);
                assert_eq!(dir.position(), count);
                for position in 0..count.min(5) {
                    dir.seek(position);
                    let entry = dir.next().unwrap().unwrap();
                    assert_eq!(entry.name, names[position as usize]);
                    let inode = image.lookup(item.inode, &entry.name).unwrap();
                    assert_eq!(inode, Some(entry.inode));
                }
                dir.seek(u32::MAX);
                assert!(dir.next().is_none());
                listed += count;
                let mut up = item.path.clone();
                up.extend(b"/..");
                assert!(image.find_path(&up).unwrap().is_some());
            } else {
                let e = image.read_dir(item.inode).unwrap_err();
                assert!(e.to_string().contains("not a directory"), "{e}");
                assert!(image.lookup(item.inode, b"x").is_err());
            }
        }
        assert_eq!(
            listed + 1,
            image.metadata().entry_count(),
            "{}",
            golden.name
        );
    }
}

#[test]
fn all_sections_verify() {
    for golden in golden_images().into_iter().chain(compat_images()) {
        let image = open(&golden);
        for (mode, threads) in [(VerifyMode::Fast, 1), (VerifyMode::Integrity, 3)] {
            let mut options = CheckOptions::default();
            options.mode = mode;
            options.threads = threads;
            let report = image.check_sections(&options).unwrap();
            assert!(report.is_ok(), "{}: {report:?}", golden.name);
            for outcome in &report.outcomes {
                match outcome {
                    SectionOutcome::Good if image.container().has_hashes() => {}
                    SectionOutcome::NoHash if !image.container().has_hashes() => {}
                    other => panic!("{}: {other:?}", golden.name),
                }
            }
            assert_eq!(report.outcomes.len(), image.container().sections.len());
            let positions = report.list.sections.iter().map(|l| l.section.position);
            assert!(positions.eq(0..report.outcomes.len() as u32));
        }
    }
}

#[test]
fn histories_and_headers_are_there() {
    let mut with_history = 0;
    for golden in golden_images() {
        let image = open(&golden);
        let history = image.history().unwrap();
        let sections = image.container().section_of_type(SectionType::HISTORY);
        let expected = sections.count();
        assert_eq!(history.entries.len().min(1), expected, "{}", golden.name);
        with_history += expected;
        let header = image.header_bytes().unwrap();
        assert_eq!(header.len() as u64, image.header_len());
        assert_eq!(header.is_empty(), golden.name != "basic-header");
        // With an explicit offset nothing is searched.
        let mut options = OpenOptions::default();
        options.offset = ImageOffset::At(image.header_len());
        Image::open(&golden.image, &options).unwrap();
        if !header.is_empty() {
            let mut options = OpenOptions::default();
            options.offset = ImageOffset::At(0);
            let e = Image::open(&golden.image, &options).unwrap_err();
            assert!(matches!(e, Error::NotAnImage(_)), "{e}");
        }
    }
    assert!(with_history > 20);
}
