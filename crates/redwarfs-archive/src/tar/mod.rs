//! Reading tar archives: v7, ustar, pax, GNU and star, with all sparse formats of GNU.
//!
//! The crate `tar` reads neither sparse files in pax archives nor negative times, and passes over
//! damage that this module reports, so the format is read here.

mod header;
mod pax;
mod sparse;

use std::rc::Rc;

use redwarfs_writer::ExtendedAttributes;

pub(crate) use self::header::{BLOCK, is_header};
use self::header::{Flavour, Header};
use self::pax::Records;
use crate::Accounts;
use crate::acl;
use crate::error::Fault;
use crate::member::{AttributeNames, Kind, Member, Members, Part};
use crate::stream::Stream;

/// Largest extended header or long name, in bytes.
const MOST_EXTENDED: u64 = 16 << 20;

/// The members of a tar archive.
pub(crate) struct Tar<'a> {
    input: Stream<'a>,
    accounts: Accounts,
    global: Rc<Records>,
    /// Of the data of the current member: where it is in the file, how much, and the part to read next.
    parts: Vec<(u64, u64)>,
    next_part: usize,
    /// Bytes of the part that were read.
    done: u64,
    /// Bytes of the current member in the archive that are still to come, without padding.
    left: u64,
    padding: u64,
    ended: bool,
    /// Whether the end of the archive is marked.
    marked: bool,
}

/// What precedes a header and belongs to it.
#[derive(Default)]
struct Extras {
    records: Option<Records>,
    long_path: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

impl<'a> Tar<'a> {
    pub(crate) fn new(input: Stream<'a>, accounts: &Accounts) -> Self {
        Self {
            input,
            accounts: accounts.clone(),
            global: Rc::default(),
            parts: Vec::new(),
            next_part: 0,
            done: 0,
            left: 0,
            padding: 0,
            ended: false,
            marked: false,
        }
    }

    /// The next block that is no end mark.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, Fault> {
        let mut block = [0; BLOCK];
        match self.input.peek(BLOCK)?.len() {
            // As tar does: an archive may end without a mark.
            0 => return Ok(None),
            BLOCK => self.input.read_exact(&mut block)?,
            _ => return Err(Fault::Truncated),
        }
        // One block of zeros ends the archive, too; other programs only warn if the second is missing.
        if block.iter().all(|&b| b == 0) {
            self.marked = true;
            return Ok(None);
        }
        Ok(Some(block))
    }

    /// The contents of a member that describes another one.
    fn extended(&mut self, header: &Header<'_>) -> Result<Vec<u8>, Fault> {
        let size = header.size()?;
        if size > MOST_EXTENDED {
            return Err(Fault::damaged(format!(
                "an extended header of {size} bytes is too large"
            )));
        }
        let bytes = self.input.read_vec(size as usize)?;
        self.input.skip(padding(size))?;
        Ok(bytes)
    }

    fn long_name(&mut self, header: &Header<'_>) -> Result<Vec<u8>, Fault> {
        let mut name = self.extended(header)?;
        let end = name.iter().position(|&b| b == 0);
        name.truncate(end.unwrap_or(name.len()));
        Ok(name)
    }

