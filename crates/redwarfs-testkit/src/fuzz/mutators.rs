//! Mutators for the fuzz targets: they know the structure of the input and repair checksums, so
//! that what a fuzzer tries is not refused at the door. Ordinary functions, so that tests run
//! them as well.

use redwarfs_format::metadata::{freeze, thaw};

use crate::mutate::{self, Parts, Rng};

/// Changes bytes in place within a larger buffer. The second argument is the number of used bytes, the
/// third the largest number. Returns the new number.
pub type Blind<'a> = &'a mut dyn FnMut(&mut [u8], usize, usize) -> usize;

/// Puts `new` into the buffer, if it fits.
fn put(data: &mut [u8], new: &[u8], size: usize, max_size: usize) -> usize {
    if new.len() > max_size || new.len() > data.len() {
        return size;
    }
    data[..new.len()].copy_from_slice(new);
    new.len()
}

/// For a file that holds an image.
pub fn image(data: &mut [u8], size: usize, max_size: usize, seed: u32, blind: Blind<'_>) -> usize {
    let mut rng = Rng::new(u64::from(seed));
    if rng.one_in(3) {
        let size = blind(data, size, max_size);
        mutate::reseal(&mut data[..size]);
        return size;
    }
    match Parts::try_of(&data[..size]) {
        Some(parts) if !parts.0.is_empty() => {
            let (new, _) = mutate::image(&parts, &mut rng);
            put(data, &new, size, max_size)
        }
        _ => blind(data, size, max_size),
    }
}

/// For an archive behind a byte of options. Most changed headers of tar get their checksum.
pub fn archive(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    blind: Blind<'_>,
) -> usize {
    let size = blind(data, size, max_size);
    if !seed.is_multiple_of(8) {
        repair_tar(data.get_mut(1..size).unwrap_or_default());
    }
    size
}

/// Gives the blocks of a tar archive that look like headers their checksums.
pub fn repair_tar(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(512) {
        if !block[257..].starts_with(b"ustar") {
            continue;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

/// For the container alone: headers, the index, and bytes around the image.
pub fn container(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    blind: Blind<'_>,
) -> usize {
    let mut rng = Rng::new(u64::from(seed));
    match rng.below(4) {
        0 => {
            mutate::field(&mut data[..size], &mut rng);
            size
        }
        1 => {
            let mut image = data[..size].to_vec();
            if image.is_empty() {
                return blind(data, size, max_size);
            }
            mutate::surround(&mut image, &mut rng);
            put(data, &image, size, max_size)
        }
        _ => {
            let size = blind(data, size, max_size);
            mutate::reseal(&mut data[..size]);
            size
        }
    }
}

/// For metadata: two bytes with the length of the schema, the schema, the data.
pub fn metadata(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    blind: Blind<'_>,
) -> usize {
    let mut rng = Rng::new(u64::from(seed));
    let split = data[..size].split_first_chunk::<2>().and_then(|(n, rest)| {
        let (schema, data) = rest.split_at_checked(usize::from(u16::from_le_bytes(*n)))?;
        Some((schema.to_vec(), data.to_vec()))
    });
    let Some((mut schema, mut packed)) = split else {
        return blind(data, size, max_size);
    };
    match rng.below(8) {
        0 | 1 => return blind(data, size, max_size),
        2 | 3 => drop(mutate::poke(&schema, &mut packed, &mut rng)),
        4 => mutate::schema(&mut schema, &mut rng),
        _ => {
            let Ok(mut m) = thaw(&schema, &packed) else {
                return blind(data, size, max_size);
            };
            match rng.below(4) {
                0 => mutate::metadata(&mut m, &mut rng),
                1 => mutate::names(&mut m, &mut rng),
                2 => mutate::directories(&mut m, &mut rng),
                _ => mutate::files(&mut m, &mut rng),
            }
            if let Ok(frozen) = freeze(&m) {
                (schema, packed) = (frozen.schema, frozen.data);
            }
        }
    }
    let Ok(length) = u16::try_from(schema.len()) else {
        return size;
    };
    let new = [&length.to_le_bytes()[..], &schema, &packed].concat();
    put(data, &new, size, max_size)
}

/// For a schema.
pub fn schema(data: &mut [u8], size: usize, max_size: usize, seed: u32, blind: Blind<'_>) -> usize {
    let mut rng = Rng::new(u64::from(seed));
    if rng.one_in(2) {
        return blind(data, size, max_size);
    }
    let mut new = data[..size].to_vec();
    mutate::schema(&mut new, &mut rng);
    put(data, &new, size, max_size)
}

/// For payloads: a byte with the compression id, the payload.
pub fn codecs(data: &mut [u8], size: usize, max_size: usize, seed: u32, blind: Blind<'_>) -> usize {
    use redwarfs_format::section::{CompressionId, SectionType};
    let mut rng = Rng::new(u64::from(seed));
    let Some((&id, payload)) = data[..size].split_first() else {
        return blind(data, size, max_size);
    };
    if rng.one_in(2) {
        return blind(data, size, max_size);
    }
    let mut part = mutate::Part {
        ty: SectionType::BLOCK,
        compression: CompressionId(u16::from(id)),
        payload: payload.to_vec(),
    };
    if rng.one_in(8) {
        mutate::payload::recode(&mut part, &mut rng);
    } else {
        mutate::payload::header(&mut part, &mut rng);
    }
    let new = [&[part.compression.0 as u8][..], &part.payload].concat();
    put(data, &new, size, max_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::golden;

    #[test]
    fn mutators_stay_within_the_buffer_and_change_something() {
        type Mutator = fn(&mut [u8], usize, usize, u32, Blind<'_>) -> usize;
        let image_bytes = std::fs::read(golden("one").image).unwrap();
        let all: [(&str, Mutator); 5] = [
            ("image", image),
            ("container", container),
            ("metadata", metadata),
            ("schema", schema),
            ("codecs", codecs),
        ];
        for (name, mutator) in all {
            let mut changed = 0;
            for seed in 0..60 {
                for input in [&image_bytes[..], &[], &[3], &[0; 40]] {
                    let mut buffer = input.to_vec();
                    buffer.resize(input.len() + 300, 0);
                    let mut blind = |data: &mut [u8], size: usize, max: usize| {
                        let size = (size + 1).min(max);
                        data[size - 1] ^= 1;
                        size
                    };
                    let max = buffer.len();
                    let size = mutator(&mut buffer, input.len(), max, seed, &mut blind);
                    assert!(size <= max, "{name}");
                    changed += u32::from(buffer[..size] != *input);
                }
            }
            assert!(changed > 60, "{name}: {changed}");
        }
    }
}
