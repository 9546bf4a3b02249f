//! The view of a stream for the orders `families` and `versions`.

/// A stream as the orders by name and content see it. Its items have numbers from 0.
pub(super) trait StreamView {
    /// The entry of the first name.
    fn entry(&self, item: u32) -> u32;
    /// The entries of all names, except further hard links.
    fn names(&self, item: u32) -> impl Iterator<Item = u32> + '_;
    /// The entry of the parent directory of an entry; 0 for the root and its entries.
    fn parent(&self, entry: u32) -> u32;
    fn size(&self, item: u32) -> u64;
    fn features(&self, item: u32) -> &[u32];
    /// Appends the first bytes, `limit` at most. Returns whether they could be read.
    fn read(&self, item: u32, limit: usize, out: &mut Vec<u8>) -> bool;
}
