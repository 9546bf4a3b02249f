//! What programs on musl get from here, because the C library has it in a slow form: an allocator that
//! serves threads at the same time, and a comparison of more than a byte at a time.
#![allow(unsafe_code)]

use std::ffi::c_int;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Bytes that are compared at a time.
const STEP: usize = 32;

/// The position of the first step, or of the rest, that is not the same in both.
///
/// # Safety
/// `n` bytes can be read at `a` and at `b`.
unsafe fn same_steps(a: *const u8, b: *const u8, n: usize) -> usize {
    let mut at = 0;
    while at + STEP <= n {
        let mut differs = 0;
        // Not one comparison after the other: the compiler would make a call of `memcmp` of them.
        for word in (0..STEP).step_by(8) {
            // SAFETY: the eight bytes are within the `n` bytes that the caller vouches for, and the
            // reads need no alignment.
            differs |= unsafe {
                let x = a.add(at + word).cast::<u64>().read_unaligned();
                let y = b.add(at + word).cast::<u64>().read_unaligned();
                x ^ y
            };
        }
        if differs != 0 {
            break;
        }
        at += STEP;
    }
    at
}

/// The function of C.
///
/// # Safety
/// `n` bytes can be read at `a` and at `b`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> c_int {
    // SAFETY: what the caller vouches for.
    let mut at = unsafe { same_steps(a, b, n) };
    while at < n {
        // SAFETY: `at` is below `n`.
        let (x, y) = unsafe { (*a.add(at), *b.add(at)) };
        if x != y {
            return c_int::from(x) - c_int::from(y);
        }
        at += 1;
    }
    0
}

/// The function of POSIX, which compilers call where only equality matters.
///
/// # Safety
/// `n` bytes can be read at `a` and at `b`.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> c_int {
    // SAFETY: what the caller vouches for.
    unsafe { memcmp(a, b, n) }
}

#[cfg(test)]
mod tests {
    use super::memcmp;

    #[test]
    fn every_difference_is_found() {
        let a: Vec<u8> = (0..200).collect();
        for start in 0..9 {
            for end in start..a.len() {
                let (x, mut y) = (&a[start..end], a[start..end].to_vec());
                // SAFETY: both have so many bytes.
                let compare = |y: &[u8]| unsafe { memcmp(x.as_ptr(), y.as_ptr(), y.len()) };
                assert_eq!(compare(&y), 0);
                for at in 0..y.len() {
                    y[at] = 255;
                    assert!(compare(&y) < 0);
                    y[at] = x[at].wrapping_sub(1);
                    assert_eq!(compare(&y) > 0, x[at] > 0);
                    y[at] = x[at];
                }
            }
        }
    }
}
