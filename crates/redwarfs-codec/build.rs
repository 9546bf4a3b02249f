//! Compiles the zstd decoder a second time, see `src/zstd/decoder.c`.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=src/zstd/decoder.c");
    println!("cargo::rerun-if-changed=src/zstd/sequences.h");
    println!("cargo::rerun-if-env-changed=ZSTD_SYS_USE_PKG_CONFIG");
    // Of whatever version that one is.
    let of_system = env::var_os("ZSTD_SYS_USE_PKG_CONFIG").is_some();
    let include = env::var("DEP_ZSTD_INCLUDE").expect("zstd-sys says where the library is");
    let mut build = cc::Build::new();
    for directory in include.split(';').filter(|directory| !directory.is_empty()) {
        let directory = Path::new(directory);
        build.include(directory);
        // A library of the system has headers alone. What it decodes is the same.
        let sources = directory.join("decompress/zstd_decompress_block.c");
        if !of_system && sources.is_file() {
            build
                .include(directory.join("common"))
                .define("REDWARFS_ZSTD_SOURCES", None);
        }
    }
    build
        .file("src/zstd/decoder.c")
        .opt_level(3)
        .debug(false)
        .warnings(false)
        .compile("redwarfs_zstd");
}
