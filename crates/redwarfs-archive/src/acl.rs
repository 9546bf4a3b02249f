//! Access control lists in words, as in extended headers of tar, and the form of the Linux kernel.

use crate::Accounts;

/// Version of the form of the kernel.
const VERSION: u32 = 2;
/// What entries without a user or group have as its number.
const NO_ID: u32 = u32::MAX;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// The list in the form of the kernel: `user:name:rwx:1000`, with commas or lines between entries. `None`
/// if it is no list, or has a name without a number that `accounts` does not know.
pub(crate) fn binary(text: &[u8], accounts: &Accounts) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let lines = text.split(['\n', ',']).map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.trim()
    });
    let mut entries = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let mut parts = line.split(':').map(str::trim);
        let (kind, mut name) = (parts.next()?, parts.next()?);
        let permissions = match parts.next() {
            Some(permissions) => permissions,
            // As Solaris writes it.
            None if matches!(kind, "other" | "mask") => std::mem::take(&mut name),
            None => return None,
        };
        let number = parts.next();
        let (own, other) = match kind {
            "user" | "u" => (OWNER, Some(USER)),
            "group" | "g" => (OWNING_GROUP, Some(GROUP)),
            "mask" | "m" => (MASK, None),
            "other" | "o" => (OTHERS, None),
            _ => return None,
        };
        let (tag, id) = match name {
            "" => (own, NO_ID),
            name => {
                let tag = other?;
                let id = match number.unwrap_or(name).parse() {
                    Ok(id) => id,
                    Err(_) if tag == USER => accounts.user(name)?,
                    Err(_) => accounts.group(name)?,
                };
                (tag, id)
            }
        };
        let mut bits = 0u16;
        for letter in permissions.chars() {
            bits |= match letter {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return None,
            };
        }
        entries.push((tag, id, bits));
    }
    // In the order in which the kernel has them.
    entries.sort_unstable();
    let mut out = VERSION.to_le_bytes().to_vec();
    for (tag, id, bits) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&bits.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    Some(out)
}

/// The permissions of a file with this access list, `0777`. `None` if it is no list.
pub(crate) fn permissions(list: &[u8]) -> Option<u32> {
    let (_, entries) = list.split_first_chunk::<4>()?;
    let (mut mode, mut mask) = (0, None);
    for entry in entries.chunks_exact(8) {
        let word = |at: usize| Some(u16::from_le_bytes([*entry.get(at)?, *entry.get(at + 1)?]));
        let bits = u32::from(word(2)? & 7);
        match word(0)? {
            OWNER => mode |= bits << 6,
            OWNING_GROUP => mode |= bits << 3,
            OTHERS => mode |= bits,
            MASK => mask = Some(bits),
            _ => {}
        }
    }
    let mask = mask.map(|mask| mode & 0o707 | mask << 3);
    (!entries.is_empty()).then_some(mask.unwrap_or(mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Account;

    #[test]
    fn lists_in_words_become_those_of_the_kernel() {
        let want = [
            &[2, 0, 0, 0][..],
            &[1, 0, 7, 0, 255, 255, 255, 255],
            &[2, 0, 6, 0, 232, 3, 0, 0],
            &[4, 0, 5, 0, 255, 255, 255, 255],
            &[16, 0, 7, 0, 255, 255, 255, 255],
            &[32, 0, 4, 0, 255, 255, 255, 255],
        ]
        .concat();
        for text in [
            "user::rwx,user:bob:rw-:1000,group::r-x,mask::rwx,other::r--",
            "user::rwx\nother::r--\nuser:1000:rw-\ngroup::r-x\nmask::rwx\n",
            "u::rwx, u:1000:rw- #effective:rw-\ng::r-x\nmask:rwx\nother:r--",
        ] {
            let none = Accounts::default();
            assert_eq!(binary(text.as_bytes(), &none), Some(want.clone()), "{text}");
            assert_eq!(permissions(&want), Some(0o774));
        }
        for text in [
            "user:bob:rw-",
            "user::rwq",
            "users::rwx",
            "user",
            "other:me:r--:4",
            "\u{e4}",
        ] {
            assert_eq!(
                binary(text.as_bytes(), &Accounts::default()),
                None,
                "{text}"
            );
        }
        assert_eq!(binary(b"", &Accounts::default()), Some(vec![2, 0, 0, 0]));
    }

    #[test]
    fn names_are_looked_up() {
        let accounts = Accounts::new(|account, name| match (account, name) {
            (Account::User, "bob") => Some(1000),
            (Account::Group, "bob") => Some(7),
            _ => None,
        });
        let ids = |text: &str| {
            let list = binary(text.as_bytes(), &accounts)?;
            let entries = list.get(4..)?.chunks_exact(8);
            Some(entries.map(|entry| entry[4]).collect::<Vec<_>>())
        };
        for _ in 0..2 {
            assert_eq!(ids("user:bob:r--"), Some(vec![0xe8]));
            assert_eq!(ids("group:bob:r--"), Some(vec![7]));
            assert_eq!(ids("group:bob:r--:9"), Some(vec![9]));
            assert_eq!(ids("group:eve:r--"), None);
        }
    }
}
