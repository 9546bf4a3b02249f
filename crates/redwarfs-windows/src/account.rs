//! Accounts of users.
#![allow(unsafe_code)]

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr;

use windows_sys::Win32::Security::{
    GetLengthSid, GetTokenInformation, IsValidSid, TOKEN_QUERY, TOKEN_USER, TokenUser,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// The security identifier of the account that runs this process, as in security descriptors.
///
/// # Errors
/// The error of the system.
pub fn of_this_process() -> io::Result<Vec<u8>> {
    let mut token = ptr::null_mut();
    // SAFETY: the handle of the own process is a constant; the call stores a handle.
    if unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has opened the handle, which has no other owner.
    let token = unsafe { OwnedHandle::from_raw_handle(token) };
    // The structure and the longest identifier fit. Of numbers, so that the structure is aligned.
    let mut buffer = [0_u64; 32];
    let mut size = 0;
    // SAFETY: the token is open, and the buffer has the given size.
    let done = unsafe {
        GetTokenInformation(
            token.as_raw_handle(),
            TokenUser,
            buffer.as_mut_ptr().cast(),
            size_of_val(&buffer) as u32,
            &raw mut size,
        )
    };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has stored this structure, whose identifier is in the buffer, too. Its length is
    // asked for only if it is valid.
    unsafe {
        let sid = (*buffer.as_ptr().cast::<TOKEN_USER>()).User.Sid;
        if IsValidSid(sid) == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let length = GetLengthSid(sid) as usize;
        Ok(std::slice::from_raw_parts(sid.cast::<u8>(), length).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_an_account() {
        let sid = of_this_process().unwrap();
        assert_eq!(sid[0], 1);
        assert_eq!(sid.len(), 8 + 4 * usize::from(sid[1]));
    }
}