    fn member(&mut self, block: &[u8; BLOCK], extras: Extras) -> Result<Option<Member>, Fault> {
        let header = Header::new(block)?;
        let has_records = extras.records.is_some();
        let records = extras.records.unwrap_or_default().over(&self.global);
        let path = match records.get("GNU.sparse.name").or(records.get("path")) {
            Some(path) => path.to_vec(),
            None => extras.long_path.unwrap_or_else(|| header.path()),
        };
        let link = match records.get("linkpath") {
            Some(link) => link.to_vec(),
            None => extras.long_link.unwrap_or_else(|| header.link()),
        };
        let stored = match records.size("size")? {
            Some(size) => size,
            None => header.size()?,
        };
        let [atime, ctime] = header.other_times()?;
        let mut member = Member {
            permissions: header.mode()?,
            mtime: match records.time("mtime")? {
                Some(time) => time,
                None => header.mtime()?,
            },
            atime: records.time("atime")?.or(atime),
            ctime: records.time("ctime")?.or(ctime),
            extended: extended(&records, &self.accounts)?,
            ..Member::default()
        };
        // The group has the permissions of the mask, as the system shows it. Some programs write those of
        // the owning group instead.
        let mut xattrs = member.extended.xattrs().iter();
        let list = xattrs.find(|xattr| xattr.name == b"system.posix_acl_access");
        if let Some(bits) = list.and_then(|list| acl::permissions(&list.value)) {
            member.permissions = member.permissions & 0o7000 | bits;
        }
        for (to, value) in [
            (&mut member.uid, (records.number("uid")?, header.uid())),
            (&mut member.gid, (records.number("gid")?, header.gid())),
        ] {
            let value = match value {
                (Some(value), _) => value,
                (None, value) => value?,
            };
            match owner(value) {
                Some(id) => *to = id,
                None => member.refused = Some("its owner or group is out of range"),
            }
        }
        self.left = stored;
        let mut ends_as_directory = false;
        member.kind = match header.type_flag() {
            b'0' | 0 | b'7' => {
                ends_as_directory = path.ends_with(b"/");
                Kind::Regular
            }
            b'1' => {
                // Many programs repeat the size of the other entry here; only pax archives have data.
                if !has_records || header.flavour() == Flavour::Gnu {
                    self.left = 0;
                }
                Kind::HardLink(link)
            }
            b'2' => {
                self.left = 0;
                Kind::Symlink(link)
            }
            flag @ (b'3' | b'4') => {
                self.left = 0;
                let device = header.device()?;
                match flag {
                    b'3' => Kind::CharDevice(device),
                    _ => Kind::BlockDevice(device),
                }
            }
            // Old programs store a size with directories, without data.
            b'5' => {
                self.left = 0;
                Kind::Directory
            }
            // A directory with a list of its entries.
            b'D' => Kind::Directory,
            b'6' => {
                self.left = 0;
                Kind::Fifo
            }
            b'S' if header.flavour() != Flavour::Gnu => {
                return Err(Fault::unsupported(
                    "sparse files of star are not supported; write the archive with pax headers",
                ));
            }
            b'S' => Kind::Regular,
            b'M' => {
                return Err(Fault::unsupported(
                    "a part of an archive of several volumes; join the volumes first",
                ));
            }
            flag => {
                let shown = char::from(flag).escape_default();
                member.remark = Some(format!("unknown type '{shown}', stored as a regular file"));
                Kind::Regular
            }
        };
        if ends_as_directory {
            member.kind = Kind::Directory;
        }
        self.padding = padding(self.left);
        self.parts.clear();
        (self.next_part, self.done) = (0, 0);
        match member.kind {
            Kind::Regular => self.contents(&header, &records, &mut member)?,
            Kind::HardLink(_) if self.left > 0 => {
                member.size = Some(self.left);
                self.parts.push((0, self.left));
            }
            _ => {}
        }
        member.path = path;
        Ok(Some(member))
    }

    /// Where the data of a regular file lies.
    fn contents(
        &mut self,
        header: &Header<'_>,
        records: &Records,
        member: &mut Member,
    ) -> Result<(), Fault> {
        let stored = self.left;
        let real = |key| records.size(key);
        let (pairs, real) = if header.type_flag() == b'S' {
            let (mut pairs, mut more, real) = header.sparse()?;
            while more {
                let mut block = [0; BLOCK];
                self.input.read_exact(&mut block)?;
                pairs.extend(Header::pairs(&block, 0, 21)?);
                sparse::check_count(pairs.len())?;
                more = block[504] != 0;
            }
            (pairs, Some(real))
        } else if records.get("GNU.sparse.major") == Some(b"1") {
            let pairs = sparse::in_data(&mut self.input, &mut self.left)?;
            (pairs, real("GNU.sparse.realsize")?)
        } else if let Some(pairs) = records.map()? {
            let size = real("GNU.sparse.size")?;
            (pairs, size.or(real("GNU.sparse.realsize")?))
        } else {
            member.size = Some(stored);
            if stored > 0 {
                self.parts.push((0, stored));
            }
            return Ok(());
        };
        let real = real.ok_or_else(|| Fault::damaged("a sparse file has no size"))?;
        let map = sparse::check(&pairs, real, self.left)?;
        self.parts = map
            .iter()
            .map(|extent| (extent.offset, extent.size))
            .collect();
        member.size = Some(real);
        member.map = Some(map);
        Ok(())
    }
}

/// Owner or group. Negative numbers are those that the system shows as large ones.
fn owner(value: i128) -> Option<u32> {
    let negative = i32::try_from(value).map(i32::cast_unsigned);
    u32::try_from(value).or(negative).ok()
}

