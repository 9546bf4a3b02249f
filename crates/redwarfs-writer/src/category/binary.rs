//! Programs and libraries (format/07 section 4).

use super::cut::{Cut, Found};
use super::names::{Category, Kind, StreamKey};
use super::probe::Probe;

/// Number of bytes that the headers of all formats have at least.
const MIN_SIZE: u64 = 64;
/// Largest number of parts of a Mach-O file for several machines; real files have a few.
const MAX_SLICES: u64 = 1 << 12;

pub(crate) fn categorize(probe: &Probe<'_>) -> Found {
    let size = probe.size();
    let Some(head) = probe.bytes::<{ MIN_SIZE as usize }>(0)? else {
        return Ok(None);
    };
    let mut found = None;
    if let Some(machine) = elf(&head) {
        found = Some((Category::BinaryElf, machine));
    } else if let Some(machine) = pe(probe, &head)? {
        found = Some((Category::BinaryPe, machine));
    } else if let Some(machine) = macho(&head) {
        found = Some((Category::BinaryMachoSection, machine));
    }
    let Some((category, machine)) = found else {
        return fat_macho(probe, &head);
    };
    let mut fragments = Cut::default();
    fragments.push(code(category, machine), size);
    Ok(Some(fragments))
}

fn code(category: Category, machine: u64) -> StreamKey {
    StreamKey {
        category,
        kind: Kind::Machine(machine),
    }
}

fn field<const N: usize>(data: &[u8], offset: usize) -> Option<[u8; N]> {
    data.get(offset..)?.first_chunk().copied()
}

fn elf(head: &[u8]) -> Option<u64> {
    let [0x7f, b'E', b'L', b'F', class, encoding, 1, abi, abi_version] = field::<9>(head, 0)?
    else {
        return None;
    };
    let number = |offset| {
        field(head, offset).map(|bytes| match encoding {
            2 => u16::from_be_bytes(bytes),
            _ => u16::from_le_bytes(bytes),
        })
    };
    Some(
        u64::from(class) << 56
            | u64::from(encoding) << 48
            | u64::from(abi) << 40
            | u64::from(abi_version) << 32
            | u64::from(number(16)?) << 16
            | u64::from(number(18)?),
    )
}

fn pe(probe: &Probe<'_>, head: &[u8]) -> Found<u64> {
    if !head.starts_with(b"MZ") {
        return Ok(None);
    }
    let Some(offset) = field(head, 0x3c).map(u32::from_le_bytes) else {
        return Ok(None);
    };
    let Some(header) = probe.bytes::<26>(u64::from(offset))? else {
        return Ok(None);
    };
    if !header.starts_with(b"PE\0\0") {
        return Ok(None);
    }
    let number = |offset| field(&header, offset).map_or(0, |b| u64::from(u16::from_le_bytes(b)));
    Ok(Some(number(24) << 32 | number(22) << 16 | number(4)))
}

/// The machine of a Mach-O file for one machine.
fn macho(head: &[u8]) -> Option<u64> {
    let (big, wide) = match field(head, 0).map(u32::from_be_bytes)? {
        0xfeed_face => (true, false),
        0xfeed_facf => (true, true),
        0xcefa_edfe => (false, false),
        0xcffa_edfe => (false, true),
        _ => return None,
    };
    let number = |offset| {
        field(head, offset).map(|bytes| {
            let number = if big {
                u32::from_be_bytes(bytes)
            } else {
                u32::from_le_bytes(bytes)
            };
            u64::from(number & 0xf_ffff)
        })
    };
    let (cpu, subtype, file_type) = (number(4)?, number(8)?, number(12)?);
    Some(u64::from(big) << 63 | u64::from(wide) << 62 | file_type << 40 | subtype << 20 | cpu)
}

fn fat_macho(probe: &Probe<'_>, head: &[u8]) -> Found {
    let (magic, count) = (field(head, 0), field(head, 4));
    let (Some(magic), Some(count)) = (magic.map(u32::from_be_bytes), count) else {
        return Ok(None);
    };
    let count = u64::from(u32::from_be_bytes(count));
    let wide = match magic {
        0xcafe_babe => false,
        0xcafe_babf => true,
        _ => return Ok(None),
    };
    if count > MAX_SLICES {
        return Ok(None);
    }
    let mut slices = Vec::new();
    for i in 0..count {
        let range = if wide {
            probe.bytes::<32>(8 + 32 * i)?.and_then(|entry| {
                let number = |at| field(&entry, at).map(u64::from_be_bytes);
                Some((number(8)?, number(16)?))
            })
        } else {
            probe.bytes::<20>(8 + 20 * i)?.and_then(|entry| {
                let number = |at| field(&entry, at).map(|b| u64::from(u32::from_be_bytes(b)));
                Some((number(8)?, number(12)?))
            })
        };
        let Some(range) = range else {
            return Ok(None);
        };
        slices.push(range);
    }
    slices.sort_unstable();
    let around = StreamKey::plain(Category::BinaryMachoHeader);
    let mut fragments = Cut::default();
    let mut position = 0;
    for (start, size) in slices {
        let end = start.checked_add(size).filter(|&end| end <= probe.size());
        let (Some(end), true, true) = (end, start >= position, size >= 16) else {
            return Ok(None);
        };
        let Some(machine) = probe.bytes::<16>(start)?.and_then(|head| macho(&head)) else {
            return Ok(None);
        };
        fragments.push(around, start - position);
        fragments.push(code(Category::BinaryMachoSection, machine), size);
        position = end;
    }
    fragments.push(around, probe.size() - position);
    Ok(Some(fragments))
}

