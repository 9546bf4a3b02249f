//! Room in the program's file for what tools for AppImages put there, in sections of the names and sizes that they
//! expect.
#![allow(unsafe_code)]

/// Name of the section with update information.
pub(crate) const UPDATE_INFORMATION: &str = ".upd_info";
/// Name of the section with a signature.
pub(crate) const SIGNATURE: &str = ".sha256_sig";

// SAFETY: it is plain data, and the section has nothing else in it.
#[used]
#[unsafe(link_section = ".upd_info")]
static UPDATE_ROOM: [u8; 1024] = [0; 1024];
// SAFETY: it is plain data, and the section has nothing else in it.
#[used]
#[unsafe(link_section = ".sha256_sig")]
static SIGNATURE_ROOM: [u8; 1024] = [0; 1024];
// SAFETY: it is plain data, and the section has nothing else in it.
#[used]
#[unsafe(link_section = ".sig_key")]
static KEY_ROOM: [u8; 8192] = [0; 8192];
