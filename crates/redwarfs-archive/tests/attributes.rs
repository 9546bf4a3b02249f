//! Extended attributes, access control lists, birth times and flags in archives.

use crate::common::{Outcome, file, pax, read, tar};
use redwarfs_writer::Source;

fn read_one(bytes: &[u8]) -> Outcome {
    read(&[("", bytes)], |_| ())
}

#[test]
fn attributes_come_from_both_forms_of_records() {
    let outcome = read_one(&tar(&[
        pax(
            b'x',
            &[
                ("SCHILY.xattr.user.a", b"\0\xff\n="),
                ("LIBARCHIVE.xattr.security.capability", b"AQI="),
                ("SCHILY.xattr.system.posix_acl_access", b"x"),
            ],
        ),
        file("x", b""),
    ]));
    let source = outcome.source.unwrap();
    let items = source.read_dir(b"").unwrap();
    let extended = &items[0].meta.as_ref().unwrap().extended;
    let xattrs = extended.xattrs().iter();
    let mut xattrs: Vec<_> = xattrs.map(|x| (&x.name[..], &x.value[..])).collect();
    xattrs.sort_unstable();
    let want = [
        (&b"security.capability"[..], &[1, 2][..]),
        (b"system.posix_acl_access", b"x"),
        (b"user.a", b"\0\xff\n="),
    ];
    assert_eq!(xattrs, want);
}

#[test]
fn records_of_lists_labels_times_and_flags() {
    let records: &[(&str, &[u8])] = &[
        (
            "SCHILY.acl.access",
            b"user::rw-,user:bob:r--:7,group::r--,mask::r--,other::---",
        ),
        ("SCHILY.acl.default", b"user:nobody_knows:r--"),
        ("RHT.security.selinux", b"a:b:c"),
        ("LIBARCHIVE.creationtime", b"-1.5"),
        ("SCHILY.fflags", b"nodump,schg,other"),
    ];
    let source = read_one(&tar(&[pax(b'x', records), file("x", b"")]))
        .source
        .unwrap();
    let items = source.read_dir(b"").unwrap();
    let extended = &items[0].meta.as_ref().unwrap().extended;
    let value = |name: &[u8]| {
        let mut xattrs = extended.xattrs().iter();
        xattrs
            .find(|xattr| xattr.name == name)
            .map(|xattr| xattr.value.clone())
    };
    assert_eq!(value(b"security.selinux").unwrap(), b"a:b:c\0");
    assert_eq!(value(b"system.posix_acl_access").unwrap().len(), 4 + 5 * 8);
    assert_eq!(extended.unreadable(), [b"system.posix_acl_default"]);
    let birth = extended.birth().unwrap();
    assert_eq!(
        (birth.sec, birth.nsec, extended.flags()),
        (-2, 500_000_000, 0x50)
    );
}

/// GNU tar writes no numbers for users and groups that its machine knows.
#[test]
fn names_in_lists_are_looked_up() {
    use redwarfs_archive::{Account, Accounts};

    let list: &[u8] = b"user::rw-,user:bob:r--,group::r--,group:staff:r--,mask::r--,other::---";
    let bytes = tar(&[pax(b'x', &[("SCHILY.acl.access", list)]), file("x", b"")]);
    for known in [true, false] {
        let outcome = read(&[("", &bytes)], |options| {
            options.accounts = Accounts::new(move |account, name| match (account, name) {
                (Account::User, "bob") => Some(1000),
                (Account::Group, "staff") => known.then_some(50),
                _ => None,
            });
        });
        let source = outcome.source.unwrap();
        let items = source.read_dir(b"").unwrap();
        let extended = &items[0].meta.as_ref().unwrap().extended;
        assert_eq!(extended.xattrs().len(), usize::from(known));
        assert_eq!(extended.unreadable().len(), usize::from(!known));
        if known {
            let value = &extended.xattrs()[0].value;
            let ids = value[4..].chunks(8).map(|entry| entry[4]);
            assert_eq!(ids.collect::<Vec<_>>(), [255, 0xe8, 255, 50, 255, 255]);
        }
    }
}
