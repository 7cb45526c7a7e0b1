//! The frame of a console, for processes that are no server: a coordinator of a fleet has one. Its pages are
//! made elsewhere; login, sessions, the guard against other sites' pages, assets and streams are these.

pub use crate::candidate::{About, CandidateNodes, CandidateStatus, Counts};
pub use crate::history::file::{read as read_history, write as write_history};
pub use crate::history::{Change, Numbers, Point, Series, Span};
pub use crate::http::console::candidate::candidate_now;
pub use crate::http::console::host::Ingress;
pub use crate::http::console::overview::{FleetCalls, Key};
pub use crate::http::console::page::{
    CONNECTION, CallForm, Done, Fields, Menu, PageError, PageResult, Viewer, or_why,
};
pub use crate::http::console::shell::{Shell, Watcher, chart_event, event, events};
pub use crate::http::rules_host::{RulesHost, RulesPlace};
pub use crate::http::top::{KeyBody, between};
pub use crate::shell_word::quoted;
