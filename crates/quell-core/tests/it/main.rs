//! Integration tests of the core.
