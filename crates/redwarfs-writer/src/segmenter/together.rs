//! Keeping directories in one block, if blocks are large.
//!
//! A block is decoded from its start. If a directory begins in one block and ends in the next, reading
//! it decodes all of the first block. So a block ends early if otherwise a file or directory that fits
//! into one block were split. It does not end early if more than three eighths of the block would stay
//! empty.
//!
//! This applies to blocks of more than 16 MiB. With smaller blocks, reading would save less than the
//! empty space takes.

/// Blocks up to this size are always filled (16 MiB).
const ALWAYS_FILLED: usize = 16 << 20;

/// Largest part of a block that stays empty, in eighths.
const EMPTY: usize = 3;

/// Whether directories are kept together in blocks of this size, in bytes.
pub(crate) fn matters(block_size: usize) -> bool {
    block_size > ALWAYS_FILLED
}

/// Whether a block of which `left` bytes are empty ends before `size` bytes that belong together.
pub(crate) fn ends_before(size: u32, left: usize, block_size: usize) -> bool {
    let size = size as usize;
    matters(block_size) && size > left && size <= block_size && left <= block_size / 8 * EMPTY
}

/// For each file of a sequence, the size in bytes of the largest directory that begins with it and is
/// not larger than `most`, or the size of the file; 0 if both are larger. Only consecutive files in and
/// below a directory count.
///
/// `files`: size and directory of each, `count` of them. `parent`: the parent of a directory; 0 is the
/// root, which has none. Memory: 4 bytes for each file. The time is proportional to the depths of the
/// files.
pub(crate) fn sizes(
    files: impl Iterator<Item = (u64, u32)>,
    count: usize,
    parent: impl Fn(u32) -> u32,
    most: usize,
) -> Vec<u32> {
    // Blocks have at most 1 GiB.
    let fitting = |size: u64| {
        u32::try_from(size)
            .ok()
            .filter(|&size| size as usize <= most)
    };
    let mut sizes: Vec<u32> = Vec::with_capacity(count);
    // Directories from the root on, each with its first file and position.
    let mut open: Vec<(u32, usize, u64)> = Vec::new();
    let close = |sizes: &mut Vec<u32>, (_, first, start): (u32, usize, u64), end: u64| {
        if let Some(size) = fitting(end - start)
            && let Some(found) = sizes.get_mut(first)
        {
            *found = size.max(*found);
        }
    };
    let (mut above, mut position) = (Vec::new(), 0_u64);
    for (size, directory) in files {
        above.clear();
        let mut at = directory;
        while at != 0 {
            above.push(at);
            at = parent(at);
        }
        above.reverse();
        let same = open
            .iter()
            .zip(&above)
            .take_while(|((dir, ..), at)| dir == *at);
        let same = same.count();
        for directory in open.drain(same..) {
            close(&mut sizes, directory, position);
        }
        let number = sizes.len();
        open.extend(above.iter().skip(same).map(|&dir| (dir, number, position)));
        sizes.push(fitting(size).unwrap_or(0));
        position = position.saturating_add(size);
    }
    for directory in open {
        close(&mut sizes, directory, position);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 and 4 are in the root, 2 and 3 in 1.
    fn parent(directory: u32) -> u32 {
        [0, 0, 1, 1, 0][directory as usize]
    }

    #[test]
    fn the_largest_that_fits_counts() {
        let files = [(5, 2), (6, 2), (7, 3), (1, 0), (9, 4), (200, 4), (2, 2)];
        let found = |most| sizes(files.into_iter(), files.len(), parent, most);
        assert_eq!(found(1000), [18, 6, 7, 1, 209, 200, 2]);
        assert_eq!(found(100), [18, 6, 7, 1, 9, 0, 2]);
        assert_eq!(found(17), [11, 6, 7, 1, 9, 0, 2]);
        assert_eq!(found(5), [5, 0, 0, 1, 0, 0, 2]);
        assert_eq!(sizes(std::iter::empty(), 0, parent, 9), [0; 0]);
    }

    #[test]
    fn only_large_blocks_end_early() {
        let block = ALWAYS_FILLED * 2;
        let most = block / 8 * EMPTY;
        let fits = |size: usize, left, block| ends_before(size as u32, left, block);
        assert!(fits(most + 1, most, block) && fits(block, 1, block));
        assert!(!fits(most, most, block) && !fits(block, most + 1, block));
        assert!(!fits(block + 1, 1, block) && !fits(100, 1, ALWAYS_FILLED));
    }
}
