//! Rules pages: what the pages about rules share.

use std::sync::Arc;

use super::shell::Shell;
use crate::rules_host::RulesHost;

/// Shared state of the rules' pages.
#[derive(Debug)]
pub struct RulesPages {
    /// The frame of the pages.
    pub shell: Arc<Shell>,
    /// The process that has the rules.
    pub host: Arc<dyn RulesHost>,
}
