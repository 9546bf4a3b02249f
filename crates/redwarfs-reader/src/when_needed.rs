//! Compressed metadata whose tables are decoded when they are needed.
//!
//! A table of LZMA-compressed metadata is a block of its `.xz` stream, and gets a decoder of its own. A table is decoded in
//! order, as far as a request needs it. A request waits for no more than that, also while another thread decodes the table
//! further: no lock is held meanwhile, and each part is there when it was decoded.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use redwarfs_codec::Decoder;
use redwarfs_format::frozen::LazyBytes;
use redwarfs_format::section::Section;
use redwarfs_format::{Error, Result};

use crate::error::in_section;

/// The bytes that `decoder` makes, of which none were made so far. Until all of a table is decoded, its
/// decoder and its stored bytes stay in memory.
///
/// # Errors
/// Those of the codec, with the place of the section: framing that is wrong.
pub(crate) fn decode_when_needed(decoder: Decoder, section: &Section) -> Result<LazyBytes> {
    let mut end = 0;
    let decoders = decoder.apart().map_err(|e| in_section(e, section))?;
    let tables = decoders.into_iter().map(|decoder| {
        let start = end;
        // The sum of all sizes fits into memory; that was checked before.
        end += usize::try_from(decoder.raw_size()).unwrap_or(0);
        Table::new(start..end, decoder)
    });
    let tables: Vec<_> = tables.collect();
    let ends: Vec<_> = tables.iter().map(|table| table.end).collect();
    let section = section.clone();
    Ok(LazyBytes::of_tables(&ends, move |part, put| {
        let of_part = tables.partition_point(|table| table.end <= part.start);
        let decoded = tables.get(of_part).map(|table| table.decode(part.end, put));
        decoded
            .unwrap_or(Ok(()))
            .map_err(|e| in_section(e, &section))
    }))
}

/// A table, or everything.
struct Table {
    /// Where it ends in the metadata.
    end: usize,
    progress: Mutex<Progress>,
    /// Something was decoded, or cannot be.
    changed: Condvar,
}

/// How far a table is decoded.
struct Progress {
    /// Where decoding stands in the metadata.
    at: usize,
    left: Left,
}

/// What is left of a table.
enum Left {
    Some(Box<Decoder>),
    /// A thread decodes the next part.
    Busy,
    Nothing,
    Failed(Error),
}

impl Table {
    fn new(range: Range<usize>, decoder: Decoder) -> Self {
        Self {
            end: range.end,
            progress: Mutex::new(Progress {
                at: range.start,
                left: Left::Some(Box::new(decoder)),
            }),
            changed: Condvar::new(),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing that is done while it is locked can panic half-way.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes at least up to the end of a part, and puts all parts that this makes. While another thread decodes the next
    /// part, it waits.
    fn decode(&self, end: usize, put: &dyn Fn(usize, Box<[u8]>)) -> Result<()> {
        let mut progress = self.progress();
        while progress.at < end {
            let start = progress.at;
            match std::mem::replace(&mut progress.left, Left::Busy) {
                Left::Some(mut decoder) => {
                    drop(progress);
                    let to = start.saturating_add(LazyBytes::PART).min(self.end);
                    let decoding = Decoding(self);
                    let mut bytes = vec![0; to - start].into_boxed_slice();
                    let filled = decoder.fill(&mut bytes);
                    if filled.is_ok() {
                        // Whoever finds it decoded finds the part.
                        put(start, bytes);
                    }
                    progress = decoding.end(filled.map(|()| (to, decoder)));
                }
                Left::Busy => {
                    let woken = self.changed.wait(progress);
                    progress = woken.unwrap_or_else(PoisonError::into_inner);
                }
                Left::Failed(e) => {
                    let copy = e.replicate();
                    progress.left = Left::Failed(e);
                    return Err(copy);
                }
                Left::Nothing => {
                    progress.left = Left::Nothing;
                    return Err(Error::corrupt("metadata ends early"));
                }
            }
        }
        Ok(())
    }
}

/// A thread decodes a part of a table, and all others have to wait. If it panics, decoder and place may not fit together.
struct Decoding<'a>(&'a Table);

impl<'a> Decoding<'a> {
    /// Up to where the table is decoded now, with its decoder; or why it is not.
    fn end(self, decoded: Result<(usize, Box<Decoder>)>) -> MutexGuard<'a, Progress> {
        let table = self.0;
        std::mem::forget(self);
        let mut progress = table.progress();
        match decoded {
            Ok((to, decoder)) => {
                progress.at = to;
                progress.left = if to == table.end {
                    Left::Nothing
                } else {
                    Left::Some(decoder)
                };
            }
            Err(e) => progress.left = Left::Failed(e),
        }
        table.changed.notify_all();
        progress
    }
}

