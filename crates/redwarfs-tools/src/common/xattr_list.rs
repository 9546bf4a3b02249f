//! Lists of extended attributes on command lines: `all`, `none`, `user`, and patterns of names.

use redwarfs_writer::XattrFilter;

use super::glob::Glob;

/// The value of `--xattrs`.
///
/// # Errors
/// An empty or bad pattern.
pub(crate) fn xattr_list(text: &str) -> Result<XattrFilter, String> {
    match text {
        "none" => return Ok(XattrFilter::none()),
        "all" => return Ok(XattrFilter::all()),
        _ => {}
    }
    let (mut included, mut excluded) = (Vec::new(), Vec::new());
    for pattern in text.split(',') {
        let (list, pattern) = match pattern.strip_prefix('!') {
            Some(pattern) => (&mut excluded, pattern),
            None => (&mut included, pattern),
        };
        let pattern = match pattern {
            "" => return Err(format!("empty pattern in '{text}'")),
            "none" => return Err("'none' stands alone".to_owned()),
            "all" => "**",
            "user" => "user.**",
            pattern => pattern,
        };
        list.push(Glob::new(pattern.as_bytes(), false).map_err(|e| e.to_string())?);
    }
    Ok(XattrFilter::new(move |name| {
        let any = |list: &[Glob]| list.iter().any(|glob| glob.matches(name));
        (included.is_empty() || any(&included)) && !any(&excluded)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_selected() {
        let keeps = |list: &str, name: &str| xattr_list(list).unwrap().keeps(name.as_bytes());
        for (list, name, kept) in [
            ("all", "security.selinux", true),
            ("none", "user.a", false),
            ("user", "user.a/b", true),
            ("user", "trusted.a", false),
            ("user,security.capability", "security.capability", true),
            ("!security.selinux", "security.selinux", false),
            ("!security.selinux", "user.a", true),
            ("all,!user", "user.a", false),
            ("all,!user", "trusted.a", true),
            ("*.[ab]*,!*.ab", "user.ac", true),
            ("*.[ab]*,!*.ab", "user.ab", false),
            ("system.posix_acl_*", "system.posix_acl_default", true),
            ("all", "user.dwarfs.driver.pid", false),
            ("user.dwarfs.*", "user.dwarfs.driver.pid", false),
        ] {
            assert_eq!(keeps(list, name), kept, "{list} {name}");
        }
        for bad in ["", "user,", "user,none", "[", "!"] {
            assert!(xattr_list(bad).is_err(), "{bad}");
        }
    }
}
