//! FITS images with two dimensions and 16 bits per pixel (format/07 section 3).

use redwarfs_codec::{ByteOrder, PixelFormat};

use super::cut::{Complaint, Cut, Found};
use super::names::{Category, Kind, StreamKey};
use super::probe::Probe;

const RECORD: u64 = 2880;
const CARD: usize = 80;
/// Number of cards that are read at a time: one record.
const CARDS: usize = RECORD as usize / CARD;
/// Bytes of pixels that are examined together.
const WINDOW: usize = 1 << 16;
const MAX_UNUSED_LSB: u32 = 8;

pub(crate) fn categorize(probe: &Probe<'_>) -> Found {
    let size = probe.size();
    if size < 2 * RECORD || !size.is_multiple_of(RECORD) {
        return Ok(None);
    }
    let Some(header) = read_header(probe)? else {
        return Ok(None);
    };
    let image = header
        .width
        .checked_mul(header.height)
        .and_then(|pixels| pixels.checked_mul(2))
        .filter(|&image| image <= size.saturating_sub(header.size));
    let Some(image) = image else {
        return Err(Complaint::warn("FITS image is larger than its file"));
    };
    if !image.is_multiple_of(2 * u64::from(header.components)) {
        return Err(Complaint::warn(
            "FITS image with a Bayer pattern has an odd number of pixels",
        ));
    }
    let unused = unused_bits(probe, header.size, header.size + image)?;
    if unused > MAX_UNUSED_LSB {
        return Err(Complaint::warn(format!(
            "FITS image has {unused} unused bits per pixel"
        )));
    }
    let format = PixelFormat {
        components: header.components,
        unused_lsb: unused as u8,
        byte_order: ByteOrder::Big,
    };
    let metadata = StreamKey::plain(Category::FitsMetadata);
    let pixels = StreamKey {
        category: Category::FitsImage,
        kind: Kind::Pixels(format),
    };
    let mut fragments = Cut::default();
    fragments.push(metadata, header.size);
    fragments.push(pixels, image);
    fragments.push(metadata, size - header.size - image);
    Ok(Some(fragments))
}

struct Header {
    /// Whole records.
    size: u64,
    width: u64,
    height: u64,
    components: u8,
}

/// Reads cards up to `END`. `None` if this is not the header of such an image.
fn read_header(probe: &Probe<'_>) -> Found<Header> {
    let (mut simple, mut depth) = (false, false);
    let (mut width, mut height) = (None, None);
    let mut components = 1;
    let mut any_value = false;
    let mut record = [0u8; CARDS * CARD];
    for start in (0..probe.size()).step_by(RECORD as usize) {
        if start >= 2 * RECORD && !any_value {
            return Ok(None);
        }
        probe.read(start, &mut record)?;
        for card in record.chunks_exact(CARD) {
            if !card.iter().all(|b| (32..=126).contains(b)) {
                return Ok(None);
            }
            let (keyword, rest) = card.split_at(8);
            let keyword = keyword.trim_ascii();
            if keyword == b"END" {
                let (Some(width), Some(height), true, true) = (width, height, simple, depth) else {
                    return Ok(None);
                };
                return Ok(Some(Header {
                    size: start + RECORD,
                    width,
                    height,
                    components,
                }));
            }
            if matches!(keyword, b"" | b"COMMENT" | b"HISTORY" | b"CONTINUE") {
                continue;
            }
            let Some(value) = rest.strip_prefix(b"= ") else {
                continue;
            };
            any_value = true;
            let value = value.split(|&b| b == b'/').next().unwrap_or_default();
            let value = value.trim_ascii();
            match keyword {
                b"SIMPLE" if value == b"T" => simple = true,
                b"BITPIX" if leading_number(value) == Some(16) => depth = true,
                b"NAXIS" if value == b"2" => {}
                b"SIMPLE" | b"BITPIX" | b"NAXIS" => return Ok(None),
                b"NAXIS1" => width = leading_number(value),
                b"NAXIS2" => height = leading_number(value),
                b"BAYERPAT" => components = 2,
                _ => {}
            }
        }
    }
    Ok(None)
}

/// The unsigned number that a value starts with.
fn leading_number(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|b| b.is_ascii_digit()).count();
    let text = std::str::from_utf8(value.get(..digits)?).ok()?;
    text.parse().ok()
}

