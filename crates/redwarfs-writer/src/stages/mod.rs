//! The stages of a build. The front page of the crate lists them in their order.

pub(crate) mod categorize;
pub(crate) mod compress;
pub(crate) mod digest;
pub mod emit;
pub(crate) mod hash;
pub(crate) mod order;
pub(crate) mod segment;
pub(crate) mod tree;
