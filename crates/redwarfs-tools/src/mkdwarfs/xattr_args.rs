//! Options of extended attributes, birth times and file flags.

use clap::{ArgAction, Args};
use redwarfs_rewrite::Rebuild;
use redwarfs_writer::{BuildOptions, DirectorySource, Xattr, XattrFilter, can_be_stored};

use super::definition::Definition as _;
use super::definition::WhenRewriting::{NeedsRebuild, NeedsSource, NeedsTree};
use crate::common::cli::whole;
use crate::common::xattr_list::xattr_list;

/// What only this program reads and writes, and other readers of images ignore.
#[derive(Debug, Clone, Args)]
pub(crate) struct XattrArgs {
    /// Extended attributes to store: all, user, none, or a list of patterns
    ///
    /// 'user' stands for 'user.*'. An attribute is stored if a pattern matches its name and none with a
    /// leading '!' does: --xattrs='user.*,security.*,!*.ima'. With patterns of the second kind only, all
    /// others are stored. Access control lists are 'system.posix_acl_access' and
    /// 'system.posix_acl_default', capabilities 'security.capability'.
    #[arg(long, value_name = "LIST", default_value = "all", help_heading = "Metadata options", value_parser = whole(xattr_list), when_rewriting = NeedsRebuild)]
    pub xattrs: XattrFilter,

    /// Give each entry this extended attribute; names in 'user' go to files and directories only
    ///
    /// A value that begins with 0x is hexadecimal, and one that begins with 0s is in base64.
    #[arg(long, value_name = "NAME=VALUE", action = ArgAction::Append, help_heading = "Metadata options", value_parser = whole(xattr), when_rewriting = NeedsTree)]
    pub set_xattr: Vec<Xattr>,

    /// Store birth times too
    #[arg(long, help_heading = "Metadata options", when_rewriting = NeedsSource)]
    pub keep_btime: bool,

    /// Store file flags, such as immutable, append only or no dump (see lsattr(1))
    #[arg(long, help_heading = "Metadata options", when_rewriting = NeedsSource)]
    pub file_flags: bool,

    /// Write nothing that the original implementation does not know
    ///
    /// The image has no extended attributes, birth times and file flags.
    #[arg(long, help_heading = "Metadata options", conflicts_with_all = ["set_xattr", "keep_btime", "file_flags"], when_rewriting = NeedsRebuild)]
    pub canonical: bool,
}

impl XattrArgs {
    fn chosen(&self) -> XattrFilter {
        match self.canonical {
            true => XattrFilter::none(),
            false => self.xattrs.clone(),
        }
    }

    /// Has a directory read what is stored.
    pub(super) fn read(&self, mut source: DirectorySource) -> DirectorySource {
        source = source.with_xattrs(self.chosen());
        if self.keep_btime {
            source = source.with_birth_times();
        }
        if self.file_flags {
            source = source.with_file_flags();
        }
        source
    }

    /// Puts the values into the options of a build.
    pub(super) fn apply(&self, options: &mut BuildOptions) {
        options.xattrs = self.chosen();
        options.set_xattrs.clone_from(&self.set_xattr);
        options.keep_birth_times = self.keep_btime;
        options.file_flags = self.file_flags;
    }

    /// Puts the values into the options of a rewrite.
    pub(super) fn apply_to_rewrite(&self, rebuild: &mut Rebuild) {
        rebuild.extensions = !self.canonical;
        rebuild.xattrs = self.chosen();
    }
}

/// A name and a value, in the notations of setfattr(1).
pub(super) fn xattr(text: &str) -> Result<Xattr, String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("'{text}' has no '='"))?;
    if name.is_empty() || name.len() > 255 || !name.contains('.') {
        return Err(format!("'{name}' is no name of an extended attribute"));
    }
    if !can_be_stored(name.as_bytes()) {
        return Err(format!("an image cannot hold '{name}'"));
    }
    let value = value_of(value)?;
    if value.len() > 64 << 10 {
        return Err("a value has at most 64 KiB".to_owned());
    }
    Ok(Xattr {
        name: name.as_bytes().to_vec(),
        value,
    })
}

fn value_of(text: &str) -> Result<Vec<u8>, String> {
    let bad = || format!("bad value '{text}'");
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let digits = digits.as_bytes();
        if digits.len() % 2 != 0 {
            return Err(bad());
        }
        let digit = |b: u8| char::from(b).to_digit(16).ok_or_else(bad);
        let byte = |pair: &[u8]| match pair {
            &[high, low] => Ok((digit(high)? << 4 | digit(low)?) as u8),
            _ => Err(bad()),
        };
        return digits.chunks(2).map(byte).collect();
    }
    if let Some(text) = text.strip_prefix("0s").or_else(|| text.strip_prefix("0S")) {
        return from_base64(text).ok_or_else(bad);
    }
    Ok(text.as_bytes().to_vec())
}

/// Bytes in base64 (RFC 4648), with or without padding.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut bits = 0u32;
        for &letter in group {
            let digit = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(digit);
        }
        let all = (bits << (6 * (4 - group.len()))).to_be_bytes();
        let count = match group.len() {
            1 => return None,
            letters => letters - 1,
        };
        bytes.extend(all.iter().skip(1).take(count));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::json::base64;

    #[test]
    fn values_are_read_as_setfattr_does() {
        let value = |text: &str| xattr(text).map(|xattr| xattr.value);
        assert_eq!(value("user.a=b=c").unwrap(), b"b=c");
        assert_eq!(value("user.a=").unwrap(), b"");
        assert_eq!(value("user.a=0x00fF").unwrap(), [0, 255]);
        for length in 0..20u8 {
            let bytes: Vec<u8> = (0..length).map(|i| i.wrapping_mul(77)).collect();
            let text = format!("user.a=0s{}", base64(&bytes));
            assert_eq!(value(&text).unwrap(), bytes);
        }
        for bad in [
            "user.a",
            "=x",
            "a=x",
            "user.a=0x123",
            "user.a=0xgg",
            "user.a=0sA",
            "user.a=0s!!!!",
            "user.dwarfs.a=1",
            "system.b=1",
        ] {
            assert!(value(bad).is_err(), "{bad}");
        }
    }
}
