//! FSST.
