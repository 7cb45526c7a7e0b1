//! Repository checks and chores.

fn main() {}