impl Drop for Decoding<'_> {
    fn drop(&mut self) {
        let what = "a thread that decoded metadata has panicked";
        self.0.progress().left = Left::Failed(Error::corrupt(what));
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;
    use std::thread;

    use redwarfs_format::section::CompressionId;

    use super::*;

    const PART: usize = LazyBytes::PART;

    fn data(parts: usize) -> Vec<u8> {
        (0..parts * PART)
            .map(|i| (i / 13 * 7 + i / 65_536) as u8)
            .collect()
    }

    fn table(data: &[u8]) -> Table {
        let codec: redwarfs_codec::CodecSpec = "lzma:level=1".parse().unwrap();
        let payload = codec.compressor().compress(data).unwrap().data.unwrap();
        let decoder = Decoder::new(CompressionId::LZMA, payload, 1 << 30).unwrap();
        // It begins somewhere in the metadata.
        Table::new(100..100 + data.len(), decoder)
    }

    #[test]
    fn a_request_decodes_what_it_needs() {
        // More than a MiB.
        let data = data(40);
        let table = table(&data);
        let made = Mutex::new(Vec::new());
        let put = |start: usize, bytes: Box<[u8]>| made.lock().unwrap().push((start, bytes));
        for needed in [30 * PART, 7 * PART, 31 * PART, 40 * PART, 3 * PART] {
            let before = made.lock().unwrap().len();
            table.decode(100 + needed, &put).unwrap();
            let parts = made.lock().unwrap().len();
            assert_eq!(parts, before.max(needed / PART));
        }
        let made = made.into_inner().unwrap();
        let parts = made.iter().zip(data.chunks(PART));
        for (index, ((start, bytes), expected)) in parts.enumerate() {
            assert_eq!(*start, 100 + index * PART);
            assert!(**bytes == *expected);
        }
    }

    #[test]
    fn a_request_does_not_wait_for_parts_that_others_need() {
        let data = data(8);
        let table = table(&data);
        let (come, came) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        thread::scope(|scope| {
            let table = &table;
            scope.spawn(move || {
                let put = |start: usize, _: Box<[u8]>| {
                    if start == 100 + 5 * PART {
                        come.send(()).unwrap();
                        gone.recv().unwrap();
                    }
                };
                table.decode(table.end, &put).unwrap();
            });
            came.recv().unwrap();
            let nothing = |start: usize, _: Box<[u8]>| panic!("{start}");
            table.decode(100 + 5 * PART, &nothing).unwrap();
            go.send(()).unwrap();
        });
        assert!(matches!(table.progress().left, Left::Nothing));
    }

    #[test]
    fn a_panic_is_damage_and_nobody_waits_for_ever() {
        let table = table(&data(3));
        let failing = |start: usize, _: Box<[u8]>| assert_eq!(start, 100);
        let panicked = catch_unwind(AssertUnwindSafe(|| table.decode(table.end, &failing)));
        assert!(panicked.is_err());
        let nothing = |start: usize, _: Box<[u8]>| panic!("{start}");
        table.decode(100 + PART, &nothing).unwrap();
        let e = table.decode(100 + 2 * PART, &nothing).unwrap_err();
        assert!(matches!(e, Error::Corrupt { .. }), "{e}");
    }
}
