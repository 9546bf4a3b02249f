//! The name and the exit codes of the tool.

use crate::common::error::EXIT_FAILURE;

/// Name of the tool in its messages.
pub(super) const TOOL: &str = "dwarfs";
/// No image was named.
pub(super) const EXIT_NO_IMAGE: u8 = EXIT_FAILURE;
/// The FUSE connection could not be set up, or an option is unknown.
pub(super) const EXIT_SETUP: u8 = 3;
/// The mount was refused.
pub(super) const EXIT_MOUNT: u8 = 4;
/// The driver could not go to the background.
#[cfg(unix)]
pub(super) const EXIT_BACKGROUND: u8 = 5;
/// Signal handlers could not be installed.
pub(super) const EXIT_SIGNALS: u8 = 6;
/// The connection to the kernel failed while mounted.
pub(super) const EXIT_LOOP: u8 = 7;
