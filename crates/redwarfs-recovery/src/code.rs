//! The code: Reed-Solomon over GF(2^16), in the construction of the crate `reed-solomon-simd` 3.
//!
//! The code is part of the format. The tests hold its vectors, so that another version of the crate
//! cannot change it unnoticed.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use crate::error::{Error, Result};

fn failed(error: reed_solomon_simd::Error) -> Error {
    redwarfs_format::Error::Limit(format!("parity: {error}")).into()
}

/// Takes the data shards of a group in their order, and makes its parity.
pub(crate) struct Encoder(ReedSolomonEncoder);

impl Encoder {
    pub(crate) fn new(data: u32, parity: u32, shard_size: usize) -> Result<Self> {
        ReedSolomonEncoder::new(data as usize, parity as usize, shard_size)
            .map(Self)
            .map_err(failed)
    }

    pub(crate) fn add(&mut self, shard: &[u8]) -> Result<()> {
        self.0.add_original_shard(shard).map_err(failed)
    }

    /// The parity shards, in their order.
    pub(crate) fn finish(mut self) -> Result<Vec<Vec<u8>>> {
        let parity = self.0.encode().map_err(failed)?;
        Ok(parity.recovery_iter().map(<[u8]>::to_vec).collect())
    }
}

/// Takes those data and parity shards of a group that are intact, and restores the other data shards.
pub(crate) struct Decoder(ReedSolomonDecoder);

impl Decoder {
    pub(crate) fn new(data: u32, parity: u32, shard_size: usize) -> Result<Self> {
        ReedSolomonDecoder::new(data as usize, parity as usize, shard_size)
            .map(Self)
            .map_err(failed)
    }

    pub(crate) fn add_data(&mut self, position: u32, shard: &[u8]) -> Result<()> {
        self.0
            .add_original_shard(position as usize, shard)
            .map_err(failed)
    }

    pub(crate) fn add_parity(&mut self, row: u32, shard: &[u8]) -> Result<()> {
        self.0
            .add_recovery_shard(row as usize, shard)
            .map_err(failed)
    }

    /// Positions and contents of the data shards that were not added.
    pub(crate) fn finish(mut self) -> Result<Vec<(u32, Vec<u8>)>> {
        let restored = self.0.decode().map_err(failed)?;
        let shards = restored.restored_original_iter();
        Ok(shards
            .map(|(at, shard)| (at as u32, shard.to_vec()))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn parity(data: &[Vec<u8>], rows: u32, size: usize) -> Vec<Vec<u8>> {
        let mut encoder = Encoder::new(data.len() as u32, rows, size).unwrap();
        data.iter().for_each(|shard| encoder.add(shard).unwrap());
        encoder.finish().unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The vectors of format chapter 11: the code is part of the format.
    #[test]
    fn vectors_of_the_description() {
        let bytes: Vec<u8> = (0..192).collect();
        let small: Vec<Vec<u8>> = bytes.chunks(64).map(<[u8]>::to_vec).collect();
        let made = parity(&small, 2, 64);
        assert_eq!(hex(&made[0][..16]), "3b94c768933c6fc0e34c1fb04be4b718");
        assert_eq!(hex(&made[1][..16]), "fb5505ab57f9a9072b85d57b872979d7");
        let byte = |i: usize, j: usize| ((31 * i + 7 * j + (i * j) % 251) % 256) as u8;
        let large: Vec<Vec<u8>> = (0..1000)
            .map(|i| (0..1024).map(|j| byte(i, j)).collect())
            .collect();
        let made = parity(&large, 50, 1024).concat();
        assert_eq!(
            hex(&Sha256::digest(made)),
            "6a2ad83ee37fc4c73cddf0047d8d109d6556eeb5856c2a810b6564f098f851d1"
        );
    }

    /// The code is what the description says, whatever the crate does.
    #[test]
    fn plain_polynomials_give_the_same() {
        use redwarfs_testkit::parity::plain_parity;
        let counts = [
            (1, 1),
            (2, 1),
            (3, 2),
            (5, 3),
            (8, 8),
            (9, 4),
            (17, 16),
            (20, 5),
            (40, 3),
            (3, 5),
            (5, 8),
            (6, 7),
            (7, 6),
            (1, 9),
            (12, 40),
            (33, 33),
            (60, 40),
        ];
        for (data, rows) in counts {
            let byte = |i: usize, j: usize| (i * 89 + j * 31 + i * j % 23 + (j >> 3) * 7) as u8;
            let data: Vec<Vec<u8>> = (0..data)
                .map(|i| (0..128).map(|j| byte(i, j)).collect())
                .collect();
            let made = parity(&data, rows, 128);
            assert!(
                made == plain_parity(&data, rows as usize),
                "{} + {rows}",
                data.len()
            );
        }
    }

    /// By definition, and not by the crate: any `K` shards of data and parity give the data back.
    #[test]
    fn any_shards_restore_the_others() {
        let data: Vec<Vec<u8>> = (0..7_u8).map(|i| vec![i.wrapping_mul(37); 64]).collect();
        let made = parity(&data, 4, 64);
        for mask in 0_u32..1 << 11 {
            if mask.count_ones() != 7 {
                continue;
            }
            let mut decoder = Decoder::new(7, 4, 64).unwrap();
            for at in (0..11).filter(|at| mask >> at & 1 == 1) {
                match data.get(at as usize) {
                    Some(shard) => decoder.add_data(at, shard).unwrap(),
                    None => decoder.add_parity(at - 7, &made[at as usize - 7]).unwrap(),
                }
            }
            for (at, shard) in decoder.finish().unwrap() {
                assert_eq!(shard, data[at as usize], "{mask:b} {at}");
            }
        }
    }
}
