//! The allocator of programs on musl. That of musl has one lock for all threads, which building and reading
//! with many threads would wait for.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
