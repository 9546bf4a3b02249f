//! The code of recovery data once more, as plain polynomials: slow, and without the library that images are protected with
//! (format chapter 11, section 8).

/// The polynomial of the field, x^16 + x^5 + x^3 + x^2 + 1.
const POLYNOMIAL: u32 = 0x1002d;

/// The elements that the bits of a symbol stand for.
const BASIS: [u16; 16] = [
    0x0001, 0xacca, 0x3c0e, 0x163e, 0xc582, 0xed2e, 0x914c, 0x4012, 0x6c98, 0x10d8, 0x6a72, 0xb900,
    0xfdb8, 0xfb34, 0xff38, 0x991e,
];

/// The element of a symbol.
fn element(symbol: u16) -> u16 {
    let bits = (0..16).filter(|bit| symbol >> bit & 1 == 1);
    bits.fold(0, |sum, bit| sum ^ BASIS[bit])
}

fn times(a: u16, b: u16) -> u16 {
    let mut product = 0_u32;
    for bit in (0..16).rev() {
        product <<= 1;
        if product >> 16 != 0 {
            product ^= POLYNOMIAL;
        }
        if b >> bit & 1 == 1 {
            product ^= u32::from(a);
        }
    }
    product as u16
}

/// By the order of the multiplicative group.
fn inverse(a: u16) -> u16 {
    let (mut result, mut power) = (1, a);
    for bit in 0..16 {
        if bit > 0 {
            result = times(result, power);
        }
        power = times(power, power);
    }
    result
}

/// The symbol of each element.
fn symbols() -> Vec<u16> {
    let mut symbols = vec![0; 1 << 16];
    for symbol in 0..=u16::MAX {
        symbols[usize::from(element(symbol))] = symbol;
    }
    symbols
}

/// The value at the point `at` of the polynomial of degree below the number of `points` that is 1 at `points[own]`
/// and 0 at the others.
fn weight(points: &[u16], own: usize, at: u16) -> u16 {
    let (mut above, mut below) = (1, 1);
    for (number, point) in points.iter().enumerate() {
        if number != own {
            above = times(above, at ^ point);
            below = times(below, points[own] ^ point);
        }
    }
    times(above, inverse(below))
}

/// Symbols of a shard: of each 64 bytes, 32 low bytes and then 32 high bytes.
fn symbols_of(shard: &[u8]) -> Vec<u16> {
    let pairs = shard.chunks(64).flat_map(|part| {
        let (low, high) = part.split_at(part.len() / 2);
        low.iter().zip(high)
    });
    pairs
        .map(|(low, high)| u16::from_le_bytes([*low, *high]))
        .collect()
}

fn shard_of(symbols: &[u16]) -> Vec<u8> {
    let parts = symbols.chunks(32).flat_map(|part| {
        let low = part.iter().map(|symbol| symbol.to_le_bytes()[0]);
        low.chain(part.iter().map(|symbol| symbol.to_le_bytes()[1]))
    });
    parts.collect()
}

/// The parity shards of data shards, whose size is a multiple of 64.
///
/// # Panics
/// If there are more shards than the field has elements.
#[must_use]
pub fn plain_parity(data: &[Vec<u8>], parity: usize) -> Vec<Vec<u8>> {
    let symbol = symbols();
    let point = |number: usize| element(u16::try_from(number).expect("few shards"));
    let (data_room, parity_room) = (data.len().next_power_of_two(), parity.next_power_of_two());
    // With more data than parity, pieces of the data are polynomials of their own, which are added.
    let by_parity = data_room > parity_room || data_room == parity_room && data.len() <= parity;
    let room = if by_parity { parity_room } else { data_room };
    let (first_data, first_parity) = if by_parity { (room, 0) } else { (0, room) };
    let data: Vec<Vec<u16>> = data.iter().map(|shard| symbols_of(shard)).collect();
    let length = data.first().map_or(0, Vec::len);
    let row = |row: usize| {
        let at = point(first_parity + row);
        let mut sums = vec![0; length];
        for (number, shard) in data.iter().enumerate() {
            let piece = first_data + number / room * room;
            let points: Vec<u16> = (piece..piece + room).map(point).collect();
            let weight = weight(&points, number % room, at);
            for (sum, symbol) in sums.iter_mut().zip(shard) {
                *sum ^= times(weight, element(*symbol));
            }
        }
        let row: Vec<u16> = sums.iter().map(|sum| symbol[usize::from(*sum)]).collect();
        shard_of(&row)
    };
    (0..parity).map(row).collect()
}
