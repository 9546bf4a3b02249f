//! The version of this build.

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
