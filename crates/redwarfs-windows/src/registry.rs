//! Settings that installers leave in the registry.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::windows::ffi::OsStringExt;
use std::ptr;

use windows_sys::Win32::Foundation::{ERROR_MORE_DATA, ERROR_SUCCESS};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};

/// A text of the whole machine.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if there is no such key or value; otherwise the error of the system, for
/// example because the value is no text.
pub fn machine_text(key: &str, value: &str) -> io::Result<OsString> {
    let with_nul = |text: &str| text.encode_utf16().chain([0]).collect::<Vec<u16>>();
    let (key, value) = (with_nul(key), with_nul(value));
    let mut text = vec![0_u16; 260];
    loop {
        let mut size = u32::try_from(2 * text.len()).unwrap_or(u32::MAX);
        // SAFETY: both names end with NUL, the buffer has the given size in bytes, and the call does not
        // ask for the type of the value. It ends the text with NUL.
        let status = unsafe {
            RegGetValueW(
                HKEY_LOCAL_MACHINE,
                key.as_ptr(),
                value.as_ptr(),
                RRF_RT_REG_SZ,
                ptr::null_mut(),
                text.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        match status {
            ERROR_SUCCESS => {
                let length = text.iter().position(|&unit| unit == 0);
                let text = text.get(..length.unwrap_or(text.len()));
                return Ok(OsString::from_wide(text.unwrap_or_default()));
            }
            ERROR_MORE_DATA if size as usize > 2 * text.len() => {
                text.resize((size as usize).div_ceil(2), 0);
            }
            error => return Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_system() {
        let key = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion";
        assert!(!machine_text(key, "CurrentVersion").unwrap().is_empty());
        for (key, value) in [(key, "no such value"), (r"SOFTWARE\no such key", "x")] {
            let error = machine_text(key, value).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        }
    }
}
