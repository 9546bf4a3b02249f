//! Looks for names in a tar archive that lead out of where it is unpacked.

const BLOCK: usize = 512;

/// The first member name or hard link target of a pax archive that is absolute or has `..` in
/// it. Also a name of which the archive is cut off is looked at.
pub(super) fn bad_member(archive: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    while let Some(header) = archive.get(at..at + BLOCK) {
        if header.iter().all(|b| *b == 0) {
            break;
        }
        let kind = header[156];
        let size = number(&header[124..136]);
        let body = at + BLOCK;
        let end = usize::try_from(size)
            .ok()
            .and_then(|size| body.checked_add(size));
        let content = end
            .and_then(|end| archive.get(body..end))
            .unwrap_or_default();
        let mut names = vec![
            [text(&header[345..500]), text(&header[..100])].concat(),
            text(&header[..100]).to_vec(),
        ];
        // The target of a hard link; those of symbolic links may be anything.
        if kind == b'1' {
            names.push(text(&header[157..257]).to_vec());
        }
        if kind == b'x' {
            names.extend(records(content));
        }
        if let Some(bad) = names.into_iter().find(|name| leads_out(name)) {
            return Some(bad);
        }
        let padded = usize::try_from(size)
            .ok()?
            .checked_next_multiple_of(BLOCK)?;
        at = body.checked_add(padded)?;
    }
    None
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

/// An octal number, or a binary one if its first bit is set.
fn number(field: &[u8]) -> u64 {
    if field[0] & 0x80 != 0 {
        return field[4..]
            .iter()
            .fold(0, |value, b| value << 8 | u64::from(*b));
    }
    field
        .iter()
        .filter(|b| (b'0'..=b'7').contains(b))
        .fold(0, |value, b| value * 8 + u64::from(*b - b'0'))
}

/// Values of the records that name a member. Link targets are left out: it is not known here
/// whether the link is symbolic.
fn records(mut content: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while let Some(space) = content.iter().position(|b| *b == b' ') {
        let length = content[..space].iter().fold(0usize, |value, b| {
            value * 10 + usize::from(b.wrapping_sub(b'0'))
        });
        let Some(record) = content.get(space + 1..length.saturating_sub(1)) else {
            break;
        };
        for key in [&b"path="[..], b"GNU.sparse.name="] {
            if let Some(value) = record.strip_prefix(key) {
                out.push(value.to_vec());
            }
        }
        content = &content[length..];
    }
    out
}

fn leads_out(name: &[u8]) -> bool {
    name.starts_with(b"/") || name.split(|b| *b == b'/').any(|part| part == b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &[u8], kind: u8, body: &[u8]) -> Vec<u8> {
        let mut header = vec![0; BLOCK];
        header[..name.len()].copy_from_slice(name);
        header[124..135].copy_from_slice(format!("{:011o}", body.len()).as_bytes());
        header[156] = kind;
        header.extend(body);
        header.resize(header.len().next_multiple_of(BLOCK), 0);
        header
    }

    #[test]
    fn names_that_lead_out_are_found() {
        let good = [member(b"./a/b", b'0', &[1; 700]), member(b"..c", b'0', &[])].concat();
        assert_eq!(bad_member(&good), None);
        for bad in [&b"/x"[..], b"a/../b", b".."] {
            let archive = [good.clone(), member(bad, b'0', &[])].concat();
            assert_eq!(bad_member(&archive), Some(bad.to_vec()));
        }
        let pax = member(b"./PaxHeaders/x", b'x', b"11 mtime=1\n15 path=a/../b\n");
        let archive = [good, pax].concat();
        assert_eq!(bad_member(&archive), Some(b"a/../b".to_vec()));
    }
}
