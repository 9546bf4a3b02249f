//! Security descriptors: who may do what with a file, from its mode.
//!
//! Owners and groups of the image are no accounts of this system. They are shown as the accounts
//! `S-1-22-1-UID` and `S-1-22-2-GID`, which Samba introduced for this.

use crate::options::Access;

const READ: u32 = 0x0001 | 0x0008;
const EXECUTE: u32 = 0x0020;
/// Attributes and the descriptor can be read in any case.
const LOOK: u32 = 0x0080 | 0x0002_0000 | 0x0010_0000;

/// A security identifier, in the form of descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sid(Vec<u8>);

impl Sid {
    fn new(authority: u8, parts: &[u32]) -> Self {
        let mut bytes = vec![1, parts.len() as u8, 0, 0, 0, 0, 0, authority];
        bytes.extend(parts.iter().flat_map(|part| part.to_le_bytes()));
        Self(bytes)
    }

    /// From the form of the system; `None` if the length is wrong.
    #[cfg(any(windows, test))]
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let parts = usize::from(*bytes.get(1)?);
        (parts <= 15 && bytes.len() == 8 + 4 * parts).then(|| Self(bytes.to_vec()))
    }

    fn everyone() -> Self {
        Self::new(1, &[0])
    }

    fn system() -> Self {
        Self::new(5, &[18])
    }

    fn administrators() -> Self {
        Self::new(5, &[32, 544])
    }

    fn user(uid: u32) -> Self {
        Self::new(22, &[1, uid])
    }

    fn group(gid: u32) -> Self {
        Self::new(22, &[2, gid])
    }
}

/// Makes the descriptors of a mount.
#[derive(Debug)]
pub(super) struct Security {
    /// Who may use the mount.
    users: Vec<Sid>,
    /// Whether modes decide who may read and execute.
    checks: bool,
}

impl Security {
    /// `mounting` is the account that mounts. The system itself needs access to start programs for it.
    pub(super) fn new(access: Access, mounting: Sid, checks: bool) -> Self {
        let users = match access {
            Access::Everyone => vec![Sid::everyone()],
            Access::Owner => vec![mounting, Sid::system()],
            Access::OwnerAndRoot => vec![mounting, Sid::system(), Sid::administrators()],
        };
        Self { users, checks }
    }

    /// The descriptor of an entry, self-relative.
    pub(super) fn descriptor(&self, mode: u32, uid: u32, gid: u32) -> Vec<u8> {
        let (owner, group) = (Sid::user(uid), Sid::group(gid));
        let mut list = List::default();
        if self.checks {
            let [of_owner, of_group, of_others] = [mode >> 6, mode >> 3, mode].map(rights);
            // The first entry about an account and a right counts. So the classes do not add up.
            list.deny(&owner, (of_group | of_others) & !of_owner);
            list.allow(&owner, LOOK | of_owner);
            list.deny(&group, of_others & !of_group);
            list.allow(&group, LOOK | of_group);
            for user in &self.users {
                list.allow(user, LOOK | of_others);
            }
        } else {
            for user in &self.users {
                list.allow(user, LOOK | READ | EXECUTE);
            }
        }
        assemble(&owner, &group, &list)
    }
}

/// The rights of one class of a mode. Nobody can write.
fn rights(bits: u32) -> u32 {
    let part = |bit, right| if bits & bit != 0 { right } else { 0 };
    part(4, READ) | part(1, EXECUTE)
}

/// An access list.
#[derive(Debug, Default)]
struct List {
    entries: Vec<u8>,
    count: u16,
}

impl List {
    fn allow(&mut self, who: &Sid, rights: u32) {
        self.add(0, who, rights);
    }

    fn deny(&mut self, who: &Sid, rights: u32) {
        if rights != 0 {
            self.add(1, who, rights);
        }
    }

    fn add(&mut self, kind: u8, who: &Sid, rights: u32) {
        let size = (8 + who.0.len()) as u16;
        self.entries.extend([kind, 0]);
        self.entries.extend(size.to_le_bytes());
        self.entries.extend(rights.to_le_bytes());
        self.entries.extend(&who.0);
        self.count += 1;
    }
}

