//! The structs before the bit streams of FLAC and Rice++ payloads (format chapter 01 section 5). The
//! codecs interpret them; here they are only converted.

use crate::error::Result;
use crate::thrift::{Reader, Writer};

macro_rules! block_header {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $id:literal: $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl $name {
            /// Decodes the header at the start of `data`. Returns it with its encoded length;
            /// the compressed stream follows there.
            ///
            /// # Errors
            /// [`Error::Corrupt`](crate::Error::Corrupt) if the encoding is damaged.
            pub fn parse(data: &[u8]) -> Result<(Self, usize)> {
                let mut header = Self::default();
                let mut reader = Reader::new(data);
                reader.read_struct(|id, value| match id {
                    $($id => value.store(&mut header.$field),)*
                    _ => Ok(()),
                })?;
                Ok((header, reader.position()))
            }

            /// Encodes the header.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                let mut writer = Writer::new();
                writer.write_struct(|s| {
                    $(s.put($id, &self.$field);)*
                });
                writer.into_bytes()
            }
        }
    };
}

block_header! {
    /// Sample format of a FLAC block.
    FlacBlockHeader {
        /// Number of channels.
        1: num_channels: u16,
        /// Significant bits of a sample.
        2: bits_per_sample: u8,
        /// Byte order, signedness and padding of the samples in the file.
        3: flags: u8,
    }
}

block_header! {
    /// Parameters of a Rice++ block.
    RiceppBlockHeader {
        /// Samples per Rice block.
        1: block_size: u32,
        /// Number of interleaved components.
        2: component_count: u16,
        /// Bytes of a sample in the file.
        3: bytes_per_sample: u8,
        /// Low bits that are zero in every sample.
        4: unused_lsb_count: u8,
        /// Byte order of the samples in the file.
        5: big_endian: bool,
        /// Version of the bit stream.
        6: ricepp_version: u16,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encoding() {
        let header = RiceppBlockHeader {
            block_size: 128,
            component_count: 1,
            bytes_per_sample: 2,
            unused_lsb_count: 0,
            big_endian: true,
            ricepp_version: 1,
        };
        let bytes = [
            0x15, 0x80, 0x02, 0x14, 0x02, 0x13, 0x02, 0x13, 0x00, 0x11, 0x14, 0x02, 0x00,
        ];
        assert_eq!(header.encode(), bytes);
        let stream = [&bytes[..], &[0xff]].concat();
        assert_eq!(
            RiceppBlockHeader::parse(&stream).unwrap(),
            (header, bytes.len())
        );
    }

    proptest! {
        #[test]
        fn round_trip(num_channels: u16, bits_per_sample: u8, flags: u8) {
            let header = FlacBlockHeader { num_channels, bits_per_sample, flags };
            let bytes = header.encode();
            prop_assert_eq!(FlacBlockHeader::parse(&bytes).unwrap(), (header, bytes.len()));
        }
    }
}
