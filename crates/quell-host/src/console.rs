//! Console: the frame of pages for people, and the pages about rules, which servers and coordinators have
//! alike.
//!
//! A page asks for what a route of `/v1` asks for, through the same functions, and has the same roles. A
//! person logs in with a password and gets a signed cookie (`session`); a token or a certificate counts as
//! everywhere. Pages work without scripts; with them, streams send what changes. What strangers wrote is
//! escaped by the templates.

mod assets;
pub mod candidate;
pub mod host;
pub mod key_table;
pub mod mount;
pub mod page;
pub mod rule_pages;
pub mod session;
pub mod shell;
mod sign_in;
