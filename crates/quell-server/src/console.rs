//! The frame of a console, for processes that are no server: a coordinator of a fleet has one. Its pages are
//! made elsewhere; login, sessions, the guard against other sites' pages, assets and streams are these.

pub use crate::candidate::{About, CandidateNodes, CandidateStatus, Counts};
pub use crate::history::Change;
pub use crate::http::console::candidate::candidate_now;
pub use crate::http::console::host::People;
pub use crate::http::console::page::{Fields, Menu, PageError, PageResult};
pub use crate::http::console::rules::{RulesHost, RulesPlace};
pub use crate::http::console::shell::{Shell, Watcher, event, events};
pub use crate::http::top::KeyBody;
pub use crate::shell_word::quoted;