/// The extended attributes, birth time and flags among the records.
fn extended(records: &Records, accounts: &Accounts) -> Result<ExtendedAttributes, Fault> {
    let mut all = ExtendedAttributes::default();
    let mut names = AttributeNames::default();
    // libarchive writes both forms. The first has names that are encoded, and values in base 64; the
    // second has bytes.
    for (key, value) in records.under("LIBARCHIVE.xattr.") {
        let value = sparse::base64(value)
            .ok_or_else(|| Fault::damaged("an extended attribute is not in base 64"))?;
        names.set(&mut all, &sparse::percent(key), Some(&value));
    }
    for (key, value) in records.under("SCHILY.xattr.") {
        names.set(&mut all, key, Some(value));
    }
    if let Some(label) = records.get("RHT.security.selinux") {
        // The system keeps the NUL at its end.
        all.set(&b"security.selinux"[..], [label, b"\0"].concat());
    }
    for (key, name) in [
        ("SCHILY.acl.access", &b"system.posix_acl_access"[..]),
        ("SCHILY.acl.default", b"system.posix_acl_default"),
    ] {
        match records.get(key).map(|list| acl::binary(list, accounts)) {
            Some(Some(list)) => all.set(name, list),
            Some(None) => all.add_unreadable(name),
            None => {}
        }
    }
    if let Some(birth) = records.time("LIBARCHIVE.creationtime")? {
        all.set_birth(birth);
    }
    let flags = records.get("SCHILY.fflags").unwrap_or_default();
    let flags = flags.split(|&b| b == b',').map(flag);
    all.set_flags(flags.fold(0, |all, flag| all | flag));
    Ok(all)
}

/// A flag of a file, as Linux has it, by the names that other systems give to it.
fn flag(name: &[u8]) -> u32 {
    match name {
        b"schg" | b"schange" | b"simmutable" | b"immutable" => 0x10,
        b"sappnd" | b"sappend" | b"append" => 0x20,
        b"nodump" => 0x40,
        b"noatime" => 0x80,
        b"compress" => 0x4,
        b"sync" => 0x8,
        b"dirsync" => 0x1_0000,
        b"topdir" => 0x2_0000,
        b"nocow" => 0x80_0000,
        b"projinherit" => 0x2000_0000,
        _ => 0,
    }
}

impl Members for Tar<'_> {
    fn next(&mut self) -> Result<Option<Member>, Fault> {
        if self.ended {
            return Ok(None);
        }
        let start = self.input.position();
        let skipped = self.input.skip(self.left);
        // What is left then is missing.
        self.left = self.left.saturating_sub(self.input.position() - start);
        skipped?;
        // The padding of the last member may be missing.
        if self.padding > 0 && !self.input.peek(1)?.is_empty() {
            self.input.skip(self.padding)?;
        }
        self.padding = 0;
        let mut extras = Extras::default();
        loop {
            let Some(block) = self.block()? else {
                self.ended = true;
                return Ok(None);
            };
            let header = Header::new(&block)?;
            match header.type_flag() {
                b'g' => {
                    let bytes = self.extended(&header)?;
                    let mut records = Records::default();
                    records.add(&bytes)?;
                    Rc::make_mut(&mut self.global).update(records);
                    if self.global.len() as u64 > MOST_EXTENDED {
                        return Err(Fault::damaged("the global headers are too large"));
                    }
                }
                b'x' | b'X' => {
                    let bytes = self.extended(&header)?;
                    let records = extras.records.get_or_insert_default();
                    records.add(&bytes)?;
                    if records.len() as u64 > MOST_EXTENDED {
                        return Err(Fault::damaged(
                            "the extended headers of an entry are too large",
                        ));
                    }
                }
                b'L' => extras.long_path = Some(self.long_name(&header)?),
                b'K' => extras.long_link = Some(self.long_name(&header)?),
                // A label, ACLs of Solaris, and inode metadata of star: no entry.
                b'V' | b'A' | b'I' => {
                    let size = header.size()?;
                    self.input.skip(size)?;
                    self.input.skip(padding(size))?;
                }
                _ => return self.member(&block, extras),
            }
        }
    }

    fn data(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>, Fault> {
        let Some(&(offset, size)) = self.parts.get(self.next_part) else {
            return Ok(None);
        };
        let wanted = (size - self.done).min(buf.len() as u64) as usize;
        let got = self.input.read(buf.get_mut(..wanted).unwrap_or_default())?;
        if got == 0 {
            return Err(Fault::Truncated);
        }
        let at = offset + self.done;
        self.done += got as u64;
        self.left -= got as u64;
        if self.done == size {
            self.next_part += 1;
            self.done = 0;
        }
        Ok(Some((at, got)))
    }

    fn in_place(&self) -> Option<Vec<Part>> {
        if !self.input.is_plain() {
            return None;
        }
        let mut at = self.input.position();
        let parts = self.parts.iter().map(|&(offset, size)| {
            let part = Part { offset, size, at };
            at += size;
            part
        });
        Some(parts.collect())
    }

    fn finish(&mut self) -> Result<u64, Fault> {
        self.input.drain()
    }

    fn is_marked(&self) -> bool {
        self.marked
    }

    fn position(&self) -> u64 {
        self.input.position()
    }

    fn left(&self) -> u64 {
        self.left
    }
}
