//! The limiters without rules.
