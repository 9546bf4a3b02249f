//! How a check is done.

use crate::options::CpuSet;

/// The hashes that a check compares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VerifyMode {
    /// The XXH3-64 of every section.
    #[default]
    Fast,
    /// The SHA-512/256 of every section, and the XXH3-64 as well.
    Integrity,
}

/// How a check is done.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckOptions {
    /// The hashes to compare.
    pub mode: VerifyMode,
    /// Number of threads, at least one. Each needs 1 MiB, or about two and a half blocks if blocks
    /// are decoded.
    pub threads: usize,
    /// The CPUs that the threads run on.
    pub affinity: Option<CpuSet>,
    /// Whether [`Image::check`](crate::Image::check) decodes blocks. It always decodes the blocks of
    /// formats 2.0 and 2.1, which have no hashes.
    pub decode: bool,
    /// Bytes of memory for decoding. One block at a time is decoded in any case.
    pub memory: u64,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            mode: VerifyMode::Fast,
            threads: 1,
            affinity: None,
            decode: false,
            memory: 512 << 20,
        }
    }
}
