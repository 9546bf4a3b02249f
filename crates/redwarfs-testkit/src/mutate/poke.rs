//! Overwrites single values in packed metadata. Widths and positions stay unchanged, so reading finds
//! no error until the value is used.

use redwarfs_format::frozen::{Layout, Schema, load_bits};

use super::Rng;

/// Ids of the members of a list.
const DISTANCE: i16 = 1;
const COUNT: i16 = 2;
const ITEM: i16 = 3;
/// Steps down from the root; the type tree is not deeper.
const STEPS: usize = 12;

/// Puts an edge case into a random value (often a count or a distance) of `data`, which `schema`
/// describes. Returns whether one was found.
pub fn poke(schema: &[u8], data: &mut [u8], rng: &mut Rng) -> bool {
    let Ok(schema) = Schema::parse(schema) else {
        return false;
    };
    // Most ways down end at something empty.
    (0..20).any(|_| try_poke(&schema, data, rng).is_some())
}

fn try_poke(schema: &Schema, data: &mut [u8], rng: &mut Rng) -> Option<()> {
    let layout = |id: u16| schema.layouts.get(usize::from(id));
    let mut at: &Layout = layout(schema.root)?;
    let (mut byte, mut bit) = (0u64, 0u64);
    for _ in 0..STEPS {
        if at.fields.is_empty() {
            let start = byte.checked_mul(8)?.checked_add(bit)?;
            return store(data, start, u32::from(at.bits), rng);
        }
        let counted = at.field(COUNT).is_some() && at.field(DISTANCE).is_some();
        if counted && at.field(ITEM).is_some() && rng.one_in(2) {
            let number = |id| {
                let field = at.field(id)?;
                let (byte, bit) = member(byte, bit, field.offset)?;
                load(data, byte, bit, u32::from(layout(field.layout_id)?.bits))
            };
            let (distance, count) = (number(DISTANCE)?, number(COUNT)?);
            let item = layout(at.field(ITEM)?.layout_id)?;
            let index = rng.bits() % count.max(1);
            byte = byte.checked_add(distance)?;
            bit = 0;
            if item.size > 0 {
                byte = byte.checked_add(index.checked_mul(u64::from(item.size))?)?;
            } else {
                bit = index.checked_mul(u64::from(item.bits))?;
            }
            at = item;
            continue;
        }
        let field = at.fields[rng.below(at.fields.len())];
        (byte, bit) = member(byte, bit, field.offset)?;
        at = layout(field.layout_id)?;
    }
    None
}

fn member(byte: u64, bit: u64, offset: i16) -> Option<(u64, u64)> {
    let size = u64::from(offset.unsigned_abs());
    if offset >= 0 {
        Some((byte.checked_add(size)?, bit))
    } else {
        Some((byte, bit.checked_add(size)?))
    }
}

fn load(data: &[u8], byte: u64, bit: u64, width: u32) -> Option<u64> {
    let start = byte.checked_mul(8)?.checked_add(bit)?;
    let end = start.checked_add(u64::from(width))?;
    (width <= 64 && end <= data.len() as u64 * 8).then(|| load_bits(data, start, width))
}

fn store(data: &mut [u8], start: u64, width: u32, rng: &mut Rng) -> Option<()> {
    let end = start.checked_add(u64::from(width))?;
    if width == 0 || width > 64 || end > data.len() as u64 * 8 {
        return None;
    }
    let old = load_bits(data, start, width);
    let value = match rng.below(6) {
        0 => u64::MAX,
        1 => 0,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        _ => rng.edge(usize::try_from(old).unwrap_or(1)),
    };
    for i in 0..u64::from(width) {
        let at = usize::try_from((start + i) / 8).ok()?;
        let mask = 1u8 << ((start + i) % 8);
        if value >> i & 1 == 1 {
            data[at] |= mask;
        } else {
            data[at] &= !mask;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_gets_into_its_bits_only() {
        let mut seen = 0;
        for seed in 0..50 {
            let mut data = [0x55; 8];
            store(&mut data, 13, 9, &mut Rng::new(seed)).unwrap();
            assert_eq!(load_bits(&data, 0, 13), load_bits(&[0x55; 8], 0, 13));
            assert_eq!(load_bits(&data, 22, 42), load_bits(&[0x55; 8], 22, 42));
            seen |= load_bits(&data, 13, 9);
        }
        assert_eq!(seen, 0x1ff);
        assert!(store(&mut [0; 2], 8, 9, &mut Rng::new(0)).is_none());
    }
}
