//! The entries of a directory from a position on, for READDIR and READDIRPLUS.

use redwarfs_format::ids::{EntryIndex, InodeNo};
use rustix::io::Errno;

use crate::image_state::ImageState;
use crate::policy::node_id;
use crate::proto::{Body, MAX_REQUEST};

/// Positions of a directory: 0 is `.`, 1 is `..`, the entries follow.
pub(crate) const DOTS: u64 = 2;
/// Longest name that the kernel takes in a listing (4095 since Linux 6.17, before that 1024).
const LONGEST_NAME: usize = 1024;

/// Calls `add(inode, entry, next position, name)` from `position` on until it says that the buffer
/// is full. `.` and `..` have no entry.
pub(super) fn list(
    state: &ImageState,
    dir: InodeNo,
    position: u64,
    mut add: impl FnMut(InodeNo, Option<EntryIndex>, u64, &[u8]) -> Result<bool, Errno>,
) -> Result<(), Errno> {
    let meta = state.image.metadata();
    let fail = |cause: redwarfs_format::Error| state.fail("list", dir, &cause);
    if position == 0 && add(dir, None, 1, b".")? {
        return Ok(());
    }
    if position <= 1 && add(meta.parent(dir).map_err(fail)?, None, DOTS, b"..")? {
        return Ok(());
    }
    let range = meta.entries(dir).map_err(fail)?;
    let skip = u32::try_from(position.saturating_sub(DOTS)).unwrap_or(u32::MAX);
    let first = range.start.saturating_add(skip);
    for index in first..range.end {
        let entry = EntryIndex(index);
        let name = meta.entry_name(entry).map_err(fail)?;
        if root_entry_is_hidden(state, dir, &name) {
            continue;
        }
        if !is_listable(&name) {
            // One such name would make the kernel refuse the whole listing.
            let text = format!("directory {}: a name that cannot be shown", node_id(dir));
            state.failures.mention(&text);
            continue;
        }
        let inode = meta.entry_inode(entry).map_err(fail)?;
        let next = u64::from(index - range.start) + DOTS + 1;
        if add(inode, Some(entry), next, &name)? {
            break;
        }
    }
    Ok(())
}

/// Whether the directory of snapshots takes the place of an entry.
fn root_entry_is_hidden(state: &ImageState, dir: InodeNo, name: &[u8]) -> bool {
    dir == state.image.root() && state.hidden.as_deref() == Some(name)
}

/// Position and room of a request to list a directory.
pub(crate) fn part(body: &mut Body<'_>) -> Result<(u64, usize), Errno> {
    body.u64();
    let (position, size) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
    Ok((position, size.min(MAX_REQUEST) as usize))
}

/// Whether the kernel takes a name in a listing.
pub(crate) fn is_listable(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= LONGEST_NAME
        && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_refuses() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'x'; 1025]] {
            assert!(!is_listable(name), "{name:?}");
        }
        for name in [&b"..."[..], b"a b", b"\xff\n", &[b'x'; 1024]] {
            assert!(is_listable(name), "{name:?}");
        }
    }
}
