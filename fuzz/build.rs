//! Compiles the target that uses the C library from C.

fn main() {
    println!("cargo::rerun-if-changed=capi.c");
    println!("cargo::rerun-if-changed=../crates/redwarfs-capi/tests/c");
    cc::Build::new()
        .file("capi.c")
        .include("../crates/redwarfs-capi/include")
        .compile("redwarfs_fuzz_capi");
}
