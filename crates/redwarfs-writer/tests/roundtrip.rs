//! Random trees through the builder and back through the reader.

use crate::common::trees::{noise, options, tree};
use crate::common::{build, compare, open};
use proptest::prelude::*;
use redwarfs_writer::{BuildOptions, MemoryNode, MemoryTree};

fn cases() -> u32 {
    std::env::var("REDWARFS_BUILD_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn trees_come_back(tree in tree(), mut options in options()) {
        let (bytes, summary) = build(&options, &tree);
        prop_assert_eq!(summary.errors, 0);
        options.workers = 1;
        // Nothing is kept between the stages, and one block at a time is on its way.
        options.machine_memory = Some(1);
        let (again, _) = build(&options, &tree);
        prop_assert!(again == bytes, "the number of workers changes the image");
        compare(&open(bytes), &tree, &options);
    }
}

#[test]
fn eight_workers_and_one_make_the_same_image() {
    let mut tree = MemoryTree::new();
    for i in 0..300u32 {
        tree.insert(
            format!("f{i}"),
            MemoryNode::file(noise(i / 3, 500 + (i as usize * 37) % 9000)),
        );
    }
    for level in 0..=9 {
        let mut options = BuildOptions::level(level);
        options.block_size_bits = 14;
        let images = [1, 2, 8].map(|workers| {
            options.workers = workers;
            build(&options, &tree).0
        });
        assert!(
            images[0] == images[1] && images[0] == images[2],
            "level {level}"
        );
        compare(&open(images[0].clone()), &tree, &options);
    }
}
