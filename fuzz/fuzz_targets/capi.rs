#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
// For its functions, which the code in C calls.
use redwarfs_capi as _;
use redwarfs_testkit::fuzz::mutators;

unsafe extern "C" {
    fn redwarfs_fuzz_use(data: *const u8, length: usize);
}

fuzz_target!(|data: &[u8]| {
    // SAFETY: the function reads `length` bytes from `data`, which are there, and keeps no pointer.
    unsafe { redwarfs_fuzz_use(data.as_ptr(), data.len()) }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutators::image(data, size, max_size, seed, &mut fuzzer_mutate)
});