/// A descriptor with a list that inherits nothing.
fn assemble(owner: &Sid, group: &Sid, list: &List) -> Vec<u8> {
    const HEAD: usize = 20;
    const LIST_HEAD: usize = 8;
    // SE_SELF_RELATIVE, SE_DACL_PROTECTED, SE_DACL_PRESENT.
    const CONTROL: u16 = 0x8000 | 0x1000 | 0x0004;
    let group_at = HEAD + owner.0.len();
    let list_at = group_at + group.0.len();
    let list_size = LIST_HEAD + list.entries.len();
    let mut out = Vec::with_capacity(list_at + list_size);
    out.extend([1, 0]);
    out.extend(CONTROL.to_le_bytes());
    for place in [HEAD, group_at, 0, list_at] {
        out.extend((place as u32).to_le_bytes());
    }
    out.extend(&owner.0);
    out.extend(&group.0);
    out.extend([2, 0]);
    out.extend((list_size as u16).to_le_bytes());
    out.extend(list.count.to_le_bytes());
    out.extend([0, 0]);
    out.extend(&list.entries);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn le16(bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    fn le32(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn sid_at(bytes: &[u8], at: usize) -> Sid {
        let end = at + 8 + 4 * usize::from(bytes[at + 1]);
        Sid::from_bytes(&bytes[at..end]).unwrap()
    }

    /// Owner, group, and the entries (denies, account, rights) of a descriptor.
    fn parse(bytes: &[u8]) -> (Sid, Sid, Vec<(bool, Sid, u32)>) {
        assert_eq!((bytes[0], le16(bytes, 2)), (1, 0x9004));
        assert_eq!(le32(bytes, 12), 0);
        let owner = sid_at(bytes, le32(bytes, 4) as usize);
        let group = sid_at(bytes, le32(bytes, 8) as usize);
        let list = le32(bytes, 16) as usize;
        assert_eq!(list + usize::from(le16(bytes, list + 2)), bytes.len());
        let mut at = list + 8;
        let mut entries = Vec::new();
        for _ in 0..le16(bytes, list + 4) {
            entries.push((bytes[at] == 1, sid_at(bytes, at + 8), le32(bytes, at + 4)));
            at += usize::from(le16(bytes, at + 2));
        }
        assert_eq!(at, bytes.len());
        (owner, group, entries)
    }

    /// The rights that an account with these identifiers gets, as Windows computes them.
    fn granted(descriptor: &[u8], token: &[Sid]) -> u32 {
        let (mut granted, mut denied) = (0, 0);
        for (denies, who, rights) in parse(descriptor).2 {
            if token.contains(&who) {
                match denies {
                    true => denied |= rights & !granted,
                    false => granted |= rights & !denied,
                }
            }
        }
        granted
    }

    fn me() -> Sid {
        Sid::new(5, &[21, 1, 2, 3, 1001])
    }

    #[test]
    fn the_system_knows_these_forms() {
        assert_eq!(Sid::everyone().0, [1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        let admins = [1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0];
        assert_eq!(Sid::administrators().0, admins);
        assert_eq!(Sid::from_bytes(&admins), Some(Sid::administrators()));
        assert_eq!(Sid::from_bytes(&admins[..12]), None);
        assert_eq!(Sid::from_bytes(&[1]), None);
    }

    #[test]
    fn whoever_may_use_the_mount_may_read_everything() {
        for (access, token, may) in [
            (Access::Owner, me(), true),
            (Access::Owner, Sid::system(), true),
            (Access::Owner, Sid::administrators(), false),
            (Access::Owner, Sid::everyone(), false),
            (Access::OwnerAndRoot, Sid::administrators(), true),
            (Access::OwnerAndRoot, Sid::everyone(), false),
            (Access::Everyone, Sid::everyone(), true),
        ] {
            let security = Security::new(access, me(), false);
            let descriptor = security.descriptor(0o100_600, 1000, 100);
            let rights = granted(&descriptor, std::slice::from_ref(&token));
            let want = if may { 0x0012_00a9 } else { 0 };
            assert_eq!(rights, want, "{access:?} {token:?}");
            let (owner, group, _) = parse(&descriptor);
            assert_eq!((owner, group), (Sid::user(1000), Sid::group(100)));
        }
    }

    #[test]
    fn modes_decide_if_they_are_asked() {
        let security = Security::new(Access::Everyone, me(), true);
        let classes = [
            vec![Sid::user(7), Sid::group(8), Sid::everyone()],
            vec![Sid::group(8), Sid::everyone()],
            vec![Sid::everyone()],
        ];
        for mode in 0..0o1000 {
            let descriptor = security.descriptor(0o100_000 | mode, 7, 8);
            for (class, token) in classes.iter().enumerate() {
                let bits = mode >> (6 - 3 * class);
                let want = LOOK | rights(bits);
                assert_eq!(granted(&descriptor, token), want, "{mode:o} class {class}");
            }
        }
    }
}
