//! Damage to the container: headers with right checksums that lie, and images among other bytes.

use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};

use super::Rng;

/// Positions of the section headers of an image, as far as they can be followed from the first
/// magic on.
fn headers(image: &[u8]) -> Vec<usize> {
    let mut list = Vec::new();
    let Some(mut at) = image.windows(6).position(|w| w == b"DWARFS") else {
        return list;
    };
    while let Some(header) = header_at(image, at) {
        list.push(at);
        let next = usize::try_from(header.length)
            .ok()
            .and_then(|length| at.checked_add(SectionHeader::LEN)?.checked_add(length));
        match next {
            Some(next) if next < image.len() => at = next,
            _ => break,
        }
    }
    list
}

fn header_at(image: &[u8], at: usize) -> Option<SectionHeader> {
    let header = image.get(at..)?.first_chunk::<{ SectionHeader::LEN }>()?;
    SectionHeader::parse(header).ok()
}

/// Gives every section whose payload is there the checksums that its header and payload ask for.
pub fn reseal(image: &mut [u8]) {
    for at in headers(image) {
        let Some(header) = header_at(image, at) else {
            return;
        };
        let start = at + SectionHeader::LEN;
        let payload = usize::try_from(header.length)
            .ok()
            .and_then(|length| image.get(start..start.checked_add(length)?));
        let Some(payload) = payload else { return };
        let sealed = SectionHeader {
            version: header.version,
            ..SectionHeader::seal(header.number, header.ty, header.compression, payload)
        };
        image[at..start].copy_from_slice(&sealed.encode());
    }
}

/// Changes a field of a header and repairs the checksums.
pub fn field(image: &mut [u8], rng: &mut Rng) {
    let list = headers(image);
    let Some(at) = rng.index(&list).map(|i| list[i]) else {
        return;
    };
    let Some(mut header) = header_at(image, at) else {
        return;
    };
    match rng.below(8) {
        0 => header.number = rng.edge(list.len()) as u32,
        1 => header.ty = SectionType(rng.below(12) as u16),
        2 => header.compression = CompressionId(rng.edge(9) as u16),
        3 => header.version.minor = rng.below(8) as u8,
        4 => header.version.major = rng.below(4) as u8,
        5 => header.length = header.length.wrapping_add(1),
        6 => header.length = header.length.wrapping_sub(1),
        _ => {
            let left = image.len() - at;
            header.length = rng.edge(left);
        }
    }
    image[at..at + SectionHeader::LEN].copy_from_slice(&header.encode());
    reseal(image);
}

/// Puts an image among other bytes: a header, many beginnings of images, another image, a tail.
pub fn surround(image: &mut Vec<u8>, rng: &mut Rng) {
    match rng.below(5) {
        0 => {
            let junk = vec![b'#'; 1 + rng.below(5000)];
            image.splice(..0, junk);
        }
        1 => {
            // Candidates for the start of an image that lead nowhere, or to each other.
            let mut junk = Vec::new();
            for n in 0..1 + rng.below(300) as u32 {
                let length = [0, 1, 64, u64::MAX, 1 << 40][rng.below(5)];
                let mut header =
                    SectionHeader::seal(n, SectionType::BLOCK, CompressionId::NONE, &[]);
                header.length = length;
                let encoded = header.encode();
                let keep = [8, 48, SectionHeader::LEN][rng.below(3)];
                junk.extend(&encoded[..keep]);
            }
            image.splice(..0, junk);
        }
        2 => image.extend(image.clone()),
        3 => image.resize(image.len() + 1 + rng.below(5000), 0),
        _ => {
            let keep = rng.below(image.len());
            let mut part = image[..keep].to_vec();
            part.extend_from_slice(image);
            *image = part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::golden;

    #[test]
    fn resealing_changes_nothing_in_an_intact_image_and_repairs_a_damaged_one() {
        let image = std::fs::read(golden("one").image).unwrap();
        let mut again = image.clone();
        reseal(&mut again);
        assert!(again == image);
        let list = headers(&image);
        assert!(list.len() > 3);
        again[list[0] + SectionHeader::LEN] ^= 1;
        let payload = |image: &[u8]| image[list[0] + SectionHeader::LEN..list[1]].to_vec();
        let matches = |image: &[u8]| {
            header_at(image, list[0])
                .unwrap()
                .xxh_matches(&payload(image))
        };
        assert!(!matches(&again));
        reseal(&mut again);
        assert!(matches(&again) && again != image);
    }
}