#[cfg(test)]
mod tests {
    use super::super::probe::tests::{probe, shape};
    use super::*;

    fn machine(data: &[u8]) -> u64 {
        match categorize(&probe(data)).unwrap().unwrap()[0].key.kind {
            Kind::Machine(machine) => machine,
            other => panic!("{other:?}"),
        }
    }

    fn thin(magic: u32, cpu: u32, size: usize) -> Vec<u8> {
        let little = magic & 0xff == 0xfe;
        let mut data = magic.to_be_bytes().to_vec();
        for number in [cpu, 3, 2u32] {
            data.extend(if little {
                number.to_le_bytes()
            } else {
                number.to_be_bytes()
            });
        }
        data.resize(size, 0x90);
        data
    }

    #[test]
    fn elf_files() {
        let mut data = b"\x7fELF\x02\x01\x01\x03\x00".to_vec();
        data.resize(16, 0);
        data.extend([3, 0, 62, 0]);
        data.resize(100, 0);
        let whole = Some(vec![(Category::BinaryElf, 100)]);
        assert_eq!(shape(categorize(&probe(&data))), whole);
        assert_eq!(machine(&data), 2 << 56 | 1 << 48 | 3 << 40 | 3 << 16 | 62);
        data[5] = 2;
        assert_eq!(machine(&data) & 0xffff_ffff, 0x0300_3e00);
        assert_eq!(shape(categorize(&probe(&data[..63]))), None);
        data[6] = 2;
        assert_eq!(shape(categorize(&probe(&data))), None);
    }

    #[test]
    fn pe_files() {
        let mut data = vec![0; 200];
        data[..2].copy_from_slice(b"MZ");
        data[0x3c] = 100;
        data[100..106].copy_from_slice(b"PE\0\0\x64\x86");
        data[122..126].copy_from_slice(&[0x22, 0, 0x0b, 2]);
        let whole = Some(vec![(Category::BinaryPe, 200)]);
        assert_eq!(shape(categorize(&probe(&data))), whole);
        assert_eq!(machine(&data), 0x20b << 32 | 0x22 << 16 | 0x8664);
        assert_eq!(shape(categorize(&probe(&data[..125]))), None);
        data[0x3c..0x40].fill(0xff);
        assert_eq!(shape(categorize(&probe(&data))), None);
    }

    #[test]
    fn macho_files() {
        let whole = Some(vec![(Category::BinaryMachoSection, 80)]);
        for (magic, bits) in [
            (0xfeed_face, 2),
            (0xfeed_facf, 3),
            (0xcefa_edfe, 0),
            (0xcffa_edfe_u32, 1u64),
        ] {
            let data = thin(magic, 0x0100_0007, 80);
            assert_eq!(shape(categorize(&probe(&data))), whole);
            assert_eq!(machine(&data), bits << 62 | 2 << 40 | 3 << 20 | 7);
        }
    }

    fn fat(wide: bool, slices: &[(u64, u64)], size: usize) -> Vec<u8> {
        let mut data = if wide { 0xcafe_babf_u32 } else { 0xcafe_babe }
            .to_be_bytes()
            .to_vec();
        data.extend((slices.len() as u32).to_be_bytes());
        for &(offset, length) in slices {
            data.extend([0; 8]);
            if wide {
                data.extend(offset.to_be_bytes());
                data.extend(length.to_be_bytes());
                data.extend([0; 8]);
            } else {
                data.extend((offset as u32).to_be_bytes());
                data.extend((length as u32).to_be_bytes());
                data.extend([0; 4]);
            }
        }
        data.resize(size, 0);
        for &(offset, length) in slices {
            let part = thin(0xcffa_edfe, 7, length as usize);
            if let Some(place) = data.get_mut(offset as usize..(offset + length) as usize) {
                place.copy_from_slice(&part);
            }
        }
        data
    }

    #[test]
    fn fat_files() {
        for wide in [false, true] {
            // Out of order, with gaps, and two that touch.
            let data = fat(wide, &[(300, 100), (128, 72), (400, 50)], 460);
            let parts = vec![
                (Category::BinaryMachoHeader, 128),
                (Category::BinaryMachoSection, 72),
                (Category::BinaryMachoHeader, 100),
                (Category::BinaryMachoSection, 150),
                (Category::BinaryMachoHeader, 10),
            ];
            assert_eq!(shape(categorize(&probe(&data))), Some(parts));
            let empty = fat(wide, &[], 100);
            let header = Some(vec![(Category::BinaryMachoHeader, 100)]);
            assert_eq!(shape(categorize(&probe(&empty))), header);
        }
    }

    #[test]
    fn hostile_tables() {
        let overlapping = fat(false, &[(128, 72), (190, 72)], 300);
        assert_eq!(shape(categorize(&probe(&overlapping))), None);
        let mut data = fat(true, &[(128, 72)], 300);
        data[24..32].fill(0xff);
        assert_eq!(shape(categorize(&probe(&data))), None);
        let mut many = fat(false, &[], 208);
        many[4..8].fill(0xff);
        assert_eq!(shape(categorize(&probe(&many))), None);
        // Java classes have the same magic.
        let mut class = vec![0xca, 0xfe, 0xba, 0xbe, 0, 0, 0, 61];
        class.resize(2000, 7);
        assert_eq!(shape(categorize(&probe(&class))), None);
    }
}
