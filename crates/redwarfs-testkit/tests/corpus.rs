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
            // Every beginning, too, but not of long inputs at every byte.
            let step = input.len() / 200 + 1;
            for end in (0..input.len()).step_by(step).chain([input.len()]) {
                target(&input[..end]);
            }
        }
    }
}