/// Number of low bits that are zero in all big-endian values of a range; 16 if all bits are zero.
fn unused_bits(probe: &Probe<'_>, start: u64, end: u64) -> Result<u32, Complaint> {
    let mut buffer = vec![0u8; WINDOW];
    let mut seen = 0u16;
    let mut position = start;
    while let Some((data, data_end)) = probe.data(position, end)? {
        // Extents may begin and end between the bytes of a value.
        let mut at = data - (data - start) % 2;
        let stop = (data_end + (data_end - start) % 2).min(end);
        while at < stop {
            let wanted = (stop - at).min(WINDOW as u64) as usize;
            let window = buffer.get_mut(..wanted).unwrap_or_default();
            probe.read(at, window)?;
            let (values, _) = window.as_chunks::<2>();
            seen = values
                .iter()
                .fold(seen, |all, &v| all | u16::from_be_bytes(v));
            if seen & 1 == 1 {
                return Ok(0);
            }
            at += wanted as u64;
        }
        position = data_end;
    }
    Ok(seen.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::super::probe::tests::{probe, shape};
    use super::*;

    fn file(cards: &[&str], pixels: &[u16], tail: usize) -> Vec<u8> {
        let mut data = Vec::new();
        for card in cards {
            data.extend_from_slice(format!("{card:<80}").as_bytes());
        }
        data.resize(data.len().next_multiple_of(2880), b' ');
        for pixel in pixels {
            data.extend_from_slice(&pixel.to_be_bytes());
        }
        data.resize(data.len() + tail, 0);
        data
    }

    const CARDS: [&str; 6] = [
        "SIMPLE  =                    T / standard",
        "BITPIX  =                   16",
        "NAXIS   =                    2",
        "NAXIS1  =                   30 / width",
        "NAXIS2  =                   40",
        "END",
    ];

    fn pixels(step: u16) -> Vec<u16> {
        (0..1200u16).map(|i| i.wrapping_mul(step)).collect()
    }

    fn format(data: &[u8]) -> PixelFormat {
        match categorize(&probe(data)).unwrap().unwrap()[1].key.kind {
            Kind::Pixels(format) => format,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_image() {
        let data = file(&CARDS, &pixels(1), 480);
        let parts = vec![
            (Category::FitsMetadata, 2880),
            (Category::FitsImage, 2400),
            (Category::FitsMetadata, 480),
        ];
        assert_eq!(shape(categorize(&probe(&data))), Some(parts));
        assert_eq!((format(&data).components, format(&data).unused_lsb), (1, 0));
        let shifted = file(&CARDS, &pixels(16), 480);
        assert_eq!(format(&shifted).unused_lsb, 4);
        let mut bayer = CARDS.to_vec();
        bayer.insert(5, "BAYERPAT= 'RGGB'");
        assert_eq!(format(&file(&bayer, &pixels(1), 480)).components, 2);
    }

    #[test]
    fn long_headers_count_in_records() {
        let mut cards = CARDS.to_vec();
        let end = cards.pop().unwrap();
        cards.resize(36, "COMMENT nothing");
        cards.push(end);
        let data = file(&cards, &pixels(1), 480);
        let parts = shape(categorize(&probe(&data))).unwrap();
        assert_eq!(parts[0], (Category::FitsMetadata, 5760));
    }

    #[test]
    fn others_are_left_alone() {
        let good = file(&CARDS, &pixels(1), 480);
        for (card, text) in [
            (0, "SIMPLE  =                    F"),
            (1, "BITPIX  =                    8"),
            (1, "BITPIX  =                  -16"),
            (2, "NAXIS   =                    3"),
            (3, "NAXIS1  = x"),
            (4, "COMMENT no second axis"),
        ] {
            let mut cards = CARDS.to_vec();
            cards[card] = text;
            assert_eq!(
                shape(categorize(&probe(&file(&cards, &pixels(1), 480)))),
                None
            );
        }
        assert_eq!(shape(categorize(&probe(&good[..2880]))), None);
        assert_eq!(shape(categorize(&probe(&good[..5000]))), None);
        assert_eq!(shape(categorize(&probe(&vec![b' '; 11520]))), None);
        let mut control = good;
        control[300] = 10;
        assert_eq!(shape(categorize(&probe(&control))), None);
    }

    #[test]
    fn what_would_lose_data_is_refused() {
        // Truncated.
        let mut cards = CARDS.to_vec();
        cards[3] = "NAXIS1  =                  300";
        assert!(categorize(&probe(&file(&cards, &pixels(1), 480))).is_err());
        cards[3] = "NAXIS1  = 18446744073709551615";
        assert!(categorize(&probe(&file(&cards, &pixels(1), 480))).is_err());
        // Odd number of pixels with two components.
        let mut cards = CARDS.to_vec();
        cards[3] = "NAXIS1  =                   29";
        cards[4] = "NAXIS2  =                   39";
        cards.insert(5, "BAYERPAT= 'RGGB'");
        assert!(categorize(&probe(&file(&cards, &pixels(1), 480))).is_err());
        // Nothing but zeros.
        assert!(categorize(&probe(&file(&CARDS, &pixels(0), 480))).is_err());
    }
}
