//! What is in trailers and beside images: digests, signatures, pages of recovery data, patches.

use redwarfs_format::digests::{SignatureBody, encode_message, parse_message};
use redwarfs_format::recovery::{EntryHead, HeaderPage, PAGE, PatchHeader, page_kind, shard_hash};

/// Decodes a message of digests and the body of a signature. What was decoded is encoded to the same again.
pub fn digests(data: &[u8]) {
    if let Ok(digests) = parse_message(data) {
        let again = parse_message(&encode_message(&digests));
        assert_eq!(
            again.ok().as_ref(),
            Some(&digests),
            "digests do not come back"
        );
    }
    if let Ok(signature) = SignatureBody::parse(data) {
        let bytes = signature.encode().unwrap_or_default();
        assert_eq!(SignatureBody::parse(&bytes).ok(), Some(signature));
    }
}

/// Decodes pages of recovery data, and the start of a patch. The checksum of each page is made right, which a fuzzer
/// cannot do.
pub fn recovery(data: &[u8]) {
    if let Some(start) = data.first_chunk()
        && let Ok(header) = PatchHeader::parse(start)
    {
        assert_eq!(header.encode(), *start, "a patch does not come back");
        let least = header.entries * (EntryHead::LEN as u64 + 1);
        assert!(least < header.patch, "more entries than bytes");
    }
    for piece in data.chunks(PAGE) {
        let mut page = [0; PAGE];
        if let Some(start) = page.get_mut(..piece.len()) {
            start.copy_from_slice(piece);
        }
        let sum = 24..32;
        page[sum.clone()].fill(0);
        let right = shard_hash(&page).to_le_bytes();
        page[sum].copy_from_slice(&right);
        let _ = page_kind(&page);
        let Ok((header, position)) = HeaderPage::parse(&page) else {
            continue;
        };
        assert!(header.is_sidecar() || header.section <= position);
        // Positions of a header that is accepted are inside of the image that it states.
        assert!(header.copies().iter().all(|at| *at < header.image_size));
        let geometry = header.geometry;
        assert!(geometry.groups() > 0 && geometry.data_shards() > 0);
    }
}
