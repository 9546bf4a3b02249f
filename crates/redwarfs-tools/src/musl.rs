//! The allocator of programs on musl: the same one, whichever build of musl they are linked with.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
