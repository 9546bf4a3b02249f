//! The codecs that this program reads, as text in its file. By it `mkdwarfs` refuses to put the program in front of
//! an image that it cannot read.

/// A text for each feature that is on; `mkdwarfs` looks for the words before the name.
macro_rules! reads {
    ($($feature:literal)*) => {$(
        #[cfg(feature = $feature)]
        const _: () = {
            #[used]
            static TEXT: &str = concat!("redwarfs-runtime reads ", $feature, "\0");
        };
    )*};
}

reads!("zstd" "lzma" "lz4" "brotli" "ricepp" "flac");
