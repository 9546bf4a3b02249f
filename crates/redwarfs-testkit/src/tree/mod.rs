//! Makers of contents, and of directory trees on disk.

#[cfg(unix)]
mod awkward;

#[cfg(unix)]
pub use awkward::awkward_tree;

/// A small generator of pseudo-random numbers (xorshift64*), so that trees are the same in every
/// run.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A sequence that depends only on `seed`.
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit` (which must not be 0).
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.draw() >> 16) % limit
    }

    /// `len` bytes without structure.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.draw() >> 32) as u8).collect()
    }

    /// `len` bytes of text with many repetitions.
    pub fn text(&mut self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 12] = [
            "red ",
            "dwarf ",
            "star ",
            "block ",
            "chunk ",
            "inode ",
            "small ",
            "dense ",
            "file\n",
            "system ",
            "outlives ",
            "all\n",
        ];
        let mut out = Vec::with_capacity(len + 16);
        while out.len() < len {
            out.extend(WORDS[self.below(WORDS.len() as u64) as usize].as_bytes());
        }
        out.truncate(len);
        out
    }
}
