//! The quell command.

fn main() {}
