//! The fuzz targets on the inputs that are stored with them.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use redwarfs_testkit::fuzz;

type Target = fn(&[u8]);

#[test]
fn fuzz_targets_accept_their_corpus() {
    let targets: &[(&str, Target)] = &[
        ("container", fuzz::container),
        ("metadata", fuzz::metadata),
        ("schema", fuzz::schema),
        ("fsst", fuzz::fsst),
        ("history", fuzz::history),
        ("codecs", fuzz::codecs),
        ("image", fuzz::image),
        ("xattrs", fuzz::xattrs),
        ("digests", fuzz::digests),
        ("recovery", fuzz::recovery),
        ("snapshots", fuzz::snapshots),
        ("match_table", fuzz::match_table),
        ("hints", fuzz::hints),
        #[cfg(feature = "extract")]
        ("tar", fuzz::tar),
    ];
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in targets {
        let mut inputs: Vec<_> = std::fs::read_dir(corpus.join(name))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for path in inputs {
            let input = std::fs::read(&path).unwrap();
            println!("{}", path.display());
            // Beginnings, too: many of the inputs that were chosen by hand, some of those that a
            // fuzzer found, whose names are hashes.
            let by_hand = path.file_name().is_some_and(|name| name.len() < 40);
            let step = input.len() / if by_hand { 200 } else { 4 } + 1;
            for end in (0..input.len()).step_by(step).chain([input.len()]) {
                target(&input[..end]);
            }
        }
    }
}
