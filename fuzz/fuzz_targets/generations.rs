#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use redwarfs_testkit::fuzz::{self, mutators};

fuzz_target!(|data: &[u8]| fuzz::generations(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutators::image(data, size, max_size, seed, &mut fuzzer_mutate)
});
