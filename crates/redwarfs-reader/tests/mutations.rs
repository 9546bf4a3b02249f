//! Images that are damaged in a way that checksums do not show: whatever they contain, using
//! them gives errors or data, never a panic and never endless work.
//!
//! `REDWARFS_MUTATIONS` sets the number of damaged images, `REDWARFS_FIRST_MUTATION` the number
//! of the first one, to repeat a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redwarfs_testkit::mutate::{self, Parts, Rng};
use redwarfs_testkit::{Golden, compat_images, fuzz, golden::golden};

/// Small ones that together use every codec, packing and kind of file.
const IMAGES: [&str; 12] = [
    "empty",
    "one",
    "basic-hollow",
    "basic-default",
    "basic-lzma",
    "basic-brotli",
    "basic-lz4",
    "basic-zstd-small-blocks",
    "basic-no-hardlink-table",
    "bin-categorize",
    "names-pack-all",
    "names-auto",
];

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn damaged_images_never_panic() {
    let wanted = variable("REDWARFS_MUTATIONS", 2000);
    let first = variable("REDWARFS_FIRST_MUTATION", 0);
    // Old releases wrote another model of entries.
    let old = compat_images()
        .into_iter()
        .filter(|g| g.name.starts_with("compat-"))
        .step_by(4);
    let mut bases: Vec<(Golden, Parts)> = IMAGES
        .map(golden)
        .into_iter()
        .chain(old)
        .map(|golden| {
            let parts = Parts::of(&std::fs::read(&golden.image).unwrap());
            (golden, parts)
        })
        .collect();
    bases.sort_by_key(|(_, parts)| parts.0.iter().map(|p| p.payload.len()).sum::<usize>());
    for (golden, parts) in &bases {
        fuzz::image(&parts.assemble());
        assert!(!parts.0.is_empty(), "{}", golden.name);
    }

    // Also counts panics that a thread of a pool catches.
    let panics = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&panics);
    std::panic::set_hook(Box::new(move |info| {
        seen.lock().unwrap().push(info.to_string());
    }));
    let mut failures = Vec::new();
    let (mut opened, mut passed) = (0, 0);
    let mut slowest = (Duration::ZERO, 0);
    for case in first..first + wanted {
        let mut rng = Rng::new(case);
        // The smaller ones, where damage matters more often, are taken more often.
        let at = rng.below(bases.len()).min(rng.below(bases.len()));
        let (golden, parts) = &bases[at];
        let (image, what) = mutate::image(parts, &mut rng);
        let start = Instant::now();
        if let Ok(opens) = catch_unwind(AssertUnwindSafe(|| fuzz::use_image(&image))) {
            opened += u64::from(opens[0]);
            passed += u64::from(opens[1]);
        }
        slowest = slowest.max((start.elapsed(), case));
        let mut panics = panics.lock().unwrap();
        if !panics.is_empty() {
            let text = panics.drain(..).collect::<Vec<_>>().join("; ");
            failures.push(format!("{case}, {what} of {}: {text}", golden.name));
        }
        if failures.len() >= 20 {
            break;
        }
    }
    drop(std::panic::take_hook());
    println!("{opened} opened, {passed} checked, slowest: {slowest:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // The damage is neither without effect nor found at once in nearly all cases.
    if wanted >= 1000 {
        assert!(opened > wanted / 3 && opened < wanted);
        assert!(passed > wanted / 20 && passed < opened);
    }
}
