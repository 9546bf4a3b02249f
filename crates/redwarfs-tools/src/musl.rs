//! The allocator of programs on musl: the same one, whichever build of musl they are linked with.
//!
//! It uses no huge pages (feature `no_thp`): the blocks that a build allocates and frees would be cleared again and again in
//! pages of 2 MiB. docs/release.md has the measurements.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
