//! POSIX access control lists in the form of the Linux kernel: a version word, then tag, permissions
//! and id of each entry.

/// The version of the form.
const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;

const OWNER: u16 = 0x01;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// Tag and permissions of an entry, and where the permissions are.
struct Entry {
    tag: u16,
    permissions: u16,
    at: usize,
}

/// The entries; nothing if the value is no list.
fn entries(value: &[u8]) -> Option<Vec<Entry>> {
    let (version, rest) = value.split_first_chunk::<HEADER>()?;
    if u32::from_le_bytes(*version) != VERSION || rest.len() % ENTRY != 0 {
        return None;
    }
    let entries = rest.chunks_exact(ENTRY).enumerate().filter_map(|(i, e)| {
        let word = |at: usize| Some(u16::from_le_bytes([*e.get(at)?, *e.get(at + 1)?]));
        Some(Entry {
            tag: word(0)?,
            permissions: word(2)?,
            at: HEADER + i * ENTRY + 2,
        })
    });
    Some(entries.collect())
}

/// Whether a POSIX access list, in the form of the kernel for extended attributes, says no more than the
/// permissions: it has only the entries of owner, group and others, and they are the same.
#[must_use]
pub fn is_mode(value: &[u8], permissions: u32) -> bool {
    let Some(entries) = entries(value) else {
        return false;
    };
    entries.iter().all(|entry| {
        let shift = match entry.tag {
            OWNER => 6,
            GROUP => 3,
            OTHERS => 0,
            _ => return false,
        };
        u32::from(entry.permissions) == permissions >> shift & 7
    })
}

/// Whether a list has no entries.
pub(crate) fn is_empty(value: &[u8]) -> bool {
    entries(value).is_some_and(|entries| entries.is_empty())
}

/// The POSIX access list after `chmod` to these permissions, in the form of the kernel for extended
/// attributes. `chmod` changes the entries of owner and others, and the mask or,
/// without one, the entry of the group.
#[must_use]
pub fn chmod_access_list(value: &[u8], permissions: u32) -> Vec<u8> {
    let mut changed = value.to_vec();
    let Some(entries) = entries(value) else {
        return changed;
    };
    let masked = entries.iter().any(|entry| entry.tag == MASK);
    for entry in entries {
        let shift = match entry.tag {
            OWNER => 6,
            MASK => 3,
            GROUP if !masked => 3,
            OTHERS => 0,
            _ => continue,
        };
        let bits = (permissions >> shift & 7) as u16;
        if let Some(place) = changed.get_mut(entry.at..entry.at + 2) {
            place.copy_from_slice(&bits.to_le_bytes());
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    #[test]
    fn lists_that_say_no_more_than_the_mode() {
        let minimal = list(&[(OWNER, 7, !0), (GROUP, 5, !0), (OTHERS, 0, !0)]);
        assert!(is_mode(&minimal, 0o750));
        assert!(is_mode(&minimal, 0o4750));
        assert!(!is_mode(&minimal, 0o755));
        let named = list(&[
            (OWNER, 7, !0),
            (2, 4, 1000),
            (GROUP, 5, !0),
            (MASK, 5, !0),
            (OTHERS, 0, !0),
        ]);
        assert!(!is_mode(&named, 0o750));
        assert!(is_empty(&list(&[])) && !is_empty(&minimal));
        for broken in [&b""[..], &[1, 0, 0, 0], &minimal[..minimal.len() - 1]] {
            assert!(!is_mode(broken, 0o750) && !is_empty(broken));
            assert_eq!(chmod_access_list(broken, 0o700), broken);
        }
    }

    #[test]
    fn chmod_changes_the_mask() {
        let named = |owner, mask, others| {
            list(&[
                (OWNER, owner, !0),
                (2, 4, 1000),
                (GROUP, 5, !0),
                (MASK, mask, !0),
                (OTHERS, others, !0),
            ])
        };
        assert_eq!(chmod_access_list(&named(7, 5, 0), 0o4641), named(6, 4, 1));
        let minimal = |group| list(&[(OWNER, 7, !0), (GROUP, group, !0), (OTHERS, 0, !0)]);
        assert_eq!(chmod_access_list(&minimal(5), 0o720), minimal(2));
    }
}
