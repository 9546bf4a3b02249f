//! Names of users and groups.

/// Parses a user: a number of 32 bits or a name known to the system.
///
/// # Errors
/// Text for the user when the number is out of range or the name unknown.
pub fn parse_user(text: &str) -> Result<u32, String> {
    parse_id(text, "user", super::os::user_id)
}

/// Parses a group: a number of 32 bits or a name known to the system.
///
/// # Errors
/// Text for the user when the number is out of range or the name unknown.
pub fn parse_group(text: &str) -> Result<u32, String> {
    parse_id(text, "group", super::os::group_id)
}

fn parse_id(text: &str, kind: &str, lookup: fn(&str) -> Option<u32>) -> Result<u32, String> {
    if text.is_empty() {
        return Err(format!("empty {kind} name"));
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text
            .parse()
            .map_err(|_| format!("{kind} id out of range [0..4294967295]"));
    }
    lookup(text).ok_or_else(|| format!("unknown {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        assert_eq!(parse_user("0"), Ok(0));
        assert_eq!(parse_user("4294967295"), Ok(u32::MAX));
        if cfg!(unix) {
            assert_eq!(parse_user("root"), Ok(0));
            assert_eq!(parse_group("root"), Ok(0));
        }
        for bad in ["-1", "4294967296", "", "no-such-user-here", "1x"] {
            assert!(parse_user(bad).is_err(), "{bad}");
            assert!(parse_group(bad).is_err(), "{bad}");
        }
    }
}
