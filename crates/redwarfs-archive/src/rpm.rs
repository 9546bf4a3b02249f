//! Finding the cpio archive in an RPM package.

use crate::error::Fault;
use crate::stream::Stream;

/// First bytes of a package.
pub(crate) const MAGIC: &[u8] = b"\xed\xab\xee\xdb";
/// Size of the old header, which only names the package.
const LEAD: u64 = 96;
/// Largest header in bytes.
const MOST_HEADER: u64 = 256 << 20;

/// Skips the headers. The compressed payload follows.
pub(crate) fn skip_headers(stream: &mut Stream<'_>) -> Result<(), Fault> {
    stream.skip(LEAD)?;
    // Signatures, filled up to 8 bytes, and the description of the package.
    for alignment in [8, 1] {
        let head = stream.read_vec(16)?;
        let word = |at: usize| {
            let bytes = head.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
            u64::from(u32::from_be_bytes(bytes.copied().unwrap_or_default()))
        };
        if !head.starts_with(b"\x8e\xad\xe8\x01") {
            return Err(Fault::damaged(
                "a header of the package does not begin as one",
            ));
        }
        let size = word(8) * 16 + word(12);
        if size > MOST_HEADER {
            return Err(Fault::damaged(format!(
                "a header of {size} bytes is too large"
            )));
        }
        stream.skip(size + size.wrapping_neg() % alignment)?;
    }
    Ok(())
}
