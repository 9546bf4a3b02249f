//! Programs in front of images.

/// An ELF file of 64 bits for x86-64 with sections of these names, offsets and sizes. It ends with the table of
/// sections, and its first 64 bytes are the header.
#[must_use]
pub fn elf(sections: &[(&str, u64, u64)]) -> Vec<u8> {
    elf_with(sections, &[])
}

/// The same, with `contents` between the header and the names of the sections: from byte 64 on.
#[must_use]
pub fn elf_with(sections: &[(&str, u64, u64)], contents: &[u8]) -> Vec<u8> {
    let mut names = vec![0];
    let mut table = vec![0; 64];
    let mut entry = |name: u64, offset: u64, size: u64| {
        let mut entry = [0; 64];
        entry[..8].copy_from_slice(&name.to_le_bytes());
        entry[24..32].copy_from_slice(&offset.to_le_bytes());
        entry[32..40].copy_from_slice(&size.to_le_bytes());
        table.extend(entry);
    };
    for (name, offset, size) in sections {
        entry(names.len() as u64, *offset, *size);
        names.extend(name.as_bytes());
        names.push(0);
    }
    let at = 64 + contents.len() as u64;
    entry(0, at, names.len() as u64);
    let mut file = vec![0; 64];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[16..20].copy_from_slice(&[2, 0, 62, 0]);
    file[40..48].copy_from_slice(&(at + names.len() as u64).to_le_bytes());
    let count = sections.len() as u8 + 2;
    file[58..64].copy_from_slice(&[64, 0, count, 0, count - 1, 0]);
    file.extend(contents);
    file.extend(&names);
    file.extend(&table);
    file
}
