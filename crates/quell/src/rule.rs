//! Rules as values: which queries a limit applies to, and which of them share a key.
//!
//! ```
//! use quell::rule::{DomainRules, Per, Rule};
//! use quell::store::memory::MemoryStore;
//! use quell::{Limit, Limiter, Query};
//!
//! let logins = Rule::new("login-per-ip", Limit::per_minute(5))?
//!     .matching("method", &["POST"])
//!     .matching("path", &["/login", "/signup"])
//!     .per(Per::address("remote_address"));
//! let limiter = Limiter::new(MemoryStore::new());
//! limiter.set_rules(vec![DomainRules::new("shop", vec![logins])])?;
//!
//! let login = Query::new("shop")
//!     .entry("method", "POST")
//!     .entry("path", "/login")
//!     .entry("remote_address", "10.0.0.1");
//! let verdict = limiter.try_acquire_local(&login)?;
//! assert_eq!(verdict.remaining, Some(4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate `quell-rules` reads them from a file.

pub use quell_core::fleet_share::{CutOff, FleetSize, SharesPolicy};
pub use quell_core::on_failure::OnFailure;
pub use quell_core::over_admission::{LeasePolicy, OverAdmission};
pub use quell_core::policy::{Policy, Rung};
pub use quell_core::refusal_page::{
    MAX_CONTENT_TYPE, MAX_PAGE_BODY, PLAIN_TEXT, PageBody, PageError, RefusalPage,
};
pub use quell_core::rule::{
    ActiveRule, DescriptorReader, DomainRules, Effect, EmptyValue, Matcher, Mismatch, OnMissing,
    Override, Pattern, Patterns, Per, Plans, Prefix, REMEMBERED, Rule, RuleSet, StoredEffect, When,
};
