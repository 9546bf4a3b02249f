//! Generates manual pages and completions.
fn main() {}
