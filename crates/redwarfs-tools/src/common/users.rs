//! Names of users and groups.
#![allow(unsafe_code)]

use std::ffi::CString;

/// Parses a user: a number of 32 bits or a name known to the system.
///
/// # Errors
/// Text for the user when the number is out of range or the name unknown.
pub fn parse_user(text: &str) -> Result<u32, String> {
    parse_id(text, "user", user_id)
}

/// Parses a group: a number of 32 bits or a name known to the system.
///
/// # Errors
/// Text for the user when the number is out of range or the name unknown.
pub fn parse_group(text: &str) -> Result<u32, String> {
    parse_id(text, "group", group_id)
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

/// Upper bound for the buffer of one database entry; groups with very many members are large.
const MAX_ENTRY: usize = 1 << 20;

fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    with_buffer(|buffer| {
        let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: every pointer is valid for the call and the length is that of the buffer.
        let rc = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            )
        };
        if rc == 0 && !found.is_null() {
            // SAFETY: `found` points to `entry`, which the call has filled.
            return (rc, Some(unsafe { (*found).pw_uid }));
        }
        (rc, None)
    })
}

fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    with_buffer(|buffer| {
        let mut entry = std::mem::MaybeUninit::<libc::group>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: every pointer is valid for the call and the length is that of the buffer.
        let rc = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            )
        };
        if rc == 0 && !found.is_null() {
            // SAFETY: `found` points to `entry`, which the call has filled.
            return (rc, Some(unsafe { (*found).gr_gid }));
        }
        (rc, None)
    })
}

fn with_buffer(mut call: impl FnMut(&mut [libc::c_char]) -> (i32, Option<u32>)) -> Option<u32> {
    let mut size = 1024;
    loop {
        let (rc, id) = call(&mut vec![0; size]);
        if rc != libc::ERANGE || size >= MAX_ENTRY {
            return id;
        }
        size *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        assert_eq!(parse_user("0"), Ok(0));
        assert_eq!(parse_user("4294967295"), Ok(u32::MAX));
        assert_eq!(parse_user("root"), Ok(0));
        assert_eq!(parse_group("root"), Ok(0));
        for bad in ["-1", "4294967296", "", "no-such-user-here", "1x"] {
            assert!(parse_user(bad).is_err(), "{bad}");
            assert!(parse_group(bad).is_err(), "{bad}");
        }
    }
}
